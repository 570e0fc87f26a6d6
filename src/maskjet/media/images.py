"""Reading one image of any accepted kind as uint8 RGB."""

from __future__ import annotations

import os
import stat
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Union

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from maskjet import limits
from maskjet.errors import InputError, SourceError, explain, translate_errors
from maskjet.media.image_headers import MOST_PARTS, is_whole_jpeg, open_avif, stated_size_hw

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".avif")
"""File names that are read as images; anything else is tried as a video, as is an animated GIF or PNG."""

Image = NDArray[np.uint8]


class SharesMemory(Protocol):
    """An array or tensor of any library that exports its memory by DLPack, as CuPy's and JAX's do."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """Export the memory."""


ImageLike = Union["np.ndarray[Any, Any]", torch.Tensor, str, os.PathLike[str], "PILImage", SharesMemory]
"""uint8 [H, W, 3] RGB array or tensor, floating tensor [3, H, W] in 0..1, path, or PIL image."""


def to_image(value: Any, name: str) -> Image:
    """Turn one image of any accepted kind into uint8 [H, W, 3] RGB.

    Grey becomes RGB. Alpha is dropped, not blended, as PIL's convert("RGB") does. The EXIF rotation of a file or PIL
    image is applied; rfdetr's `predict` ignores it. Files with 16 bits per channel keep the upper 8, as their formats
    and OpenCV define it: 65535 is white, so a camera's 12 bits must be scaled before they are saved. uint16 arrays are
    refused, because their white level is unknown.

    Args:
        value: uint8 array or tensor [H, W], [H, W, 1], [H, W, 3] or [H, W, 4]; floating tensor [3, H, W] in 0..1, see
            `from_floats`; anything with `__dlpack__`, taken for a tensor; path; or PIL image.
        name: Name of the image in error messages.

    Returns:
        uint8 [H, W, 3]; shares memory with an array that already is one.

    Raises:
        InputError: The value is no image as described above.
        SourceError: The file can't be read; the message names it.
    """
    if isinstance(value, str | os.PathLike):
        return read_image(Path(value))
    if isinstance(value, np.ndarray):
        return _from_array(value, name)
    if hasattr(value, "getexif"):
        return _from_pil(value, name)
    value = as_tensor(value, name)
    if isinstance(value, torch.Tensor):
        return _from_array(value.detach().cpu().numpy(), name)
    raise InputError(f"{name} must be an array, tensor, PIL image or path, got {type(value).__name__}.")


def as_tensor(value: Any, name: str) -> Any:
    """Turn an object with `__dlpack__` into a tensor that shares its memory, and floating tensors into bytes.

    Args:
        value: Anything; NumPy arrays and other objects are returned as they are.
        name: Name of the image or images in error messages.

    Raises:
        InputError: The memory can't be shared, or the values are not as in `from_floats`.
    """
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return value
    if not isinstance(value, torch.Tensor):
        with translate_errors(
            InputError, f"{name} must share its memory by DLPack, the {type(value).__name__} does not"
        ):
            value = torch.from_dlpack(value)  # type: ignore[attr-defined]
    return from_floats(value, name) if value.is_floating_point() else value


def from_floats(images: torch.Tensor, name: str) -> torch.Tensor:
    """Turn floating images, as torchvision's transforms make them, into bytes: × 255, rounded, halves to even.

    On a GPU this waits for the values to be checked.

    Args:
        images: Floating [3, H, W] or [N, 3, H, W] in 0..1, RGB, on any device.
        name: Name of the images in error messages.

    Returns:
        uint8 [H, W, 3] or [N, H, W, 3] on the same device.

    Raises:
        InputError: The shape is another one, or may also be [H, W, 3]; or a value is not in 0..1.
    """
    got = f"{str(images.dtype).removeprefix('torch.')} {list(images.shape)}"
    if images.ndim not in (3, 4) or images.shape[-3] != 3:
        raise InputError(f"{name} must be uint8 [H, W, 3] RGB in 0..255, or floating [3, H, W] in 0..1, got {got}.")
    if images.shape[-1] == 3:
        raise InputError(
            f"{name} must be [3, H, W] if it is floating, got {got}, which may be [H, W, 3] as well: give it as uint8 "
            "[H, W, 3]."
        )
    if images.numel():
        low, high = (float(value) for value in images.detach().aminmax())
        if not (low >= 0 and high <= 1):  # NaN is neither
            raise InputError(
                f"{name} must be scaled to 0..1 if it is floating, got values from {low:g} to {high:g}: divide by 255, "
                "undo a normalisation, or give uint8."
            )
    channels_last = images.detach().movedim(-3, -1)
    return (channels_last.float() * 255).round().to(torch.uint8).contiguous()


def split_images(value: Any, name: str) -> list[Any] | None:
    """Split a batch [N, H, W, 3] or floating [N, 3, H, W] into its images, which share its memory if it holds bytes.

    Returns:
        The images; None if the value is no array or tensor of four dimensions.

    Raises:
        InputError: The values are not as in `as_tensor`, whose `name` is that of the batch.
    """
    return list(as_tensor(value, name)) if getattr(value, "ndim", None) == 4 else None


class ImageReference:
    """A way to get an image again without keeping its memory: its path, or a weak reference to it.

    Args:
        given: The image, or the batch that it is in, as `to_image` or `split_images` takes it.
        position: The image's position in the batch; None if it is alone.
    """

    __slots__ = ("_given", "_position", "path")

    def __init__(self, given: Any, position: int | None = None) -> None:
        is_path = isinstance(given, str | os.PathLike)
        self.path = Path(given).absolute() if is_path else None
        """Path of the image's file, if it has one."""
        self._given: Callable[[], Any] = lambda: None
        if not is_path:
            with suppress(TypeError):  # not every class allows weak references
                self._given = weakref.ref(given)
        self._position = position

    def image(self) -> Image | None:
        """The image as uint8 [H, W, 3] RGB; None if nothing holds it any more.

        Raises:
            SourceError: The file can't be read any more.
        """
        if self.path is not None:
            return read_image(self.path)
        given = self._given()
        if given is not None and self._position is not None:
            given = as_tensor(given, "images")[self._position]
        return None if given is None else to_image(given, "image")

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageReference, (self.path,)  # in another process, or a copy, nothing but a file can be had again


