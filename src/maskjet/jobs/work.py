"""What a worker does: detect on a segment, write its part, try again where that may help."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from maskjet.config import EngineConfig
from maskjet.errors import DeviceError, MaskjetError, OutputError, first_line
from maskjet.jobs.parts import Parts
from maskjet.jobs.processing import process
from maskjet.jobs.rows import metadata, with_metadata
from maskjet.jobs.segments import Segment, Settings

if TYPE_CHECKING:
    import pyarrow

    from maskjet.model import Model

TRIES = 3
"""How often a segment is begun before it is given up."""
_log = logging.getLogger("maskjet")


@dataclass(frozen=True)
class Outcome:
    """What became of a segment."""

    part: str
    """Name of its part."""
    frames: int = 0
    """Frames in it."""
    detections: int = 0
    """Detections in it."""
    failures: Sequence[tuple[str, str]] = ()
    """Files or frames that could not be used, each with the reason."""
    is_written: bool = True
    """Whether there is a part; else the whole segment failed."""

    def as_dict(self) -> dict[str, Any]:
        """In JSON types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Outcome:
        """The outcome that `as_dict` described."""
        return cls(**{**value, "failures": tuple((what, why) for what, why in value["failures"])})


def open_model(settings: Settings, config: EngineConfig) -> Model:
    """Load the model that settings name.

    Args:
        settings: What is done with each segment.
        config: How to run it, with the worker's own device.

    Raises:
        InputError, CheckpointError, UnsupportedError: As `maskjet.load`.
    """
    from maskjet.model import Model, read_network

    network = read_network(settings.model, settings.weights, config.input_size)
    threshold: Any = network.spec.threshold if settings.threshold is None else settings.threshold
    if settings.class_thresholds:
        names = network.spec.class_names.values()
        threshold = {**dict.fromkeys(names, threshold), **settings.class_thresholds}
    return Model(network, config, threshold=threshold, classes=settings.classes)


class Worker:
    """Turns segments into parts. May be called from several threads.

    Args:
        orders: In JSON types: settings, what is done with each segment; device, the worker's own; lanes, segments that
            it works on at a time; out, where the parts go; facts, what is written into each part's metadata besides its
            segment.

    Raises:
        InputError, CheckpointError, UnsupportedError: As `maskjet.load`.
    """

    def __init__(self, orders: Mapping[str, Any]) -> None:
        self._settings = Settings.from_dict(orders["settings"])
        self._lanes, self._facts = int(orders["lanes"]), orders["facts"]
        self._parts = Parts(orders["out"])
        self.model = open_model(self._settings, replace(self._settings.config, device=orders["device"]))

    def do(self, part: str, segment: Segment) -> Outcome:
        """Detect on a segment and write its part.

        What is bad may be so for a moment only, as where a disk or a network fails, so it is tried again.

        Raises:
            OutputError: The part can't be written.
            DeviceError: The device failed; the process must end.
        """
        outcome, table = Outcome(part, is_written=False), None
        for _ in range(TRIES):
            outcome, table = self._try(part, segment)
            if not outcome.failures:
                break
        if table is not None:
            self._parts.write(part, with_metadata(table, **self._facts), outcome.failures)
        return outcome

    def _try(self, part: str, segment: Segment) -> tuple[Outcome, pyarrow.Table | None]:
        """What came out, and the part's rows if there are any."""
        try:
            table = process(
                segment, self.model, rows=self._settings.rows, every=self._settings.every, streams=self._lanes
            )
        except (OutputError, DeviceError):
            raise
        except MaskjetError as error:
            return Outcome(part, failures=((segment.name, first_line(error)),), is_written=False), None
        except Exception as error:  # a foreign library's, on a file that nobody has seen yet: the job goes on
            _log.exception("%s failed", segment.name)
            return Outcome(part, failures=((segment.name, repr(error)),), is_written=False), None
        about = metadata(table.schema)
        failures = tuple((_name_of(segment, what), reason) for what, reason in about["bad_frames"])
        return Outcome(part, about["frames"], about["detections"], failures), table


def _name_of(segment: Segment, what: int | str) -> str:
    """A name for people of a frame, by its index, or of an image, by its path."""
    return f"{segment.files[0].path}#{what}" if segment.is_video else str(what)
