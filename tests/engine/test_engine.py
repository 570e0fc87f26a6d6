"""The engine and its pipeline: every frame answered once, whatever happens. The same holds on a GPU (test_slot.py)."""

import os
import random
import signal
import threading
import time
import tracemalloc
from collections import Counter
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from maskjet.config import EngineConfig
from maskjet.engine import engine as engines
from maskjet.engine.engine import Engine
from maskjet.errors import DeviceError, InputError, UnsupportedError
from maskjet.model import Model
from tests.networks.test_network import TINY, tiny_network
from tests.test_model import assert_equal
from tests.threads import run_at_once


class FakeSlot:
    """Answers each image with one box whose x is the image's first byte; fails on images of 255."""

    graphs = ()
    made = 0
    frames: ClassVar = Counter()

    def __init__(self, steps):
        FakeSlot.made += 1
        self.steps, self.pending = steps, None

    def submit(self, images, batch, **_):
        FakeSlot.frames["abandoned"] += len(self.pending or ())
        assert 1 <= len(images) <= batch
        self.pending = [image.clone() for image in images]
        FakeSlot.frames["submitted"] += len(images)

    def result(self):
        images, self.pending = self.pending, None
        if any(int(image[0, 0, 0]) == 255 for image in images):
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nand more lines")
        FakeSlot.frames["answered"] += len(images)
        return [answer(image) for image in images]

    def drain(self):
        """Nothing is ever being done."""


def answer(image):
    from maskjet.detections import Detections

    x = float(image[0, 0, 0])
    return Detections(
        image_size=tuple(image.shape[:2]),
        xyxy=np.array([[x, float(image[0, 0, 1]), x, x]], np.float32),
        confidence=np.ones(1, np.float32),
        class_id=np.zeros(1, np.int32),
        rle=[{"size": list(image.shape[:2]), "counts": b"0"}],
    )


@pytest.fixture(scope="module")
def network():
    return tiny_network()


@pytest.fixture
def model(network):
    """A model on the CPU."""
    with Model(network, EngineConfig(device="cpu"), threshold=0.02) as model:
        yield model


@pytest.fixture
def fake(model, monkeypatch):
    """A model whose slots only say which image they saw, as many of them as are asked for."""
    monkeypatch.setattr(Engine, "_new_slot", lambda self: FakeSlot(self.steps))
    monkeypatch.setattr(model._engine, "why_no_graph", None)
    return model


def frames(count, stream=0, size=(2, 2)):
    """Images that carry their number, below 250, and their stream."""
    for number in range(count):
        image = np.zeros((*size, 3), np.uint8)
        image[0, 0] = number % 250, stream, 0
        yield image


def assert_own(frame, found):
    """These are the detections of this frame."""
    assert found.xyxy[0, 0] == frame.index % 250
    assert found.xyxy[0, 1] == frame.stream
    assert found.image_size == frame.image.shape[:2]


def consume(stream):
    """The frames' indices, as long as there are some, and what ended them."""
    indices = []
    try:
        for frame, found in stream:
            assert_own(frame, found)
            indices.append(frame.index)
    except Exception as error:
        return indices, error
    return indices, None


def noted(monkeypatch):
    """The images of each batch that is submitted from now on."""
    batches, submit = [], FakeSlot.submit

    def note(slot, images, batch, **options):
        batches.append(images)
        submit(slot, images, batch, **options)

    monkeypatch.setattr(FakeSlot, "submit", note)
    return batches


def no_reader_is_left():
    return not any(thread.name == "maskjet-decode" for thread in threading.enumerate())


@pytest.mark.parametrize(("depth", "batch"), [(1, 1), (1, 8), (2, 3), (3, 1), (8, 3), (8, 8)])
def test_every_frame_is_answered_once_in_order(fake, depth, batch):
    FakeSlot.made = 0
    indices, error = consume(fake.stream(frames(200), depth=depth, batch=batch))
    assert (indices, error) == (list(range(200)), None)
    assert FakeSlot.made == depth
    assert no_reader_is_left()
    assert fake.report().images == 200


def test_batches_are_made_across_sources(fake, monkeypatch):
    batches = noted(monkeypatch)
    for _ in fake.stream([frames(50, stream) for stream in range(6)], depth=2):
        time.sleep(0.001)  # so that the readers keep up
    assert max(map(len, batches)) == 6
    assert sum(map(len, batches)) == 300


