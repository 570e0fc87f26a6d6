"""The engine: gives out slots, and runs batches on them. Safe to use from several threads."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import torch

from maskjet.config import EngineConfig
from maskjet.detections import Detections
from maskjet.engine.eager import EagerSlot
from maskjet.engine.steps import Postprocessing, Slot, Steps
from maskjet.errors import DeviceError, MaskjetError, UnsupportedError, first_line
from maskjet.networks.rfdetr import RFDETR
from maskjet.networks.rfdetr.steps import OneStage
from maskjet.networks.torchvision.detector import StaticDetector
from maskjet.networks.torchvision.steps import TwoStage

if TYPE_CHECKING:
    from maskjet.engine.slot import GraphSlot

Network = RFDETR | StaticDetector

_MOST_SLOTS = 16  # that run graphs, out at once: two streams of the greatest depth, or as many threads
_PATIENCE_S = 30.0  # for a slot that another thread has


class Engine:
    """Turns images into detections.

    Args:
        network: In eval mode, float32; moved and converted to what the config says, so nobody else's.
        config: The choices; its device must be resolvable here.
        postprocessing: Thresholds and class map, on the CPU.

    Raises:
        UnsupportedError: Graphs were asked for and can't be had.
    """

    def __init__(self, network: Network, config: EngineConfig, postprocessing: Postprocessing) -> None:
        self.steps = _steps_of(network, config, postprocessing)
        self.why_no_graph = _why_no_graph(self.steps)
        """Why the steps run one by one; None where they run as graphs."""
        if config.engine == "graph" and self.why_no_graph is not None:
            raise UnsupportedError(
                f"engine='graph' can't be had here: {self.why_no_graph}. Use engine='auto' to take what works."
            )
        self.done: Counter[str] = Counter()
        """How many images, detections and dropped frames there were."""
        self._changed = threading.Condition()
        self._idle: list[Slot] = []
        self._out: list[Slot] = []
        self._is_closed = False
        self._process = os.getpid()

    def check(self) -> None:
        """Whether there may be new work.

        Raises:
            UnsupportedError: The engine is closed, or belongs to the process that this one was forked from.
        """
        if self._is_closed:
            raise UnsupportedError("The model is closed; load it again.")
        if os.getpid() != self._process:
            raise UnsupportedError(
                "The model belongs to the process that this one was forked from, with its threads and its GPU. "
                "Load it after the fork, or start processes with multiprocessing's 'spawn'."
            )

    @contextmanager
    def lease(self, count: int) -> Iterator[list[Slot]]:
        """Slots for the caller alone, drained and taken back at the end.

        Args:
            count: How many are wanted; where nothing can overlap it is one.

        Raises:
            UnsupportedError: As for `check`; or all are out and none comes back in time.
        """
        self.check()
        slots = self._take(1 if self.why_no_graph is not None else count)
        try:
            yield slots
        finally:
            self._give_back(slots)

    def _take(self, count: int) -> list[Slot]:
        with self._changed:
            is_free = self._changed.wait_for(
                lambda: self.why_no_graph is not None or len(self._out) + count <= _MOST_SLOTS, _PATIENCE_S
            )
            if not is_free:
                raise UnsupportedError(
                    f"All {_MOST_SLOTS} slots have been in use for {_PATIENCE_S:.0f} s: close a stream, or take a "
                    "smaller depth."
                )
            self.check()
            fresh = [self._new_slot() for _ in range(count - len(self._idle))]
            slots = [self._idle.pop() for _ in range(count - len(fresh))] + fresh
            self._out += slots
            return slots

    def _give_back(self, slots: Sequence[Slot]) -> None:
        healthy = []
        for slot in slots:
            try:
                slot.drain()
            except RuntimeError:  # of the device; whoever waits for the result is told
                continue
            healthy.append(slot)
        with self._changed:
            self._out = [slot for slot in self._out if all(slot is not other for other in slots)]
            if not self._is_closed:
                self._idle += reversed(healthy)  # the warmest first
            self._free_if_done()
            self._changed.notify_all()

    def _free_if_done(self) -> None:
        """Take the network off the GPU: not before the last slot is back, whose graphs know weights by address only."""
        if self._is_closed and not self._out:
            self.steps.compiler.release()
            self.steps.copier.close()

    def _new_slot(self) -> Slot:
        if self.why_no_graph is not None:
            return EagerSlot(self.steps)
        from maskjet.engine.slot import GraphSlot

        return GraphSlot(self.steps)

    def run(self, images: Sequence[torch.Tensor], *, first: int = 0) -> list[Detections]:
        """Detect on images.

        Args:
            images: uint8 [H, W, 3] RGB each, of any sizes, on any device, at most `config.batch`. Those of one size go
                through the network together; for their graph they are padded to a power of two.
            first: The first one's number in what the caller was given, for errors.

        Returns:
            The detections of each image.

        Raises:
            DeviceError: The device failed; carries the number of an image it worked on.
            UnsupportedError: As for `lease`.
        """
        found: dict[int, Detections] = {}
        with self.lease(1) as (slot,):
            for numbers in _alike(images):
                self.check()
                named = [first + number for number in numbers]
                with reporting_failures(f"images{named}", named[0]):
                    batch = [images[number] for number in numbers]
                    slot.submit(batch, self._padded(len(batch)), all_cores=True)  # nobody decodes meanwhile
                    found.update(zip(numbers, slot.result(), strict=True))
        self.count(found.values())
        return [found[number] for number in range(len(images))]

    def _padded(self, count: int) -> int:
        return min(1 << (count - 1).bit_length(), self.steps.config.batch)

    def count(self, found: Collection[Detections], *, dropped: int = 0) -> None:
        """Add to `done`."""
        with self._changed:
            self.done.update(images=len(found), detections=sum(map(len, found)), dropped=dropped)

    def graphs(self) -> Mapping[str, str]:
        """What was captured, by kind of batch, for people to read."""
        if self.why_no_graph is not None:
            return {}
        with self._changed:
            slots: list[GraphSlot] = [*self._idle, *self._out]  # type: ignore[list-item]
        found: dict[str, str] = {}
        for slot in slots:
            for graph in slot.graphs:
                if graph.is_captured:
                    found[str(graph.kind)] = str(graph)
                else:
                    found.setdefault(str(graph.kind), str(graph))
        return found

    def close(self) -> None:
        """Take no more work and wait, a bounded time, until the device has done what it was given; free the rest.

        What a stream has in flight is still delivered, if it is asked for. May be called twice.
        """
        with self._changed:
            self._is_closed = True
            self._idle.clear()
            self._free_if_done()
            out = list(self._out)
            self._changed.notify_all()
        for slot in out:
            with suppress(RuntimeError):  # of the device; whoever waits for the result is told
                slot.drain()


def _steps_of(network: Network, config: EngineConfig, postprocessing: Postprocessing) -> Steps:
    if isinstance(network, RFDETR):
        return OneStage(network, config, postprocessing)
    return TwoStage(network, config, postprocessing)


def _alike(images: Sequence[torch.Tensor]) -> Collection[list[int]]:
    """Positions of images that can go together: of one size, on one device."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for number, image in enumerate(images):
        alike.setdefault((image.shape, image.device), []).append(number)
    return alike.values()


@contextmanager
def reporting_failures(what: str, index: int) -> Iterator[None]:
    """Turn what a device's driver raises into an error that names what was worked on."""
    try:
        yield
    except MaskjetError:
        raise
    except RuntimeError as error:
        raise DeviceError(f"The device failed on {what}: {first_line(error)}", index=index) from error


def _why_no_graph(steps: Steps) -> str | None:
    if steps.config.engine == "eager":
        return "asked for"
    if steps.device.type != "cuda":
        return f"it needs an NVIDIA GPU, the device is {steps.device}"
    for name, choice in steps.choices.items():
        if choice.name != "triton":
            return f"{name} runs as {choice.name!r}, which can't be captured ({choice.why})"
    return None
