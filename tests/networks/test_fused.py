"""The fused RF-DETR against the module that it is folded from."""

from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import cycle

import pytest
import torch

import maskjet
from benchmarks.network import pick_as
from benchmarks.planted import TINY, randomise
from maskjet.config import EngineConfig
from maskjet.engine.compilation import Compiler
from maskjet.errors import InputError, UnsupportedError
from maskjet.networks.rfdetr import RFDETR
from maskjet.networks.rfdetr.decoder import exact_linear
from maskjet.networks.rfdetr.family import load as read
from maskjet.networks.rfdetr.fused import Fused, FusedOrCompiled, refuse
from maskjet.networks.rfdetr.fused.forward import Forward, _stream_beside
from maskjet.networks.rfdetr.fused.weights import fold
from maskjet.ops import gpu
from maskjet.spec import SPECS
from tests.ops.network import run_by_references

SMALL = replace(TINY, self_attention_heads=2, cross_attention_heads=2)
SHAPES = {
    "two windows a side": {},
    "one window, another epsilon": {"windows": 1, "input_size": 40, "patch_size": 5, "projector_eps": 1e-3},
    "four windows a side": {"windows": 4},
    "a rectangle": {"input_size": (32, 64)},
    "no masks": {"has_masks": False},
    "other masks": {"mask_stride": 7},
    "one point": {"sampling_points": 1, "cross_attention_heads": 1},
    "three points": {"sampling_points": 3},
    "one feature map": {"feature_layers": (3,), "decoder_layers": 1},
    "many classes": {"class_logits": 91},
    "tokens that may not be chosen": {"input_size": 104, "patch_size": 2, "has_masks": False, "queries": 30},
}


@pytest.fixture(autouse=True)
def _by_references(monkeypatch):
    """On a CPU, where kernels take seconds."""
    run_by_references(monkeypatch)


Caller = namedtuple("Caller", "number device")  # as much of a stream as is asked for


def build(spec=SMALL, **changes):
    network = RFDETR(replace(spec, **changes)).eval().requires_grad_(requires_grad=False)
    randomise(network.state_dict())
    return network


def draw(network, batch, dtype=torch.float32, seed=0):
    images = torch.randn(batch, 3, *network.spec.input_hw, generator=torch.Generator().manual_seed(seed))
    return images.to(network.query_feat.weight.device, dtype)


def scores_of(network, images):
    """Each token's best class logit, in float32."""
    transformer, backbone = network.transformer, network.backbone[0]
    memory = backbone["projector"](backbone["encoder"](images)).flatten(2).transpose(1, 2)
    tokens = transformer.enc_output_norm[0](transformer.enc_output[0](memory * transformer.is_inside))
    return exact_linear(transformer.enc_out_class_embed[0], tokens).amax(dim=-1)


@torch.inference_mode()
def assert_as_good_as_eager(network, dtype, batch):
    """The error against float32 is at most that of the module in the same precision, or nearly."""
    images = draw(network, batch, dtype)
    forward = Forward(fold(network, dtype), batch)
    found = [None if part is None else part.clone() for part in forward(images)]
    best = forward._buffers["best"]
    picked = pick_as(network, best)
    expected = picked(images.float())
    eager = picked.cast(dtype)(images)
    # How many digits a CPU keeps between products of bfloat16 depends on its instructions: masks of six images had 1.4
    # to 1.8 times the module's error on a processor without any for it.
    most = 2.0 if images.device.type == "cpu" and dtype == torch.bfloat16 else 1.5
    for name, exact, ours, theirs in zip(expected._fields, expected, found, eager, strict=True):
        if exact is None:
            assert ours is theirs is None
            continue
        assert ours.shape == exact.shape, name
        error, allowed = (exact - ours.float()).abs(), (exact - theirs.float()).abs()
        assert error.mean() <= most * allowed.mean() + 1e-6, name
        assert error.max() <= 3 * allowed.max() + 1e-5, name
    scores = scores_of(network, images.float())
    chosen = scores.flatten()[best.long()]
    assert (chosen.min(dim=1).values >= scores.topk(best.shape[1]).values[:, -1] - 0.1).all()
    assert all(len(row.unique()) == len(row) for row in best)
    return forward, found


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        pytest.param(shape, dtype, marks=pytest.mark.slow if shape.startswith("tokens") else ())
        for shape, dtype in zip(SHAPES, cycle((torch.float16, torch.bfloat16)), strict=False)
    ],
)
def test_is_as_exact_as_the_module_in_that_precision(shape, dtype):
    assert_as_good_as_eager(build(**SHAPES[shape]), dtype, 2)


