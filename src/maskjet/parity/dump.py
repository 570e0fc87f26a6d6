"""Dumps: the detections of one variant on a set of images, in a file that says where they come from.

The format is NumPy's .npz, compressed: the fields of all detections one behind the other, and a header in JSON. It
carries its version; files of other versions are refused.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections
from maskjet.errors import InputError, SourceError
from maskjet.frames import Source
from maskjet.networks.rfdetr import RFDETR
from maskjet.parity.images import Images
from maskjet.parity.variants import Variant, describe_run

_FORMAT, _VERSION = "maskjet dump", 1
_UNREADABLE = (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error)
_PART = 250  # images per file while a dump is being made: what is lost at most when it is interrupted


@dataclass(frozen=True, eq=False)
class Dump:
    """What one variant found."""

    variant: Mapping[str, Any]
    """`Variant.identify` of it."""
    run: Mapping[str, Any]
    """Machine and versions."""
    images: Mapping[str, Any]
    """`Images.describe` of what it was run on."""
    names: Sequence[str]
    """Of the images."""
    digests: Sequence[str]
    """Of the images' pixels."""
    found: Sequence[Detections]
    """Per image."""

    @property
    def name(self) -> str:
        """The variant's name."""
        return str(self.variant["name"])

    def check_same_images(self, other: Dump) -> None:
        """Whether the other dump is of the same images, pixel for pixel.

        Raises:
            InputError: It is not; names the first that differs.
        """
        if len(self.names) != len(other.names):
            raise InputError(
                f"the dumps must be of the same images, {self.name!r} has {len(self.names)} and {other.name!r} "
                f"{len(other.names)}."
            )
        mine, theirs = (list(zip(dump.names, dump.digests, strict=True)) for dump in (self, other))
        for number, (one, another) in enumerate(zip(mine, theirs, strict=True)):
            if one != another:
                what = f"{one[0]!r} has other pixels" if one[0] == another[0] else f"{one[0]!r} against {another[0]!r}"
                raise InputError(f"the dumps must be of the same images, number {number} is not: {what}.")

    def to_coco(self, truth: Mapping[str, Any]) -> list[dict[str, Any]]:
        """As COCO results for a data set with these images.

        Classes are found by their names; detections of classes that the data set does not have are left out.

        Raises:
            InputError: The data set lacks an image, or has none of the classes.
        """
        ids = {image["file_name"]: image["id"] for image in truth["images"]}
        by_name = {category["name"]: category["id"] for category in truth["categories"]}
        results: list[dict[str, Any]] = []
        for name, found in zip(self.names, self.found, strict=True):
            if name not in ids:
                raise InputError(f"truth must have all images of the dump, got none called {name!r}.")
            categories = {number: by_name[title] for number, title in found.class_names.items() if title in by_name}
            if not categories:
                raise InputError(f"truth must have classes of the model, got {sorted(by_name)}.")
            known = np.isin(found.class_id, list(categories))
            results += found[known].to_coco(ids[name], categories)
        return results

    def save(self, path: Path) -> None:
        """Write it; an existing file is replaced once the new one is whole."""
        rles = [[rle["counts"] for rle in found.rle] for found in self.found if found.rle is not None]
        strings = [text for image in rles for text in image]
        header = {
            "format": _FORMAT,
            "version": _VERSION,
            "variant": dict(self.variant),
            "run": dict(self.run),
            "images": dict(self.images),
            "names": list(self.names),
            "digests": list(self.digests),
            "has_masks": bool(self.found) and self.found[0].rle is not None,
            "class_names": dict(self.found[0].class_names) if self.found else {},
        }
        fields: dict[str, NDArray[Any]] = {
            "header": _bytes(json.dumps(header).encode()),
            "sizes": np.array([found.image_size for found in self.found], np.int32).reshape(-1, 2),
            "counts": np.array([len(found) for found in self.found], np.int32),
            "xyxy": _joined([found.xyxy for found in self.found], np.zeros((0, 4), np.float32)),
            "confidence": _joined([found.confidence for found in self.found], np.zeros(0, np.float32)),
            "class_id": _joined([found.class_id for found in self.found], np.zeros(0, np.int32)),
            "string_lengths": np.array([len(text) for text in strings], np.int32),
            "strings": _bytes(b"".join(strings)),
        }
        partial = path.with_name(path.name + ".partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                np.savez_compressed(file, **fields)  # type: ignore[arg-type]
            partial.replace(path)
        except OSError as error:
            raise SourceError(f"{str(path)!r} must be writable: {error.strerror}.") from error

    @classmethod
    def load(cls, path: Path) -> Dump:
        """Read what `save` wrote.

        Raises:
            SourceError: The file can't be read, is no dump, damaged, or of another version.
        """
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                fields = {name: file[name] for name in file.files}
            header = json.loads(fields["header"].tobytes())
            is_dump, version = header["format"] == _FORMAT, header["version"]
        except FileNotFoundError as error:
            raise SourceError(f"{str(path)!r} must be a dump, there is no such file.") from error
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            EOFError,
            zipfile.BadZipFile,
            zlib.error,
        ) as e:
            raise SourceError(f"{str(path)!r} must be a dump that maskjet parity dump wrote, it is not.") from e
        if not is_dump or version != _VERSION:
            raise SourceError(f"{str(path)!r} must be a dump of version {_VERSION}, it is {version}; make it again.")
        return cls(
            variant=header["variant"],
            run=header["run"],
            images=header["images"],
            names=header["names"],
            digests=header["digests"],
            found=list(_split(fields, header)),
        )


