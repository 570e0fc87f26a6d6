"""The truth of a drawn video, in the formats of multi-object tracking."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from maskjet import coco_rle
from maskjet.errors import InputError
from maskjet.traffic.bodies import CLASSES
from maskjet.traffic.street import TrafficFrame

SUFFIXES = (".mot.txt", ".mots.txt", ".json")
"""Of MOTChallenge's boxes, its masks (MOTS), and COCO's annotations of videos."""


class VideoTruth:
    """Collects the truth of a video's frames; things are numbered from 1 in the order in which they appear.

    Args:
        path: Path of the file, whose suffix is its format.
        video: Name of the video.

    Raises:
        InputError: The suffix is none of SUFFIXES.
    """

    def __init__(self, path: str | os.PathLike[str], video: str) -> None:
        self._suffix = next((suffix for suffix in SUFFIXES if os.fspath(path).lower().endswith(suffix)), None)
        if self._suffix is None:
            raise InputError(f"truth must end in {', '.join(SUFFIXES)}, got {os.fspath(path)!r}.")
        self._stem = Path(video).stem
        self._video = {"id": 1, "name": Path(video).name}
        self._numbers: dict[int, int] = {}
        self._images: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []

    def add(self, frame: TrafficFrame) -> None:
        """Add the next frame."""
        height, width = frame.instance_map.shape
        image_id = len(self._images) + 1
        name = f"{self._stem}/{image_id:06}.jpg"
        self._images.append(
            {"id": image_id, "video_id": 1, "frame_id": image_id - 1}
            | {"file_name": name, "height": height, "width": width}
        )
        rles = coco_rle.encode(frame.masks())
        for rle, class_id, track in zip(rles, frame.class_id.tolist(), frame.track_id.tolist(), strict=True):
            x1, y1, x2, y2 = coco_rle.to_xyxy(rle)
            number = self._numbers.setdefault(track, len(self._numbers) + 1)
            self._annotations.append(
                {"id": len(self._annotations) + 1, "image_id": image_id, "video_id": 1, "category_id": class_id + 1}
                | {"track_id": number, "instance_id": number, "bbox": [x1, y1, x2 - x1, y2 - y1]}
                | {"area": coco_rle.area(rle), "iscrowd": 0, "segmentation": coco_rle.to_json(rle)}
            )

    def encode(self) -> bytes:
        """The file's content."""
        if self._suffix == ".json":
            categories = [{"id": class_id + 1, "name": name} for class_id, name in enumerate(CLASSES)]
            parts = {"videos": [self._video], "images": self._images, "annotations": self._annotations}
            return json.dumps({**parts, "categories": categories}).encode()
        lines = []
        for each in self._annotations:
            frame, number, class_id, rle = (
                each[name] for name in ("image_id", "track_id", "category_id", "segmentation")
            )
            if self._suffix == ".mot.txt":
                lines.append(",".join(map(str, (frame, number, *each["bbox"], 1, class_id, 1))))
            else:
                lines.append(" ".join(map(str, (frame, number, class_id, *rle["size"], rle["counts"]))))
        return "".join(f"{line}\n" for line in lines).encode()
