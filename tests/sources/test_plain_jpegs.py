"""Which JPEGs a GPU may decode: plain ones that are whole, as a slow reader of their codes finds them."""

import io
import os
import random
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image as PILImage

from maskjet import limits
from maskjet.sources.images import decode_image
from maskjet.sources.plain_jpegs import check_jpeg
from tests.sources.clips import picture

SAMPLINGS = {"4:4:4": 0x111111, "4:2:2": 0x211111, "4:2:0": 0x221111, "4:4:0": 0x121111, "4:1:1": 0x411111}
UNUSUAL, DAMAGED, MISPLACED = "unusual tables or segments", "cut off or damaged", "restart markers out of place"
COLOURS = "not surely YCbCr"
END = b"\xff\xd9"


def noisy(height, width, seed=0):
    """An image whose coefficients are of all sizes."""
    noise = np.random.default_rng(seed).integers(0, 40, (height, width, 3), np.uint8)
    return picture(height, width) // 2 + noise


def write(image, quality=90, sampling="4:2:0", restarts=0, optimised=0, progressive=0):
    """A JPEG by OpenCV, grey or in colour."""
    options = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_RST_INTERVAL, restarts]
    options += [cv2.IMWRITE_JPEG_OPTIMIZE, optimised, cv2.IMWRITE_JPEG_PROGRESSIVE, progressive]
    if image.ndim == 3:
        options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, SAMPLINGS[sampling]]
    return cv2.imencode(".jpg", image, options)[1].tobytes()


def save(image, mode="RGB", **options):
    """A JPEG by Pillow."""
    file = io.BytesIO()
    PILImage.fromarray(image).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


def segment(marker, body=b""):
    return bytes((0xFF, marker)) + (len(body) + 2).to_bytes(2, "big") + body


def segments(data):
    """The marker, position and body of each segment up to the scan, and the position of its codes."""
    position, found = 2, []
    while not found or found[-1][0] != 0xDA:
        end = position + 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        found.append((data[position + 1], position, data[position + 4 : end]))
        position = end
    return found, position


def without(data, *markers):
    parts, start = segments(data)
    kept = b"".join(segment(marker, body) for marker, _, body in parts if marker not in markers)
    return data[:2] + kept + data[start:]


def patched(data, marker, offset, value):
    """The file with another byte in the body of a segment."""
    position = next(position for found, position, _ in segments(data)[0] if found == marker) + 4 + offset
    return data[:position] + bytes((value,)) + data[position + 1 :]


PLAIN = write(noisy(45, 70))


