"""Every exception maskjet raises on purpose.

MaskjetError
├── InputError (ValueError)            an argument is invalid
│   ├── SourceError                    a source, file or stream can't be opened or read; names it
│   └── FrameError                     one frame can't be decoded or processed; carries its index
├── OutputError (OSError)              a result can't be written; names the path
├── CheckpointError (ValueError)       a weights file is missing, damaged or of another network
├── UnsupportedError (RuntimeError)    a request can't run on this machine or this input
├── DeviceError (RuntimeError)         the device failed on a frame or did not answer; carries the frame's index
└── MissingDependencyError (ImportError)   an optional package is not installed; names the pip command
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


class MaskjetError(Exception):
    """Base class of all errors that maskjet raises on purpose.

    Examples:
        >>> import maskjet
        >>> try:
        ...     maskjet.load("demmo")
        ... except maskjet.MaskjetError as error:
        ...     print(error)
        model must be a name or a checkpoint's path, got 'demmo'; did you mean 'demo'?
    """

    @property
    def argument(self) -> str | None:
        """Name of the wrong argument, with which the message begins: `"threshold"` for "threshold must be ..."."""
        found = re.match(r"[a-z]\w*(?= must |=)", str(self))
        return found and found[0]


class InputError(MaskjetError, ValueError):
    """An argument has the wrong type, shape or value; also a `ValueError`.

    Examples:
        >>> import maskjet
        >>> maskjet.load("demo", threshold=1.5)
        Traceback (most recent call last):
        maskjet.errors.InputError: threshold must be 0..1, got 1.5.
    """


class SourceError(InputError):
    """A source, file or stream can't be opened or read; also an `InputError`.

    Examples:
        >>> import maskjet
        >>> model = maskjet.load("demo")
        >>> next(model.stream("nowhere.mp4"))
        Traceback (most recent call last):
        maskjet.errors.SourceError: source must exist, 'nowhere.mp4' does not.
    """


class _IndexedError(Exception):
    """An error of one frame or image."""

    def __init__(self, message: str, *, index: int) -> None:
        super().__init__(message)
        self.index = index

    def __reduce__(self) -> tuple[Any, ...]:  # the default loses the index
        return partial(type(self), index=self.index), self.args


class FrameError(_IndexedError, InputError):
    """One frame of a source can't be decoded or processed; also an `InputError`.

    Attributes:
        index: The frame's position in its source, from 0.

    Examples:
        >>> import maskjet
        >>> maskjet.FrameError("Frame 7 is damaged.", index=7).index
        7
    """


class OutputError(MaskjetError, OSError):
    """A result can't be written; also an `OSError`.

    Examples:
        >>> import maskjet
        >>> found = maskjet.load("demo").predict(maskjet.traffic.sample(seed=3).image)
        >>> found.save("/dev/null/found.json")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        maskjet.errors.OutputError: path must be writable, '/dev/null/found.json' is not: ...
    """


class CheckpointError(MaskjetError, ValueError):
    """A weights file is missing, damaged or of another network; also a `ValueError`.

    Examples:
        >>> import maskjet
        >>> maskjet.load("rf-detr-seg-nano", weights="nowhere.pt")
        Traceback (most recent call last):
        maskjet.errors.CheckpointError: weights must be a file, got 'nowhere.pt', which does not exist.
    """


class UnsupportedError(MaskjetError, RuntimeError):
    """A request can't run on this machine or this input; also a `RuntimeError`.

    Examples:
        >>> import maskjet
        >>> maskjet.load("demo", device="cpu", precision="fp16")
        Traceback (most recent call last):
        maskjet.errors.UnsupportedError: precision='fp16' needs a GPU; on a CPU use 'bf16' or 'fp32'.
    """


class DeviceError(_IndexedError, MaskjetError, RuntimeError):
    """The device failed on a frame, or did not answer; also a `RuntimeError`.

    Attributes:
        index: The frame's position in its source, or the image's in a list, from 0.

    Examples:
        >>> import maskjet
        >>> maskjet.DeviceError("The device failed on frame 7 of 'a.mp4'.", index=7).index
        7
    """


def device_error(what: object, index: int, error: Exception) -> DeviceError:
    """Make a DeviceError, caused by another error, that names the work; `index` is as in `DeviceError`."""
    failure = DeviceError(f"The device failed on {what}: {first_line(error)}", index=index)
    failure.__cause__ = error
    return failure


class MissingDependencyError(MaskjetError, ImportError):
    """An optional package is not installed; the message has the command that installs it. Also an `ImportError`.

    Examples:
        >>> import maskjet
        >>> issubclass(maskjet.MissingDependencyError, ImportError)
        True
    """


def explain(error: Exception) -> str:
    """Reason in an error of the operating system or FFmpeg, without its number."""
    return getattr(error, "strerror", None) or str(error)


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its class's name if the message is empty."""
    if isinstance(error, KeyError):  # whose message is the key alone
        return f"{error} is missing"
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def suggest(name: object, known: Iterable[str], *, lists: bool = True) -> str:
    """End of a message about a misspelt name: the closest known name, or all of them if none is close.

    Args:
        name: What was given instead of a known name, of any type.
        known: The valid names, at least one; case does not count.
        lists: Whether to list the known names if none is close; False where the message has them already.

    Examples:
        >>> suggest("tuck", ["car", "truck", "bus"])
        "; did you mean 'truck'?"
        >>> suggest("zebra", ["car", "truck", "bus"])
        '; known: car, truck, bus.'
        >>> suggest("zebra", ["car", "truck", "bus"], lists=False)
        '.'
    """
    from difflib import get_close_matches  # imported here: slow, and not needed by `import maskjet`

    names = list(known)
    by_folded = {each.casefold(): each for each in reversed(names)}
    close = get_close_matches(name.casefold(), by_folded, n=1) if isinstance(name, str) else []
    if close:
        return f"; did you mean {by_folded[close[0]]!r}?"
    return f"; known: {', '.join(names)}." if lists else "."


@contextmanager
def translate_errors(error: type[MaskjetError], message: str) -> Iterator[None]:
    """Translate exceptions of foreign libraries to one of maskjet's; wraps code that reads one kind of input.

    Maskjet's own exceptions pass unchanged. The classes that NumPy, PyTorch, FFmpeg or OpenCV raise on broken input
    change between versions, so all are caught.

    Args:
        error: Class of the exception to raise; takes one message.
        message: Beginning of the message, naming the input: "'a.pt' can't be read".
    """
    try:
        yield
    except MaskjetError:
        raise
    except Exception as foreign:
        raise error(f"{message}: {first_line(foreign)}") from foreign
