"""Processing segments in a worker: detect, write the part, retry."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maskjet import errors
from maskjet.errors import (
    CheckpointError,
    DeviceError,
    MaskjetError,
    OutputError,
    UnsupportedError,
    explain,
    first_line,
)
from maskjet.jobs.folders import Folder
from maskjet.jobs.manifest import note_failures
from maskjet.jobs.parts import Parts
from maskjet.jobs.processing import process
from maskjet.jobs.rows import metadata, with_metadata
from maskjet.jobs.segments import Segment, Settings
from maskjet.networks.exported.metadata import IR, ONNX
from maskjet.sources.decoding import choose_decoding, name_nvjpeg
from maskjet.spec import MODELS
from maskjet.version import __version__

if TYPE_CHECKING:
    import pyarrow

TRIES = 3
"""Attempts at a segment before it is given up."""
FAILED = 5
"""Exit code of a worker whose device failed."""
_log = logging.getLogger("maskjet")


@dataclass(frozen=True)
class Outcome:
    """Outcome of a segment."""

    part: str
    """Name of the segment's part."""
    frames: int = 0
    """Frames in the part."""
    detections: int = 0
    """Detections in the part."""
    failures: Sequence[tuple[str, str]] = ()
    """Files or frames that failed, each with the reason."""
    is_written: bool = True
    """Whether the part exists; else the whole segment failed."""


def digest_weights(settings: Settings) -> str | None:
    """Digest of the model's weights file or files; None if its weights come with maskjet."""
    weights = settings.model if settings.weights is None else settings.weights
    if settings.weights is None and (weights in MODELS or not Path(weights).exists()):
        return None
    digests = []
    for path in _files_of(Path(weights)):
        try:
            with path.open("rb") as file:
                digests.append(hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest())
        except OSError as error:
            raise CheckpointError(f"weights must be a file, {str(path)!r} can't be read: {explain(error)}.") from error
    return digests[0] if len(digests) == 1 else hashlib.blake2b("".join(digests).encode(), digest_size=16).hexdigest()


def _files_of(weights: Path) -> Sequence[Path]:
    """Files of a model, including external weights of exported models and settings of transformers."""
    if weights.is_dir():
        return sorted(each for each in weights.iterdir() if each.suffix in (".json", ".safetensors"))
    if weights.suffix not in (ONNX, IR):
        return [weights]
    from maskjet.networks.exported.network_file import read_network_file

    return read_network_file(weights).files


class Worker:
    """Processes segments and writes their parts; thread-safe. Raises the errors of `maskjet.load`.

    Orders are in JSON types: settings; device, the worker's own; streams, the number of segments that it processes at a
    time; out, the output folder; facts, further metadata of each part.
    """

    def __init__(self, orders: Mapping[str, Any]) -> None:
        self._settings = Settings.from_dict(orders["settings"])
        self._facts = orders["facts"]
        if self._facts["version"] != __version__:
            raise UnsupportedError(
                f"maskjet must be of one version on all nodes, got {__version__} beside the driver's "
                f"{self._facts['version']}."
            )
        self._folder, self._parts = Folder(orders["out"]), Parts(orders["out"])
        from maskjet.model import open_model
        from maskjet.networks import find_family
        from maskjet.networks.rfdetr import family as rfdetr

        config = replace(self._settings.config, device=orders["device"])
        chosen = self._settings
        is_converted = config.resolve_device().type == "cpu" and config.precision != "int8"
        if is_converted and config.runtime == "auto" and find_family(chosen.model) is rfdetr:
            config = replace(config, runtime="torch")  # the caches of other machines may have no conversion
        self.model = open_model(
            *(chosen.model, chosen.weights, config),
            threshold=chosen.threshold,
            class_thresholds=chosen.class_thresholds,
            classes=chosen.classes,
        )
        if digest_weights(self._settings) != self._facts["settings"]["weights"]:  # else parts would get wrong names
            path = self._settings.weights or self._settings.model
            raise CheckpointError(f"weights must not change during a job, {path!r} has changed: run the job again.")
        jpegs = self._settings.jpeg_decoder
        self._decoding = replace(choose_decoding(config, int(orders["streams"])), takes_jpegs=jpegs != "cpu")
        if self._decoding.takes_jpegs:
            if name_nvjpeg() != jpegs:
                raise UnsupportedError(f"JPEGs must be decoded alike, by {jpegs} on all nodes, got {name_nvjpeg()}.")
            self._decoding.jpeg_decoder()  # raise here, not once per segment

    def answer(self, part: str, segment: Segment, *, is_again: bool) -> dict[str, Any]:
        """Process a segment; returns its outcome, or an error that ends the job, in JSON types.

        `is_again` tells that a worker died at it. Ends the process if its device fails, which only a new process can
        use again.
        """
        try:
            return asdict(self.do(part, segment, is_again=is_again))
        except DeviceError as error:
            _log.warning("%s", first_line(error))
            os._exit(FAILED)
        except BaseException as error:  # a pool drops its threads' errors, and the driver would wait for ever
            return error_answer(error, segment.name)

    def do(self, part: str, segment: Segment, *, is_again: bool = False) -> Outcome:
        """Detect on a segment and write its part, in up to three tries: errors of disks and networks may be transient.

        Raises OutputError, and DeviceError, after which the process must end.
        """
        if is_again:
            note_failures(self._folder, part, ())  # replaces failures of the previous attempt
        outcome, table = Outcome(part, is_written=False), None
        for _ in range(TRIES):
            outcome, table = self._try(part, segment)
            if not outcome.failures:
                break
        if outcome.failures:
            note_failures(self._folder, part, outcome.failures)
        if table is not None:
            self._parts.write(part, with_metadata(table, **self._facts))
        return outcome

    def _try(self, part: str, segment: Segment) -> tuple[Outcome, pyarrow.Table | None]:
        """Process a segment once; returns the outcome, and the part's table unless everything failed."""
        try:
            how = {name: getattr(self._settings, name) for name in ("every", "detect", "track", "tiling")}
            table = process(segment, self.model, decoding=self._decoding, **how)
        except (OutputError, DeviceError):
            raise
        except MaskjetError as error:
            return Outcome(part, failures=((segment.name, first_line(error)),), is_written=False), None
        except Exception as error:  # unexpected error of a library on some input: the job goes on
            _log.exception("%s failed: %r", segment.name, error)  # the command line shows no traceback
            return Outcome(part, failures=((segment.name, repr(error)),), is_written=False), None
        about = metadata(table.schema)
        failures = tuple(
            (f"{segment.files[0].path}#{what}" if segment.is_video else str(what), reason)
            for what, reason in about["bad_frames"]
        )
        return Outcome(part, about["frames"], about["detections"], failures), table


def error_answer(error: BaseException, name: str) -> dict[str, Any]:
    """Encode an error that ends the job, in JSON types; foreign errors get the segment's name."""
    if not isinstance(error, MaskjetError):
        error = MaskjetError(f"{name} failed: {error!r}.")
    return {"error": type(error).__name__, "text": str(error)}


def parse_answer(answer: Mapping[str, Any]) -> Outcome:
    """Decode the outcome in a worker's answer; raises if it is an error."""
    if "error" not in answer:
        return Outcome(**answer)
    kind: Any = getattr(errors, str(answer["error"]), MaskjetError)
    more = {"index": 0} if kind in (DeviceError, errors.FrameError) else {}
    raise kind(answer["text"], **more)
