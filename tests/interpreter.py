"""Triton's interpreter, without the work that it repeats."""


def patch_language_once_per_launch() -> None:
    """Before each call of a device function the interpreter replaces the functions of `triton.language` by its own.

    They have been replaced since the launch or an earlier call, and finding that out takes as long as the kernels' own
    work. Here each module is patched once per launch.

    To be called after TRITON_INTERPRET has been set, with which Triton has to be imported.
    """
    from triton.runtime import interpreter

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
