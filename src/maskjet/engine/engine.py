"""The pool of slots: lends them, takes them back, and frees the network at the end. Safe in threads."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from weakref import WeakSet

from maskjet.engine.slot import Copier, EagerSlot, GraphSlot, Slot
from maskjet.engine.steps import Steps
from maskjet.errors import UnsupportedError

_MOST_SLOTS = 16  # that run graphs, out at once: two streams of the greatest depth, or as many threads
_PATIENCE_S = 30.0  # for a slot that another thread has
_CLOSED = "The model is closed; load it again."
_FORKED = (
    "The model belongs to the process that this one was forked from, with its threads and its GPU. "
    "Load it after the fork, or start processes with multiprocessing's 'spawn'."
)


class Engine:
    """Lends slots that run the steps of a network.

    Args:
        steps: The network on its device, and its ops; nobody else's.

    Raises:
        UnsupportedError: Graphs were asked for and can't be had.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.why_no_graph = _why_no_graph(steps)
        """Why the steps run one by one; None where they run as graphs."""
        if steps.config.engine == "graph" and self.why_no_graph is not None:
            raise UnsupportedError(
                f"engine='graph' can't be had here: {self.why_no_graph}. Use engine='auto' to take what works."
            )
        self.refusal: str | None = None
        """Why there may be no new work; None while there may."""
        self.done: Counter[str] = Counter()
        """Images, detections and dropped frames so far; `counting` guards it."""
        self.counting = threading.Lock()
        self._copier = Copier()
        self._changed = threading.Condition()
        self._idle: list[Slot] = []
        self._out: list[Slot] = []
        _engines.add(self)

    def check(self) -> None:
        """Check that there may be new work.

        Raises:
            UnsupportedError: The engine is closed, or belongs to the process that this one was forked from.
        """
        if self.refusal is not None:
            raise UnsupportedError(self.refusal)

    @contextmanager
    def lease(self, count: int) -> Iterator[list[Slot]]:
        """Lend slots to the caller alone; they are drained and taken back at the end.

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
            if self.refusal is None:
                self._idle += reversed(healthy)  # the warmest first
            self._free_if_done()
            self._changed.notify_all()

    def _free_if_done(self) -> None:
        """Take the network off the GPU: not before the last slot is back, whose graphs know weights by address only."""
        if self.refusal is not None and not self._out:
            self.steps.compiler.release()
            self._copier.close()

    def _new_slot(self) -> Slot:
        if self.why_no_graph is not None:
            return EagerSlot(self.steps)
        return GraphSlot(self.steps, self._copier)

    def graphs(self) -> Mapping[str, str]:
        """The graphs captured so far, by kind of batch, for people to read."""
        with self._changed:
            slots = [slot for slot in (*self._idle, *self._out) if isinstance(slot, GraphSlot)]
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
            self.refusal = self.refusal or _CLOSED
            self._idle.clear()
            self._free_if_done()
            out = list(self._out)
            self._changed.notify_all()
        for slot in out:
            with suppress(RuntimeError):  # of the device; whoever waits for the result is told
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
    return None
