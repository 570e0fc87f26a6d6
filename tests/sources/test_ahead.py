"""Images ahead: in order, within their memory, by the GPU where it takes them, and gone when nobody listens."""

import os
import random
import threading
import time
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image as PILImage

from maskjet import model as models
from maskjet.engine import pipeline
from maskjet.errors import DeviceError, InputError, MissingDependencyError, SourceError, UnsupportedError
from maskjet.sources import ahead, frames, plain_jpegs
from maskjet.sources.ahead import Encoded, load_ahead, read_encoded
from maskjet.sources.decoding import Decoding
from maskjet.sources.frames import open_images, open_source
from maskjet.sources.images import decode_image, read_image
from maskjet.sources.plain_jpegs import PlainJPEG
from tests.engine.test_pictures import model
from tests.sources.clips import write_video
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("in_folder")
SIZES = [(48, 64), (17, 33), (80, 40)]


def encode(number, suffix=".jpg", size_hw=None):
    """An image's file, which no other number has."""
    image = np.random.default_rng(number).integers(0, 256, (*(size_hw or SIZES[number % 3]), 3), np.uint8)
    return cv2.imencode(suffix, cv2.blur(image, (5, 5)))[1].tobytes()


def write(folder, count, suffixes=(".jpg", ".png")):
    folder.mkdir()
    for number in range(count):
        suffix = suffixes[number % len(suffixes)]
        (folder / f"{number}{suffix}").write_bytes(encode(number, suffix))
    return sorted(folder.iterdir(), key=lambda path: int(path.stem))


@pytest.fixture
def workers(monkeypatch):
    """A pool of its own, with few threads and little memory."""
    made = ahead._Workers()
    monkeypatch.setattr(ahead, "_workers", lambda: made)
    return made


