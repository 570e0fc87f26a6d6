"""Functions compiled to machine code by numba at their first call."""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from maskjet.host import cache

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

# One function is compiled at a time, as in numba itself. Forks wait, so that no child inherits a lock held by another
# thread.
_compiling = threading.RLock()
os.register_at_fork(before=_compiling.acquire, after_in_parent=_compiling.release, after_in_child=_compiling.release)


_made: list[Compiled[Any, Any]] = []


def compiled(signature: Any) -> Callable[[Callable[_Given, _Result]], Compiled[_Given, _Result]]:
    """Compile a function for one signature at its first call; later processes read the machine code from the cache.

    It runs without the GIL, and may call other such functions, which are compiled with it. The code is kept in
    `cache.folder()`; where that can't be written, every process compiles anew. It is read again while numba's version,
    the processor and the sources of the function and of all compiled functions that it calls are the same.

    Args:
        signature: Types of result and arguments, numba's or in its notation. `Array(uint8, 2, 'A', True)` is a
            read-only array of any layout; with 'C' instead of 'A', a contiguous one.

    Returns:
        A decorator.
    """
    return lambda function: Compiled(function, signature)


def compile_all() -> None:
    """Compile all functions of the modules that are imported, or read them from the cache."""
    for function in _made:
        function.compile()


class Compiled(Generic[_Given, _Result]):
    """A function compiled, or loaded from the cache, at its first call in any thread."""

    def __init__(self, function: Callable[_Given, _Result], signature: Any) -> None:
        functools.update_wrapper(self, function)
        self.py_func, self._signature, self._is_compiled = function, signature, False
        self._call: Callable[_Given, _Result] = self._call_first
        _made.append(self)

    def __call__(self, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        """Call the compiled function."""
        return self._call(*args, **kwargs)

    def _call_first(self, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        self.compile()
        return self._call(*args, **kwargs)

    @property
    def _numba_type_(self) -> Any:
        """Numba type of this function, used when another compiled function calls it; compiles it."""
        self.compile()
        return self._call._numba_type_  # type: ignore[attr-defined]

    def compile(self) -> None:
        """Compile the function for its signature, or load it from the cache, unless done before."""
        with _compiling:
            if self._is_compiled:
                return
            import numba  # importing takes half a second

            dispatcher: Any = numba.njit(nogil=True, error_model="numpy")(self.py_func)
            dispatcher._cache = _Cache(self)
            with cache.telling():
                dispatcher.compile(self._signature)
            dispatcher.disable_compile()  # other argument types are errors, not recompiled
            self._call, self._is_compiled = dispatcher, True

    def sources(self) -> bytes:
        """Sources of this function and of all compiled functions that it may call."""
        files: set[str] = set()
        left: list[Callable[..., Any]] = [self.py_func]
        while left:
            function = left.pop()
            if (file := function.__code__.co_filename) not in files:
                files.add(file)
                given = function.__globals__.values()
                left += [each.py_func for each in given if isinstance(each, Compiled | Inlined)]
        return b"".join(sorted(Path(file).read_bytes() for file in files))


class _Cache:
    """Cache of a compiled function; numba's own fails on damaged files, and looks at one source alone."""

    def __init__(self, function: Compiled[Any, Any]) -> None:
        self._function = function

    def load_overload(self, _signature: Any, target: Any) -> Any:
        """Load the function's code; None if there is none for these sources, versions and processor."""
        from numba.core.compiler import CompileResult

        target.refresh()
        try:
            content = self._path(target.codegen()).read_bytes()
            return CompileResult._rebuild(target, *pickle.loads(content))  # type: ignore[no-untyped-call]
        except Exception:  # missing, unreadable or damaged: compile again
            return None

    def save_overload(self, _signature: Any, result: Any) -> None:
        """Save the function's code if possible."""
        from numba.core.serialize import dumps

        with suppress(OSError, TypeError):
            path = self._path(result.codegen)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{path.name}.{os.getpid()}")
            partial.write_bytes(dumps(result._reduce()))  # type: ignore[no-untyped-call]
            partial.replace(path)

    def _path(self, codegen: Any) -> Path:
        import numba

        folder = cache.folder()
        if folder is None:
            raise FileNotFoundError
        processor = codegen.magic_tuple()
        key = (
            f"{sys.version_info[:2]} {numba.__version__} {np.__version__} {processor}".encode()
            + self._function.sources()
        )
        name = f"{self._function.__module__}.{self._function.py_func.__name__}"
        return folder / "numba" / f"{name}-{hashlib.sha256(key).hexdigest()[:16]}"


class Inlined(Generic[_Given, _Result]):
    """A function that numba inlines into compiled callers; numba recognises it by its attributes."""

    targetoptions = {"inline": "always"}  # noqa: RUF012 (numba's name)

    def __init__(self, function: Callable[_Given, _Result]) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function

    @property
    def _numba_type_(self) -> Any:
        import numba

        return numba.types.none  # type of the name, unused once inlined

    def __call__(self, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        """Call the uncompiled Python function."""
        return self.py_func(*args, **kwargs)