def _split(fields: Mapping[str, NDArray[Any]], header: Mapping[str, Any]) -> Iterator[Detections]:
    """The detections of each image."""
    names = {int(number): name for number, name in header["class_names"].items()}
    data = fields["strings"].tobytes()
    ends = np.cumsum(fields["string_lengths"], dtype=np.int64).tolist()
    strings = [data[start:end] for start, end in pairwise([0, *ends])]
    start = 0
    for size, count in zip(fields["sizes"].tolist(), fields["counts"].tolist(), strict=True):
        rows = slice(start, start + count)
        start += count
        yield Detections(
            image_size=(size[0], size[1]),
            xyxy=fields["xyxy"][rows],
            confidence=fields["confidence"][rows],
            class_id=fields["class_id"][rows],
            rle=[{"size": size, "counts": text} for text in strings[rows]] if header["has_masks"] else None,
            class_names=names,
        )


def _bytes(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8)


def _joined(arrays: Sequence[NDArray[Any]], empty: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([empty, *arrays])


def write_dump(
    path: Path,
    variant: Variant,
    network: RFDETR,
    images: Images,
    *,
    on_progress: Callable[[], object] = lambda: None,
) -> Dump:
    """Run a variant on images and write what it finds.

    While it runs, parts are kept in a folder beside the file; if it is interrupted, the next call with the same
    arguments goes on after the last part.

    Args:
        path: The file, .npz.
        variant: What to run.
        network: In eval mode, float32, on the CPU.
        images: What to run it on.
        on_progress: Called after each image, those of an earlier call included.

    Returns:
        The dump.

    Raises:
        InputError: The parts are of another variant or other images.
        SourceError: The file can't be written, or an image not be read.
        UnsupportedError: The variant can't be had here.
    """
    parts = path.with_name(path.name + ".parts")
    done = [Dump.load(file) for file in sorted(parts.glob("*.npz"))]
    empty = Dump(variant.identify(network), describe_run(), images.describe(), [], [], [])
    for known in done:
        if (known.variant, known.images) != (_as_json(empty.variant), _as_json(empty.images)):
            raise InputError(f"{str(path)!r} was begun with another variant or other images; remove {str(parts)!r}.")
    start = sum(len(part.names) for part in done)
    for _ in range(start):
        on_progress()
    rows = _look(variant, network, images.open(start), on_progress)
    while part := list(islice(rows, _PART)):
        done.append(_with_rows(empty, part))
        done[-1].save(parts / f"{len(done) - 1:06}.npz")
    whole = _with_rows(empty, [row for part in done for row in zip(part.names, part.digests, part.found, strict=True)])
    whole.save(path)
    shutil.rmtree(parts, ignore_errors=True)
    return whole


def _look(
    variant: Variant, network: RFDETR, source: Source, on_progress: Callable[[], object]
) -> Iterator[tuple[str, str, Detections]]:
    """Of each image its name, a digest of its pixels and what the variant finds on it."""
    for frame, detections in variant.run(network, source):
        on_progress()
        yield frame.name, hashlib.blake2b(frame.image.tobytes(), digest_size=8).hexdigest(), detections


def _with_rows(empty: Dump, rows: Sequence[tuple[str, str, Detections]]) -> Dump:
    names, digests, found = [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
    return replace(empty, names=names, digests=digests, found=found)


def _as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))
