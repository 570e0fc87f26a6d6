"""Image files that are damaged or lie: a clear error, in bounded memory, and nothing on stderr."""

import io
import os
import random
import resource
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image as PILImage

from maskjet import limits
from maskjet.errors import MaskjetError, SourceError
from maskjet.media.image_headers import stated_size_hw
from maskjet.media.images import read_image, to_image
from tests.media.clips import picture


def encode(suffix, **options):
    """An image file's bytes; options go to PIL, without them OpenCV writes it."""
    if not options:
        return cv2.imencode(suffix, picture(37, 53)[..., ::-1])[1].tobytes()
    file = io.BytesIO()
    PILImage.fromarray(picture(37, 53)).save(
        file, {".jpg": "JPEG", ".tif": "TIFF"}.get(suffix, suffix[1:].upper()), **options
    )
    return file.getvalue()


FILES = [
    *((suffix, {}) for suffix in (".png", ".jpg", ".bmp", ".webp", ".gif", ".tif")),
    (".png", {"bits": 8, "optimize": True}),
    (".jpg", {"progressive": True}),
    (".webp", {"lossless": True}),
    (".webp", {"quality": 60, "exif": b"Exif\0\0"}),
    (".tif", {"compression": "tiff_lzw"}),
    (".tif", {"big_tiff": True}),
    (".avif", {"quality": 95}),
]


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(height, width, *extras):
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    rows = chunk(b"IDAT", zlib.compress(bytes(min(height, 64) * (1 + 3 * min(width, 64)))))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(extras) + rows + chunk(b"IEND", b"")


def test_the_largest_size_that_a_tiff_states_counts():
    once = encode(".tif")
    order = "<" if once.startswith(b"II") else ">"
    start = struct.unpack_from(order + "I", once, 4)[0]
    entries = bytearray(once)
    for number in range(struct.unpack_from(order + "H", once, start)[0]):
        at = start + 2 + 12 * number
        if struct.unpack_from(order + "H", once, at)[0] not in (256, 257):  # any other becomes a second, signed width
            struct.pack_into(order + "HHII", entries, at, 256, 9, 1, 99_999)
            break
    assert stated_size_hw(bytes(entries)) == (37, 99_999)


def test_the_size_of_a_jpeg_is_read_where_the_decoder_reads_it():
    def frame(height, width):
        return b"\xff\xc0\0\x11\x08" + struct.pack(">HH", height, width) + b"\3\1\x11\0\2\x11\0\3\x11\0"

    huge, small = frame(9_999, 9_999), frame(37, 53)
    hiding = b"\xff\x01" + huge + b"\xff\xe1\xff\xff" + bytes(0xFFC0 - 23) + small  # 01 has no length, nor content
    assert stated_size_hw(b"\xff\xd8" + hiding.ljust(2**17, b"\0")) == (9_999, 9_999)


def test_a_bomb_takes_no_memory(tmp_path):
    (tmp_path / "bomb.png").write_bytes(png_of(40_000, 40_000))
    message = "1,600,000,000 pixels, the limit is 268,435,456; raise maskjet.limits.image_pixels"
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SourceError, match=rf"bomb\.png' has {message}"):
        read_image(tmp_path / "bomb.png")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 50_000


def test_a_pil_image_a_long_file_and_a_fifo_are_refused_before_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "image_pixels", 100)
    with pytest.raises(ValueError, match="image has 1,961 pixels, the limit is 100"):
        to_image(PILImage.open(io.BytesIO(encode(".png"))), "image")
    monkeypatch.setattr(limits, "image_bytes", 100)
    (tmp_path / "a.png").write_bytes(encode(".png"))
    with pytest.raises(SourceError, match=r"a\.png' has [\d,]+ bytes, the limit is 100"):
        read_image(tmp_path / "a.png")
    os.mkfifo(tmp_path / "b.png")
    with pytest.raises(SourceError, match=r"b\.png' is a folder, FIFO, socket or device"):
        read_image(tmp_path / "b.png")


def test_nothing_is_written_to_stderr(tmp_path, capfd):
    good = png_of(8, 8, chunk(b"iCCP", b"profile\0\0" + zlib.compress(b"no profile")))
    (tmp_path / "good.png").write_bytes(good)
    assert read_image(tmp_path / "good.png").shape == (8, 8, 3)
    before = cv2.utils.logging.getLogLevel()
    for name, data in (("sum.png", good.replace(b"IDAT", b"IDAU")), ("a.gif", b"GIF89a\x09\0\x09\0 nothing")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(SourceError, match=name.replace(".", r"\.")):
            read_image(tmp_path / name)
    assert capfd.readouterr().err == ""
    assert cv2.utils.logging.getLogLevel() == before


def mutate(data, rng):
    data = bytearray(data)
    what = rng.choice(["bytes", "head", "cut", "hole"])
    if what == "cut":
        return data[: rng.randrange(len(data))]
    if what == "hole":
        start = rng.randrange(len(data))
        return data[:start] + data[start + rng.choice([1, 20, 200]) :]
    for _ in range(rng.choice([1, 3, 20])):
        position = rng.randrange(min(64, len(data)) if what == "head" else len(data))
        data[position] = rng.choice([0, 255, rng.randrange(256)])
    return data


@pytest.mark.parametrize(("suffix", "options"), FILES, ids=str)
def test_a_damaged_file_is_an_image_or_an_error_of_ours(suffix, options, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "image_pixels", 2**22)
    data, path = encode(suffix, **options), Path(tmp_path / f"a{suffix}")
    assert stated_size_hw(data) == (37, 53)
    refused = 0
    for seed in range(60):
        path.write_bytes(mutate(data, random.Random(seed)))
        try:
            image = read_image(path)
        except MaskjetError as error:
            assert path.name in str(error)  # noqa: PT017 - most are refused
            refused += 1
        else:
            assert image.dtype == np.uint8
            assert image.shape[-1] == 3
    assert refused > 10
