"""The network as the engines call it: compiled for each batch size where that pays."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress

import torch
from rich.console import Console

from maskjet.errors import UnsupportedError, first_line
from maskjet.networks.rfdetr import RFDETR, NetworkOutput

Network = Callable[[torch.Tensor], NetworkOutput]
_log = logging.getLogger("maskjet")
_MOST_VERSIONS = 64  # of one code object, which all models of a process share: batch sizes times models


class Compiler:
    """Gives the network for a batch size, compiled when it is first asked for.

    PyTorch caches the compiled code on disk (`TORCHINDUCTOR_CACHE_DIR`, else a folder of the user's in the temporary
    directory), so that the next process traces the network and compiles nothing.

    Args:
        network: In eval mode, on its device, in its precision.
        wanted: Whether to compile; None where it pays.
    """

    def __init__(self, network: RFDETR, wanted: bool | None) -> None:
        self._network = network
        self._is_demanded = wanted is True
        self._weight = next(network.parameters())  # of the device and precision that inputs have
        self._lock = threading.Lock()
        self._ready: dict[int, Network] = {}
        self._seconds: dict[int, float] = {}
        self._why_not: str | None = None
        if wanted is None and self._weight.device.type != "cuda":
            self._why_not = "on a CPU it gains nothing"  # 160 ms instead of 164, float32, two cores
        elif wanted is False:
            self._why_not = "not asked for"

    @torch.inference_mode()
    def for_batch(self, batch: int) -> Network:
        """The network for inputs [batch, 3, S, S]; compiles it if it is the first time, which takes a while.

        Raises:
            UnsupportedError: It can't be compiled here, and that was asked for.
        """
        if batch in self._ready:
            return self._ready[batch]
        with self._lock:
            if batch not in self._ready:
                self._ready[batch] = self._network if self._why_not else self._compile(batch)
            return self._ready[batch]

    def release(self) -> None:
        """Take the network, which is not asked for any more, off the GPU; may be called twice."""
        self._ready.clear()
        with suppress(RuntimeError):  # the GPU has failed
            self._network.cpu()

    def _compile(self, batch: int) -> Network:
        side = self._network.spec.input_size
        images = torch.zeros(batch, 3, side, side, dtype=self._weight.dtype, device=self._weight.device)
        compiled: Network = torch.compile(self._network, fullgraph=True, dynamic=False)
        start = time.perf_counter()
        console = Console(stderr=True)
        text = f"maskjet: compiling the network for batches of {batch}, about half a minute the first time"
        try:
            # Its own lines, not a live display: the caller may have one.
            if console.is_terminal:
                console.print(f"{text} (compile=False, --no-compile leaves it out) ...", highlight=False)
            with torch._dynamo.config.patch(recompile_limit=_MOST_VERSIONS), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler's remarks on its own choices
                compiled(images)
        except Exception as error:  # whatever dynamo, inductor, Triton and the C compiler raise
            return self._do_without(error)
        self._seconds[batch] = time.perf_counter() - start
        if console.is_terminal:
            console.print(f"maskjet: compiled in {self._seconds[batch]:.1f} s", highlight=False)
        return compiled

    def _do_without(self, error: Exception) -> Network:
        reason = f"{type(error).__name__}: {first_line(error)}"
        if self._is_demanded:
            raise UnsupportedError(
                f"compile=True can't be had here, {reason}. Use compile=None to take what works."
            ) from error
        self._why_not = f"torch.compile failed here, {reason}"
        _log.warning("the network runs uncompiled: %s", self._why_not)
        return self._network

    def __str__(self) -> str:
        if self._why_not:
            return f"not compiled: {self._why_not}"
        done = (f"batches of {batch} in {seconds:.1f} s" for batch, seconds in self._seconds.items())
        return f"compiled: {', '.join(done) or 'with the first frame'}"
