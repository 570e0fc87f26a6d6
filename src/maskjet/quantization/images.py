"""The images of a quantisation: those that calibrate, those that certify, and their annotations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from maskjet.errors import InputError, SourceError
from maskjet.evaluation.datasets import DataSet
from maskjet.sources.folders import is_image_path, list_folder

_FEWEST, _MOST_CALIBRATION = 40, 100


@dataclass(frozen=True)
class Images:
    """Images of a folder or a data set, half for calibration, 100 at most."""

    calibration: Sequence[Path]
    """The images that give the ranges of activations."""
    certification: Sequence[Path]
    """All others."""
    annotated: DataSet | None
    """The data set; None without annotations."""
    note: str | None
    """Why there are no annotations; None if there are."""

    @classmethod
    def find(cls, folder: Path) -> Images:
        """List the images, if they are enough; raises as `quantize`."""
        annotated, note = None, None
        try:
            found = DataSet(folder)
            paths = [found.images / image["file_name"] for image in found.truth()["images"]]
            found.check_images()
            annotated = found
        except SourceError as error:
            if not folder.is_dir():
                raise
            note = f"AP was not measured: {error}"
            paths = [path for path in list_folder(str(folder)) if is_image_path(path)]
        if len(paths) < _FEWEST:
            raise InputError(
                f"images must be at least {_FEWEST}, half to calibrate and half to certify, got {len(paths)}."
            )
        calibration = paths[::2][:_MOST_CALIBRATION]
        chosen = set(calibration)
        return cls(calibration, [path for path in paths if path not in chosen], annotated, note)
