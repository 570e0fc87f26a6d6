"""Options of a single call: thresholds, classes, the number of detections, and which of them are duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet.checks import check_fraction, check_whole
from maskjet.config import EngineConfig
from maskjet.errors import InputError, suggest
from maskjet.spec import ModelSpec, TwoStageSpec

Threshold = float | Mapping[str, float]
"""One threshold for all classes, or one by class name; classes not named keep theirs."""

WEAK = 0.1
"""Confidence above which detections are kept for trackers, even if they are not reported."""
_NEVER = 2.0  # threshold above all scores
_MOST_KEPT = 16  # choices of single calls, so that a loop with one of them uploads it once


def fill_thresholds(spec: ModelSpec | TwoStageSpec, common: float | None, by_class: Mapping[str, float]) -> Threshold:
    """Thresholds of single classes, and one for all others; None for the model's own."""
    others = spec.threshold if common is None else common
    return {**dict.fromkeys(spec.class_names.values(), others), **by_class} if by_class else others


@dataclass(frozen=True, eq=False)
class Postprocessing:
    """Which detections are reported, per class of the network's class head. Compared by identity, never changed."""

    thresholds: torch.Tensor
    """float32 [C] on the CPU: a score must exceed its class's threshold; above 1 for classes that are dropped."""
    class_map: torch.Tensor
    """int32 [C] on the CPU: the class id to report, -1 to drop."""
    max_detections: int
    """Most detections per image, the most confident ones; at most the config's."""
    nms: float = 1.0
    """Largest intersection over union of two detections, 0..1; see `engine.duplicates`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "thresholds", self.thresholds.where(self.class_map >= 0, _NEVER))

    @cached_property  # a stream with a tracker asks for each frame
    def lowest(self) -> float:
        """The lowest threshold."""
        return float(self.thresholds.min())

    def count(self, confidence: NDArray[np.float32]) -> int:
        """Count the reported detections; confidence is float32 [n], weak detections behind the others."""
        return min(int(np.count_nonzero(confidence > np.float32(self.lowest))), self.max_detections)


class Choices:
    """The postprocessing chosen when a model was loaded, and those of calls with other options.

    Arguments are those of `Model`; classes that a mapping of thresholds does not name have the network's own.

    Raises:
        InputError: An argument is not as there.
    """

    def __init__(
        self, spec: ModelSpec | TwoStageSpec, threshold: Threshold, classes: Sequence[str] | None, config: EngineConfig
    ) -> None:
        self._spec = spec
        self._thresholds = _thresholds(spec, threshold, _same(spec, spec.threshold))
        self.as_loaded = Postprocessing(self._thresholds, _class_map(spec, classes), config.max_detections, config.nms)
        """What calls report that choose nothing."""
        self._made: dict[tuple[object, ...], Postprocessing] = {}
        self._with_weak: WeakKeyDictionary[Postprocessing, Postprocessing] = WeakKeyDictionary()

    def thresholds(self) -> dict[str, float]:
        """The threshold of each class that is reported by default, by name."""
        reported = self.as_loaded.class_map.tolist()
        values = self._thresholds.double().tolist()
        return {
            name: round(values[class_id], 7)  # float32 has seven digits
            for class_id, name in sorted(self._spec.class_names.items())
            if reported[class_id] >= 0
        }

    def choose(
        self,
        threshold: Threshold | None,
        classes: Sequence[str] | None,
        max_detections: int | None = None,
        nms: float | None = None,
    ) -> Postprocessing:
        """The postprocessing of a call. Same arguments give the same object: slots upload when it changes.

        Args:
            threshold: As above; None, and classes that a mapping does not name, keep what was loaded.
            classes: Names of the classes to report; None keeps what was loaded.
            max_detections: Most detections per image, at most what was loaded; None keeps that.
            nms: Largest intersection over union of two detections, 0..1; None keeps what was loaded.

        Raises:
            InputError: An argument is not as above.
        """
        if threshold is None and classes is None and max_detections is None and nms is None:
            return self.as_loaded
        names = None if classes is None else _names(classes)
        most = self.as_loaded.max_detections
        if max_detections is not None:
            check_whole("max_detections", max_detections, (1, most), "; load(max_detections=...) sets the most")
        if nms is not None:
            check_fraction("nms", nms)
        if isinstance(threshold, Mapping):
            threshold = {name: _number(value) for name, value in threshold.items()}
        elif threshold is not None:
            threshold = _number(threshold)
        key = (tuple(threshold.items()) if isinstance(threshold, Mapping) else threshold, names, max_detections, nms)
        chosen = self._made.get(key)
        if chosen is None:
            chosen = Postprocessing(
                self._thresholds if threshold is None else _thresholds(self._spec, threshold, self._thresholds),
                self.as_loaded.class_map if names is None else _class_map(self._spec, names),
                most if max_detections is None else max_detections,
                self.as_loaded.nms if nms is None else float(nms),
            )
            if len(self._made) >= _MOST_KEPT:
                self._made.clear()
            self._made[key] = chosen
        return chosen

    def with_weak(self, chosen: Postprocessing) -> Postprocessing:
        """A postprocessing that adds, behind the reported detections, weaker ones of their classes for a tracker.

        Classes whose threshold is not the lowest have none: sorted by confidence, they would push out others.
        """
        if chosen not in self._with_weak:
            low = chosen.thresholds.clamp(max=WEAK).where(chosen.thresholds == chosen.lowest, chosen.thresholds)
            self._with_weak[chosen] = Postprocessing(low, chosen.class_map, self.as_loaded.max_detections, chosen.nms)
        return self._with_weak[chosen]


def _class_ids(spec: ModelSpec | TwoStageSpec, name: str, argument: str) -> list[int]:
    """The ids of the classes of a name, at least one; a class without a name has its id as text."""
    ids = [class_id for class_id in range(spec.class_logits) if spec.class_names.get(class_id, str(class_id)) == name]
    if not ids:
        names = dict.fromkeys(spec.class_names.values()) or map(str, range(spec.class_logits))
        raise InputError(f"{argument} must name classes of {spec.name}, got {name!r}{suggest(name, names)}")
    return ids


def _thresholds(spec: ModelSpec | TwoStageSpec, threshold: Threshold, others: torch.Tensor) -> torch.Tensor:
    """The threshold of each class, float32 [class_logits]; `others` has those of classes that are not named."""
    if not isinstance(threshold, Mapping):
        return _same(spec, _number(threshold))
    thresholds = others.clone()
    for name, value in threshold.items():
        thresholds[_class_ids(spec, name, "threshold")] = _number(value)
    return thresholds


def _same(spec: ModelSpec | TwoStageSpec, threshold: float) -> torch.Tensor:
    return torch.full((spec.class_logits,), threshold, dtype=torch.float32, device="cpu")


def _number(threshold: Any) -> float:
    try:
        value = float(threshold)
    except OverflowError as error:
        raise InputError("threshold must be 0..1, got a whole number beyond every float.") from error
    except (TypeError, ValueError) as error:
        kind = type(threshold).__name__
        raise InputError(f"threshold must be a number 0..1, or one by class name, got {kind}.") from error
    if not 0 <= value <= 1:
        raise InputError(f"threshold must be 0..1, got {threshold}.")
    return value


def _names(classes: Sequence[str]) -> tuple[str, ...]:
    names = tuple(classes) if isinstance(classes, Iterable) and not isinstance(classes, str) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError(f"classes must be a list of names, at least one, got {classes!r}.")
    return names


def _class_map(spec: ModelSpec | TwoStageSpec, classes: Sequence[str] | None) -> torch.Tensor:
    """The class id to report for each class, int32 [class_logits]; -1 if it was not asked for."""
    everything = torch.arange(spec.class_logits, dtype=torch.int32, device="cpu")
    if classes is None:
        return everything
    chosen = torch.full_like(everything, -1)
    ids = [class_id for name in _names(classes) for class_id in _class_ids(spec, name, "classes")]
    chosen[ids] = everything[ids]
    return chosen
