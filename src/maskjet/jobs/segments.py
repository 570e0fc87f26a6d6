"""Segments: what one part of a job's results is of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from maskjet.config import EngineConfig
from maskjet.media.video_index import Entry

_DIGEST_BYTES = 16
# Settings of the engine that change what is found; the others change how fast.
_MATTERING = (
    *("precision", "runtime", "resample", "input_size", "resize", "letterbox_color", "letterbox_place"),
    "max_detections",
)


@dataclass(frozen=True)
class SourceFile:
    """A file as it was when the job was planned."""

    path: str
    """A path, or the URL of an object in a store."""
    size: int
    """Bytes."""
    modified_ns: int
    """Time of the last change, in ns since 1970."""


@dataclass(frozen=True)
class Segment:
    """Some frames of a video, or some images."""

    files: tuple[SourceFile, ...]
    """The video alone, or the images in order."""
    is_video: bool
    """Whether the file is a video."""
    first: int = 0
    """Index of the video's first frame that belongs to it; 0 for images."""
    count: int | None = None
    """Frames of the video; None for all up to its end. None for images."""
    entry: Entry | None = None
    """Where decoding begins, if not at the beginning; its index is `first`."""
    video_stream: int | None = None
    """Number of the stream that is read, of a video that has several; None for FFmpeg's choice."""

    @property
    def name(self) -> str:
        """A name for people: the file, and which part of it."""
        path = self.files[0].path
        if not self.is_video:
            others = len(self.files) - 1
            return path if not others else f"{path} and {others} more"
        if self.first == 0 and self.count is None:
            return path
        return f"{path}#{self.first}-{'' if self.count is None else self.first + self.count - 1}"

    def as_dict(self) -> dict[str, Any]:
        """In JSON types; without `video_stream` if that is None, as in results from before it was there."""
        value = asdict(self)
        if self.video_stream is None:
            del value["video_stream"]
        return value

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Segment:
        """The segment that `as_dict` described."""
        entry = value["entry"]
        return cls(
            files=tuple(SourceFile(**file) for file in value["files"]),
            is_video=value["is_video"],
            first=value["first"],
            count=value["count"],
            entry=None if entry is None else Entry(**entry),
            video_stream=value.get("video_stream"),
        )


@dataclass(frozen=True)
class Settings:
    """What is done with each segment."""

    model: str = "demo"
    """A model of `maskjet.load`."""
    weights: str | None = None
    """Path of its weights file."""
    threshold: float | None = None
    """Confidence that detections must exceed; None is the model's own."""
    class_thresholds: Mapping[str, float] = field(default_factory=dict)
    """That of single classes, by name."""
    classes: tuple[str, ...] | None = None
    """Names of the classes to report; None for all."""
    every: int = 1
    """Take one frame of a video in this many: those whose index is a multiple of it."""
    rows: str = "frame"
    """What a row is: "frame" or "detection"."""
    config: EngineConfig = field(default_factory=EngineConfig)
    """How the model runs; its device is the driver's to choose."""

    def with_absolute_paths(self) -> Settings:
        """With files by their paths from the root, as workers may have another folder; a model's name stays."""
        model, weights = Path(self.model), self.weights
        return replace(
            self,
            model=str(model.absolute()) if model.is_file() else self.model,
            weights=None if weights is None else str(Path(weights).absolute()),
        )

    def as_dict(self) -> dict[str, Any]:
        """In JSON types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Settings:
        """The settings that `as_dict` described."""
        classes = value["classes"]
        return cls(
            **{
                **value,
                "classes": None if classes is None else tuple(classes),
                "config": EngineConfig(**value["config"]),
            }
        )

    def identity(self, weights_digest: str | None) -> dict[str, Any]:
        """What the results depend on, in JSON types.

        Args:
            weights_digest: Digest of the weights file; None if the model comes with its own.
        """
        return {
            "model": self.model,
            "weights": weights_digest,
            "threshold": self.threshold,
            "class_thresholds": dict(self.class_thresholds),
            "classes": None if self.classes is None else list(self.classes),
            "every": self.every,
            "rows": self.rows,
            **{name: getattr(self.config, name) for name in _MATTERING},
        }


def digest(segment: Segment, identity: Mapping[str, Any]) -> str:
    """The name of a segment's part, 32 hexadecimal digits: another one if the files or the settings are others.

    Args:
        segment: The segment.
        identity: What `Settings.identity` returned.
    """
    text = json.dumps({"segment": segment.as_dict(), "settings": identity}, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
