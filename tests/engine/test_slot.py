"""Slots on a GPU: a graph gives the eager engine's result, waits for nothing but its event and allocates nothing."""

import copy
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.planted import randomise
from maskjet.config import EngineConfig
from maskjet.errors import InputError, UnsupportedError
from maskjet.model import Model
from maskjet.networks.rfdetr import RFDETR
from maskjet.spec import SPECS
from tests.networks.test_network import TINY, tiny_network
from tests.threads import run_at_once

pytestmark = pytest.mark.gpu


def model(network=None, *, threshold=0.02, **choices):
    config = EngineConfig(**{"device": "cuda", "compile": False, **choices})
    return Model(network or tiny_network(), config, threshold=threshold)


def image(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def assert_same(actual, expected):
    """Bit for bit."""
    assert actual.image_size == expected.image_size
    for name in ("class_id", "confidence", "xyxy"):
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name), name)
    assert actual.rle == expected.rle


def captured(graph):
    """The graphs of all slots that a model has."""
    slots = graph._engine._idle + graph._engine._out
    return {id(one._graph) for slot in slots for one in slot.graphs if one.is_captured}


@pytest.mark.parametrize(
    ("precision", "resample"), [("fp32", "cv2"), ("fp16", "bilinear"), ("fp16", "cv2"), ("bf16", "bilinear")]
)
def test_a_graph_equals_the_eager_engine_bit_for_bit(precision, resample):
    eager = model(engine="eager", precision=precision, resample=resample)
    graph = model(engine="graph", precision=precision, resample=resample)
    found = 0
    for size in ((176, 312), (720, 1280), (1, 1), (3, 700), (517, 313)):
        for seed in range(4):  # the first runs step by step, the second is captured, the others are replays
            expected = eager.predict(image(*size, seed))
            assert_same(graph.predict(image(*size, seed)), expected)
            found += len(expected)
    assert found > 50
    assert all("1 launch per batch" in what for what in graph.report().graphs.values())


SIZES = [(176, 312), (720, 1280), (1, 1), (3, 700), (517, 313), (40, 2500), (2160, 3840), (1, 2)]


@pytest.mark.parametrize("choices", [{}, {"resize": "letterbox", "resample": "cv2"}])
def test_frames_of_all_sizes_share_batches_and_graphs(choices):
    """Wherever they lie, in any strides, beside any others: each as it is alone in a batch of that size."""
    eager, graph = model(engine="eager", **choices), model(**choices)
    images = [torch.from_numpy(image(*size, seed)) for seed, size in enumerate(SIZES)]
    expected = [eager.predict([one] * len(SIZES))[0] for one in images]
    given = [
        images[0],
        images[1].cuda(),
        images[2].cuda(),
        images[3].permute(2, 0, 1).contiguous().permute(1, 2, 0).cuda(),
        images[4].transpose(0, 1).contiguous().transpose(0, 1),
        torch.cat([images[5], images[5]], dim=1).cuda()[:, : SIZES[5][1]],
        images[6],
        images[7],
    ]
    for turn in range(6):
        order = random.Random(turn).sample(range(len(SIZES)), len(SIZES))
        for number, found in zip(order, graph.predict([given[number] for number in order]), strict=True):
            assert_same(found, expected[number])
    assert len(captured(graph)) == 1
    assert sum(map(len, expected)) > 50


def test_thousands_of_random_sizes_equal_one_by_one_and_memory_is_flat():
    graph, draw = model(), random.Random(0)
    sizes = [(draw.randrange(1, 300), draw.randrange(1, 300)) for _ in range(200)]
    images = [image(*size, seed) for seed, size in enumerate(sizes)]
    expected = [graph.predict(one) for one in images]
    chosen = [draw.randrange(len(images)) for _ in range(10_000)]
    before = None
    for frame, found in graph.stream((images[number] for number in chosen), depth=4, batch=1):
        assert_same(found, expected[chosen[frame.index]])
        if frame.index == 1_000:
            before = torch.cuda.memory_allocated(), captured(graph)
    assert (torch.cuda.memory_allocated(), captured(graph)) == before


def test_frames_too_large_for_a_graph_are_right_and_counted(monkeypatch):
    from maskjet.engine import slot

    expected = [model(engine="eager").predict(image(90, width, seed)) for seed, width in enumerate((500, 60, 500))]
    monkeypatch.setattr(slot, "WIDTH", 100)
    graph = model()
    for found, wanted in zip(
        [graph.predict(image(90, w, n)) for n, w in enumerate((500, 60, 500))], expected, strict=True
    ):
        assert_same(found, wanted)
    assert graph.report().fallbacks["engine: a batch of frames too large for a graph"] == 2


