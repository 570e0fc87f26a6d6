"""Triton's interpreter, without work that changes no result; it takes a third of the time."""

import dataclasses


def speed_up_interpreter() -> None:
    """Leave out what the interpreter does twice, or drops.

    Before each call of a device function it replaces the functions of `triton.language` by its own, though they have
    been replaced since the launch or an earlier call: here each module is patched once per launch. Each sum, difference
    and product of integers it computes again in 64 bits, for an assertion that it makes in debug mode only.

    To be called after TRITON_INTERPRET has been set, with which Triton has to be imported.
    """
    from triton.runtime import interpreter

    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=options.debug)
    patch_language, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched = set()

    def patch_language_once(function):
        modules = frozenset(
            module
            for module in function.__globals__.values()
            if module is interpreter.tl or module is interpreter.tl.core
        )
        if modules in patched:
            return None
        patched.add(modules)
        return patch_language(function)

    def launch_afresh(executor, *args, **kwargs):
        patched.clear()
        return launch(executor, *args, **kwargs)

    interpreter._patch_lang = patch_language_once
    interpreter.GridExecutor.__call__ = launch_afresh
