"""Interface between the engine and an inference runtime: PyTorch, fused kernels or an exported file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Runtime(Protocol):
    """Runs a network on the engine's tensors; its `str` describes it in the report."""

    @property
    def why_no_graph(self) -> str | None:
        """Why its calls can't be captured in a CUDA graph; None if they can."""

    def for_batch(self, batch: int, *size_hw: int) -> Callable[..., Any]:
        """Compile or allocate for a batch size and, if the network has several, an input size; may be slow.

        The result is for one thread at a time. It runs on the current stream and does not wait for it, and its outputs
        are valid until it is called again.

        Raises:
            UnsupportedError: The network can't run such batches here.
        """

    def release(self) -> None:
        """Free the network for good; may be called twice."""
