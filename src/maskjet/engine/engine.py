"""A thread-safe pool of slots; once it is closed and all slots are returned, it frees the network."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from weakref import WeakSet

from maskjet.engine.copying import Copier
from maskjet.engine.slot import EagerSlot, GraphSlot, Slot
from maskjet.engine.steps import Steps
from maskjet.errors import UnsupportedError
from maskjet.postprocessing import Postprocessing

_MOST_SLOTS = 16  # graph slots lent at once: two streams of depth 8, or 16 threads
_PATIENCE_S = 30.0  # longest wait for a slot that another thread uses
_CLOSED = "The model is closed; load it again."
_FORKED = (
    "The model belongs to the process that this one was forked from, with its threads and its GPU. "
    "Load it after the fork, or start processes with multiprocessing's 'spawn'."
)


class Engine:
    """A pool of slots that run the steps of one network, owned by this engine.

    Raises:
        UnsupportedError: Graphs were asked for, and the steps can't run as graphs.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.why_no_graph = _why_no_graph(steps)
        """Why the steps run one by one; None if they run as graphs."""
        if steps.config.engine == "graph" and self.why_no_graph is not None:
            raise UnsupportedError(
                f"engine='graph' can't be had here: {self.why_no_graph}. Use 'auto' to take what works."
            )
        self.refusal: str | None = None
        """Why new work is refused; None while it is accepted."""
        self.done: Counter[str] = Counter()
        """What `note` has counted so far."""
        self._counting = threading.Lock()
        self._copier = Copier()
        self._changed = threading.Condition()
        self._idle: list[Slot] = []
        self._out: list[Slot] = []
        _engines.add(self)

    def check(self) -> None:
        """Check that new work is accepted.

        Raises:
            UnsupportedError: The engine is closed, or belongs to the process that this one was forked from.
        """
        if self.refusal is not None:
            raise UnsupportedError(self.refusal)

    def note(self, **counts: int) -> None:
        """Count images, detections, dropped frames, and tracks and their time in microseconds, for the report."""
        with self._counting:
            for name, count in counts.items():
                self.done[name] += count

    def note_decoding(self, reason: str) -> None:
        """Count an image or video that the CPU decodes although the GPU was to do it, for the report."""
        with self._counting:
            self.steps.fallbacks[f"decode: {reason}"] += 1

    @contextmanager
    def lease(self, count: int, postprocessing: Postprocessing | None = None) -> Iterator[list[Slot]]:
        """Lend slots to the caller; at the end of the context they are drained and taken back.

        Without graphs nothing overlaps, and one slot is lent. A postprocessing of None is the model's own.

        Raises:
            UnsupportedError: New work is refused, or all slots are lent and none comes back in time.
        """
        self.check()
        slots = self._take(1 if self.why_no_graph is not None else count)
        try:
            for slot in slots:
                slot.postprocessing = postprocessing or self.steps.postprocessing
            yield slots
        finally:
            self._give_back(slots)

    def prepare(self, batch: int) -> None:
        """Compile for this batch size, RGB and NV12, before the first batch; the memory used is freed again."""
        if self.why_no_graph is None and self.steps.can_rehearse:
            GraphSlot(self.steps, self._copier).prepare(batch)
        else:
            self.steps.prepare(batch)

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
            except RuntimeError:  # the device failed; `result` raises it too
                continue
            healthy.append(slot)
        with self._changed:
            self._out = [slot for slot in self._out if all(slot is not other for other in slots)]
            if self.refusal is None:
                self._idle += reversed(healthy)  # reversed: the next lease takes them in the same order
            self._free_if_done()
            self._changed.notify_all()

    def _free_if_done(self) -> None:
        """Free the network if the engine is closed and no slot is out: graphs hold only the addresses of weights."""
        if self.refusal is not None and not self._out:
            self.steps.runtime.release()
            self._copier.close()

    def _new_slot(self) -> Slot:
        if self.why_no_graph is not None:
            return EagerSlot(self.steps)
        return GraphSlot(self.steps, self._copier)

    def graphs(self) -> Mapping[str, str]:
        """One line per kind of batch: kernels its graph launches or why it was not captured, and memory."""
        with self._changed:
            slots = [slot for slot in (*self._idle, *self._out) if isinstance(slot, GraphSlot)]
        found: dict[str, str] = {}
        for slot in slots:
            shared = f"its slot's frames and intermediate results {slot.nbytes / 2**20:.0f} MiB"
            for graph in slot.graphs:
                if graph.is_captured:
                    found[str(graph.kind)] = f"{graph}; {shared}"
                else:
                    found.setdefault(str(graph.kind), f"{graph}; {shared}")
        return found

    def close(self) -> None:
        """Refuse new work, free idle slots, and wait a bounded time until the device is idle.

        A stream still yields the batches that it has in flight. May be called twice.
        """
        with self._changed:
            self.refusal = self.refusal or _CLOSED
            self._idle.clear()
            self._free_if_done()
            out = list(self._out)
            self._changed.notify_all()
        for slot in out:
            with suppress(RuntimeError):  # the device failed; `result` raises it too
                slot.drain()


_engines: WeakSet[Engine] = WeakSet()


def _refuse_after_fork() -> None:
    for engine in _engines:
        engine.refusal = engine.refusal or _FORKED


os.register_at_fork(after_in_child=_refuse_after_fork)


def _why_no_graph(steps: Steps) -> str | None:
    if steps.config.engine == "eager":
        return "asked for"
    if steps.device.type != "cuda":
        return f"it needs an NVIDIA GPU, the device is {steps.device}"
    for name, choice in steps.choices.items():
        if choice.name != "triton":
            return f"{name} runs as {choice.name!r}, which can't be captured ({choice.why})"
    return steps.runtime.why_no_graph