def read_image(path: Path) -> Image:
    """Read an image file as uint8 [H, W, 3] RGB, upright; an animation or multi-page file gives its first image.

    Raises:
        SourceError: The file is missing, unreadable, too large, empty, cut off, damaged or no image; the message
            names it.
    """
    name = repr(str(path))
    with translate_errors(SourceError, f"image must be decodable, {name} is not"):
        return decode_image(_read_file(path), name)


def decode_image(data: bytes, name: str) -> Image:
    """Decode the content of an image file as `read_image` does.

    Args:
        data: The whole file.
        name: Name of the image in error messages, quoted if it is a path.

    Raises:
        SourceError: The data is empty, cut off, damaged, too large or no image.
    """
    with translate_errors(SourceError, f"image must be decodable, {name} is not"):
        plain = _strip_png(data) if data.startswith(b"\x89PNG") else data
        if not plain or (plain.startswith(b"\xff\xd8") and not is_whole_jpeg(plain)):  # OpenCV would fill it with grey
            raise SourceError(f"image must be whole, {name} is empty, cut off or damaged.")
        avif = open_avif(plain)
        size_hw = stated_size_hw(plain) if avif is None else (avif.height, avif.width)
        if size_hw is None:  # OpenCV decodes other formats, but their size is unknown beforehand
            raise SourceError(
                f"image must be decodable, {name} is corrupt or no PNG, JPEG, WebP, AVIF, BMP, TIFF or GIF."
            )
        limits.check("image_pixels", size_hw[0] * size_hw[1], f"{name} has", SourceError)
        if avif is not None:  # not every OpenCV reads it, and none turns it as the file states
            return _from_pil(avif, name)
        with _without_warnings():
            pixels = cv2.imdecode(np.frombuffer(plain, dtype=np.uint8), cv2.IMREAD_COLOR)
        if pixels is None:
            raise SourceError(f"image must be decodable, {name} is corrupt.")
        return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB, dst=pixels), dtype=np.uint8)


