"""Functions compiled to machine code by numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

types: Any = numba.types
"""Types of arguments, which themselves have none."""
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(signature: Any) -> Callable[[_Function], _Function]:
    """Compile a function when its module is imported, so that no frame waits for it.

    It runs without the GIL. The machine code is cached next to the module or, where that can't be written, in the
    user's cache directory; where neither can be, as in a read-only container, every process compiles anew. numba does
    not notice changes to functions in other files that a cached function calls: after one, delete `__pycache__`.

    Args:
        signature: Types of result and arguments, numba's or in its notation. `Array(uint8, 2, 'A', True)` is a
            read-only array of any layout; with 'C' instead of 'A', a contiguous one.

    Returns:
        A decorator.
    """

    def decorate(function: _Function) -> _Function:
        try:
            return cast(_Function, numba.njit(signature, cache=True, nogil=True, error_model="numpy")(function))
        except RuntimeError as error:
            if "no locator available" not in str(error):  # numba has no exception class for it
                raise
        return cast(_Function, numba.njit(signature, nogil=True, error_model="numpy")(function))

    return decorate
