"""Every exception maskjet raises on purpose.

MaskjetError
├── InputError (ValueError)            an argument is not what the function takes
│   ├── SourceError                    a source, file or stream can't be opened or read; names it
│   └── FrameError                     one frame can't be decoded or processed; carries its index
├── CheckpointError (ValueError)       a weights file is missing, truncated, foreign or of another size
├── UnsupportedError (RuntimeError)    what was asked for can't run on this machine or this input
├── DeviceError (RuntimeError)         the device failed on a frame or did not answer; carries the frame's index
└── MissingDependencyError (ImportError)   an optional package is not installed; names the pip command
"""

from __future__ import annotations


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


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its class's name if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