@pytest.fixture
def interpreted(monkeypatch):
    """Kernels run on the CPU, unless there is a GPU that they are compiled for."""
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled for the GPU of this machine")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    gpu.why_not.cache_clear()
    yield
    gpu.why_not.cache_clear()


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("dtype", "size", "queries"), [(torch.float16, 32, 5), (torch.bfloat16, 16, 3)])
def test_kernels_are_as_exact_as_the_module_and_garbage_in_buffers_changes_nothing(dtype, size, queries):
    network = build(input_size=size, queries=queries, mask_stride=4)
    forward, expected = assert_as_good_as_eager(network, dtype, 2)
    for buffer in forward._buffers.values():
        buffer.fill_(torch.nan if buffer.is_floating_point() else 2**30)
    for found, before in zip(forward(draw(network, 2, dtype)), expected, strict=True):
        assert torch.equal(found, before)


def test_passes_do_not_share_buffers():
    network = build()
    weights = fold(network, torch.float16)
    first, second = Forward(weights, 1), Forward(weights, 1)
    kept = first(draw(network, 1, torch.float16))
    copies = [part.clone() for part in kept]
    second(draw(network, 1, torch.float16, seed=1))
    assert all(torch.equal(part, before) for part, before in zip(kept, copies, strict=True))


def test_weights_of_half_precision_are_folded_too():
    network = build()
    images = draw(network, 1, torch.bfloat16)
    expected = Forward(fold(network, torch.bfloat16), 1)(images)
    found = Forward(fold(network.cast(torch.bfloat16), torch.bfloat16), 1)(images)
    assert (found.logits - expected.logits).abs().max() < 0.1 * expected.logits.abs().max()


def test_all_sizes_can_be_fused():
    for spec in (read("demo").spec, *SPECS.values()):
        reason = refuse(spec, torch.float16, torch.device("cpu"))
        assert reason is None or "needs tensors on an NVIDIA GPU" in reason or "Triton is not installed" in reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_dim": 48}, "hidden_dim must be a power of two from 32 to 512, got 48"),
        ({"self_attention_heads": 4}, r"hidden_dim / self_attention_heads must be one of .*, got 8"),
        ({"backbone_heads": 2}, r"backbone_width / backbone_heads must be one of .*, got 24"),
        ({"feed_forward_dim": 40}, "feed_forward_dim must be a multiple of 16, got 40"),
    ],
)
def test_what_it_does_not_serve_is_named(changes, reason):
    with pytest.raises(UnsupportedError, match=f"runtime='fused' can't run tiny here: {reason}"):
        Fused(build(**changes), torch.float16)


def test_it_needs_a_gpu():
    with pytest.raises(UnsupportedError, match="runtime='fused' can't run demo here: it needs precision 'fp16' or"):
        maskjet.load("demo", device="cpu", runtime="fused")
    with pytest.raises(InputError, match="compile must be None or False with runtime 'fused', got True"):
        maskjet.load("demo", device="cpu", runtime="fused", compile=True)


@pytest.mark.usefixtures("interpreted")
def test_a_released_network_is_gone():
    fused = Fused(build(), torch.float16)
    assert str(fused) == "fused: kernels of maskjet's own"
    assert fused.why_no_graph is None
    fused.release()
    for runtime in (fused, FusedOrCompiled(build(), torch.float16, pytest.fail)):
        runtime.release()
        with pytest.raises(UnsupportedError, match="the network has been released"):
            runtime.for_batch(1)


def by_torch(network, dtype=torch.float32):
    return lambda: Compiler(network.cast(dtype), lambda _: (), EngineConfig(), why_not_by_default="a test")


def test_what_it_does_not_serve_runs_by_pytorch():
    network = build()
    runtime = FusedOrCompiled(network, torch.float32, by_torch(network))
    reason = "runtime='fused' can't run tiny here: it needs precision 'fp16' or 'bf16', got float32."
    assert str(runtime) == f"not compiled: a test; {reason}"
    images = draw(network, 1)
    assert torch.equal(runtime.for_batch(1)(images).logits, network(images).logits)
    assert runtime.why_no_graph is None


