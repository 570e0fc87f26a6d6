"""Files in ONNX Runtime and OpenVINO: the same detections as the network that they were made of."""

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch

import maskjet
from benchmarks.planted import TINY
from maskjet import limits
from maskjet.config import EngineConfig
from maskjet.errors import CheckpointError, InputError, MissingDependencyError, UnsupportedError
from maskjet.export import export
from maskjet.model import Model
from maskjet.networks import find_family, read_network
from maskjet.networks.exported import family as exported_family
from maskjet.networks.exported import in_onnxruntime
from maskjet.networks.exported.network_file import read_network_file
from maskjet.networks.state_dict import digest_weights
from tests.networks.checkpoints import save_safetensors
from tests.networks.test_network import tiny_network
from tests.test_model import image

THRESHOLD = 0.1
RUNTIMES = ("onnxruntime", "openvino")


def in_torch(images):
    with Model(tiny_network(), EngineConfig(device="cpu"), threshold=THRESHOLD) as model:
        return model.predict(images)


def assert_close(found, expected):
    assert len(found) == len(expected) > 0
    np.testing.assert_array_equal(found.class_id, expected.class_id)
    np.testing.assert_allclose(found.confidence, expected.confidence, atol=1e-4)
    np.testing.assert_allclose(found.xyxy, expected.xyxy, atol=1e-2)
    assert (found.masks() != expected.masks()).mean() < 1e-3


@pytest.fixture
def changed(exported, tmp_path):
    """Writes the tiny network's file with changes."""

    def change(*changes):
        proto = onnx.load(exported().path)
        for each in changes:
            each(proto)
        path = tmp_path / "changed.onnx"
        onnx.save(proto, path)
        return path

    return change


def fixed_batch(proto, batch):
    for each in (*proto.graph.input, *proto.graph.output):
        each.type.tensor_type.shape.dim[0].dim_value = batch


def cut_masks(proto):
    """Let mask logits have fewer rows for other images than zeros."""
    output = proto.graph.output[2]
    (node,) = (node for node in proto.graph.node if output.name in node.output)
    node.output[:] = ["whole"]
    sixteen, eight, first, rows = np.float32(16), np.float32(8), np.array([0]), np.array([2])
    for name, value in {"sixteen": sixteen, "eight": eight, "first": first, "rows": rows}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    make = onnx.helper.make_node
    proto.graph.node.extend(
        [
            make("ReduceMax", ["images"], ["brightest"], keepdims=0),
            make("Abs", ["brightest"], ["size"]),
            make("Min", ["size", "eight"], ["most"]),
            make("Sub", ["sixteen", "most"], ["left"]),
            make("Cast", ["left"], ["count"], to=onnx.TensorProto.INT64),
            make("Unsqueeze", ["count", "first"], ["end"]),
            make("Slice", ["whole", "first", "end", "rows"], [output.name]),
        ]
    )
    for axis in (2, 3):
        output.type.tensor_type.shape.dim[axis].Clear()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_outputs_of_another_size_than_for_zeros_are_refused(runtime, changed):
    with (
        maskjet.load(changed(cut_masks), runtime=runtime, device="cpu") as model,
        pytest.raises(UnsupportedError, match=r"must run in .*, it does not"),
    ):
        model.predict(image())


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("batch", [None, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 2))])
def test_detections_are_the_networks(runtime, batch, exported):
    path = exported(batch=batch).path  # three images are no multiple of two
    images = [image(seed=seed) for seed in range(3)]
    with maskjet.load(path, runtime=runtime, device="cpu", threshold=THRESHOLD) as model:
        assert find_family(path) is exported_family
        for found, expected in zip(model.predict(images), in_torch(images), strict=True):
            assert_close(found, expected)
        for (_, found), expected in zip(model.stream(images), in_torch(images), strict=True):
            assert_close(found, expected)
        report = model.report()
    name = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}[runtime]
    assert report.network.startswith(f"{name} {import_module(runtime).__version__.partition('-')[0]} on the CPU")
    assert f"{torch.get_num_threads()} threads" in report.network
    assert report.precision == "fp32"
    with pytest.raises(UnsupportedError, match="The model is closed"):
        model.predict(images[0])


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["auto", "openvino"])
def test_float16_files_find_nearly_the_same(runtime, exported):
    path = exported("fp16").path
    with maskjet.load(path, runtime=runtime, device="cpu", threshold=THRESHOLD) as model:
        assert model.report().precision == "fp16"
        assert model.report().network.startswith("ONNX Runtime" if runtime == "auto" else "OpenVINO")
        found, (expected,) = model.predict(image(seed=0)), in_torch([image(seed=0)])
    assert len(found) > 0
    assert abs(len(found) - len(expected)) <= 1  # one near the threshold


