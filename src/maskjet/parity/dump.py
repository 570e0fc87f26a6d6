"""Dumps: detections of one variant on a set of images, stored with their provenance.

The format is NumPy's .npz, compressed: one array per field, the images' detections concatenated, and a header in JSON.
The header states the format's version; files of other versions are refused. `dump_file` reads and checks the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections, coco_annotations
from maskjet.errors import InputError, SourceError, translate_errors
from maskjet.host.machine import describe_machine
from maskjet.host.printing import as_utf8
from maskjet.masks import coco_rle
from maskjet.model import Model
from maskjet.networks.rfdetr import RFDETR
from maskjet.parity import dump_file
from maskjet.parity.images import Images, digest
from maskjet.parity.variants import DetectorVariant
from maskjet.sources.frames import Frame, Source

_FORMAT, _VERSION = "maskjet dump", 1


@dataclass(frozen=True, eq=False)
class Dump:
    """The detections of one variant on a set of images."""

    variant: Mapping[str, Any]
    """The variant, as `DetectorVariant.identify` describes it."""
    run: Mapping[str, Any]
    """The machine and the versions, a `Machine` as JSON types."""
    images: Mapping[str, Any]
    """The set of images, as `Images.describe` describes it."""
    names: Sequence[str]
    """Image names, in order."""
    digests: Sequence[str]
    """Digest of each image's pixels."""
    found: Sequence[Detections]
    """Detections of each image."""
    skipped: Sequence[str] = ()
    """One reason per image that could not be read; such images are in none of the other lists."""

    @property
    def name(self) -> str:
        """The variant's name."""
        return str(self.variant["name"])

    def check_same_images(self, other: Dump) -> None:
        """Raise InputError, which names the first difference, unless both dumps are of the same images, bit for bit."""
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
        for name, one_found, other_found in zip(self.names, self.found, other.found, strict=True):
            if one_found.image_size != other_found.image_size:
                what = f"{list(one_found.image_size)} against {list(other_found.image_size)} pixels"
                raise InputError(f"the dumps must be of the same images, {name!r} is of {what}.")

    def to_annotations(self, truth: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Convert to annotations, each with a score, for a COCO data set with these images; `coco.evaluate` takes them.

        Classes are matched by name. Detections of classes that the data set lacks are left out; `classes_without`
        counts them.

        Raises:
            InputError: The data set lacks an image, has one twice or in another size, or has none of the classes.
        """
        images = _by_name(truth["images"], "file_name", "images")
        by_name = _by_name(truth["categories"], "name", "categories")
        results: list[dict[str, Any]] = []
        for name, found in zip(self.names, self.found, strict=True):
            if name not in images:
                raise InputError(f"truth must have all images of the dump, got none called {name!r}.")
            size = (images[name].get("height"), images[name].get("width"))
            if size != found.image_size:
                raise InputError(f"truth must have {name!r} with {list(found.image_size)} pixels, got {list(size)}.")
            categories = {n: by_name[title]["id"] for n, title in found.class_names.items() if title in by_name}
            if not categories:
                raise InputError(f"truth must have classes of the model, got {sorted(by_name)}.")
            known = np.isin(found.class_id, list(categories))
            results += coco_annotations(found[known], images[name]["id"], categories)
        return results

    def classes_without(self, truth: Mapping[str, Any]) -> dict[str, int]:
        """Count the detections of classes that a data set lacks, by class name."""
        known = {category.get("name") for category in truth["categories"]}
        return dict(Counter(title for found in self.found for title in found.class_name if title not in known))

    def save(self, path: Path) -> None:
        """Write the dump to a file; an existing file is replaced once the new one is complete.

        Raises:
            InputError: `load` would refuse the file, for example because a box is not finite or an image occurs twice.
            OutputError: The file can't be written.
        """
        strings = [rle["counts"] for found in self.found for rle in found.rle or ()]
        fields: dict[str, NDArray[Any]] = {
            "sizes": np.array([found.image_size for found in self.found], np.int32).reshape(-1, 2),
            "counts": np.array([len(found) for found in self.found], np.int32),
            "xyxy": np.concatenate([np.zeros((0, 4), np.float32), *(found.xyxy for found in self.found)]),
            "confidence": np.concatenate([np.zeros(0, np.float32), *(found.confidence for found in self.found)]),
            "class_id": np.concatenate([np.zeros(0, np.int32), *(found.class_id for found in self.found)]),
            "string_lengths": np.array([len(text) for text in strings], np.int32),
            "strings": np.frombuffer(b"".join(strings), np.uint8),
        }
        with translate_errors(InputError, f"{str(path)!r} must be a dump that can be read again"):
            dump_file.write(path, self._header(), fields)

    @classmethod
    def load(cls, path: Path) -> Dump:
        """Read a file that `save` wrote.

        Raises:
            SourceError: The file can't be read, is not a dump, is damaged or inconsistent, needs more memory than
                `limits.dump_bytes`, or has another version.
        """
        with translate_errors(SourceError, f"{str(path)!r} must be a dump that maskjet parity dump wrote, it is not"):
            try:
                header, fields = dump_file.read(path)
            except FileNotFoundError as error:
                raise SourceError(f"{str(path)!r} must be a dump, there is no such file.") from error
            if header["format"] == _FORMAT and header["version"] != _VERSION:
                got = repr(header["version"])[:40]
                raise SourceError(f"{str(path)!r} must be a dump of version {_VERSION}, it is {got}; make it again.")
            if header["format"] != _FORMAT:
                raise ValueError("it is of another format.")
            dump_file.check(header, fields)
            kept = ("variant", "run", "images", "names", "digests")
            found = list(_split(fields, header))
            return cls(**{name: header[name] for name in kept}, found=found, skipped=header.get("skipped", []))

    def _header(self) -> dict[str, Any]:
        names: dict[int, str] = {}
        for found in self.found:
            if any(names.get(number, name) != name for number, name in found.class_names.items()):
                raise InputError(f"class_names must be the same for all images, got {names} and {found.class_names}.")
            names |= found.class_names
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "variant": dict(self.variant),
            "run": dict(self.run),
            "images": dict(self.images),
            "names": list(self.names),
            "digests": list(self.digests),
            "skipped": list(self.skipped),
            "has_masks": bool(self.found) and self.found[0].rle is not None,
            "class_names": names,
        }


def _split(fields: Mapping[str, NDArray[Any]], header: Mapping[str, Any]) -> Iterator[Detections]:
    """The detections of each image, their masks checked."""
    names = {int(number): name for number, name in header["class_names"].items()}
    data = fields["strings"].tobytes()
    ends = np.cumsum(fields["string_lengths"], dtype=np.int64).tolist()
    strings = [data[start:end] for start, end in pairwise([0, *ends])]
    start = 0
    for name, size, length in zip(header["names"], fields["sizes"].tolist(), fields["counts"].tolist(), strict=True):
        rows = slice(start, start + length)
        start += length
        rle = [{"size": size, "counts": text} for text in strings[rows]] if header["has_masks"] else None
        for mask in rle or ():
            try:  # checked now: equal masks are later compared as bytes
                coco_rle.area(mask)
            except InputError as error:
                raise ValueError(f"a mask on {name!r} is damaged, {error}") from error
        yield Detections(
            image_size=(size[0], size[1]),
            xyxy=fields["xyxy"][rows],
            confidence=fields["confidence"][rows],
            class_id=fields["class_id"][rows],
            rle=rle,
            class_names=names,
        )


def _by_name(entries: Sequence[Mapping[str, Any]], field: str, what: str) -> dict[str, Mapping[str, Any]]:
    """A data set's entries by name; names must be unique."""
    found: dict[str, Mapping[str, Any]] = {}
    for entry in entries:
        name = entry.get(field)
        if not isinstance(name, str):
            raise InputError(f"truth must have a {field!r} in each of its {what}, got {name!r}.")
        if name in found:
            raise InputError(f"truth must have different names in its {what}, got {name!r} twice.")
        found[name] = entry
    return found


def write_dump(
    path: Path,
    variant: DetectorVariant,
    network: RFDETR,
    images: Images,
    *,
    on_progress: Callable[[], object] = lambda: None,
) -> Dump:
    """Run a variant on images and write its detections to a file.

    Args:
        path: The file to write, .npz; it appears when the dump is complete.
        variant: The variant to run.
        network: The network, in eval mode, float32, on the CPU.
        images: The images to run on. Those that can't be read are left out; `Dump.skipped` gives the reasons.
        on_progress: Called after each image.

    Raises:
        InputError: No image can be read, or one occurs twice.
        OutputError: The file can't be written.
        SourceError: The source of the images can't be read.
        UnsupportedError: The variant can't run on this machine.
    """
    empty = Dump(variant.identify(network), asdict(describe_machine()), images.describe(), [], [], [])
    with translate_errors(InputError, f"{str(path)!r} can't be begun"):
        dump_file.check_header(dump_file.as_json(empty._header()))
    source = images.open()
    whole = _fill(empty, source, variant.run(network, source), on_progress)
    whole.save(path)
    return whole


def collect(model: Model, images: Images, threshold: float, on_progress: Callable[[], object]) -> Dump:
    """Run a model on images, and keep its detections in memory; raises InputError if no image can be read."""
    source = images.open()
    variant = {"name": model.spec.name, "program": "maskjet", "config": asdict(model.config), "threshold": threshold}
    empty = Dump(variant, asdict(describe_machine()), images.describe(), [], [], [])
    with closing(model.stream(source, threshold=threshold)) as results:
        return _fill(empty, source, results, on_progress)


def _fill(
    empty: Dump, source: Source, results: Iterator[tuple[Frame, Detections]], on_progress: Callable[[], object]
) -> Dump:
    """Build the dump from names, pixel digests and detections; raises InputError without images."""
    names, digests, found = [], [], []
    for frame, detections in results:
        names.append(as_utf8(frame.name))
        digests.append(digest(frame.image))
        found.append(detections)
        on_progress()
    skipped = [as_utf8(reason) for _, reason in source.bad_frames]
    if not names:
        raise InputError(f"images must have one that can be read, got {skipped or 'none'}.")
    return replace(empty, names=names, digests=digests, found=found, skipped=skipped)
