"""The interface of `Detections` that drawing needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray


class Instances(Protocol):
    """Instances found on one image; `maskjet.Detections` are."""

    def __len__(self) -> int:
        """Number of instances, n."""

    def __getitem__(self, index: Any) -> Self:
        """Select instances by a bool mask or by indices."""

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) of the image in pixels."""

    @property
    def xyxy(self) -> NDArray[np.float32]:
        """float32 [n, 4]: boxes in pixels."""

    @property
    def confidence(self) -> NDArray[np.float32]:
        """float32 [n]: confidences, 0..1."""

    @property
    def class_id(self) -> NDArray[np.int32]:
        """int32 [n]: class ids, keys of `class_names`."""

    @property
    def track_id(self) -> NDArray[np.int64] | None:
        """int64 [n]: ids of tracks, -1 for none; None without tracking."""

    @property
    def track_class_id(self) -> NDArray[np.int64] | None:
        """int64 [n]: classes of the tracks; None without tracking."""

    @property
    def rle(self) -> Sequence[dict[str, Any]] | None:
        """N COCO RLEs; None without masks."""

    @property
    def class_names(self) -> Mapping[int, str]:
        """Class id to name."""

    @property
    def class_name(self) -> NDArray[np.str_]:
        """NumPy str [n]: the name of each instance's class."""
