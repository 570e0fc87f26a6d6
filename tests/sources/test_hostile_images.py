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
from maskjet.sources.image_headers import stated_size_hw
from maskjet.sources.images import decode_image, read_image, to_image
from tests.sources.clips import picture


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


def test_the_tiles_of_a_tiff_count(monkeypatch):
    tiles = [(256, 16), (257, 16), (258, 8), (259, 8), (262, 1), (277, 1), (322, 8192), (323, 8192), (324, 0), (325, 9)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tiles)
    data = b"II*\0\x08\0\0\0" + struct.pack("<H", len(tiles)) + entries + bytes(4)
    monkeypatch.setattr(limits, "image_pixels", 8192**2 - 1)
    with pytest.raises(SourceError, match="image has 67,108,864 pixels, the limit is 67,108,863"):
        decode_image(data, "image")


def test_a_gif_whose_first_image_exceeds_the_screen_is_refused():
    data = bytearray(encode(".gif", interlace=0))
    struct.pack_into("<HH", data, 6, 36, 53)
    with pytest.raises(SourceError, match=r"image must be of the size that it states, 'a\.gif' is larger"):
        decode_image(bytes(data), "'a.gif'")


@pytest.mark.parametrize("suffix", [".png", ".gif", ".webp", ".bmp", ".tif"])
def test_data_that_end_early_are_told(suffix):
    with pytest.raises(SourceError, match="image must be whole, 'a' is empty, cut off or damaged"):
        decode_image(b"", "'a'")
    data = encode(suffix, **({"compression": "tiff_lzw"} if suffix == ".tif" else {}))
    if suffix == ".png":  # a whole file with half the rows
        head = chunk(b"IHDR", struct.pack(">IIBBBBB", 53, 37, 8, 2, 0, 0, 0))
        rows = chunk(b"IDAT", zlib.compress(bytes(18 * (1 + 3 * 53))))
        data = data[:8] + head + rows + chunk(b"IEND", b"")
    elif suffix == ".webp":
        size = len(data) // 4 * 2
        data = data[:4] + struct.pack("<I", size - 8) + data[8:16] + struct.pack("<I", size - 20) + data[20:size]
    elif suffix == ".tif":
        start = int.from_bytes(data[4:8], "little")
        at = next(at for at in range(start + 2, len(data), 12) if data[at : at + 2] == struct.pack("<H", 279))
        data = data[: at + 8] + struct.pack("<I", 100) + data[at + 12 :]
    else:
        data = data[: len(data) // 2]
    with pytest.raises(SourceError, match=r"'a\.x'"):
        decode_image(data, "'a.x'")


class TestJpeg:
    """Missing data, for which libjpeg shows grey."""

    MODES = ("RGB", "L", "CMYK")

    @pytest.mark.parametrize("options", [{}, {"restart_marker_blocks": 1}, {"optimize": True}], ids=str)
    @pytest.mark.parametrize("mode", MODES)
    def test_missing_data_are_told(self, mode, options):
        data = self.encode(picture(70, 90), mode, **options)
        start = data.rindex(b"\xff\xda") + 14
        for share in (0, 0.1, 0.5, 0.8):
            cut = data[: start + int(share * (len(data) - start))]
            for end in (b"\xff\xd9", b"\xff\xff\xd9", b"", bytes(9_000)):
                with pytest.raises(SourceError, match=r"(image|part 1) must be whole"):
                    decode_image(cut + end, "part 1")

    def test_a_header_without_pixels(self):
        data = bytearray(self.encode(picture(), "L"))
        struct.pack_into(">HH", data, data.index(b"\xff\xc0") + 5, 2048, 2047)
        with pytest.raises(SourceError, match="image must be whole"):
            decode_image(bytes(data[: data.index(b"\xff\xda") + 10]) + b"\xff\xd9", "part 1")

    @pytest.mark.parametrize("options", [{}, {"restart_marker_rows": 1}, {"optimize": True}, {"progressive": True}])
    @pytest.mark.parametrize("mode", MODES)
    def test_grey_is_no_damage_and_neither_are_cameras_habits(self, mode, options):
        image = picture(70, 90)
        image[50:] = 128
        for pixels in (image, np.full_like(image, 128)):
            data = self.encode(pixels, mode, **options)
            expected = decode_image(data, "part 1")
            assert abs(expected[:40].astype(int) - pixels[:40]).mean() < 60
            # Of several scans, one may be missing; and zeros at the end may stand for lost data.
            no_end = [] if "progressive" in options or data[:-2].endswith(b"\0\0") else [data[:-2]]
            for whole in (data + data, data + b"film", data[:-2] + b"\0\1" + data[-2:], *no_end):
                np.testing.assert_array_equal(decode_image(whole, "part 1"), expected)

    def test_scans_are_bounded(self, monkeypatch):
        data = encode(".jpg", progressive=True)
        last = data[data.rindex(b"\xff\xda") : -2]  # refines what is there already
        few, many = (data[:-2] + last * count + data[-2:] for count in (50, 100))
        assert decode_image(few, "part 1").shape == (37, 53, 3)
        message = "image must have at most {} scans of 53×37 pixels, part 1 has {}"
        with pytest.raises(SourceError, match=message.format(100, 110)):
            decode_image(many, "part 1")
        monkeypatch.setattr(limits, "image_pixels", 2 * 37 * 53)
        with pytest.raises(SourceError, match=message.format(32, 60)):
            decode_image(few, "part 1")

    @staticmethod
    def encode(pixels, mode, **options):
        file = io.BytesIO()
        PILImage.fromarray(pixels).convert(mode).save(file, "JPEG", quality=90, **options)
        return file.getvalue()


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
    refused, count = 0, 60
    for seed in range(count):
        path.write_bytes(mutate(data, random.Random(seed)))
        try:
            image = read_image(path)
        except MaskjetError as error:
            assert path.name in str(error)  # noqa: PT017 - most are refused
            refused += 1
        else:
            assert image.dtype == np.uint8
            assert image.shape[-1] == 3
    assert refused > count // 6