@pytest.mark.parametrize(
    ("depth", "pace"), [(1, "a slow reader"), (2, "a slow consumer"), (8, "a slow reader"), (8, "a slow consumer")]
)
def test_whole_batches_do_not_depend_on_timing(fake, monkeypatch, depth, pace):
    def read():
        for number in range(30):
            image = np.zeros((2, 3 if number in (4, 5, 17) else 2, 3), np.uint8)
            image[0, 0] = number, 0, 0
            time.sleep(0.002 * (pace == "a slow reader"))
            yield image

    batches = noted(monkeypatch)
    indices = []
    for frame, found in fake.stream(read(), depth=depth, batch=4, whole_batches=True):
        assert_own(frame, found)
        indices.append(frame.index)
        time.sleep(0.002 * (pace == "a slow consumer"))
    assert indices == list(range(30))
    assert [[int(image[0, 0, 0]) for image in images] for images in batches] == [
        *([0, 1, 2, 3], [4, 5], [6, 7, 8, 9], [10, 11, 12, 13], [14, 15, 16], [17]),
        *([18, 19, 20, 21], [22, 23, 24, 25], [26, 27, 28, 29]),
    ]


def test_a_slow_consumer_holds_decoding_back(fake):
    produced = []

    def count():
        for image in frames(100):
            produced.append(1)
            yield image

    for number, _ in enumerate(fake.stream(count(), depth=4), start=1):
        assert len(produced) - number <= 4 + 4 + 1  # in flight, waiting, in the reader's hand
        if number == 20:
            time.sleep(0.05)


def test_a_live_source_is_not_held_up_by_frames_to_come(fake):
    """With room in flight, a finished frame is handed over before the next one comes."""
    gate = threading.Semaphore(1)

    def camera():
        for image in frames(5):
            assert gate.acquire(timeout=10)
            yield image

    stream = fake.stream(camera(), depth=4)
    for number in range(5):
        frame, _ = next(stream)
        assert frame.index == number
        gate.release()