def _read_file(path: Path) -> bytes:
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode):  # reading a FIFO might wait for ever
            raise SourceError(f"image must be a readable file, {str(path)!r} is a folder, FIFO, socket or device.")
        limits.check("image_bytes", facts.st_size, f"{str(path)!r} has", SourceError)
        return path.read_bytes()
    except OSError as error:
        raise SourceError(f"image must be a readable file, {str(path)!r} is not: {explain(error)}.") from error


_quiet = threading.Lock()
_quiet_now: list[int] = []  # OpenCV's previous log level, once per active reader


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence OpenCV's log while an image is read, as its errors are raised; safe in several threads at a time."""
    logging = cv2.utils.logging
    with _quiet:
        _quiet_now.append(_quiet_now[0] if _quiet_now else logging.getLogLevel())
        logging.setLogLevel(logging.LOG_LEVEL_SILENT)
    try:
        yield
    finally:
        with _quiet:
            before = _quiet_now.pop()
            if not _quiet_now:
                logging.setLogLevel(before)


_PNG_EXTRAS = set(b"iCCP sRGB gAMA cHRM cICP tEXt zTXt iTXt tIME pHYs bKGD sBIT".split())
"""PNG chunks that do not change the pixels OpenCV decodes."""


def _strip_png(data: bytes) -> bytes | None:
    """A PNG without `_PNG_EXTRAS`, about which libpng complains on stderr; None if cut off or a checksum is wrong."""
    position, kept = 8, [data[:8]]
    for _ in range(MOST_PARTS):
        if position + 12 > len(data):
            return None
        end = position + 12 + int.from_bytes(data[position : position + 4], "big")
        kind = data[position + 4 : position + 8]
        if kind not in _PNG_EXTRAS:
            if zlib.crc32(data[position + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
                return None
            kept.append(data[position:end])
        if kind == b"IEND":
            return b"".join(kept)
        position = end
    return None


def _from_pil(image: Any, name: str) -> Image:
    from PIL import ImageOps

    limits.check("image_pixels", image.width * image.height, f"{name} has")
    with translate_errors(SourceError, f"{name} must be whole, Pillow can't read it"):  # PIL reads the pixels only now
        upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I;16"):
        deep = np.asarray(upright).astype(np.uint16)
        return _from_array(deep if image.format is None else (deep >> 8).astype(np.uint8), name)  # None: no file
    if upright.mode in ("I", "F"):
        raise InputError(f"{name} must have 8 or 16 bits per channel, got a PIL image of mode {upright.mode!r}.")
    return np.array(upright.convert("RGB"), dtype=np.uint8)


def _from_array(array: NDArray[Any], name: str) -> Image:
    got = f"{array.dtype} {list(array.shape)}"
    if array.ndim == 3 and array.shape[-1] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        raise InputError(f"{name} must be [H, W, 3], got {got}, which looks like [C, H, W]: move the channels last.")
    if array.dtype == np.uint16:
        raise InputError(
            f"{name} must be uint8, got {got}, which does not say what white is: scale it, for 12 bits with "
            "(image >> 4).astype(np.uint8), for 16 with (image >> 8)."
        )
    if array.dtype != np.uint8:
        cure = " If it is in 0..1, give (image * 255).round().astype(np.uint8)." if array.dtype.kind == "f" else ""
        raise InputError(f"{name} must be uint8 [H, W, 3] RGB in 0..255, got {got}.{cure}")
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[-1] not in (1, 3, 4) or 0 in array.shape:
        raise InputError(f"{name} must be uint8 [H, W, 3] RGB of at least one pixel, got {got}.")
    if array.shape[-1] == 1:
        array = array.repeat(3, axis=-1)
    rgb = array[..., :3]
    is_packed = rgb.strides[-2:] == (rgb.shape[-1], 1) and rgb.strides[0] >= 0
    return rgb if is_packed else np.ascontiguousarray(rgb)
