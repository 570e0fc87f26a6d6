"""Segments, the units of work of a job, and its settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from maskjet.checks import MOST_MOVED, check_whole
from maskjet.config import NMS, EngineConfig
from maskjet.sources.selection import select_frames
from maskjet.sources.video_index import Entry
from maskjet.spec import MODELS
from maskjet.tiling.layout import UNCUT, Tiling

# Engine settings that change results; the others change only speed.
_CHANGING_RESULTS = (
    *("precision", "runtime", "resample", "input_size", "resize", "letterbox_color", "letterbox_place"),
    "max_detections",
)


@dataclass(frozen=True)
class SourceFile:
    """A source file, with its size and time as of planning."""

    path: str
    """Path of the file, or URL of the object in a store."""
    size: int
    """Size of the file in bytes."""
    modified_ns: int
    """Modification time in ns since 1970."""


@dataclass(frozen=True)
class Segment:
    """A unit of work: a range of a video's frames, or some images."""

    files: tuple[SourceFile, ...]
    """The single video, or the images in order."""
    is_video: bool
    """Whether the file is a video."""
    first: int = 0
    """Index in the video of the segment's first frame; 0 for images."""
    count: int | None = None
    """Number of frames; None for all up to the video's end, and for images."""
    entry: Entry | None = None
    """Key frame at which decoding starts, with index `first`; None for the start of the file."""

    @property
    def name(self) -> str:
        """Name for messages: the file and its range of frames, or the number of further images."""
        path = self.files[0].path
        if not self.is_video:
            others = len(self.files) - 1
            return path if not others else f"{path} and {others} more"
        if self.first == 0 and self.count is None:
            return path
        return f"{path}#{self.first}-{'' if self.count is None else self.first + self.count - 1}"

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Segment:
        """Convert back from the JSON types of `asdict`."""
        files = tuple(SourceFile(**file) for file in value["files"])
        entry = None if value["entry"] is None else Entry(**value["entry"])
        return cls(**{**value, "files": files, "entry": entry})


@dataclass(frozen=True)
class Settings:
    """Settings with which segments are processed: model, thresholds, classes."""

    model: str = "demo"
    """A model of `maskjet.load`."""
    weights: str | None = None
    """Path of the model's weights file; None for its own."""
    threshold: float | None = None
    """Confidence that detections must exceed; None is the model's own."""
    class_thresholds: Mapping[str, float] = field(default_factory=dict)
    """Confidence thresholds of single classes, by name."""
    classes: tuple[str, ...] | None = None
    """Names of the classes to report; None for all."""
    every: int = 1
    """Step between frames of a video: those whose index is a multiple are processed."""
    detect: int = 1
    """Step between detected frames of a segment of a video; to those between detections are moved."""
    config: EngineConfig = field(default_factory=EngineConfig)
    """Engine settings; workers replace the device by their own."""
    track: bool = False
    """Whether parts of videos also store weak detections, for tracking in the merge."""
    tiling: Tiling = UNCUT
    """Tiling of frames."""
    jpeg_decoder: str = "cpu"
    """Decoder of JPEGs in all workers: "cpu", or the name by `sources.decoding.name_nvjpeg`."""

    def __post_init__(self) -> None:
        select_frames(self.every)  # raises
        check_whole("detect", self.detect, (1, MOST_MOVED))

    def with_absolute_paths(self) -> Settings:
        """Make paths of model and weights absolute, as workers may have another current folder."""
        model, weights = Path(self.model), self.weights
        return replace(
            self,
            model=str(model.absolute()) if self.model not in MODELS and model.exists() else self.model,
            weights=None if weights is None else str(Path(weights).absolute()),
        )

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Settings:
        """Convert back from the JSON types of `asdict`."""
        classes = value["classes"]
        return cls(
            **{
                **value,
                "classes": None if classes is None else tuple(classes),
                "config": EngineConfig(**value["config"]),
                "tiling": Tiling(**value["tiling"]),
            }
        )

    def identity(self, weights_digest: str | None) -> dict[str, Any]:
        """Settings that determine results, in JSON types; `weights_digest` is from `digest_weights`."""
        return {
            # Left out by default, so that digests of older results stay valid.
            **({} if self.jpeg_decoder == "cpu" else {"jpeg_decoder": self.jpeg_decoder}),
            **({"track": True} if self.track else {}),
            **({} if self.detect == 1 else {"detect": self.detect}),
            **({} if self.config.nms == 1 else {name: getattr(self.config, name) for name in NMS}),
            **({} if self.tiling.tile is None else {"tiling": asdict(self.tiling)}),
            "model": self.model,
            "weights": weights_digest,
            "threshold": self.threshold,
            "class_thresholds": dict(self.class_thresholds),
            "classes": None if self.classes is None else list(self.classes),
            "every": self.every,
            "rows": "frame",  # constant, so that digests of older results stay valid
            **{name: getattr(self.config, name) for name in _CHANGING_RESULTS},
            **({"resample": "bilinear"} if self.config.resample == "auto" else {}),  # so it was before "auto"
        }


def digest(segment: Segment, identity: Mapping[str, Any]) -> str:
    """Name of a segment's part: a digest of its files, frames and settings, 32 hexadecimal digits.

    The identity is what `Settings.identity` returned; for a video's frames, JPEGs' decoder does not count.
    """
    settings = {name: value for name, value in identity.items() if not (segment.is_video and name == "jpeg_decoder")}
    text = json.dumps({"segment": asdict(segment), "settings": settings}, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