def test_calls_of_several_threads_do_not_share_buffers(exported):
    images = [image(seed=seed) for seed in range(8)]
    with (
        maskjet.load(exported().path, runtime="onnxruntime", device="cpu", threshold=THRESHOLD) as model,
        ThreadPoolExecutor(4) as threads,
    ):
        for found, expected in zip(threads.map(model.predict, images), in_torch(images), strict=True):
            assert_close(found, expected)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"precision": "bf16"}, InputError),
        ({"compile": True}, InputError),
        ({"runtime": "torch"}, InputError),
        ({"weights": "a.pt"}, InputError),
        ({"input_size": (32, 32)}, InputError),
        ({"engine": "graph"}, UnsupportedError),
        ({"runtime": "openvino"}, MissingDependencyError),
    ],
)
def test_choices_that_a_file_can_not_have(options, error, exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(error) as caught:
        maskjet.load(exported().path, device="cpu", **options)
    assert caught.value.argument == next(iter(options))


def test_what_only_files_or_only_networks_can_do(exported, tmp_path):
    with pytest.raises(InputError, match=r"runtime must be .* for a network that is not exported, got 'onnxruntime'"):
        maskjet.load("demo", device="cpu", runtime="onnxruntime")
    with pytest.raises(UnsupportedError, match=r"model must be weights to be exported, got .*, which is exported"):
        export(exported().path, tmp_path / "again.onnx")
    with pytest.raises(InputError, match=r"input_size must be None for a network of \(64, 64\), got \(32, 64\)"):
        export(tiny_network(), tmp_path / "tiny.onnx", input_size=(32, 64))


@pytest.mark.slow
def test_a_record_names_the_file(exported, changed):
    first, same = (digest_weights(read_network(exported("fp16").path)) for _ in range(2))
    assert first == same != digest_weights(read_network(changed()))


def sides(port):
    return port.type.tensor_type.shape.dim


OUTSIDE = "weights must lie in files in its folder"


def outside(proto, location="../weights"):
    tensor = proto.graph.initializer[0]
    onnx.external_data_helper.set_external_data(tensor, location)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.ClearField("raw_data")


def inside_a_constant(proto):
    tensor = onnx.helper.make_tensor("hidden", onnx.TensorProto.FLOAT, [1], [1.0])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    proto.graph.node.append(onnx.helper.make_node("Constant", [], ["unused"], value=tensor))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda proto: setattr(proto.graph.output[0], "name", "scores"), "logits is missing"),
        (lambda proto: setattr(sides(proto.graph.output[2])[2], "dim_value", 5), "mask_logits must be "),
        (lambda proto: setattr(sides(proto.graph.input[0])[2], "dim_param", "height"), "must be images "),
        (lambda proto: setattr(proto.graph.input[0].type.tensor_type, "elem_type", 2), "float32 or float16 "),
        (lambda proto: proto.graph.input.append(proto.graph.input[0]), "inputs must be one, the images"),
        (lambda proto: fixed_batch(proto, 257), "its batch must be free or 1 to 256, got 257"),
        (lambda proto: fixed_batch(proto, -2), "its batch must be free or 1 to 256, got -2"),
        (lambda proto: setattr(proto.opset_import[0], "version", 9), "opset must be 13 to 26, got 9"),
        (outside, OUTSIDE),
        (lambda proto: outside(proto, "/etc/passwd"), OUTSIDE),
        (lambda proto: outside(proto, "missing.data"), OUTSIDE),
        (inside_a_constant, OUTSIDE),
        (lambda proto: proto.graph.ClearField("output"), "which has no outputs"),
    ],
)
def test_a_file_that_does_not_fit_is_one_sentence(change, message, changed):
    with pytest.raises(CheckpointError, match=message) as caught:
        read_network_file(changed(change))
    assert "\n" not in str(caught.value)


def test_a_link_out_of_the_folder_is_refused(changed, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "weights").write_bytes(bytes(2**20))
    (tmp_path / "folder" / "linked").symlink_to(tmp_path / "weights")
    path = shutil.move(changed(lambda proto: outside(proto, "linked")), tmp_path / "folder" / "changed.onnx")
    with pytest.raises(CheckpointError, match=OUTSIDE):
        read_network_file(path)


def test_weights_beside_the_file_are_read(exported, tmp_path, monkeypatch):
    path = tmp_path / "split.onnx"
    onnx.save(onnx.load(exported().path), path, save_as_external_data=True, location="split.data", size_threshold=1024)
    file = read_network_file(path)
    assert [each.name for each in file.files] == ["split.onnx", "split.data"]
    for runtime in RUNTIMES:
        with maskjet.load(path, runtime=runtime, device="cpu", threshold=THRESHOLD) as model:
            assert_close(model.predict(image(seed=0)), in_torch([image(seed=0)])[0])
    monkeypatch.setattr(limits, "checkpoint_bytes", path.stat().st_size)
    with pytest.raises(CheckpointError, match=r"the files of its weights have .* bytes, the limit is"):
        read_network_file(path)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_shapes_that_lie_are_found_before_the_first_frame(runtime, changed):
    def lie(proto):
        """Logits are the boxes' node, whose last size is another."""
        for each in (*proto.graph.node,):
            each.output[:] = ["hidden" if name == "logits" else name for name in each.output]
        proto.graph.node.append(onnx.helper.make_node("Concat", ["hidden"] * 2, ["logits"], axis=2))

    with pytest.raises((UnsupportedError, CheckpointError), match=r"changed.onnx"):
        maskjet.load(changed(lie), runtime=runtime, device="cpu")


