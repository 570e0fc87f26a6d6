"""A one-line kernel that tests whether Triton works on a machine."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fill_kernel(out_ptr, value):
    """Write one number."""
    tl.store(out_ptr, value)