@pytest.mark.parametrize("size_hw", [(16, 16), (33, 97), (120, 64)])
@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:2", "4:2:0", "4:4:0", "grey"])
def test_plain_files_are_found_whole(size_hw, sampling):
    image = noisy(*size_hw)
    for quality, restarts, optimised in ((30, 0, 1), (75, 1, 0), (90, 3, 1), (100, 0, 0)):
        shown = image[..., 0] if sampling == "grey" else image
        data = write(shown, quality, sampling, restarts, optimised)
        assert check_jpeg(data) == (data, size_hw, 1)
        assert check_jpeg(data + b"\0\0video" + END) == (data, size_hw, 1)  # a motion photo's
    for options in ({"subsampling": sampling}, {"quality": 50}, {"optimize": True, "quality": 98}):
        data = save(image, "L" if sampling == "grey" else "RGB", **({} if sampling in ("grey", "4:4:0") else options))
        assert check_jpeg(data) == (data, size_hw, 1)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no JPEG"),
        (b"\x89PNG\r\n\x1a\n", "no JPEG"),
        (b"\xff\xd8", DAMAGED),
        (b"\xff\xd8" + END, DAMAGED),
        (write(noisy(40, 40), progressive=1), "progressive"),
        (save(noisy(40, 40), progressive=True), "progressive"),
        (PLAIN.replace(b"\xff\xc0\0\x11", b"\xff\xc1\0\x11"), "neither baseline nor progressive"),
        (PLAIN.replace(b"\xff\xc0\0\x11", b"\xff\xc9\0\x11"), "neither baseline nor progressive"),
        (save(noisy(40, 40), "CMYK"), "CMYK"),
        (save(noisy(40, 40), keep_rgb=True), COLOURS),
        (write(noisy(40, 40), sampling="4:1:1"), "sampled otherwise than 4:4:4, 4:2:2, 4:2:0 or 4:4:0"),
        (write(noisy(15, 40)), "under 16 pixels"),
        (write(noisy(40, 15)), "under 16 pixels"),
        (patched(PLAIN, 0xC0, 1, 0x3F), DAMAGED),  # 16,173 rows, of which the scan has 45
        (patched(PLAIN, 0xC0, 1, 0x40), "over 16,384 pixels"),
        (patched(PLAIN, 0xC0, 0, 12), DAMAGED),
        (patched(PLAIN, 0xC0, 5, 1), DAMAGED),
        (patched(PLAIN, 0xC0, 8, 4), UNUSUAL),  # a quantiser that is not there
        (without(PLAIN, 0xC0), DAMAGED),
        (without(PLAIN, 0xC4), UNUSUAL),
        (without(PLAIN, 0xDB), UNUSUAL),
        (patched(PLAIN, 0xDB, 0, 0x10), UNUSUAL),  # of 16 bits
        (patched(PLAIN, 0xDB, 5, 0), UNUSUAL),
        (patched(PLAIN, 0xC4, 1, 3), UNUSUAL),  # three codes of one bit
        (patched(PLAIN, 0xC4, 18, 16), UNUSUAL),  # 16 bits of DC
        (patched(PLAIN, 0xDA, 0, 1), "several scans"),
        (patched(PLAIN, 0xDA, 3, 1), UNUSUAL),  # the components out of order
        (patched(PLAIN, 0xDA, 7, 1), UNUSUAL),
        (without(PLAIN, 0xE0).replace(b"\1\x22\0\2\x11\1\3\x11\1", b"R\x22\0G\x11\1B\x11\1"), COLOURS),
        (PLAIN[:2] + segment(0xEE, b"Adobe\0\x64\0\0\0\0\0") + PLAIN[2:], COLOURS),
        (PLAIN[:2] + segment(0xEE, b"Adobe") + PLAIN[2:], COLOURS),
        (PLAIN[:2] + segment(0xDD, b"\0\1") + PLAIN[2:], MISPLACED),
        (PLAIN[:2] + segment(0xDD, b"\0\0") * 2 + PLAIN[2:], UNUSUAL),
        (PLAIN[:2] + segment(0xC0) + PLAIN[2:], UNUSUAL),
        (PLAIN[:2] + segments(PLAIN)[0][1][2] + PLAIN[2:], DAMAGED),  # no marker
        (PLAIN[:2] + b"\xff" + PLAIN[2:], DAMAGED),  # fill bytes, on which decoders need not agree
        (PLAIN[:2] + segment(0xFE) * 5000 + PLAIN[2:], UNUSUAL),
        (PLAIN[:2] + segment(*segments(PLAIN)[0][1][::2]) + PLAIN[2:], UNUSUAL),  # a table twice
        (PLAIN[:-2] + segment(0xDC, b"\0\x2d") + END, DAMAGED),  # the height behind the scan
    ],
)
def test_what_else_there_is_has_a_name(data, why):
    assert check_jpeg(data) == why


@pytest.mark.parametrize("orientation", [1, 3, 6, 9])
def test_orientations_are_those_of_the_cpus_decoder(orientation):
    exif = PILImage.Exif()
    exif[274] = orientation
    thumbnail = b"Exif\0\0" + exif.tobytes()[6:] + save(noisy(16, 16))
    for data in (save(noisy(20, 30), exif=exif), save(noisy(20, 30), exif=thumbnail)):
        found = check_jpeg(data)
        assert found == (data, (20, 30), orientation if orientation < 9 else 1)
        assert decode_image(data, "image").shape[:2] == ((30, 20) if orientation == 6 else (20, 30))


def test_adobes_marker_may_say_what_is_so_anyway():
    data = PLAIN[:2] + segment(0xEE, b"Adobe\0\x64\0\0\0\0\1") + PLAIN[2:]
    assert check_jpeg(data) == (data, (45, 70), 1)
    assert not isinstance(check_jpeg(without(PLAIN, 0xE0)), str)