def test_other_files_are_refused(tmp_path):
    for content in (b"", b"text", b"\x08\x08" + bytes(64)):
        (tmp_path / "a.onnx").write_bytes(content)
        with pytest.raises(CheckpointError, match="model must be an ONNX file, got"):
            maskjet.load(tmp_path / "a.onnx", device="cpu")
    with pytest.raises(CheckpointError, match=r"model must be a file, got .*b.onnx', which does not exist"):
        maskjet.load(tmp_path / "b.onnx", device="cpu")


class FakeStream:
    def __init__(self, log, name, cuda_stream):
        self._log, self.name, self.cuda_stream = log, name, cuda_stream

    def wait_stream(self, other):
        self._log.append(f"{self.name} waits for {other.name}")


def test_cuda_runs_on_a_stream_that_both_sides_wait_for(exported, monkeypatch):
    """The border to ONNX Runtime with CUDA, which is not here: what it is told, and in which order."""
    log, file = [], read_network_file(Path(exported().path))

    binding = SimpleNamespace(
        bind_input=lambda *given: log.append(("input", *given)),
        bind_output=lambda *given: log.append(("output", *given)),
    )

    class Session:
        def __init__(self, path, _options, providers):
            log.append((path, providers))

        def get_providers(self):
            return available

        def io_binding(self):
            return binding

        def run_with_iobinding(self, _binding, options):
            synchronises = options.get_run_config_entry("disable_synchronize_execution_providers") != "1"
            log.append("waits" if synchronises else "runs")

    device = torch.device("cuda", 1)
    available = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: available)
    monkeypatch.setattr("onnxruntime.InferenceSession", Session)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: FakeStream(log, "own", 77))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: FakeStream(log, "current", 5))
    session = in_onnxruntime.open_in_onnxruntime(file, device)
    chosen = {"device_id": "1", "user_compute_stream": "77", "use_tf32": "0"}
    providers = [("CUDAExecutionProvider", chosen), ("CPUExecutionProvider", {})]
    assert log.pop() == (str(file.path), providers)
    assert session.name.endswith(" on cuda:1")
    images = torch.empty(2, *file.images.shape)
    outputs = [torch.empty(2, *each.shape) for each in file.outputs]
    session.make_call(2)(images, outputs)
    side = TINY.input_size
    assert log[0] == ("input", "images", "cuda", 1, np.float32, (2, 3, side, side), images.data_ptr())
    for port, tensor, bound in zip(file.outputs, outputs, log[1:4], strict=True):
        assert bound == ("output", port.name, "cuda", 1, np.float32, tuple(tensor.shape), tensor.data_ptr())
    assert log[4:] == ["own waits for current", "runs", "current waits for own"]


def test_cuda_needs_the_other_package(exported):
    file = read_network_file(Path(exported().path))
    with pytest.raises(UnsupportedError, match=r"'onnxruntime' on cuda:0 needs onnxruntime-gpu, .*without CUDA"):
        in_onnxruntime.open_in_onnxruntime(file, torch.device("cuda", 0))


@pytest.mark.slow
def test_a_file_keeps_the_letterbox_and_the_input_size_that_it_was_exported_with(tmp_path):
    letterbox = {"resize": "letterbox", "letterbox_color": "#0000ff", "letterbox_place": "top-left"}
    weights = save_safetensors(tiny_network().state_dict(), tmp_path / "tiny.safetensors", **letterbox)
    options = {"device": "cpu", "threshold": THRESHOLD, "input_size": (32, 64)}
    path = export(weights, tmp_path / "wide.onnx", input_size=(32, 64)).path
    with maskjet.load(path, **options) as model, maskjet.load(weights, **options) as torchs:
        assert model.spec.input_hw == (32, 64)
        assert model.report().resize == "letterbox, top-left, #0000ff"
        assert_close(model.predict(image(seed=3)), torchs.predict(image(seed=3)))


@pytest.mark.gpu
def test_onnx_runtime_on_a_gpu_finds_the_same(exported):
    """For machines with onnxruntime-gpu: several batches in a row on the slots' streams."""
    if "CUDAExecutionProvider" not in pytest.importorskip("onnxruntime").get_available_providers():
        pytest.skip("needs onnxruntime-gpu")
    images = [image(seed=seed) for seed in range(6)]
    with maskjet.load(exported().path, device="cuda", threshold=THRESHOLD) as model:
        for (_, found), expected in zip(model.stream(images, depth=4, batch=2), in_torch(images), strict=True):
            assert len(found) == len(expected)
            np.testing.assert_allclose(found.confidence, expected.confidence, atol=1e-4)
