"""JPEGs decoded through nvJPEG, by a library of the test's own on a CPU, and by the real one on a GPU."""

import ctypes
import random
import threading
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from maskjet.errors import MissingDependencyError, UnsupportedError
from maskjet.sources import nvjpeg
from maskjet.sources.images import decode_image
from maskjet.sources.nvjpeg import JPEGDecoder, jpeg_decoder
from maskjet.sources.pillow_images import turn
from maskjet.sources.plain_jpegs import PlainJPEG, check_jpeg
from tests.sources.test_plain_jpegs import noisy, small_files, spoil, spoil_header, write
from tests.threads import run_at_once

LOADED = nvjpeg._load_library
REFUSED = b"refused"
ORIENTATIONS = range(1, 9)  # as in EXIF


def plain(height, width, orientation=1, **options):
    seed = options.pop("seed", height * width)
    return check_jpeg(write(noisy(height, width, seed), **options))._replace(orientation=orientation)


def upright(image):
    return turn(decode_image(image.data, "image"), image.orientation)


class Library:
    """Decodes on the CPU, and notes each call; fails where it is told to."""

    def __init__(self):
        self.calls, self.fails, self.engines, self.captures = [], {}, 1, []

    def _note(self, name, *arguments):
        self.calls.append((name, *arguments))
        return self.fails.get(name, 0)

    def named(self, name):
        return [call[1] for call in self.calls if call[0] == name]

    def nvjpegCreateEx(self, backend, allocator, pinned, flags, handle):  # noqa: N802
        assert (backend, allocator, pinned, flags) == (3, None, None, 32)
        handle._obj.value = 7
        return self._note("create", flags)

    def nvjpegDestroy(self, handle):  # noqa: N802
        return self._note("destroy", handle.value)

    def nvjpegGetHardwareDecoderInfo(self, handle, engines, cores):  # noqa: N802
        assert handle.value == 7
        engines._obj.value = cores._obj.value = self.engines
        return self._note("info")

    def nvjpegJpegStateCreate(self, handle, state):  # noqa: N802
        assert nvjpeg.capturing.locked()
        assert handle.value == 7
        state._obj.value = 100 + len(self.named("state"))
        status = self._note("state", state._obj.value)
        return status if state._obj.value > 100 else 0  # the second one fails

    def nvjpegJpegStateDestroy(self, state):  # noqa: N802
        return self._note("destroy state", state.value)

    def nvjpegDecodeBatchedInitialize(self, handle, state, count, threads, kind):  # noqa: N802
        assert (handle.value, threads, kind) == (7, 1, 5)
        self.ready = (state.value, count)
        return self._note("initialize", count)

    def nvjpegDecodeBatched(self, handle, state, data, lengths, places, stream):  # noqa: N802
        assert (handle.value, stream) == (7, 9)
        assert self.ready == (state.value, len(data))
        self.captures.append(nvjpeg.capturing.locked())
        addresses = (ctypes.c_void_p * len(data)).from_buffer(data)
        for address, length, place in zip(addresses, lengths, places, strict=True):
            file = ctypes.string_at(address, length)
            if file == REFUSED:
                self.ready = None  # it is to be initialised anew
                return self._note("decode", len(data)) or 4
            image = decode_image(file, "image")
            assert place.pitch[0] == 3 * image.shape[1]
            ctypes.memmove(place.channel[0], image.tobytes(), image.nbytes)
        return self._note("decode", len(data))


class Stream:
    """A stream, and the event on it; notes waits among the library's calls."""

    cuda_stream = 9

    def __init__(self, library):
        self._library = library

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def query(self):
        return False

    def record(self, stream):
        assert stream is not None
        self._library.calls.append(("record", None))

    def synchronize(self):
        assert self._library.calls[-1] == ("record", None)
        self._library.calls.append(("synchronize", None))


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setattr(nvjpeg, "_load_library", lambda: made)
    monkeypatch.setattr(nvjpeg, "_STATES", 1)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: Stream(made))
    monkeypatch.setattr(torch.cuda, "Event", lambda blocking: Stream(made) if blocking else None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream(made))
    nvjpeg._make_decoder.cache_clear()
    yield made
    nvjpeg._make_decoder.cache_clear()


def test_images_of_all_sizes_and_orientations_come_in_order(library):
    images = [plain(16 + number % 7, 30 - number % 5, number % 8 + 1, seed=number) for number in range(70)]
    found = JPEGDecoder("cpu").decode(images)
    for image, pixels in zip(images, found, strict=True):
        assert pixels.is_contiguous()
        np.testing.assert_array_equal(pixels.numpy(), upright(image))
    assert library.named("decode") == [32, 32, 6]
    assert library.named("initialize") == [32, 6]
    assert JPEGDecoder("cpu").decode([]) == []