def codes_of(data):
    """The codes of a file's tables by (length, code), by the table's kind and number; read bit by bit."""
    tables = {}
    for _, _, body in (part for part in segments(data)[0] if part[0] == 0xC4):
        while body:
            code, symbols, tables[body[0]] = 0, iter(body[17:]), {}
            for length, count in enumerate(body[1:17], 1):
                for _ in range(count):
                    tables[body[0]][length, code] = next(symbols)
                    code += 1
                code <<= 1
            body = body[17 + sum(body[1:17]) :]
    return tables


class Bits:
    """The bits between two markers."""

    def __init__(self, data):
        self.text, self.at = "".join(f"{byte:08b}" for byte in data), 0

    def symbol(self, table):
        for length in range(1, 17):
            found = table.get((length, int(self.text[self.at : self.at + length].ljust(length, "0"), 2)))
            if found is not None:
                self.at += length
                return found
        raise ValueError

    def pass_block(self, dc, ac):
        size = self.symbol(dc)
        self.at += size
        step, is_zeros = 1, False
        while step < 64:
            run, size = divmod(self.symbol(ac), 16)
            if run == size == 0:
                break
            step, is_zeros = step + run + 1, size == 0
            if size > 10 or step > 64 - is_zeros or (is_zeros and run != 15):
                raise ValueError
            self.at += size
        if self.at > len(self.text):
            raise ValueError