class FakeGPU:
    """Decodes as the CPU does, into tensors; refuses and fails when told to."""

    def __init__(self, refuses=(), error=None, slow_s=0.0):
        self.groups, self.refuses, self.error, self.slow_s = [], refuses, error, slow_s

    def decode(self, images):
        self.groups.append([image.data for image in images])
        time.sleep(self.slow_s)
        if self.error is not None:
            raise self.error
        return [
            None if image.data in self.refuses else torch.from_numpy(decode_image(image.data, "")) for image in images
        ]


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that takes JPEGs but those in `odd`, which maps a file to the reason."""
    fake, fake_odd = FakeGPU(), {}
    fake.odd = fake_odd
    monkeypatch.setattr(Decoding, "jpeg_decoder", lambda _: fake)
    monkeypatch.setattr(plain_jpegs, "check_jpeg", lambda data: fake_odd.get(data) or PlainJPEG(data, (1, 1), 1))
    return fake


def slowly(data, number):
    time.sleep([0, 0, 0.002, 0.01][number * 7 % 4])
    if data is None:
        raise SourceError(f"{number} is gone.")
    return Encoded(data, str(number))


def test_in_order_whatever_takes_longest_with_bad_ones_in_place(monkeypatch, gpu):
    files = [encode(number, [".jpg", ".png"][number % 2]) for number in range(60)]
    files[7], files[8], files[20] = None, b"\xff\xd8 cut off", b"text"
    rng = random.Random(1)
    monkeypatch.setattr(ahead, "decode_image", lambda *file: time.sleep(rng.choice([0, 0.01])) or decode_image(*file))
    gpu.odd[files[8]] = "cut off or damaged"
    for decoding in (Decoding(), Decoding("cuda:0")):
        found = list(load_ahead((partial(slowly, data, n) for n, data in enumerate(files)), decoding))
        assert len(found) == len(files)
        for number, (data, image) in enumerate(zip(files, found, strict=True)):
            if number in (7, 8, 20):
                assert isinstance(image, SourceError), number
                assert str(number) in str(image)
            else:
                np.testing.assert_array_equal(image, decode_image(data, ""))


def test_bytes_and_files_ahead_are_bounded(workers, monkeypatch):
    """Of large images as few as fit, one at least; of small ones a number of files."""
    one = 48 * 64 * 3 + len(encode(0))
    monkeypatch.setattr(ahead, "_BUDGET", 4 * one)
    read, decoded, taken = [], [], []
    monkeypatch.setattr(ahead, "decode_image", lambda *file: decoded.append(1) or decode_image(*file))

    def note():
        read.append(1)
        return Encoded(encode(0), "a")

    for image in load_ahead([note] * 40):
        taken.append(image)
        time.sleep(0.003)
        assert workers.held <= 4 * one
        assert len(decoded) - len(taken) <= 4
        assert len(read) - len(taken) <= 4 * workers.count
    assert len(taken) == 40
    assert workers.held == 0
    monkeypatch.setattr(ahead, "_BUDGET", 1)
    decoded.clear()
    for number, _ in enumerate(load_ahead([note] * 5), start=1):
        assert len(decoded) <= number + 1  # the next one
    assert workers.held == 0


def test_closing_early_leaves_nothing_to_do(workers):
    gate, begun = threading.Event(), []

    def wait(number):
        begun.append(number)
        if number:
            gate.wait(20)
        return Encoded(encode(number), str(number))

    images = load_ahead(partial(wait, number) for number in range(1000))
    next(images)
    images.close()
    gate.set()
    workers.threads.submit(int).result(20)
    until(lambda: workers.threads._work_queue.empty())
    assert len(begun) <= workers.count + 1
    assert workers.held == 0


def test_a_reader_that_fails_is_no_bad_image():
    with pytest.raises(ZeroDivisionError):
        list(load_ahead([partial(divmod, 1, 0)]))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # that is what is tested
def test_a_fork_makes_threads_of_its_own():
    reads = [partial(Encoded, encode(number, ".png"), "a") for number in range(3)]
    assert len(list(load_ahead(reads))) == 3
    child = os.fork()
    if child == 0:
        os._exit(len(list(load_ahead(reads))) if ahead._workers().held == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_the_gpu_takes_what_is_ready_and_the_cpu_the_rest(gpu):
    files = [encode(number, [".jpg", ".jpg", ".png"][number % 3]) for number in range(120)]
    gpu.slow_s, gpu.refuses = 0.002, {files[4]}
    gpu.odd[files[1]] = "progressive"
    reasons = []
    found = list(load_ahead([partial(Encoded, data, "a") for data in files], Decoding("cuda:0"), reasons.append))
    for data, image in zip(files, found, strict=True):
        np.testing.assert_array_equal(image, decode_image(data, ""))
    on_gpu = [isinstance(image, torch.Tensor) for image in found]
    assert on_gpu == [number % 3 < 2 and number not in (1, 4) for number in range(120)]
    assert sorted(reasons) == ["progressive", "the GPU refused it"]
    assert 1 < max(map(len, gpu.groups)) <= ahead._MOST_TOGETHER
    assert [data for group in gpu.groups for data in group] == [  # in order, each once
        data for number, data in enumerate(files) if number % 3 < 2 and number != 1
    ]


def test_a_gpu_that_fails_ends_it(gpu):
    gpu.error = RuntimeError("error 700")
    with pytest.raises(DeviceError, match="The device failed on image 0: error 700"):
        next(load_ahead([partial(Encoded, encode(0), "a")], Decoding("cuda:0")))


def test_without_a_decoder_the_report_says_why(monkeypatch):
    missing = MissingDependencyError('needs nvidia-nvjpeg: pip install "maskjet[gpu]".')
    monkeypatch.setattr(Decoding, "jpeg_decoder", lambda _: (_ for _ in ()).throw(missing))
    monkeypatch.setattr(pipeline, "choose_decoding", lambda *_: Decoding("cuda:0", is_automatic=True))
    with model(device="cpu") as loaded:
        paths = write(Path("in"), 7)
        for source in ("in", list(map(str, paths)), "in/*", open_source("in", decoder="cuda")):
            found = [(frame.name, each.as_dict()) for frame, each in loaded.stream(source)]
            assert found == [(str(path), loaded.predict(path).as_dict()) for path in paths]
        assert loaded.report().fallbacks == {f"decode: {missing}": 16}  # the four JPEGs of each
        list(loaded.stream("in/0.jpg"))
        assert loaded.report().fallbacks == {f"decode: {missing}": 17}


def test_frames_of_the_gpu_s_images(gpu):
    paths = write(Path("in"), 5)
    gpu.odd[paths[2].read_bytes()] = "CMYK"
    with open_source("in", decoder="cuda:1") as source:
        found = list(source)
    assert (source.decoder, source.fallback) == ("cuda:1", "CMYK")
    assert [isinstance(frame.pixels, torch.Tensor) for frame in found] == [True, False, False, False, True]
    for path, frame in zip(paths, found, strict=True):
        assert frame.size_hw == frame.image.shape[:2]
        np.testing.assert_array_equal(frame.image, read_image(path))
    with open_source("in/0.jpg", decoder="cuda:1") as source:
        assert (source.decoder, type(next(iter(source)).pixels)) == ("cuda:1", torch.Tensor)


def test_a_list_of_everything():
    paths = write(Path("in"), 4)
    write_video(Path("a.mp4"), 3, size=(48, 64))
    array = np.zeros((8, 8, 3), np.uint8)
    items = ["in/0.jpg", paths[1], array, encode(5), "a.mp4", b"text", "in/2.jpg", "in/*.png", paths[3]]
    with open_source(items) as source:
        found = list(source)
    assert [frame.index for frame in found] == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11]
    ((index, reason),) = source.bad_frames
    assert index == 7
    assert "list[5]" in reason
    assert [frame.name for frame in found[:4]] == ["in/0.jpg", "in/1.png", "list[2]", "list[3]"]
    assert [frame.name for frame in found[7:]] == ["in/2.jpg", "in/1.png", "in/3.png", "in/3.png"]
    np.testing.assert_array_equal(found[3].image, decode_image(encode(5), ""))


def state_of(source):
    """All that a source gives; generators and lists name images in memory by themselves."""
    given = [(frame.index, frame.name.replace("generator", "list"), frame.image.tobytes()) for frame in source]
    return given, [(n, reason.replace("generator", "list")) for n, reason in source.bad_frames], source.frames_seen


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("start", [0, 4, 9])
@pytest.mark.parametrize("limit", [None, 1, 5])
def test_a_selection_is_that_of_reading_one_by_one(every, start, limit, monkeypatch):
    """Images left out are not read, though a glob is more images than its name is."""
    paths = [*map(str, write(Path("in"), 9)), b"text", "in/*.png", "in/3.png", encode(1), "in/*.jpg", "in/0.jpg"]
    Path("in/4.jpg").write_bytes(b"")
    read = []
    monkeypatch.setattr(frames, "read_encoded", lambda *item: read.append(item[0]) or read_encoded(*item))
    for items in (paths, paths[:10]):
        read.clear()
        listed = state_of(open_source(items, every=every, start=start, limit=limit))
        alone = open_source((item for item in items), every=every, start=start, limit=limit)
        assert listed == state_of(alone)
        if len(items) == 10:
            chosen = [item for n, item in enumerate(items) if n >= start and (n - start) % every == 0]
            assert {*read} <= {*chosen}
            assert len(read) == len({*read}) <= (limit or 10) + len(listed[1])


def test_what_is_no_list_is_not_asked_for_more():
    """It may wait for its next image."""
    paths = write(Path("in"), 3)
    asked = []
    source = open_source(asked.append(path) or path for path in paths)
    for number, _ in enumerate(source, start=1):
        assert len(asked) == number


def test_predict_takes_files_contents_and_arrays_together():
    paths = write(Path("in"), 5)
    images = [read_image(path) for path in paths]
    with model(device="cpu", batch=1) as loaded:
        expected = [loaded.predict(image).as_dict() for image in images]
        given = [paths[0], paths[1].read_bytes(), images[2], str(paths[3]), PILImage.open(paths[4])]
        assert [found.as_dict() for found in loaded.predict(given)] == expected
        assert loaded.predict(given[1]).as_dict() == expected[1]
        with pytest.raises(InputError, match="image must be given"):
            loaded.predict(given[1]).draw()
        with pytest.raises(SourceError, match=r"image must be whole, images\[1\] is empty, cut off or damaged"):
            loaded.predict([images[0], paths[1].read_bytes()[:-9], "gone.jpg"])
        with pytest.raises(SourceError, match="image must be decodable, image is corrupt or no PNG"):
            loaded.predict(b"text")
        with pytest.raises(
            SourceError, match=r"image must be a readable file, 'in' is a folder.*use model.stream\('in'\)"
        ):
            loaded.predict([images[0], "in"])


def test_the_decoder_of_a_call(gpu, monkeypatch):
    paths = write(Path("in"), 5)
    gpu.odd[paths[2].read_bytes()] = "progressive"
    with model(device="cpu", batch=1) as loaded:
        with pytest.raises(UnsupportedError, match="decoder='cuda' needs a model on a GPU; leave it out on a CPU"):
            loaded.predict(paths, decoder="cuda")
        with pytest.raises(InputError, match="decoder must be 'cpu' or 'cuda', got 'auto'"):
            loaded.predict(paths, decoder="auto")
        expected = [found.as_dict() for found in loaded.predict(paths)]
        assert gpu.groups == []
        monkeypatch.setattr(models, "choose_for_call", lambda *_: Decoding("cuda:0"))
        assert [found.as_dict() for found in loaded.predict(paths, decoder="cuda")] == expected
        assert loaded.predict(paths[0].read_bytes(), decoder="cuda").as_dict() == expected[0]
        assert sum(map(len, gpu.groups)) == 3
        assert loaded.report().fallbacks == {"decode: progressive": 1}


def test_sources_of_several_images():
    paths = write(Path("in"), 3)
    write_video(Path("a.mp4"), 3, size=(48, 64))
    for several in ("in", "in/*.jpg", paths, [encode(0), paths[1]], open_source("in")):
        assert open_images(several, "cpu").length in (2, 3)
    for other in ("in/0.jpg", [paths[0]], "a.mp4", "*.mp4", iter(paths), np.zeros((8, 8, 3), np.uint8), 0):
        assert open_images(other, "cpu") is None


@pytest.mark.gpu
@pytest.mark.parametrize("suffixes", [(".jpg",), (".jpg", ".png")])
def test_a_folder_is_what_predict_finds_in_each(suffixes):
    pytest.importorskip("nvidia.cu13")
    paths = write(Path("in"), 40, suffixes)
    turned = PILImage.open(paths[0])
    exif = turned.getexif()
    exif[274] = 6
    turned.save(paths[0], exif=exif, quality=95)
    PILImage.open(paths[2]).save(paths[2], format="JPEG", progressive=True)
    with model(device="cuda") as loaded:
        alone = [loaded.predict([path] * 8, decoder="cuda")[0].as_dict() for path in paths]  # as many as in a batch
        assert loaded.report().fallbacks["decode: progressive"] == 8
        for source in ("in", list(paths), "in/*"):
            found = {frame.name: each.as_dict() for frame, each in loaded.stream(source)}
            assert [found[str(path)] for path in paths] == alone
        assert loaded.report().fallbacks["decode: progressive"] == 11
        with open_source("in", decoder="cuda") as source:
            given = {frame.name: frame for frame in source}
    assert source.decoder == "cuda:0"
    for path in paths:
        pixels = given[str(path)].pixels
        is_plain = path.suffix == ".jpg" and path != paths[2]
        assert isinstance(pixels, torch.Tensor) == is_plain
        difference = np.abs(given[str(path)].image.astype(int) - read_image(path))
        assert difference.max() <= (1 if is_plain else 0)