def test_only_the_refused_file_is_none(library):
    images = [plain(20, 30), PlainJPEG(REFUSED, (20, 30), 6), plain(30, 20, 6)]
    decoder = JPEGDecoder("cpu")
    first, refused, last = decoder.decode(images)
    assert refused is None
    np.testing.assert_array_equal(first.numpy(), upright(images[0]))
    np.testing.assert_array_equal(last.numpy(), upright(images[2]))
    assert decoder.decode(images[1:2]) == [None]
    assert library.named("decode") == [3, 1, 1, 1, 1]
    library.fails["initialize"] = 5
    assert decoder.decode(images[:2]) == [None, None]
    library.fails.clear()
    assert all(pixels is not None for pixels in decoder.decode(images[::2]))


def test_memory_is_kept_until_the_gpu_is_done_with_it(library, monkeypatch):
    decoder, image = JPEGDecoder("cpu"), plain(20, 30, 3)
    library.calls.clear()
    waits = [("record", None), ("synchronize", None)]  # for the caller's stream, then for the decoder's
    once = [*waits, ("initialize", 1), ("decode", 1), *waits]
    decoder.decode([image])
    assert library.calls == once
    library.calls.clear()
    decoder.decode([PlainJPEG(REFUSED, (20, 30), 1)])  # part of a batch may be on its way
    assert library.calls == [*waits, *once[3:]]

    def fail(*_):
        raise RuntimeError("no memory")

    with monkeypatch.context() as broken:
        broken.setattr(nvjpeg, "_turn", fail)
        with pytest.raises(RuntimeError, match="no memory"):
            decoder.decode([image])
    assert library.calls[-2:] == once[-2:]
    assert decoder.decode([image]) != [None]  # its state was given back


def test_no_graph_is_captured_while_the_library_may_take_memory(library):
    decoder = JPEGDecoder("cpu")
    small, large = plain(16, 16), plain(32, 32)
    for images, waits in (
        ([small], 1),
        ([small], 0),
        ([large], 1),
        ([small] * 2, 1),
        ([large, small], 0),
        ([small], 0),
    ):
        decoder.decode(images)
        assert library.captures.pop() == waits


@pytest.mark.parametrize(
    ("name", "freed"),
    [("create", []), ("info", [("destroy", 7)]), ("state", [("destroy state", 100), ("destroy", 7)])],
)
def test_a_decoder_that_can_not_be_made_leaves_nothing(library, monkeypatch, name, freed):
    monkeypatch.setattr(nvjpeg, "_STATES", 2)
    library.fails[name] = 9
    with pytest.raises(UnsupportedError, match=r"status 9\)?: use decoder='cpu'"):
        jpeg_decoder("cpu")
    assert [call for call in library.calls if call[0].startswith("destroy")] == freed
    assert not nvjpeg.capturing.locked()
    library.fails.clear()
    assert jpeg_decoder("cpu").decode([plain(16, 16)]) != [None]


def test_a_gpu_without_an_engine_is_named(library):
    library.engines = 0
    with pytest.raises(UnsupportedError, match=r"device='cpu' must have a decoder of JPEGs, .* got none"):
        JPEGDecoder("cpu")
    with pytest.raises(UnsupportedError, match="device='cuda:99' can't be used: "):
        JPEGDecoder("cuda:99")
    assert ("destroy", 7) in library.calls


def test_there_is_one_decoder_for_all_threads(library):
    found = []
    run_at_once(lambda device: found.append(jpeg_decoder(device)), ["cpu"] * 8)
    assert len(set(map(id, found))) == 1
    assert library.named("create") == [32]
    images = [plain(16 + number, 40, number % 8 + 1) for number in range(12)]

    def decode(image):
        np.testing.assert_array_equal(found[0].decode([image])[0].numpy(), upright(image))

    run_at_once(decode, images)


@pytest.fixture
def load(monkeypatch, tmp_path):
    """Loads the library as if it were installed below a folder."""
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(nvjpeg, "find_spec", lambda _: True)
    monkeypatch.setattr(nvjpeg, "import_module", lambda _: SimpleNamespace(__path__=["/nowhere", str(tmp_path)]))
    return LOADED.__wrapped__


def install(folder, content=b"no library"):
    path = folder / "cu13/lib/libnvjpeg.so.13"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return str(path)


def test_a_missing_or_broken_package_is_named(load, monkeypatch, tmp_path):
    command = r'pip install "maskjet\[gpu\]"\.'
    with pytest.raises(MissingDependencyError, match=f"Decoding JPEGs on a GPU needs nvidia-nvjpeg: {command}"):
        load()
    install(tmp_path)
    with pytest.raises(MissingDependencyError, match=f"nvidia-nvjpeg, which is here but can't be .*: {command}"):
        load()
    monkeypatch.setattr(nvjpeg, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match=command):
        load()


def test_only_cuda_13_is_taken(load, monkeypatch, tmp_path):
    paths = []
    monkeypatch.setattr(ctypes, "CDLL", lambda path: paths.append(path) or MagicMock())
    path = install(tmp_path)
    load()
    assert paths == [path]
    for cuda in ("12.9", None):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        with pytest.raises(UnsupportedError, match=f"PyTorch must be built for CUDA 13 .*, got {cuda}"):
            load()


