"""Records: what a detector found on a set of images, as the JSON lines of `maskjet run --record`.

The first line says how they were made, the last one which images could not be read; between them is a line per image,
as of any run, with a digest of its pixels. JSON's numbers hold float32 exactly, and masks are COCO RLE: nothing is
rounded.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskjet import limits
from maskjet.detections import Detections, coco_annotations
from maskjet.errors import InputError, SourceError, translate_errors
from maskjet.host.files import compact_json, replacing
from maskjet.host.machine import describe_machine
from maskjet.host.printing import as_utf8, printable
from maskjet.model import Model
from maskjet.outputs.lines import digest, line
from maskjet.sources.frames import Frame

_FORMAT = "maskjet record 1"
_DEEPEST = 8  # nesting of the first line, which is walked recursively


@dataclass(frozen=True, eq=False)
class ImageRecord:
    """Detections on one image, with its name and a digest of its pixels."""

    index: int
    """Index of the image in its source."""
    name: str
    """Name of the image, its path if it has one."""
    digest: str
    """Digest of the image's pixels."""
    found: Detections
    """The detections."""


@dataclass(frozen=True, eq=False)
class Record:
    """Detections of one variant of a detector on a set of images, with its settings."""

    about: Mapping[str, Any]
    """How it was made, as JSON types: name, classes, thresholds, and settings, among them the machine."""
    images: Sequence[ImageRecord]
    """The images, in order."""
    skipped: Sequence[str] = ()
    """One reason per image that could not be read; such images are not in `images`."""

    @property
    def name(self) -> str:
        """Name of the variant."""
        return str(self.about["name"])

    @property
    def thresholds(self) -> Mapping[str, float]:
        """Confidence that detections exceed, by class name."""
        thresholds: Mapping[str, float] = self.about["thresholds"]
        return thresholds

    def to_annotations(self, truth: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Convert to annotations, each with a score, for a COCO data set with these images; `coco.evaluate` takes them.

        Images are matched by the end of their paths, classes by name. Detections of classes that the data set lacks are
        left out.

        Raises:
            InputError: The data set lacks an image, or has one twice or in another size; or a name is missing.
        """
        images = _by_name(truth["images"], "file_name", "images")
        categories = _by_name(truth["categories"], "name", "categories")
        taken, results = set[str](), list[dict[str, Any]]()
        for each in self.images:
            parts = PurePosixPath(each.name).parts
            tails = ("/".join(parts[start:]) for start in range(len(parts)))
            name = next((tail for tail in tails if tail in images), None)
            if name is None or name in taken:
                times = "twice" if name else "missing"
                raise InputError(f"annotations must have each image once, {each.name!r} is {times}.")
            taken.add(name)
            size = (images[name].get("height"), images[name].get("width"))
            if size != each.found.image_size:
                expected = list(each.found.image_size)
                raise InputError(f"annotations must have {name!r} with {expected} pixels, got {list(size)}.")
            numbers = {n: categories[title]["id"] for n, title in each.found.class_names.items() if title in categories}
            known = np.isin(each.found.class_id, list(numbers))
            results += coco_annotations(each.found[known], images[name]["id"], numbers)
        return results

    def list_left_out(self, truth: Mapping[str, Any]) -> list[str]:
        """Describe, in sentences, detections that can't be scored on a data set, and its images that are missing."""
        known = {category.get("name") for category in truth["categories"]}
        lost = Counter(title for each in self.images for title in each.found.class_name.tolist() if title not in known)
        notes = []
        if lost:
            named = ", ".join(f"{title} ({count})" for title, count in lost.items())
            notes.append(f"{self.name!r} has detections of classes that the annotations lack, left out: {named}.")
        if len(self.images) < len(truth["images"]):
            notes.append(f"{self.name!r} has {len(self.images)} of the {len(truth['images'])} annotated images.")
        return notes


def describe_model(model: Model, *, threshold: Mapping[str, float] | None = None, **settings: Any) -> dict[str, Any]:
    """Describe a model and how it runs, for the first line of a record.

    Args:
        model: The model.
        threshold: Thresholds by class name that replace the model's own.
        **settings: Whatever else determines what it finds, of JSON types.
    """
    report = model.report()
    return _describe(
        model.spec.class_names,
        model.thresholds | dict(threshold or {}),
        program="maskjet",
        model=report.model,
        weights=model.weights_digest,
        config=asdict(model.config) | {"device": str(model.config.resolve_device()), "precision": report.precision},
        **settings,
    )


def write_record(
    path: str | Path,
    images: Iterable[tuple[str, NDArray[np.uint8], Detections]],
    *,
    classes: Mapping[int, str],
    threshold: float,
    **settings: Any,
) -> None:
    """Write what any program found as a record; its file takes its name when it is whole.

    Args:
        path: The file to write, .jsonl.
        images: Name, image, uint8 [H, W, 3] RGB, and detections of each image.
        classes: Class names by id.
        threshold: Confidence that all detections exceed, 0..1.
        **settings: Whatever else determines what it finds, of JSON types; with `name`, that of the variant, in place of
            the file's.

    Raises:
        InputError: `read_record` would refuse the file, for example as a box is not finite.
        OutputError: The file can't be written.
    """
    about = _describe(classes, dict.fromkeys(classes.values(), threshold), **settings)
    with translate_errors(InputError, f"{str(path)!r} must be a record that can be read again"):
        _check_about(json.loads(json.dumps(about)), Path(path))
        with replacing(path) as file:
            file.write(compact_json(about).encode() + b"\n")
            for index, (name, image, found) in enumerate(images):
                file.write(line(Frame(index, None, image, name, name), found, digest(image)).encode())
            file.write(b'{"skipped":[]}\n')


def read_record(path: str | Path) -> Record:
    """Read a record, line by line.

    Raises:
        SourceError: The file can't be read, is none, is damaged or cut off, or is larger than `limits.json_bytes`, or a
            line than `limits.line_bytes`.
    """
    with translate_errors(SourceError, f"{str(path)!r} must be a record that maskjet run --record wrote, it is not"):
        try:
            lines = _read_lines(Path(path))
            about = _check_about(next(lines, {}), Path(path))
            names = {int(number): name for number, name in about["classes"].items()}
            images: list[ImageRecord] = []
            for number, fields in enumerate(lines, 2):
                if "skipped" in fields:
                    _expect(next(lines, None) is None, f"line {number} must be the last one")
                    return Record(about, images, [as_utf8(str(reason)) for reason in fields["skipped"]])
                images.append(_read_image(fields, names, number))
        except FileNotFoundError as error:
            raise SourceError(f"{str(path)!r} must be a record, there is no such file.") from error
        raise ValueError("it is cut off: its last line is missing.")


def _describe(classes: Mapping[int, str], thresholds: Mapping[str, float], **settings: Any) -> dict[str, Any]:
    numbered = {str(number): name for number, name in classes.items()}
    about = {"format": _FORMAT, "classes": numbered, "thresholds": thresholds, **settings}
    return {**about, "machine": asdict(describe_machine())}


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines; limits are checked before a line is parsed."""
    total = 0
    with path.open("rb") as file:
        while text := file.readline(limits.line_bytes + 1):
            total += len(text)
            limits.check("line_bytes", len(text), f"a line of {str(path)!r} has", SourceError)
            limits.check("json_bytes", total, f"{str(path)!r} has", SourceError)
            fields = json.loads(text)
            _expect(isinstance(fields, dict), "each line must be an object")
            yield fields


def _check_about(about: dict[str, Any], path: Path) -> dict[str, Any]:
    """Check the first line; returns it with a name, the file's if it has none."""
    _expect(about.get("format") == _FORMAT, f"its first line must have the format {_FORMAT!r}")
    _check_depth(about)
    json.dumps(about, allow_nan=False)  # raises on NaN and infinity
    name = about.get("name", printable(path.stem))
    _expect(isinstance(name, str) and name and name.isprintable(), "name must be in printable characters")
    classes, thresholds = about["classes"], about["thresholds"]
    names = [*classes.values(), *thresholds]
    _expect(all(isinstance(each, str) and each.isprintable() for each in names), "classes must have printable names")
    _expect(all(number.isdecimal() and len(number) < 10 for number in classes), "classes must be named by id")
    numbers = thresholds.values()
    _expect(thresholds and all(type(n) in (int, float) and 0 <= n <= 1 for n in numbers), "thresholds must be 0..1")
    return {**about, "name": name}


def _check_depth(value: Any, level: int = 0) -> None:
    _expect(level <= _DEEPEST, f"its first line must be at most {_DEEPEST} levels deep")
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_depth(each, level + 1)


def _read_image(fields: Mapping[str, Any], names: Mapping[int, str], number: int) -> ImageRecord:
    """Read the line of an image; boxes reach at most one image size beyond its border."""
    index, name, of_pixels = fields["index"], fields["name"], fields["digest"]
    are_right = isinstance(index, int) and isinstance(name, str) and isinstance(of_pixels, str)
    _expect(are_right, f"line {number} must have an index, a name and a digest")
    try:
        found = replace(Detections.from_dict(fields), class_names=names)
        height, width = found.image_size
        limits.check("image_pixels", height * width, "the image has")
    except InputError as error:
        raise SourceError(f"line {number} of a record must be right: {error}") from error
    reach = np.array([width, height] * 2)
    is_near = (found.xyxy >= -reach) & (found.xyxy <= 2 * reach)
    is_sure = (found.confidence >= 0) & (found.confidence <= 1)
    _expect(height and width and is_near.all() and is_sure.all(), f"line {number} must have boxes near an image")
    return ImageRecord(index, as_utf8(name), of_pixels, found)


def _expect(is_right: object, message: str) -> None:
    if not is_right:
        raise ValueError(f"{message}.")


def _by_name(entries: Sequence[Mapping[str, Any]], field: str, what: str) -> dict[str, Mapping[str, Any]]:
    """A data set's entries by name; names must be unique."""
    found: dict[str, Mapping[str, Any]] = {}
    for entry in entries:
        name = entry.get(field)
        if not isinstance(name, str) or name in found:
            raise InputError(
                f"annotations must have different names as {field!r} in {what}, got {name!r} again or none."
            )
        found[name] = entry
    return found
