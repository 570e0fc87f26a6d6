"""Contenders of the video benchmark: our engine in several configurations, and other projects' whole pipelines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import check_names
from benchmarks.peers import PEERS, PIPELINES
from benchmarks.peers.pipeline import Pipeline
from maskjet.config import DEFAULT_THRESHOLD, EngineConfig
from maskjet.detections import Detections
from maskjet.errors import UnsupportedError, first_line
from maskjet.host.timing import rotate
from maskjet.model import Model
from maskjet.networks.rfdetr import RFDETR
from maskjet.sources.frames import open_source

Image = NDArray[np.uint8]


@dataclass(frozen=True)
class EngineRung:
    """One configuration of the engine."""

    name: str
    """Name in tables and on the command line."""
    what: str
    """One line that describes the rung."""
    choices: Mapping[str, Any]
    """Values of fields of `EngineConfig`."""
    depth: int = 1
    """Number of batches in flight."""
    sources: int = 1
    """Number of videos played at once; a batch has one frame of each."""


_FUSED = {"engine": "graph", "runtime": "fused"}
RUNGS: Mapping[str, EngineRung] = {
    rung.name: rung
    for rung in (
        EngineRung(
            "eager",
            "PyTorch, step by step: the ops' references",
            {"engine": "eager", "implementation": "reference", "runtime": "torch", "compile": False},
        ),
        EngineRung(
            "kernels",
            "the ops' fast implementations",
            {"engine": "eager", "runtime": "torch", "compile": False},
        ),
        EngineRung(
            "graph",
            "all steps of a frame as one CUDA graph",
            {"engine": "graph", "runtime": "torch", "compile": False},
        ),
        EngineRung(
            "compile",
            "the network through torch.compile",
            {"engine": "graph", "runtime": "torch", "compile": True},
        ),
        EngineRung("fused", "the network in kernels of our own", _FUSED),
        EngineRung("depth 2", "two frames in flight", _FUSED, depth=2),
        EngineRung("depth 4", "four frames in flight", _FUSED, depth=4),
        EngineRung("depth 6", "six frames in flight", _FUSED, depth=6),
        EngineRung(
            "16 sources", "sixteen videos, a frame of each at once, three such batches in flight", _FUSED, 3, 16
        ),
    )
}
"""Rungs by name, from the simplest to the fastest."""


class Contender(ABC):
    """Detects on videos.

    Args:
        name: Name of the rung or the peer.
        what: One line that describes it.
    """

    def __init__(self, name: str, what: str) -> None:
        self.name, self.what = name, what
        self.sources = 1
        """Number of videos played at once."""
        self.in_flight = 1
        """Number of frames in work at once."""

    @abstractmethod
    def detect(self, image: Image) -> Detections:
        """Detect on one frame."""

    def call(self, image: Image) -> Any:
        """What is timed on one frame."""
        return self.detect(image)

    @abstractmethod
    def play(self, source: Any) -> Iterator[Any]:
        """Detect on all frames of a source that `open_source` takes; yields what `call` returns."""

    def loop(self, images: Sequence[Image], count: int) -> Iterator[Any]:
        """Detect on `count` frames, cycling through images in memory."""
        return self.play(rotate(images, count))


class Ours(Contender):
    """Our engine as a contender.

    Args:
        rung: How to run the engine.
        model: The model, configured for the rung.
    """

    def __init__(self, rung: EngineRung, model: Model) -> None:
        super().__init__(rung.name, rung.what)
        self.rung, self.model = rung, model
        self.sources, self.in_flight = rung.sources, rung.sources * rung.depth

    def detect(self, image: Image) -> Detections:
        """Detect on one frame."""
        return self.model.predict(image)

    def replay(self) -> Callable[[], None] | None:
        """A function that launches the last frame's graph and waits for it; None without graphs."""
        engine = self.model._engine
        if engine.why_no_graph is not None:
            return None
        with engine.lease(1) as (slot,):
            replay: Callable[[], None] = slot.replay  # type: ignore[union-attr]
            return replay

    def play(self, source: Any) -> Iterator[Detections]:
        """Detect on all frames."""
        return (found for _, found in self.model.stream(source, depth=self.rung.depth, batch=self.rung.sources))

    def loop(self, images: Sequence[Image], count: int) -> Iterator[Detections]:
        """Detect on `count` frames, cycling through images in memory; each source starts at another image."""
        if self.sources == 1:
            return super().loop(images, count)
        return self.play([rotate(images, count // self.sources, start) for start in range(self.sources)])


class Theirs(Contender):
    """A peer as a contender, called as its users call it: frame after frame.

    Args:
        name: Name of the peer.
        what: One line that describes it.
        peer: The peer's pipeline.
        leaves_masks: Whether to time `predict` alone.
    """

    def __init__(self, name: str, what: str, peer: Pipeline, *, leaves_masks: bool = False) -> None:
        super().__init__(name, what)
        self._peer, self._leaves_masks = peer, leaves_masks

    def detect(self, image: Image) -> Detections:
        """Detect on one frame."""
        return self._peer.detect(image)

    def call(self, image: Image) -> Any:
        """Detect on one frame; masks may stay as the peer has them."""
        return self._peer.predict(image) if self._leaves_masks else self._peer.detect(image)

    def play(self, source: Any) -> Iterator[Any]:
        """Detect on all frames."""
        with open_source(source) as opened:
            for frame in opened:
                yield self.call(frame.image)


def build(
    network: RFDETR, config: EngineConfig, only: Sequence[str]
) -> tuple[list[Contender], list[str], Sequence[Model]]:
    """Build the contenders that can run here.

    Args:
        network: The network, in eval mode, float32, on the CPU; not changed.
        config: Settings that the rungs share.
        only: Names of rungs and peers; empty for all.

    Returns:
        The contenders, the reasons why others are left out, and the models to close.

    Raises:
        InputError: A name is not known.
    """
    known = [*RUNGS, *PIPELINES, *(f"{name}, masks" for name in PIPELINES)]
    check_names(only, known)
    wanted = set(only) or set(known)
    contenders: list[Contender] = []
    notes: list[str] = []
    models: dict[EngineConfig, Model] = {}
    batch = max(config.batch, *(rung.sources for rung in RUNGS.values()))
    for rung in RUNGS.values():
        if rung.name in wanted:
            choices = replace(config, batch=batch, **rung.choices)
            try:
                if choices not in models:
                    models[choices] = Model(deepcopy(network), choices)  # a Model moves and converts its network
                contenders.append(Ours(rung, models[choices]))
            except UnsupportedError as error:
                notes.append(f"{rung.name} left out: {error}")
    device, state = config.resolve_device(), network.state_dict()
    for name, build_pipeline in PIPELINES.items():
        rows = {row: leaves for row, leaves in ((name, False), (f"{name}, masks", True)) if row in wanted}
        if rows:
            try:
                peer = build_pipeline(state, network.spec, device, DEFAULT_THRESHOLD)
                peer.detect(np.zeros((64, 64, 3), np.uint8))
            except Exception as error:  # peers may raise anything
                notes.append(f"{name} left out: {type(error).__name__}: {first_line(error)}")
                continue
            what = PEERS[name].what
            contenders += [Theirs(row, what, peer, leaves_masks=leaves) for row, leaves in rows.items()]
    return contenders, notes, list(models.values())