def test_ctrl_c_in_a_wait(fake):
    """The signal comes while the stream waits for a frame that never comes."""

    def silent():
        yield from frames(1)
        gone.wait(10)

    gone = threading.Event()
    stream = fake.stream(silent())
    next(stream)
    threading.Timer(0.2, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
    threading.Timer(0.8, gone.set).start()  # the source's own time-out
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert no_reader_is_left()
    assert fake._engine._out == []


def test_a_source_that_breaks_ends_after_its_frames(fake):
    def breaks():
        yield from frames(5)
        raise OSError("the cable was pulled")

    indices, error = consume(fake.stream(breaks(), depth=4))
    assert (indices, str(error)) == (list(range(5)), "the cable was pulled")
    assert [frame.index for frame, _ in fake.stream(frames(9), depth=4)] == list(range(9))  # and it goes on


@pytest.mark.parametrize("depth", [1, 4])
def test_a_device_error_names_its_frame_and_loses_none_before_it(fake, depth):
    def with_a_bad_one():
        yield from frames(7)
        yield np.full((2, 2, 3), 255, np.uint8)
        yield from frames(7)

    indices, error = consume(fake.stream(with_a_bad_one(), depth=depth))
    assert indices == list(range(7))
    assert (type(error), error.index) == (DeviceError, 7)
    message = "The device failed on frame 7 of 'generator': CUDA error: an illegal memory access was encountered"
    assert str(error) == message
    assert no_reader_is_left()


def test_a_device_error_in_a_list_names_the_image(fake):
    images = [*frames(3), np.full((2, 2, 3), 255, np.uint8)]
    with pytest.raises(DeviceError, match=r"The device failed on images\[1, 2, 3\]: CUDA error") as caught:
        fake.predict([images[0][:1, :1], *images[1:]])
    assert caught.value.index == 1
    with pytest.raises(DeviceError, match=r"The device failed on images\[8, 9\]: CUDA error"):
        fake.predict([*frames(8), *images[2:]])


def test_a_failure_to_submit_comes_in_its_turn(fake, monkeypatch):
    submit = FakeSlot.submit

    def fails(self, images, batch, **options):
        if int(images[0][0, 0, 0]) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        submit(self, images, batch, **options)

    monkeypatch.setattr(FakeSlot, "submit", fails)
    indices, error = consume(fake.stream(frames(10), depth=4))
    assert indices == [0, 1, 2]
    assert isinstance(error, DeviceError)
    assert str(error) == "The device failed on frame 3 of 'generator': CUDA out of memory"


def test_close_during_a_stream_delivers_what_is_in_flight(fake):
    are_there = threading.Event()

    def read():
        for number, image in enumerate(frames(50)):
            if number == 13:
                are_there.set()  # frames 9 to 12 have been read: as many as there are slots
            yield image

    FakeSlot.frames.clear()
    stream = fake.stream(read(), depth=4)
    assert [next(stream)[0].index for _ in range(9)] == list(range(9))
    assert are_there.wait(10)
    assert next(stream)[0].index == 9
    in_flight = FakeSlot.frames["submitted"] - FakeSlot.frames["answered"]
    assert 3 <= in_flight <= 4
    fake.close()
    indices, error = consume(stream)
    assert indices == list(range(10, 10 + in_flight))
    assert str(error) == "The model is closed; load it again."
    fake.close()
    assert no_reader_is_left()


def test_close_waits_for_another_thread(model, monkeypatch):
    """A frame that is being worked on is finished, and its result is right."""
    image = next(frames(1, size=(48, 80)))
    expected = model.predict(image).rle
    started, found = threading.Event(), []

    @contextmanager
    def slow(name, *_):
        if name == "network":
            started.set()
            time.sleep(0.2)
        yield

    monkeypatch.setattr(model._engine.steps, "mark", slow)
    thread = threading.Thread(target=lambda: found.append(model.predict(image)))
    thread.start()
    assert started.wait(10)
    before = time.monotonic()
    model.close()
    assert time.monotonic() - before > 0.1
    thread.join(10)
    assert found[0].rle == expected


def test_the_network_leaves_when_the_last_slot_is_back(fake, monkeypatch):
    released = []
    monkeypatch.setattr(fake._engine.steps.runtime, "release", lambda: released.append(1))
    stream = fake.stream(frames(50), depth=3)
    next(stream)
    fake.close()
    assert released == []  # graphs in flight read its weights
    stream.close()
    assert released == [1]


def test_use_after_close(model):
    stream = model.stream(frames(3))
    model.close()
    for use in (lambda: model.predict(next(frames(1))), lambda: model.stream(frames(3)), lambda: next(stream)):
        with pytest.raises(UnsupportedError, match="The model is closed; load it again"):
            use()
    assert no_reader_is_left()


def test_threads_share_a_model(model):
    images = [image + np.uint8(20) * stream for stream in range(4) for image in frames(3, stream, size=(40, 56))]
    expected = [model.predict(image).rle for image in images]

    def work(seed):
        order = random.Random(seed).sample(range(len(images)), len(images))
        assert [model.predict(images[number]).rle for number in order] == [expected[number] for number in order]
        for frame, found in model.stream([images[number] for number in order]):
            assert found.rle == expected[order[frame.index]]

    run_at_once(work, range(3))


def test_slots_are_bounded_and_waited_for_a_bounded_time(fake, monkeypatch):
    monkeypatch.setattr(engines, "_PATIENCE_S", 0.05)
    streams = [fake.stream(frames(100), depth=8) for _ in range(2)]
    for stream in streams:
        next(stream)
    with pytest.raises(UnsupportedError, match=r"All 16 slots have been in use for 0 s: close a stream"):
        fake.predict(next(frames(1)))
    streams[0].close()
    assert len(fake.predict(next(frames(1)))) == 1
    streams[1].close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # that is what is tested
def test_a_forked_process_is_told(fake):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            fake.predict(next(frames(1)))
        except UnsupportedError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    assert os.read(read, 1000).decode().startswith("The model belongs to the process that this one was forked from")
    os.close(read)


def test_thousands_of_frames_with_random_stops(fake):
    """Streams that are broken off anywhere: every frame submitted is answered once, and nothing piles up."""
    generator = random.Random(0)
    FakeSlot.frames.clear()
    FakeSlot.made, handed_over, memory = 0, 0, []
    tracemalloc.start()
    try:
        while handed_over < 3_000:
            stop = generator.choice([1, 3, 50, 400, 10**6])
            sources = [
                frames(generator.randrange(1, 300), stream, size=generator.choice([(2, 2), (3, 5)]))
                for stream in range(generator.choice([1, 2, 5]))
            ]
            wanted = [0] * len(sources)
            stream = fake.stream(sources if len(sources) > 1 else sources[0], depth=generator.randrange(1, 9))
            for taken, (frame, found) in enumerate(stream, start=1):
                assert_own(frame, found)
                assert frame.index == wanted[frame.stream]
                wanted[frame.stream] += 1
                handed_over += 1
                if taken == stop:
                    break
            stream.close()
            assert no_reader_is_left()
            assert fake._engine._out == []
            memory.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert FakeSlot.made <= 8  # slots are used again
    counted = FakeSlot.frames
    left = sum(len(slot.pending or ()) for slot in fake._engine._idle)
    assert counted["submitted"] == counted["answered"] + counted["abandoned"] + left
    assert handed_over <= counted["answered"] == fake.report().images
    assert counted["abandoned"] > 0
    half = len(memory) // 2
    assert max(memory[half:]) - max(memory[:half]) < 200_000


@pytest.mark.parametrize("batch", [1, 4])
def test_a_stream_equals_predict(model, batch):
    images = [image + np.uint8(9) * number for number, image in enumerate(frames(7, size=(48, 80)))]
    expected = [model.predict(image) for image in images]
    for frame, found in model.stream([images[:4], images[4:]], depth=3, batch=batch):
        alone = expected[4 * frame.stream + frame.index]
        if batch == 1:  # the same kernels
            assert np.array_equal(found.confidence, alone.confidence)
            assert found.rle == alone.rle
        assert_equal(found, alone)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 0}, "depth must be a whole number from 1 to 8, got 0"),
        ({"depth": 9}, "depth must be a whole number from 1 to 8, got 9"),
        ({"depth": "2"}, "depth must be a whole number from 1 to 8, got '2'"),
        ({"batch": 0}, "batch must be a whole number of at least 1, got 0"),
        ({"whole_batches": True, "drop_late": True}, "whole_batches must be False with drop_late: it is for one"),
        ({"whole_batches": True}, "whole_batches must be False with 2 sources: it is for one source"),
    ],
)
def test_bad_options_are_named_at_the_call(model, options, message):
    with pytest.raises(InputError, match=message):
        model.stream([frames(1) for _ in range(2 if "2 sources" in message else 1)], **options)