def test_slots_take_a_bounded_share_of_memory():
    with model(batch=64, max_detections=300) as graph, graph._engine.lease(1) as (slot,):
        for batch in (1, 4, 16, 64):
            slot.submit([torch.from_numpy(image(40, 50))] * batch, batch)
            slot.result()
        assert 2**27 < slot.nbytes < 1.4 * 2**27
        mebibytes = f"{slot.nbytes / 2**20:.0f} MiB"
        assert all(text.endswith(mebibytes) for text in graph.report().graphs.values())


@pytest.mark.parametrize("batch", [2, 8])
def test_batches_equal_the_eager_engine_bit_for_bit(batch):
    eager, graph = model(engine="eager"), model(engine="graph")
    for seed in range(4):
        images = [image(90, 120, 10 * seed + number) for number in range(batch)]
        for expected, actual in zip(eager.predict(images), graph.predict(images), strict=True):
            assert_same(actual, expected)


def test_padding_changes_nothing():
    graph = model()
    images = [image(90, 120, seed) for seed in range(8)]
    full = graph.predict(images)
    for count in (5, 6, 7, 8):
        for actual, expected in zip(graph.predict(images[:count]), full, strict=False):
            assert_same(actual, expected)
    assert [kind.partition(" to ")[0] for kind in graph.report().graphs] == ["8 RGB"]


def test_a_tensor_on_the_gpu_is_the_same_image():
    graph = model()
    for seed in range(4):
        array = image(120, 90, seed)
        expected = graph.predict(array)
        assert_same(graph.predict(torch.from_numpy(array).cuda()), expected)
        strided = torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1))).cuda().permute(1, 2, 0)
        assert_same(graph.predict(strided), expected)
        given = (torch.from_numpy(array).cuda().permute(2, 0, 1) / 255).requires_grad_()
        assert_same(graph.predict(given), expected)
        batch = torch.stack([given, given.flip(2)])
        for actual, expected in zip(graph.predict(batch), graph.predict([array, array[:, ::-1]]), strict=True):
            assert_same(actual, expected)
    assert [kind.partition(" to ")[0] for kind in graph.report().graphs] == ["1 RGB", "2 RGB"]
    assert graph.predict(given).draw().shape == array.shape
    with pytest.raises(InputError, match=r"image must be scaled to 0\.\.1"):
        graph.predict(given * 255)


def test_a_network_without_masks():
    from dataclasses import replace

    network = RFDETR(replace(TINY, has_masks=False)).eval().requires_grad_(requires_grad=False)
    randomise(network.state_dict())
    graph = model(network)
    for seed in range(3):
        found = graph.predict(image(50, 60, seed))
        assert found.rle is None
        assert len(found) > 0


@pytest.mark.parametrize(
    "limits", [{"_EDGES": 1, "_LEAST_ROOM": 1}, {"_BYTES": 1, "_LEAST_ROOM": 1}, {"_BYTES_AT_ONCE": 16}]
)
def test_what_does_not_fit_is_right_and_counted(monkeypatch, limits):
    from maskjet.ops.encode_masks import triton as encode

    expected = [model(engine="eager").predict(image(200, 300, seed)) for seed in range(4)]
    for name, value in limits.items():
        monkeypatch.setattr(encode, name, value)
    graph = model()
    for seed, one in enumerate(expected):
        before = sum(graph.report().fallbacks.values())
        assert_same(graph.predict(image(200, 300, seed)), one)
        assert sum(graph.report().fallbacks.values()) > before


CHOICES = [
    {},
    {"threshold": 0.0},
    {"threshold": 0.1},
    {"threshold": {"a": 1.0, "c": 0.02}, "classes": ["a", "c"]},
    {"classes": ["a"], "threshold": 0.0},
    {"max_detections": 2},
    {"threshold": 1.0},
]
"""Arguments of single calls: more, fewer and other detections than those of a model with a threshold of 0.02."""


def test_what_a_call_chooses_equals_what_is_loaded_and_captures_nothing():
    graph = model()
    frames = [image(176, 312, seed) for seed in range(3)]
    for frame in frames:
        graph.predict(frame)
    before, counts = captured(graph), set()
    assert len(before) == 1
    for choices in [*CHOICES, *reversed(CHOICES)]:
        most = {name: value for name, value in choices.items() if name == "max_detections"}
        config = EngineConfig(device="cuda", compile=False, engine="eager", **most)
        loaded = {"threshold": 0.02, **{name: value for name, value in choices.items() if name not in most}}
        eager = Model(tiny_network(), config, **loaded)
        for frame in frames:
            expected = eager.predict(frame)
            assert_same(graph.predict(frame, **choices), expected)
            ((_, streamed),) = graph.stream([frame], depth=1, **choices)
            assert_same(streamed, expected)
            counts.add(len(expected))
    assert len(counts) > 3
    assert {0, TINY.queries} < counts
    assert captured(graph) == before


