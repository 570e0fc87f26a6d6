"""JPEG files of many kinds: chroma, qualities, odd sizes, and what encoders, cameras and accidents add.

Written by OpenCV and Pillow (libjpeg-turbo), by FFmpeg, and by jpegli and mozjpeg where `pyjpegli` and
`mozjpeg-lossless-optimization` are installed.
"""

from __future__ import annotations

import io
import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from benchmarks.peers.loading import load_module
from maskjet.errors import UnsupportedError

Image = NDArray[np.uint8]
QUALITIES = (30, 40, 50, 60, 70, 80, 90, 95, 100)
"""Of the encoders, from 0 to 100."""
SIZES_HW = ((480, 640), (333, 517), (97, 131), (176, 312), (16, 17))
"""(height, width) of the files, in pixels."""
DAMAGED = "damaged: "
"""Begins the kinds of files that are damaged."""
_CHROMA = {
    "4:4:4": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
    "4:2:2": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    "4:2:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    "4:4:0": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
    "4:1:1": cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
}
_LARGE_HW = (3000, 4000)  # a camera's
_TINY_HW = ((1, 1), (2, 500), (500, 1), (500, 3), (8, 8), (15, 17), (16, 16))
_RESTARTS = (1, 3, 8, 40)  # MCUs between restart markers
_FEW = (50, 80, 95)  # qualities where many are not needed
_END = b"\xff\xd9"


@dataclass(frozen=True)
class JPEGFile:
    """A JPEG."""

    kind: str
    """How it was made."""
    data: bytes
    """Its bytes."""


def make_files(streets: Sequence[Image], notes: list[str]) -> list[JPEGFile]:
    """Make files of all kinds, about 550.

    Args:
        streets: uint8 [H, W, 3] RGB, which are resized.
        notes: Gets a line for each encoder that is not installed.
    """
    images = itertools.cycle(streets)

    def draw(size_hw: tuple[int, int]) -> Image:
        resized = cv2.resize(next(images), size_hw[::-1], interpolation=cv2.INTER_AREA)
        return np.asarray(resized, dtype=np.uint8)

    files: list[JPEGFile] = []
    for make in (_by_opencv, _by_pillow, _by_ffmpeg, _of_cameras, _unusual, _damaged, _by_jpegli, _by_mozjpeg):
        try:
            files += make(draw)
        except UnsupportedError as error:
            notes.append(f"{make.__name__.removeprefix('_by_')} left out: {error}")
    return files


Draw = Callable[[tuple[int, int]], Image]


def encode(image: Image, quality: int, *more: int) -> bytes:
    """Encode an RGB or grey image by OpenCV; `more` are its parameters and their values in turn."""
    pixels = image if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    return bytes(cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality, *more])[1])


def _by_opencv(draw: Draw) -> Iterator[JPEGFile]:
    factor, restarts = cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_RST_INTERVAL
    for (name, chroma), size_hw, quality in itertools.product(_CHROMA.items(), SIZES_HW, QUALITIES):
        yield JPEGFile(f"{name}, OpenCV", encode(draw(size_hw), quality, factor, chroma))
    for size_hw, quality in itertools.product(SIZES_HW, QUALITIES):
        yield JPEGFile("grey, OpenCV", encode(_grey(draw(size_hw)), quality))
    for (name, chroma), interval, quality in itertools.product(list(_CHROMA.items())[:4], _RESTARTS, _FEW):
        for size_hw in SIZES_HW[:2]:
            data = encode(draw(size_hw), quality, factor, chroma, restarts, interval)
            yield JPEGFile(f"{name}, restart markers, OpenCV", data)
    for size_hw, quality in itertools.product(SIZES_HW, _FEW):
        yield JPEGFile("progressive, OpenCV", encode(draw(size_hw), quality, cv2.IMWRITE_JPEG_PROGRESSIVE, 1))
        yield JPEGFile("optimised, OpenCV", encode(draw(size_hw), quality, cv2.IMWRITE_JPEG_OPTIMIZE, 1))
    for size_hw, quality in itertools.product(_TINY_HW, (80, 95)):
        yield JPEGFile("tiny, OpenCV", encode(draw(size_hw), quality))


