"""The clock that a GPU's multiprocessors keep while something runs: at its limit of power a GPU lowers it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_MULTIPROCESSORS = tl.constexpr(512)  # more than any GPU numbers
_PROGRAMS = 1024  # so many that each multiprocessor runs one
_CYCLES, _NANOSECONDS = range(2)


@triton.jit  # type: ignore[untyped-decorator]
def stamp_kernel(out_ptr: tl.tensor) -> None:
    """Write a multiprocessor's cycles, and nanoseconds, to its row of int64 [_MULTIPROCESSORS, 2]."""
    program = tl.program_id(0)
    number = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r,r", [program], tl.int32, is_pure=False, pack=1)
    cycles = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l,r", [program], tl.int64, is_pure=False, pack=1)
    time = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l,r", [program], tl.int64, is_pure=False, pack=1)
    out_ptr += number % _MULTIPROCESSORS * 2
    tl.store(out_ptr, cycles)
    tl.store(out_ptr + 1, time)


class Clock:
    """Measures the clock of the current GPU between entering and leaving, in the current stream's order."""

    def __init__(self) -> None:
        self._stamps = torch.zeros(2, _MULTIPROCESSORS.value, 2, dtype=torch.int64, device="cuda")

    def __enter__(self) -> Clock:
        self._stamp(0)
        return self

    def __exit__(self, *_: object) -> None:
        self._stamp(1)

    def ghz(self) -> float:
        """Cycles per nanosecond: the median of all multiprocessors. Waits for the GPU."""
        is_seen = (self._stamps[:, :, _NANOSECONDS] > 0).all(dim=0)
        passed = (self._stamps[1] - self._stamps[0])[is_seen].double()
        return float((passed[:, _CYCLES] / passed[:, _NANOSECONDS]).median())

    def _stamp(self, which: int) -> None:
        stamp_kernel[(_PROGRAMS,)](self._stamps[which], enable_fp_fusion=True)
