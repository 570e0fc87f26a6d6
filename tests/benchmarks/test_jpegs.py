"""The comparison of JPEG decoders: files are what their kinds say, and each difference is seen."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from benchmarks import jpegs
from benchmarks.jpeg_kinds import JPEGFile, encode, make_files
from benchmarks.streets import Streets
from maskjet import traffic
from maskjet.config import EngineConfig
from maskjet.sources.images import decode_image

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def files():
    notes = []
    made = make_files([traffic.sample(seed=3, size_hw=(96, 160)).image], notes)
    assert {note.partition(" ")[0] for note in notes} <= {"jpegli", "mozjpeg"}
    return made


def test_files_are_of_the_kinds_they_say(files):
    def read(kind):
        return [Image.open(io.BytesIO(file.data)) for file in files if file.kind.startswith(kind)]

    assert len(files) >= 500
    assert all("progressive" in image.info for image in read("progressive"))
    layouts = {"4:4:4": (1, 1), "4:2:2": (2, 1), "4:2:0": (2, 2), "4:4:0": (1, 2), "4:1:1": (4, 1)}
    for chroma, layout in layouts.items():
        for image in read(f"{chroma}, OpenCV"):
            assert image.layer[0][1:3] == layout
    assert {image.mode for image in read("CMYK")} == {"CMYK"}
    assert {image.info.get("adobe_transform") for image in read("RGB by")} == {0}
    turned = read("camera: EXIF")
    assert {image.getexif()[0x0112] for image in turned} == set(range(1, 9))
    for image in turned:
        place, size = (image.getexif().get_ifd(ExifTags.IFD.IFD1)[tag] for tag in (513, 514))
        thumbnail = image.info["exif"].removeprefix(b"Exif\0\0")[place : place + size]
        assert Image.open(io.BytesIO(thumbnail)).size == (160, 120)
    restarts = [file.data for file in files if "restart markers," in file.kind]
    assert all(b"\xff\xdd\0\4" in data and b"\xff\xd0" in data for data in restarts)


class Decoder:
    """Decodes on the CPU, and does what else it is told."""

    def __init__(self, spoil=lambda image: image):
        self.calls, self._spoil = 0, spoil

    def decode(self, plain):
        assert len(plain) <= jpegs.GROUP
        self.calls += 1
        return [self._spoil(torch.from_numpy(decode_image(each.data, "it").copy())) for each in plain]


@pytest.fixture
def compare(monkeypatch):
    """Compares two files, of which the check takes those that do not end early, with a decoder."""

    def check(data):
        return SimpleNamespace(data=data) if len(data) > 1_000 else "cut off or damaged"

    good = encode(traffic.sample(seed=3, size_hw=(96, 160)).image, 90)
    monkeypatch.setattr(jpegs, "check_jpeg", check)

    def run(decoder, *more):
        monkeypatch.setattr(jpegs, "load_decoder", lambda _: decoder)
        two = [JPEGFile("good", good), *more, JPEGFile("bad", good[:900])]
        notes = []
        return {found.kind: found for found in jpegs.compare_bytes(two, CPU, notes)}, notes

    return run


def test_equal_files_are_equal(compare):
    found, notes = compare(Decoder())
    good, bad, total = found["good"], found["bad"], found["all but damaged"]
    assert (good.files, good.on_gpu, good.equal_files, good.equal_bytes, good.largest) == (1, 1, 1, 1.0, 0)
    assert (bad.on_gpu, bad.on_cpu, bad.refused, bad.equal_bytes) == (0, {"cut off or damaged": 1}, 1, None)
    assert (total.files, total.on_gpu, total.refused, total.wrongly_taken, total.unstable) == (2, 1, 1, 0, 0)
    assert notes == []


def test_differences_are_seen(compare):
    def add_one(image):
        image[0, 0, 0] ^= 1
        return image

    found, _ = compare(Decoder(add_one))
    assert (found["good"].equal_files, found["good"].largest) == (0, 1)
    assert found["good"].equal_bytes == 1 - 1 / (96 * 160 * 3)
    numbers = iter(range(9))
    found, _ = compare(Decoder(lambda image: image + next(numbers)))
    assert found["good"].unstable == 1
    found, _ = compare(Decoder(lambda image: image[:-1]))
    assert found["good"].wrongly_taken == 1
    found, _ = compare(Decoder(lambda _: None))
    assert found["good"].on_cpu == {"refused by the GPU": 1}


def test_files_that_the_cpu_refuses_must_not_be_taken(compare):
    noise = b"\xff\xd8" + bytes(2_000)
    blank = torch.zeros(1, 1, 3, dtype=torch.uint8)
    decoder = SimpleNamespace(decode=lambda plain: [blank] * len(plain))
    found, _ = compare(decoder, JPEGFile("noise", noise))
    assert (found["noise"].refused, found["noise"].wrongly_taken) == (1, 1)
    assert "1 WRONGLY on the GPU" in str(jpegs.JpegsReport(None, list(found.values())))


@pytest.mark.usefixtures("two_threads")
def test_detections_are_paired_and_scored():
    pytest.importorskip("hotcoco")
    one, other = ((EngineConfig(device="cpu", resample=name), "cpu") for name in ("bilinear", "cv2"))
    streets = Streets(3, (176, 312), 20_000_000)
    same = jpegs.compare_ways("demo", None, {"one": one, "again": one}, streets)
    assert (same.images, same.paired, same.paired_sure, same.equal_masks) == (3, 1, 1, 1)
    assert same.delta_ap == {"bbox": 0, "segm": 0}
    assert 0.3 < same.ap["segm"] < 1
    differs = jpegs.compare_ways("demo", None, {"one": one, "other": other}, streets)
    assert differs.paired < differs.paired_sure <= 1
    assert differs.equal_masks < 1
    assert "demo on 3 streets of 312 × 176" in str(differs)


def test_differences_of_bytes_do_not_wrap():
    one, other = np.uint8([0, 255, 3]), np.uint8([255, 0, 5])
    assert jpegs._difference(one, other).tolist() == [255, 255, 2]


@pytest.mark.gpu
def test_a_gpus_decoder_is_near_the_cpus(files):
    device, notes = torch.device("cuda", 0), []
    *kinds, total = jpegs.compare_bytes([file for file in files if "12 megapixels" not in file.kind], device, notes)
    assert notes == []
    assert total.on_gpu > total.files / 2
    assert total.largest == 1
    assert total.equal_bytes > 0.999
    assert sum(kind.unstable + kind.wrongly_taken for kind in kinds) == 0