def test_a_network_that_cannot_be_compiled(network, monkeypatch, caplog):
    def fails(*_args, **_options):
        def call(_images):
            raise RuntimeError("no C compiler\nsecond line")

        return call

    monkeypatch.setattr(torch, "compile", fails)
    demanding = Model(network, EngineConfig(device="cpu", compile=True))
    with pytest.raises(UnsupportedError, match="compile=True can't be had here, RuntimeError: no C compiler"):
        demanding.predict(next(frames(1)))
    content = Model(network, EngineConfig(device="cpu"))
    monkeypatch.setattr(content._engine.steps.runtime, "_why_not", None)  # as on a GPU
    assert content.predict(next(frames(1))).image_size == (2, 2)
    assert content.report().network == "not compiled: torch.compile failed here, RuntimeError: no C compiler"
    assert "the network runs uncompiled" in caplog.text


def test_every_part_of_a_frame_can_be_marked(model, monkeypatch, tmp_path):
    path = tmp_path / "a{0}{.png"  # whose name has braces
    Image.fromarray(next(frames(1, size=(40, 50)))).save(path)
    marks = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", marks.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: marks.append("end"))
    monkeypatch.setattr(model._engine.steps, "mark", torch.cuda.nvtx.range)
    list(model.stream(path))
    inside = [mark for step in ("preprocess", "network", "select", "encode_masks") for mark in (step, "end")]
    assert marks == [f"submit frame 0 of {str(path)!r}", "end", f"result frame 0 of {str(path)!r}", *inside, "end"]


def test_the_report_says_what_was_not_done_and_why(model, network):
    with pytest.raises(UnsupportedError, match=r"engine='graph' can't be had here: it needs an NVIDIA GPU"):
        Model(network, EngineConfig(device="cpu", engine="graph"))
    report = model.report()
    assert report.engine == "step by step (no graph: it needs an NVIDIA GPU, the device is cpu)"
    assert report.network == "not compiled: on a CPU it gains nothing"
    assert report.graphs == {}
    assert TINY.name == report.model


def test_pipeline_takes_no_copy_of_what_can_be_shared(fake, monkeypatch):
    batches = noted(monkeypatch)
    ((frame, _),) = fake.stream(frames(1))
    assert batches[0][0].data_ptr() == frame.image.ctypes.data