@pytest.mark.usefixtures("interpreted")
def test_kernels_that_cannot_be_compiled_leave_it_to_pytorch(monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("ptxas fatal")

    network = build()
    runtime = FusedOrCompiled(network, torch.float16, by_torch(network))
    assert str(runtime) == "fused: kernels of maskjet's own"
    monkeypatch.setattr("maskjet.networks.rfdetr.fused.Forward", fail)
    images = draw(network, 1)
    for _ in range(2):
        assert torch.equal(runtime.for_batch(1)(images).logits, network(images).logits)
    (record,) = caplog.records
    assert "can't compile a kernel here, RuntimeError: ptxas fatal" in record.getMessage()
    assert str(runtime).startswith("not compiled: a test; runtime='fused' can't compile a kernel here")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "batch", "dtype"),
    [
        *((name, 1, torch.float16) for name in SPECS),
        *((name, 2, torch.bfloat16) for name in ("rf-detr-large", "rf-detr-seg-nano", "rf-detr-seg-2xlarge")),
    ],
)
def test_all_sizes_are_as_exact_as_the_module(name, batch, dtype):
    assert_as_good_as_eager(build(SPECS[name]).cuda(), dtype, batch)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 3, 16])
def test_launches_and_replays_are_launches_that_wait_for_each_other_bit_for_bit(batch, monkeypatch):
    """A kernel begins while the one in front stores: what it read too early would be garbage."""
    network = build(SPECS["rf-detr-seg-nano"])
    with torch.inference_mode():
        forward = Forward(fold(network.cuda(), torch.float16), batch)
        images = draw(network, batch, torch.float16)
        with monkeypatch.context() as patching:
            run = Forward._run
            patching.setattr(Forward, "_run", lambda *args, **given: (run(*args, **given), torch.cuda.synchronize()))
            expected = [part.clone() for part in forward(images)]
        assert all(torch.equal(part, before) for part, before in zip(forward(images), expected, strict=True))
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
            output = forward(images)
        for _ in range(100):
            for buffer in forward._buffers.values():
                buffer.fill_(torch.nan if buffer.is_floating_point() else 2**30)
            graph.replay()
            torch.cuda.synchronize()
            assert all(torch.equal(part, before) for part, before in zip(output, expected, strict=True))


def test_a_stream_that_calls_has_one_urgent_stream_for_all_passes(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_, priority: [priority])
    callers = [Caller(index, torch.device("cpu")) for index in range(3)]
    found = [_stream_beside(caller) for caller in callers]
    assert found == [[-1]] * 3
    assert len({*map(id, found)}) == 3
    assert all(_stream_beside(Caller(*caller)) is stream for caller, stream in zip(callers, found, strict=True))


@pytest.mark.gpu
def test_a_pass_runs_while_another_is_captured_however_many_there_were():
    network = build(SPECS["rf-detr-seg-nano"])
    weights, images = fold(network.cuda(), torch.float16), draw(network, 1, torch.float16)
    torch.cuda.synchronize()
    first, second, graph = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()

    def run(forward):
        with torch.inference_mode(), torch.cuda.stream(second):
            parts = [part.clone() for part in forward(images)]
            second.synchronize()
        return parts

    with torch.cuda.stream(first):
        captured = Forward(weights, 1)
        for _ in range(31):  # PyTorch's 32 streams of a priority come again in turn
            Forward(weights, 1)
    with torch.cuda.stream(second):
        other = Forward(weights, 1)
    expected = run(other)
    with torch.inference_mode(), torch.cuda.stream(first), ThreadPoolExecutor(1) as pool:
        graph.capture_begin(capture_error_mode="thread_local")
        output = captured(images)
        beside = pool.submit(run, other).result()
        graph.capture_end()
        graph.replay()
        first.synchronize()
    for before, found, replayed in zip(expected, beside, output, strict=True):
        assert torch.equal(found, before)
        assert torch.equal(replayed, before)


@pytest.mark.gpu
def test_detections_are_those_of_the_module():
    frames = [maskjet.traffic.sample(seed=seed).image for seed in range(4)]
    module = maskjet.load("demo", device="cuda", precision="fp32", compile=False)
    fused = maskjet.load("demo", device="cuda", runtime="fused")
    assert fused.report().network == "fused: kernels of maskjet's own"
    for frame in frames:
        expected, found = module.predict(frame, threshold=0.5), fused.predict(frame, threshold=0.5)
        assert found.class_id.tolist() == expected.class_id.tolist()
        assert abs(found.xyxy - expected.xyxy).max() < 1
        assert abs(found.confidence - expected.confidence).max() < 0.02


@pytest.mark.gpu
def test_frames_in_flight_are_as_one_by_one():
    model = maskjet.load("demo", device="cuda", runtime="fused")
    frames = [maskjet.traffic.sample(seed=seed).image for seed in range(8)]
    alone = [model.predict(frame) for frame in frames]
    for index, (_, found) in enumerate(model.stream((frames[each % 8] for each in range(10_000)), depth=4)):
        expected = alone[index % 8]
        assert found.xyxy.tobytes() == expected.xyxy.tobytes()
        assert found.confidence.tobytes() == expected.confidence.tobytes()