@pytest.mark.parametrize("depth", [1, 4])
def test_streams_and_calls_side_by_side_keep_their_own_choices(depth):
    """In turns in one thread, then in several threads: slots go from one to the other with other values each time."""
    graph = model()
    images = [image(176, 312, seed) for seed in range(6)]
    expected = [[graph.predict(one, **choices) for one in images] for choices in CHOICES]
    assert len({tuple(map(len, found)) for found in expected}) == len(CHOICES)
    three = range(0, 6, 2)
    streams = {
        number: graph.stream((images[n % 6] for n in range(40)), depth=depth, **CHOICES[number]) for number in three
    }
    for turn in range(40):
        for number, stream in streams.items():
            frame, found = next(stream)
            assert frame.index == turn
            assert_same(found, expected[number][turn % 6])
        other = turn % 6
        assert_same(graph.predict(images[other], **CHOICES[other]), expected[other][other])
    for stream in streams.values():
        stream.close()

    def work(number):
        for frame, found in graph.stream((images[n % 6] for n in range(120)), depth=depth, **CHOICES[number]):
            assert_same(found, expected[number][frame.index % 6])
            if frame.index % 10 == 0:  # from a slot that another choice may have had
                other = (number + 1) % 6
                assert_same(graph.predict(images[0], **CHOICES[other]), expected[other][0])

    run_at_once(work, range(3))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_replays_also_with_other_values_wait_for_nothing_and_allocate_nothing():
    graph = model()
    chosen = [graph._choices.choose(threshold, None, None) for threshold in (0.0, 0.1, 0.3)]
    frames = [torch.from_numpy(image(176, 312, seed)) for seed in range(6)]
    with graph._engine.lease(1) as (slot,):
        for frame in frames[:3]:
            slot.submit([frame], 1)
            slot.result()
        torch.cuda.synchronize()
        before, counts = torch.cuda.memory_stats()["allocation.all.allocated"], []
        try:
            torch.cuda.set_sync_debug_mode("error")
            for number, frame in enumerate(frames):
                slot.postprocessing = chosen[number % 3]
                slot.submit([frame], 1)
                counts.append(len(slot.result()[0]))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert counts == [len(graph.predict(frame, threshold=(0.0, 0.1, 0.3)[n % 3])) for n, frame in enumerate(frames)]
    assert len(set(counts)) > 1


def test_two_cameras_do_not_evict_each_other():
    graph = model()
    cameras = [[image(40, 50, seed) for seed in range(40)], [image(72, 90, seed) for seed in range(40)]]
    expected = [[graph.predict(frame) for frame in camera] for camera in cameras]
    captured = []
    for frame, found in graph.stream([iter(camera) for camera in cameras], depth=2, batch=1):
        assert_same(found, expected[frame.stream][frame.index])
        slots = graph._engine._out
        captured.append({id(one) for slot in slots for one in slot.graphs if one.is_captured})
    assert set.union(*captured) == captured[-1]


def test_threads_capture_and_replay_at_the_same_time():
    graph = model()
    jobs = [image(40 + 4 * number, 60, number) for number in range(6)]
    expected = [graph.predict(one) for one in jobs]

    def work(seed):
        for number in random.Random(seed).choices(range(len(jobs)), k=60):
            assert_same(graph.predict(jobs[number]), expected[number])

    run_at_once(work, range(4))