def is_whole(data):
    """Whether the scan of a file, whose headers are as they were written, is whole."""
    parts, start = segments(data)
    bodies, tables = {marker: body for marker, _, body in parts}, codes_of(data)
    frame, scan, interval = bodies[0xC0], bodies[0xDA], int.from_bytes(bodies.get(0xDD, b""), "big")
    blocks = []
    for number in range(frame[5]):
        across, down, chosen = frame[7 + 3 * number] >> 4, frame[7 + 3 * number] & 15, scan[2 + 2 * number]
        blocks += [(tables[chosen >> 4], tables[16 | chosen & 15])] * (across * down)
    height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
    units = -(-width // (8 * (frame[7] >> 4))) * -(-height // (8 * (frame[7] & 15)))
    stretches, position, markers = [bytearray()], start, []
    while not markers or markers[-1] != 0xD9:
        pair = data[position : position + 2]
        if len(pair) < 2:
            return False
        if pair[0] == 0xFF and pair[1]:
            stretches.append(bytearray())
            markers.append(pair[1])
        else:
            stretches[-1].append(pair[0])
        position += 2 if pair[0] == 0xFF else 1
    if markers[:-1] != [0xD0 + number % 8 for number in range(-(-units // interval) - 1 if interval else 0)]:
        return False
    try:
        for stretch in stretches[:-1]:
            bits = Bits(stretch)
            for _ in range(min(interval or units, units)):
                for block in blocks:
                    bits.pass_block(*block)
            units -= interval
            if len(bits.text) - bits.at > 7 or "0" in bits.text[bits.at :]:
                return False
    except ValueError:
        return False
    return True


def spoil(data, rng):
    """A file whose scan is cut off, overwritten or shifted somewhere."""
    start = segments(data)[1]
    at, kind, spoilt = rng.randrange(start, len(data) - 2), rng.randrange(7), bytearray(data)
    if kind == 0:
        spoilt[at:] = END
    elif kind == 1:
        spoilt[at:] = bytes(len(data) - 2 - at) + END
    elif kind == 2:
        spoilt[at] = rng.randrange(256)
    elif kind == 3:
        spoilt[at] ^= 1 << rng.randrange(8)
    elif kind == 4:
        spoilt[at : at + 2] = bytes((0xFF, 0xD0 + rng.randrange(8)))
    elif kind == 5:
        del spoilt[at : at + rng.randrange(1, 4)]
    else:
        spoilt[at:at] = bytes((0xFF, 0)) * rng.randrange(1, 3)
    return bytes(spoilt)


def small_files(rng):
    """Small files of all kinds, without end; restart markers, long codes and flat parts in them."""
    while True:
        image = noisy(rng.randrange(16, 48), rng.randrange(16, 48), rng.randrange(1000))
        image[rng.randrange(48) :] = rng.randrange(256)
        quality, sampling = rng.choice((10, 50, 90, 100)), rng.choice(list(SAMPLINGS)[:4])
        image = image if rng.random() < 0.8 else image[..., 0]
        yield write(image, quality, sampling, rng.choice((0, 0, 1, 2, 5)), rng.randrange(2))


def test_scans_are_found_whole_as_a_slow_reader_finds_them():
    rng, accepted = random.Random(1), 0
    for data, _ in zip(small_files(rng), range(30), strict=False):
        assert is_whole(data)
        for spoilt in [data, *(spoil(data, rng) for _ in range(12))]:
            found = check_jpeg(spoilt)
            assert isinstance(found, str) != is_whole(spoilt)
            if not isinstance(found, str):
                accepted += 1
                decode_image(spoilt, "image")  # refuses nothing that the GPU may have
    assert accepted > 60


def test_no_file_that_ends_early_is_whole():
    for data in (PLAIN, write(noisy(32, 32), restarts=1), write(noisy(32, 32), 100, "4:4:4", optimised=1)):
        for end in range(len(data)):
            for rest in (b"", END, b"\xff" + END, b"\xff\xd0" + END):
                if end < len(data) - 2:  # zeros behind the cut may be whole: they are codes as well
                    assert isinstance(check_jpeg(data[:end] + rest), str)


def test_restart_markers_are_in_their_places():
    data = write(noisy(64, 64), restarts=2)
    start = segments(data)[1]
    places = [at for at in range(start, len(data)) if data[at] == 0xFF and data[at + 1] & 0xF8 == 0xD0]
    assert len(places) == 7
    assert isinstance(check_jpeg(without(data, 0xDD)), str)
    assert check_jpeg(patched(data, 0xDD, 1, 3)) == MISPLACED
    for at in places:
        for spoilt in (
            data[:at] + data[at + 2 :],
            data[: at + 1] + bytes((data[at + 1] ^ 1,)) + data[at + 2 :],
            data[: at + 2] + data[at : at + 2] + data[at + 2 :],
            data[: at - 1] + data[at : at + 2] + data[at - 1 : at] + data[at + 2 :],
        ):
            assert isinstance(check_jpeg(spoilt), str)


def spoil_header(data, rng):
    """A file whose header has other bytes, more or fewer."""
    spoilt, end = bytearray(data), segments(data)[1]
    for _ in range(rng.choice((1, 1, 2, 3))):
        at, other = rng.randrange(end), rng.randrange(end)
        value = rng.choice((rng.randrange(256), 0, 1, 255, spoilt[at] ^ 1 << rng.randrange(8)))
        spoilt[at : at + rng.randrange(2)] = rng.choice((bytes((value,)), spoilt[other : other + rng.randrange(120)]))
    return bytes(spoilt)


def test_the_cpu_decodes_whatever_the_gpu_may_have(monkeypatch, capfd):
    monkeypatch.setattr(limits, "image_pixels", 10**6)
    rng, accepted = random.Random(2), 0
    for data, _ in zip(small_files(rng), range(15), strict=False):
        for _ in range(40):
            found = check_jpeg(spoilt := spoil_header(data, rng))
            if not isinstance(found, str):
                accepted += 1
                assert decode_image(spoilt, "image").shape[:2] == found.size_hw
    assert accepted > 20
    capfd.readouterr()  # libjpeg's remarks on revisions of JFIF


BOUNDS = """
import random
import numpy as np
from maskjet.jit import compiled
from maskjet.sources.plain_jpegs import check_jpeg
from tests.sources.test_plain_jpegs import small_files, spoil, spoil_header

@compiled("int64(Array(uint8, 1, 'C', True), uint64)")
def behind(data, at):
    return data[at]

try:
    behind(np.zeros(4, np.uint8), 4)
except IndexError:
    print("checked")
rng = random.Random(3)
for data, _ in zip(small_files(rng), range(200)):
    for _ in range(20):
        check_jpeg(spoil(data, rng))
        check_jpeg(spoil_header(data, rng))
        check_jpeg(spoil_header(spoil(data, rng), rng))
    for end in range(0, len(data), 7):
        check_jpeg(data[:end])
"""


@pytest.mark.slow
def test_no_byte_outside_a_file_is_touched(tmp_path):
    root = Path(__file__).parents[2]
    env = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "MASKJET_CACHE_DIR": str(tmp_path)}
    env["PYTHONPATH"] = os.pathsep.join((str(root), str(root / "src")))
    (tmp_path / "bounds.py").write_text(BOUNDS)
    done = subprocess.run(
        [sys.executable, tmp_path / "bounds.py"], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "checked\n"), done.stderr
