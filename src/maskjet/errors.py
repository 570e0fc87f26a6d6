"""Every exception maskjet raises on purpose.

MaskjetError
├── InputError (ValueError)            an argument is not what the function takes
│   ├── SourceError                    a source, file or stream can't be opened or read; names it
│   └── FrameError                     one frame can't be decoded or processed; carries its index
├── OutputError (OSError)              a result can't be written where it was to go; names the path
├── CheckpointError (ValueError)       a weights file is missing, truncated, foreign or of another size
├── UnsupportedError (RuntimeError)    what was asked for can't run on this machine or this input
├── DeviceError (RuntimeError)         the device failed on a frame or did not answer; carries the frame's index
└── MissingDependencyError (ImportError)   an optional package is not installed; names the pip command
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class MaskjetError(Exception):
    """The root: catch it to catch all of maskjet's own errors."""


class InputError(MaskjetError, ValueError):
    """An argument is not what the function takes."""


class SourceError(InputError):
    """A source, file or stream can't be opened or read."""


class FrameError(InputError):
    """One frame of a source can't be decoded or processed.

    Attributes:
        index: The frame's position in its source, from 0.
    """

    def __init__(self, message: str, *, index: int) -> None:
        super().__init__(message)
        self.index = index


class OutputError(MaskjetError, OSError):
    """A result can't be written where it was to go."""


class CheckpointError(MaskjetError, ValueError):
    """A weights file is missing, truncated, foreign or of another size."""


class UnsupportedError(MaskjetError, RuntimeError):
    """What was asked for can't run on this machine or this input."""


class DeviceError(MaskjetError, RuntimeError):
    """The device failed on a frame, or did not answer.

    Attributes:
        index: The frame's position in its source, or the image's in a list, from 0.
    """

    def __init__(self, message: str, *, index: int) -> None:
        super().__init__(message)
        self.index = index


class MissingDependencyError(MaskjetError, ImportError):
    """An optional package is not installed."""


def explain(error: Exception) -> str:
    """The reason an operating system's or FFmpeg's error gives, without its number."""
    return getattr(error, "strerror", None) or str(error)


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its class's name if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def border(error: type[MaskjetError], what: str) -> Iterator[None]:
    """Turn whatever a foreign library raises into one of ours: the one place where a kind of input is read.

    Our own exceptions pass as they are. What NumPy, PyTorch, FFmpeg or OpenCV raise on broken input is theirs to
    choose and changes between versions, so that all of it is caught, not a list.

    Args:
        error: What to raise; takes one message.
        what: The message's beginning, naming the input: "'a.pt' can't be read".
    """
    try:
        yield
    except MaskjetError:
        raise
    except Exception as foreign:
        raise error(f"{what}: {first_line(foreign)}") from foreign