def real():
    pytest.importorskip("nvidia.cu13")
    return jpeg_decoder("cuda:0")


def assert_close(pixels, expected):
    """At most 1 off, and 99 % of the bytes equal, of photographs 99.99 %."""
    found = pixels.cpu().numpy().astype(np.int16)
    assert found.shape == expected.shape
    differences = np.abs(found - expected)
    assert differences.max() <= 1
    assert (differences == 0).mean() >= 0.99


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:2", "4:2:0", "4:4:0", "grey"])
def test_images_are_the_cpus(sampling):
    images = []
    for height, width in ((720, 1280), (333, 517), (1001, 16), (16, 999), (17, 33)):
        for quality, restarts, optimised in ((30, 0, 0), (75, 4, 1), (100, 1, 0)):
            image = noisy(height, width)
            shown = image[..., 0] if sampling == "grey" else image
            images.append(check_jpeg(write(shown, quality, sampling, restarts, optimised)))
    for image, pixels in zip(images, real().decode(images), strict=True):
        assert_close(pixels, decode_image(image.data, "image"))


@pytest.mark.gpu
def test_every_orientation_is_turned_on_the_gpu():
    images = [plain(200, 301, orientation) for orientation in ORIENTATIONS]
    for image, pixels in zip(images, real().decode(images), strict=True):
        assert pixels.is_contiguous()
        assert_close(pixels, upright(image))


@pytest.mark.gpu
def test_images_do_not_depend_on_their_neighbours():
    images = [plain(100 + 40 * number, 700 - 20 * number, seed=number) for number in range(32)]
    alone = [real().decode([image])[0] for image in images]
    progressive = PlainJPEG(write(noisy(96, 128), progressive=1), (96, 128), 1)  # which check_jpeg would not let pass
    for together in (32, 3):
        for start in range(0, len(images), together):
            found = real().decode(images[start : start + together])
            assert all(map(torch.equal, found, alone[start:]))
    mixed = real().decode([*images[:5], progressive, *images[5:]])
    assert mixed.pop(5) is None
    assert len(mixed) == len(alone)
    assert all(map(torch.equal, mixed, alone))


@pytest.mark.gpu
def test_images_are_finished_and_their_memory_is_free():
    """Any stream may read them at once; and what another stream still writes is not where images are decoded."""
    images = [plain(360, 640, number % 8 + 1, seed=number) for number in range(16)]
    expected = [pixels.clone() for pixels in real().decode(images)]
    torch.cuda.synchronize()
    stop, other = threading.Event(), torch.cuda.Stream()

    def load():
        x = torch.randn(2048, 2048, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            while not stop.is_set():
                for _ in range(10):
                    x = (x @ x).clamp(-1, 1)
                torch.cuda.current_stream().synchronize()

    thread = threading.Thread(target=load)
    thread.start()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    try:
        for _ in range(100):
            found = real().decode(images)
            with torch.cuda.stream(other):
                for pixels, same in zip(found, expected, strict=True):
                    wrong += (pixels != same).sum()
            other.synchronize()
            for pixels in found:  # on the default stream, which owns the memory, behind work that takes a while
                torch.cuda._sleep(100_000)
                pixels.fill_(77)
            del found, pixels
    finally:
        stop.set()
        thread.join()
    assert int(wrong) == 0


@pytest.mark.gpu
def test_memory_stays_flat_in_many_threads():
    images = [plain(16 + 9 * number, 640 - 9 * number, number % 8 + 1, seed=number) for number in range(40)]
    expected = real().decode(images)

    def decode(seed):
        rng = random.Random(seed)
        for _ in range(25):
            chosen = rng.sample(range(len(images)), rng.randrange(1, 20))
            for number, pixels in zip(chosen, real().decode([images[number] for number in chosen]), strict=True):
                assert torch.equal(pixels, expected[number])

    free = []
    for _ in range(12):  # 2,000 images each; after the first round the library has all its memory
        run_at_once(decode, range(8))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free.append(torch.cuda.mem_get_info()[0])
        if len(free) > 1 and free[-2] - free[-1] < 64 * 2**20:
            return
    pytest.fail(f"It takes memory in every round: {free}.")  # tests beside this one do in some


@pytest.mark.gpu
def test_damaged_files_that_are_taken_are_the_cpus():
    rng, taken = random.Random(4), []
    for data, _ in zip(small_files(rng), range(60), strict=False):
        for _ in range(12):
            found = check_jpeg(spoil_header(data, rng) if rng.random() < 0.3 else spoil(data, rng))
            if not isinstance(found, str):
                taken.append(found)
    assert len(taken) > 100
    for image, pixels in zip(taken, real().decode(taken), strict=True):
        if pixels is not None:  # the CPU decodes it
            assert np.abs(pixels.cpu().numpy().astype(np.int16) - decode_image(image.data, "image")).max() <= 1
