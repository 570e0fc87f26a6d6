"""Run a network with PyTorch, compiled for each batch size where that pays."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from rich.console import Console
from torch import nn

from maskjet.config import EngineConfig
from maskjet.engine.isolation import isolated
from maskjet.errors import InputError, UnsupportedError, first_line

Network = Callable[..., Any]
_log = logging.getLogger("maskjet")
_MOST_VERSIONS = 64  # compiled versions of a network's code, shared by all models of a process


class Compiler:
    """The PyTorch runtime: compiles the network at the first batch of each size; see `Runtime`.

    PyTorch caches the compiled code on disk (`TORCHINDUCTOR_CACHE_DIR`, by default a folder per user in the temporary
    directory), so that the next process only traces the network.

    Args:
        network: The network in eval mode, on its device, in its precision.
        inputs: Makes inputs for a batch and, where the network takes several sizes, a height and a width.
        config: Whether to compile; with `compile=None` it compiles unless `why_not_by_default` says why not.
        why_not_by_default: Why compiling does not pay for this network; empty if it does.

    Raises:
        InputError: The config asks for another runtime.
    """

    why_no_graph = None

    def __init__(
        self,
        network: nn.Module,
        inputs: Callable[..., tuple[torch.Tensor, ...]],
        config: EngineConfig,
        *,
        why_not_by_default: str,
    ) -> None:
        if config.runtime not in ("auto", "torch"):
            raise InputError(
                "runtime must be 'auto', 'torch' or, for an RF-DETR on a GPU, 'fused' for a network that is not "
                f"exported, got {config.runtime!r}: write a file with maskjet export, and load that."
            )
        self._network, self._inputs = network, inputs
        self._is_demanded = config.compile is True
        self._lock = threading.Lock()
        self._networks: dict[tuple[int, ...], Network] = {}
        self._seconds: dict[tuple[int, ...], float] = {}
        self._why_not = {None: why_not_by_default, False: "not asked for", True: ""}[config.compile]

    @isolated()
    def for_batch(self, batch: int, *size_hw: int) -> Network:
        """The network for a batch size and, if it takes several, an input size; the first call may compile it.

        Raises:
            UnsupportedError: Compiling was asked for, and the network can't be compiled here.
        """
        shape = (batch, *size_hw)
        if shape in self._networks:
            return self._networks[shape]
        with self._lock:
            if shape not in self._networks:
                self._networks[shape] = self._network if self._why_not else self._compile(shape)
            return self._networks[shape]

    def release(self) -> None:
        """Take the network off the GPU, for good; may be called twice."""
        self._networks.clear()
        with suppress(RuntimeError):  # the GPU has failed
            self._network.cpu()

    def _compile(self, shape: tuple[int, ...]) -> Network:
        compiled: Network = torch.compile(self._network, fullgraph=True, dynamic=False)
        start = time.perf_counter()
        console = Console(stderr=True)
        text = f"maskjet: compiling the network for {_name(shape)}, about half a minute the first time"
        try:
            # Printed as whole lines, since the caller may have a live display.
            if console.is_terminal:
                console.print(f"{text} (compile=False, --no-compile leaves it out) ...", highlight=False)
            with torch._dynamo.config.patch(recompile_limit=_MOST_VERSIONS), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler's warnings about its own choices
                compiled(*self._inputs(*shape))
        except Exception as error:  # dynamo, inductor, Triton and the C compiler raise many types
            return self._run_uncompiled(error)
        self._seconds[shape] = time.perf_counter() - start
        if console.is_terminal:
            console.print(f"maskjet: compiled in {self._seconds[shape]:.1f} s", highlight=False)
        return compiled

    def _run_uncompiled(self, error: Exception) -> Network:
        reason = f"{type(error).__name__}: {first_line(error)}"
        if self._is_demanded:
            raise UnsupportedError(
                f"compile=True can't be had here, {reason}. Leave it out to take what works."
            ) from error
        self._why_not = f"torch.compile failed here, {reason}"
        _log.warning("the network runs uncompiled: %s", self._why_not)
        return self._network

    def __str__(self) -> str:
        if self._why_not:
            return f"not compiled: {self._why_not}"
        done = (f"{_name(shape)} in {seconds:.1f} s" for shape, seconds in self._seconds.items())
        return f"compiled: {', '.join(done) or 'with the first frame'}"


def _name(shape: tuple[int, ...]) -> str:
    batch, *size_hw = shape
    return f"batches of {batch}" + "".join(f" × {side}" for side in reversed(size_hw))
