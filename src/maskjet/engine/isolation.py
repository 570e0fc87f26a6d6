"""Keep the caller's PyTorch state out of our own PyTorch code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def isolated(*, inference: bool = True) -> Iterator[None]:
    """Run PyTorch code without gradients and autocast, overriding the modes set by this thread's caller.

    The default dtype and device are no part of it, as the dtype is the whole process's: each tensor that is made in
    maskjet states both. Deterministic algorithms, which are the whole process's, too, are left to the caller. Weights,
    which are converted in place later, must be no `inference` tensors.
    """
    autocast = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    if inference and not autocast:  # per-frame path: takes a third of the time of the general one below
        with torch.inference_mode():
            yield
        return
    with torch.inference_mode(inference), torch.no_grad(), ExitStack() as stack:
        for kind in autocast:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield
