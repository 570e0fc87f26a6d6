"""Read an image of any accepted kind as uint8 RGB."""

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
from maskjet.host.files import path_of_url
from maskjet.sources.containers import is_camera, is_stream, shown_name
from maskjet.sources.image_headers import MOST_PARTS, jpeg_header, jpeg_scans, stated_size_hw
from maskjet.sources.pillow_images import (
    open_with_pillow,
    orientation_of,
    orientation_of_jpeg,
    stated_orientation,
    turn,
)

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif")
"""Suffixes of files that are read as images; all others are tried as videos."""

_MOST_SCANS = 100  # scans of a JPEG, as in libtiff; baseline has 1, progressive about 10
_MOST_SCANNED = 16  # limit on scans × pixels, in images of the largest size: a few seconds
_JPEG_END = b"\xff\xd9"
# Filler longer than the largest blocks, without and with each restart marker; it does not start grey.
_JPEG_DATA = (bytes((*range(165, 255), *range(165))) * 16).join(
    [b"", *(bytes((0xFF, 0xD0 + number)) for number in range(8)), b""]
)
_JPEG_GREYS = (64, 128)  # value that libjpeg fills in for missing data: CMYK, other colours
_TIFF_BITS = 258

Image = NDArray[np.uint8]


class SharesMemory(Protocol):
    """An array or tensor of any library that exports its memory by DLPack, as CuPy's and JAX's do."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """Export the memory."""


ImageLike = Union["np.ndarray[Any, Any]", torch.Tensor, str, os.PathLike[str], bytes, "PILImage", SharesMemory]
"""uint8 [H, W, 3] RGB array or tensor, floating tensor [3, H, W] in 0..1, path or content of a file, or PIL image."""


def to_image(value: Any, name: str) -> Image:
    """Convert an image of any accepted kind to uint8 [H, W, 3] RGB; a file and its PIL image give the same.

    Grey becomes RGB. Alpha is dropped, not blended, as PIL's convert("RGB") does. The EXIF rotation of a file or PIL
    image is applied; rfdetr's `predict` ignores it. Files with 16 bits per channel keep the upper 8, as their formats
    and OpenCV define it: 65535 is white, so a camera's 12 bits must be scaled before they are saved. uint16 arrays are
    refused, because their white level is unknown.

    Args:
        value: uint8 array or tensor [H, W], [H, W, 1], [H, W, 3] or [H, W, 4]; floating tensor [3, H, W] in 0..1, see
            `from_floats`; anything with `__dlpack__`, taken for a tensor; path or `file:` URL; a whole file's content
            as `bytes`; or PIL image.
        name: Name of the image in error messages.

    Returns:
        uint8 [H, W, 3]; shares memory with an array that already is one.

    Raises:
        InputError: The value is no image as described above.
        SourceError: The file can't be read; the message names it.
    """
    pixels = to_pixels(value, name)
    return pixels if isinstance(pixels, np.ndarray) else _from_array(pixels.cpu().numpy(), name)


def to_pixels(value: Any, name: str) -> Image | torch.Tensor:
    """As `to_image`, but uint8 [H, W, 3] tensors on a GPU stay there."""
    if isinstance(value, str | os.PathLike):
        return read_image(path_of_image(value, name))
    if isinstance(value, bytes):
        return decode_image(value, name)
    if isinstance(value, np.ndarray):
        return _from_array(value, name)
    if hasattr(value, "getexif"):
        return _from_pil(value, name)
    value = as_tensor(value, name)
    if not isinstance(value, torch.Tensor):
        raise InputError(f"{name} must be an array, tensor, PIL image, path or bytes, got {type(value).__name__}.")
    value = value.detach()
    is_ready = value.is_cuda and value.dtype == torch.uint8 and value.shape[2:] == (3,)
    return value if is_ready else _from_array(value.cpu().numpy(), name)


def path_of_image(value: str | os.PathLike[str], name: str) -> Path:
    """The path of an image file, given as a path or `file:` URL; InputError, which calls it `name`, for other URLs."""
    text = path_of_url(os.fspath(value))
    if is_stream(text) and not is_camera(text):
        raise InputError(f"{name} must be a file or in memory, got {shown_name(text)!r}: download an image first.")
    return value if isinstance(value, Path) and str(value) == text else Path(text)  # keeps its cached str


def as_tensor(value: Any, name: str) -> Any:
    """Turn an object with `__dlpack__` into a tensor that shares its memory, and floating tensors into bytes.

    NumPy arrays and other objects are returned as they are.

    Raises:
        InputError: The memory can't be shared, the tensor is sparse, nested, quantized or without data, or the values
            are not as in `from_floats`.
    """
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return value
    if not isinstance(value, torch.Tensor):
        with translate_errors(
            InputError, f"{name} must share its memory by DLPack, the {type(value).__name__} does not"
        ):
            value = torch.from_dlpack(value)  # type: ignore[attr-defined]
    if value.is_meta or value.is_nested or value.is_quantized or value.layout is not torch.strided:
        raise InputError(f"{name} must be a plain tensor, got a sparse, nested or quantized one, or one without data.")
    return from_floats(value, name) if value.is_floating_point() else value


def from_floats(images: torch.Tensor, name: str) -> torch.Tensor:
    """Convert floating images in 0..1, as of torchvision's transforms, to bytes: × 255, rounded half to even.

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
        if not (low >= 0 and high <= 1):  # also catches NaN
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
    """Reference to an image that does not keep it alive: its path, or a weak reference to it or its batch."""

    __slots__ = ("_given", "_position", "path")

    def __init__(self, given: Any, position: int | None = None) -> None:
        is_path = isinstance(given, str | os.PathLike)
        self.path = path_of_image(given, "image").absolute() if is_path else None
        """Path of the image's file, if it has one."""
        self._given: Callable[[], Any] = lambda: None
        if not is_path:
            with suppress(TypeError):  # not every class allows weak references
                self._given = weakref.ref(given)
        self._position = position

    def image(self) -> Image | None:
        """The image as uint8 [H, W, 3] RGB, None if it was freed; raises SourceError if its file can't be read."""
        if self.path is not None:
            return read_image(self.path)
        given = self._given()
        if given is not None and self._position is not None:
            given = as_tensor(given, "images")[self._position]
        return None if given is None else to_image(given, "image")

    def __reduce__(self) -> tuple[Any, ...]:
        return ImageReference, (self.path,)  # only paths survive copying and pickling


def read_image(path: Path) -> Image:
    """Read an image file as uint8 [H, W, 3] RGB, upright; an animation or multi-page file gives its first image.

    Raises:
        SourceError: The file is missing, unreadable, too large, empty, cut off, damaged or no image; the message
            names it.
    """
    return decode_image(read_file(path), repr(str(path)))


def decode_image(data: bytes, name: str) -> Image:
    """Decode the content of a whole image file as `read_image` does; `name` is the image's in errors, a path quoted.

    Raises:
        SourceError: The data is empty, cut off, damaged, too large or no image.
    """
    with translate_errors(SourceError, f"image must be decodable, {name} is not"):
        plain, head = _split_png(data) if data.startswith(b"\x89PNG") else (data, data)
        size_hw = stated_size_hw(data)
        if not plain or (size_hw is None and data.startswith(b"\xff\xd8")):
            raise _not_whole(name)
        if size_hw is None:  # OpenCV knows more formats, but their size is unchecked
            raise SourceError(
                f"image must be decodable, {name} is corrupt or no PNG, JPEG, WebP, BMP, TIFF or GIF; of others give a "
                "PIL image."
            )
        limits.check("image_pixels", size_hw[0] * size_hw[1], f"{name} has", SourceError)
        if data.startswith((b"GIF", b"II", b"MM")):  # OpenCV blends alpha, supports fewer variants
            return _from_pil(open_with_pillow(data), name, size_hw)
        if data.startswith(b"\xff\xd8"):
            return _decode_jpeg(data, name)
        return turn(_decode(plain, name), stated_orientation(head))


def _not_whole(name: str) -> SourceError:
    return SourceError(f"image must be whole, {name} is empty, cut off or damaged.")


def _decode(data: bytes, name: str) -> Image:
    """Decode an image as stored, ignoring its orientation."""
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION  # RGB here: cvtColor would start threads
    with _without_warnings():
        pixels = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), flags)
    if pixels is None:
        raise SourceError(f"image must be decodable, {name} is corrupt.")
    return np.asarray(pixels, dtype=np.uint8)


def _decode_jpeg(data: bytes, name: str) -> Image:
    """Decode a JPEG, upright; refuse truncated data, which libjpeg would fill with grey."""
    width, height, components, descriptions = jpeg_header(data)
    scans, end = jpeg_scans(data)
    most = min(_MOST_SCANS, _MOST_SCANNED * limits.image_pixels // (width * height))
    if scans > most:
        raise SourceError(f"image must have at most {most} scans of {width}×{height} pixels, {name} has {scans}.")
    if end is None and (scans != 1 or data.endswith(b"\0\0")):  # lost data as zeros decode like pixels
        raise _not_whole(name)
    whole = data if end is not None else data + _JPEG_END
    # CMYK by Pillow: OpenCV converts it by another formula.
    pixels = _decode(whole, name) if components != 4 else np.array(open_with_pillow(whole).convert("RGB"))
    last = pixels[-1, -1]
    if end is None or (last.min() == last.max() and last[0] in _JPEG_GREYS):
        # Data appended to a whole file are ignored by the decoder. Strip 0xFF, which would start a marker.
        longer = data[:end].rstrip(b"\xff") + _JPEG_DATA + _JPEG_END
        if not np.array_equal(_shrink_jpeg(whole), _shrink_jpeg(longer)):
            raise _not_whole(name)
    return turn(pixels, orientation_of_jpeg(data, descriptions))


def _shrink_jpeg(data: bytes) -> Image:
    """Decode an eighth of a JPEG's height and width; unlike OpenCV's, Pillow's libjpeg prints no warnings."""
    image = open_with_pillow(data)
    image.draft("L", (1, 1))
    return np.asarray(image)


def read_file(path: Path) -> bytes:
    """Read a whole image file; raises SourceError if it can't be read, is no regular file, or is too large."""
    try:
        # Few system calls, as each releases the interpreter lock and competes for it; pathlib makes ten.
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a FIFO could block for ever
        try:
            facts = os.fstat(file)
            if not stat.S_ISREG(facts.st_mode):
                raise SourceError(f"image must be a readable file, {str(path)!r} is a folder, FIFO, socket or device.")
            limits.check("image_bytes", facts.st_size, f"{str(path)!r} has", SourceError)
            data = os.read(file, facts.st_size)
            while len(data) < facts.st_size and (more := os.read(file, facts.st_size - len(data))):
                data += more
        finally:
            os.close(file)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise SourceError(f"image must be a readable file, {str(path)!r} is not: {explain(error)}.") from error
    return data


_quiet = threading.Lock()
_quiet_now: list[int] = []  # OpenCV's previous log level, once per active reader


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence OpenCV's log while an image is read, as errors are raised; thread-safe."""
    logging: Any = getattr(cv2.utils, "logging", cv2)  # in cv2 itself before OpenCV 4.13
    with _quiet:
        _quiet_now.append(_quiet_now[0] if _quiet_now else logging.getLogLevel())
        logging.setLogLevel(0)  # silent
    try:
        yield
    finally:
        with _quiet:
            before = _quiet_now.pop()
            if not _quiet_now:
                logging.setLogLevel(before)


_PNG_EXTRAS = set(b"iCCP sRGB gAMA cHRM cICP mDCV cLLI tIME pHYs bKGD sBIT acTL fcTL fdAT".split())
_PNG_METADATA = set(b"eXIf iTXt tEXt zTXt".split())
"""PNG chunks that do not change the pixels OpenCV decodes, and those that may state an orientation."""


def _split_png(data: bytes) -> tuple[bytes, bytes]:
    """Split a PNG into the still image, without chunks that libpng warns about on stderr, and its metadata.

    Returns:
        The image, empty if the file is cut off or a checksum is wrong; a PNG without pixels, which Pillow opens.
    """
    position, kept, stated = 8, [data[:8]], [data[:33]]
    for _ in range(MOST_PARTS):
        end = position + 12 + int.from_bytes(data[position : position + 4], "big")
        kind = data[position + 4 : position + 8]
        if end > len(data):
            break
        if kind in _PNG_METADATA:
            stated.append(data[position:end])
        elif kind not in _PNG_EXTRAS:
            if zlib.crc32(data[position + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
                break
            kept.append(data[position:end])
        if kind == b"IEND":
            return b"".join(kept), b"".join(stated) + b"\0\0\0\0IDAT"
        position = end
    return b"", b""


def _from_pil(image: Any, name: str, stated_hw: tuple[int, int] | None = None) -> Image:
    """Pixels of a PIL image; `stated_hw` is the size in its header that was checked, for a file opened here."""
    error = InputError if stated_hw is None else SourceError
    if stated_hw is not None and image.width * image.height > stated_hw[0] * stated_hw[1]:
        raise error(f"image must be of the size that it states, {name} is larger.")
    limits.check("image_pixels", image.width * image.height, f"{name} has", error)
    with translate_errors(SourceError, f"{name} must be whole, Pillow can't read it"):  # PIL decodes only now
        image.load()
    if image.mode.startswith("I;16"):
        array = np.asarray(image).astype(np.uint16)
        if image.format is not None:  # read from a file
            bits = image.tag_v2.get(_TIFF_BITS, (16,))[0] if hasattr(image, "tag_v2") else 16
            array = (array >> (bits - 8)).astype(np.uint8)
    elif image.mode in ("I", "F"):
        raise error(f"{name} must have 8 or 16 bits per channel, got a PIL image of mode {image.mode!r}.")
    else:
        image = image.convert("LA") if image.mode == "La" else image  # Pillow converts La only to LA
        array = np.array(image.convert("RGB"), dtype=np.uint8)
    return turn(_from_array(array, name), orientation_of(image))


def _from_array(array: NDArray[Any], name: str) -> Image:
    if array.dtype == np.uint8 and array.ndim == 3 and array.shape[-1] == 3 and 0 not in array.shape:
        return _pack(array)
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
    return _pack(array[..., :3])


def _pack(rgb: Image) -> Image:
    """Copy unless the bytes of each row are contiguous; gaps between rows are allowed."""
    is_packed = rgb.strides[-2:] == (3, 1) and rgb.strides[0] >= 0
    return rgb if is_packed else np.ascontiguousarray(rgb)