def _save(image: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def _by_pillow(draw: Draw) -> Iterator[JPEGFile]:
    for chroma, size_hw, quality in itertools.product(("4:4:4", "4:2:2", "4:2:0"), SIZES_HW, QUALITIES[::2]):
        data = _save(Pillow.fromarray(draw(size_hw)), quality=quality, subsampling=chroma, optimize=quality < 80)
        yield JPEGFile(f"{chroma}, Pillow", data)
    for size_hw, quality in itertools.product(SIZES_HW, _FEW):
        image = Pillow.fromarray(draw(size_hw))
        yield JPEGFile("progressive, Pillow", _save(image, quality=quality, progressive=True))
        yield JPEGFile("grey, Pillow", _save(image.convert("L"), quality=quality))
        yield JPEGFile("CMYK, Pillow", _save(image.convert("CMYK"), quality=quality))
        yield JPEGFile("RGB, Pillow", _save(image, quality=quality, keep_rgb=True, subsampling=0))


def _by_ffmpeg(draw: Draw) -> Iterator[JPEGFile]:
    for chroma, name in (("yuvj420p", "4:2:0"), ("yuvj422p", "4:2:2"), ("yuvj444p", "4:4:4")):
        for size_hw, scale in itertools.product(SIZES_HW[:4], (2, 8, 20)):
            codec: Any = av.CodecContext.create("mjpeg", "w")
            codec.height, codec.width = size_hw
            codec.pix_fmt, codec.time_base = chroma, Fraction(1, 25)
            codec.options = {"qmin": str(scale), "qmax": str(scale)}
            picture = av.VideoFrame.from_ndarray(draw(size_hw), format="rgb24").reformat(format=chroma)
            packets = [*codec.encode(picture), *codec.encode(None)]
            yield JPEGFile(f"{name}, FFmpeg", b"".join(map(bytes, packets)))


def _of_cameras(draw: Draw) -> Iterator[JPEGFile]:
    """As cameras and phones write them: their metadata, and data behind the image's end."""
    for orientation, quality in itertools.product(range(1, 9), (90, 97)):
        image = draw(SIZES_HW[orientation % 2])
        yield JPEGFile("camera: EXIF with thumbnail, turned", _photograph(image, quality, orientation))
    for quality, size_hw in itertools.product(_FEW, SIZES_HW[:3]):
        photograph = _photograph(draw(size_hw), quality, 6)
        preview = encode(draw((120, 160)), 70)
        yield JPEGFile("camera: MPF, previews behind the image", _insert(photograph, 0xE2, b"MPF\0MM\0*") + preview)
        video = b"\0\0\0\x18ftypmp42" + bytes(range(256)) * 40
        yield JPEGFile("camera: motion photo", photograph + video)
        yield JPEGFile("camera: padded with zeros", photograph + bytes(4096))
        profile = _insert(photograph, 0xE2, b"ICC_PROFILE\0\1\1" + bytes(3000))
        yield JPEGFile("camera: colour profile, XMP", _insert(profile, 0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>"))
        adobe = b"Adobe\0d\0\0\0\0\1"  # YCbCr
        yield JPEGFile("camera: Adobe marker", _insert(encode(draw(size_hw), quality), 0xEE, adobe))
    for chroma in ("4:2:0", "4:2:2"):
        factor = (cv2.IMWRITE_JPEG_SAMPLING_FACTOR, _CHROMA[chroma])
        data = encode(draw(_LARGE_HW), 95, *factor, cv2.IMWRITE_JPEG_RST_INTERVAL, 250)
        yield JPEGFile("camera: 12 megapixels, restart markers", data)


def _unusual(draw: Draw) -> Iterator[JPEGFile]:
    """What the format allows, and few write."""
    for size_hw, quality in itertools.product(SIZES_HW, (40, 90)):
        plain = encode(draw(size_hw), quality)
        yield JPEGFile("extended sequential (SOF1)", _rename(plain, 0xC0, 0xC1))
        yield JPEGFile("fill bytes before markers", _fill(plain))
        yield JPEGFile("without Huffman tables", b"".join(part for kind, part in _segments(plain) if kind != 0xC4))
        yield JPEGFile("without JFIF", b"".join(part for kind, part in _segments(plain) if kind != 0xE0))
        rgb = _insert(encode(draw(size_hw), quality, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, _CHROMA["4:4:4"]), 0xEE, _RGB)
        yield JPEGFile("RGB by an Adobe marker", rgb)


_RGB = b"Adobe\0d\0\0\0\0\0"


def _damaged(draw: Draw) -> Iterator[JPEGFile]:
    """Files that are cut off, or changed within: the CPU decides on them."""
    random = np.random.default_rng(0)
    for size_hw, quality in itertools.product(SIZES_HW[:3], _FEW):
        data = encode(draw(size_hw), quality)
        marked = encode(draw(size_hw), quality, cv2.IMWRITE_JPEG_RST_INTERVAL, 4)
        begin = sum(len(part) for kind, part in _segments(data) if kind != 0xDA) + 14
        place = int(random.integers(begin, len(data) - 8))
        yield JPEGFile(f"{DAMAGED}cut off", data[:place])
        yield JPEGFile(f"{DAMAGED}ended early", data[:place].rstrip(b"\xff") + _END)
        yield JPEGFile(f"{DAMAGED}zeros to the end", data[:place] + bytes(len(data) - place - 2) + _END)
        yield JPEGFile(f"{DAMAGED}noise within", data[:place] + random.bytes(6) + data[place + 6 :])
        yield JPEGFile(f"{DAMAGED}a bit within", data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        yield JPEGFile(f"{DAMAGED}a restart marker out of place", marked.replace(b"\xff\xd2", b"\xff\xd5", 1))


def _by_jpegli(draw: Draw) -> Iterator[JPEGFile]:
    jpegli = load_module("pyjpegli", "pyjpegli")
    for size_hw, quality in itertools.product(SIZES_HW, _FEW):
        yield JPEGFile("jpegli", jpegli.encode(draw(size_hw).tobytes(), size_hw[1], size_hw[0], quality))


def _by_mozjpeg(draw: Draw) -> Iterator[JPEGFile]:
    optimize = load_module("mozjpeg_lossless_optimization", "mozjpeg-lossless-optimization").optimize
    for size_hw, quality in itertools.product(SIZES_HW, _FEW):
        yield JPEGFile("mozjpeg", optimize(encode(draw(size_hw), quality)))


def _grey(image: Image) -> Image:
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), dtype=np.uint8)


def _photograph(image: Image, quality: int, orientation: int) -> bytes:
    """A JPEG of 4:2:2 with EXIF: the orientation, and a thumbnail, itself a JPEG."""
    thumbnail = encode(np.asarray(cv2.resize(image, (160, 120)), dtype=np.uint8), 70)
    exif = Pillow.Exif()
    exif[0x0112], exif[0x010F] = orientation, "maskjet"
    block = exif.tobytes()
    # The second directory of TIFF, which Pillow does not write: tags 513 and 514, place and length of the thumbnail.
    tiff = block[6:] if block.startswith(b"Exif\0\0") else block
    order = "<" if tiff.startswith(b"II") else ">"
    (first,) = struct.unpack(order + "I", tiff[4:8])
    (entries,) = struct.unpack(order + "H", tiff[first : first + 2])
    link, place = first + 2 + 12 * entries, len(tiff)
    second = struct.pack(order + "H", 2)
    second += struct.pack(order + "HHII", 513, 4, 1, place + 30) + struct.pack(
        order + "HHII", 514, 4, 1, len(thumbnail)
    )
    tiff = tiff[:link] + struct.pack(order + "I", place) + tiff[link + 4 :] + second + bytes(4) + thumbnail
    return _save(Pillow.fromarray(image), quality=quality, subsampling="4:2:2", exif=b"Exif\0\0" + tiff)


def _segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The kind and bytes of each marker segment; the last one is that of the scan with all that follows."""
    yield 0xD8, data[:2]
    place = 2
    while place < len(data):
        kind = data[place + 1]
        end = len(data) if kind == 0xDA else place + 2 + int.from_bytes(data[place + 2 : place + 4], "big")
        yield kind, data[place:end]
        place = end


def _insert(data: bytes, kind: int, content: bytes) -> bytes:
    """Add a segment behind the first one, which is JFIF's or EXIF's."""
    parts = [part for _, part in _segments(data)]
    added = bytes([0xFF, kind]) + (len(content) + 2).to_bytes(2, "big") + content
    return b"".join([*parts[:2], added, *parts[2:]])


def _rename(data: bytes, kind: int, other: int) -> bytes:
    return b"".join(bytes([0xFF, other]) + part[2:] if each == kind else part for each, part in _segments(data))


def _fill(data: bytes) -> bytes:
    return b"".join(part if kind == 0xD8 else b"\xff\xff" + part for kind, part in _segments(data))