def test_thousands_of_frames_with_random_stops():
    graph = model()
    generator = random.Random(1)
    sizes = [(40, 50), (72, 90)]
    images = {(stream, number): image(*sizes[stream], number) for stream in range(2) for number in range(8)}
    expected = {key: graph.predict(one) for key, one in images.items()}

    def frames(stream, count):
        return (images[stream, number % 8] for number in range(count))

    for one in range(2):  # all slots capture both sizes; side by side each might see one size only
        list(graph.stream(frames(one, 60), depth=8, batch=1))
    done, device, host = 0, [], []
    tracemalloc.start()
    while done < 4_000:
        stop = generator.choice([1, 7, 100, 10**6])
        stream = graph.stream(
            [frames(0, generator.randrange(1, 400)), frames(1, generator.randrange(1, 400))],
            depth=generator.randrange(1, 9),
            batch=1,
        )
        for taken, (frame, found) in enumerate(stream, start=1):
            assert_same(found, expected[frame.stream, frame.index % 8])
            done += 1
            if taken == stop:
                break
        stream.close()
        device.append(torch.cuda.memory_allocated())
        host.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    half = len(device) // 2
    assert max(device) == device[0]
    assert max(host[half:]) - max(host[:half]) < 500_000


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of PyTorch's compiler
def test_a_compiled_network_sees_the_same():
    torch.compiler.reset()
    plain, compiled = model(precision="fp32"), model(precision="fp32", compile=True)
    for seed in range(3):
        expected, actual = plain.predict(image(176, 312, seed)), compiled.predict(image(176, 312, seed))
        np.testing.assert_array_equal(actual.class_id, expected.class_id)
        np.testing.assert_allclose(actual.confidence, expected.confidence, atol=1e-3)
        np.testing.assert_allclose(actual.xyxy, expected.xyxy, atol=0.3)
        assert (actual.masks() ^ expected.masks()).mean() < 1e-3
    assert compiled.report().network.startswith("compiled: batches of 1 in ")


def test_a_graph_stays_right_when_pytorch_frees_the_workspaces_of_products():
    """As it does before it captures graphs of its own: a graph must not write into what others got of that memory."""
    network = RFDETR(SPECS["rf-detr-seg-nano"]).eval()  # whose products are large enough to need one
    graph = model(network, runtime="torch")
    expected = [graph.predict(image(176, 312)) for _ in range(3)][-1]
    assert "1 launch" in str(graph.report())
    (slot,) = graph._engine._idle
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    with torch.cuda.stream(slot._stream):
        reserved, others = torch.cuda.memory_reserved(), []
        while torch.cuda.memory_reserved() == reserved:  # all that is free
            others.append(torch.zeros(2**20, dtype=torch.uint8, device="cuda"))
    assert_same(graph.predict(image(176, 312)), expected)
    assert not any(other.any() for other in others)


def test_half_precision_does_not_overflow_in_the_norms():
    """Activations of some thousands, whose squares float16 can't hold."""
    network = tiny_network()
    with torch.no_grad():
        network.backbone[0]["encoder"].encoder.embeddings.position_embeddings.mul_(3000)
    exact = model(copy.deepcopy(network), precision="fp32").predict(image(90, 120))
    half = model(copy.deepcopy(network), precision="fp16").predict(image(90, 120))
    assert len(exact) == len(half) > 3
    np.testing.assert_allclose(half.confidence, exact.confidence, atol=0.02)


def test_steps_that_cannot_be_captured_run_one_by_one():
    network = tiny_network()
    forward = network.forward

    def waits(images):
        assert images.isfinite().all()  # asks the host
        return forward(images)

    network.forward = waits
    plain, graph = model(engine="eager"), model(network)
    for seed in range(5):
        assert_same(graph.predict(image(90, 120, seed)), plain.predict(image(90, 120, seed)))
    (said,) = graph.report().graphs.values()
    assert said.startswith("step by step: it can't be captured, ")
    assert "captur" in said.removeprefix("step by step: it can't be captured, ")
    assert graph.report().fallbacks == {"engine: steps that can't be captured": 1}
    other = model()  # and others still are
    for seed in range(3):
        assert_same(other.predict(image(90, 120, seed)), plain.predict(image(90, 120, seed)))
    assert "1 launch" in str(other.report())


def test_closing_takes_the_network_off_the_gpu():
    network = tiny_network()
    with model(network) as graph:
        stream = graph.stream((image(90, 120, seed) for seed in range(9)), depth=2)
        next(stream)
    assert {weight.device.type for weight in network.parameters()} == {"cuda"}  # graphs in flight read them
    stream.close()
    assert {weight.device.type for weight in network.parameters()} == {"cpu"}


def test_reference_steps_run_without_a_graph():
    plain = model(implementation="reference")
    report = plain.report()
    assert report.engine.startswith("step by step (no graph: preprocess runs as 'reference', which can't be captured")
    graph = model()
    for seed in range(3):
        assert_same(graph.predict(image(90, 120, seed)), plain.predict(image(90, 120, seed)))


def test_a_step_of_the_cpu_is_refused():
    with pytest.raises(UnsupportedError, match=r"implementation='cpu' can't run ops\.select here: it needs tensors"):
        model(implementation={"select": "cpu"})


def test_a_failing_device_is_reported_not_waited_for():
    """In a process of its own, whose GPU context is lost by it."""
    command = [sys.executable, "-m", "tests.engine.failing_device"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, cwd=root)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-2:] == ["stream: DeviceError at frame 5 after 5", "again: DeviceError"]
