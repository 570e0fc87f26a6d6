"""The border to TensorRT, which is not here: a fake of its documented API that refuses what TensorRT refuses."""

import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import maskjet
from maskjet.errors import CheckpointError, MissingDependencyError, UnsupportedError
from maskjet.networks.exported import in_tensorrt
from maskjet.networks.exported.network_file import read_network_file
from maskjet.networks.exported.running import FileRuntime

CPU = torch.device("cpu")


class FakeContext:
    """An execution context that demands shapes and addresses before it runs, and notes each call."""

    def __init__(self, engine):
        self._engine, self._shape, self._addresses = engine, None, {}
        self.log = engine.log

    def set_input_shape(self, name, shape):
        low, _, high = self._engine.get_tensor_profile_shape(name, 0)
        self.log.append(("shape", name, shape))
        self._shape = shape
        return all(least <= side <= most for least, side, most in zip(low, shape, high, strict=True))

    def set_tensor_address(self, name, address):
        assert name in self._engine.ports
        self.log.append(("address", name))
        self._addresses[name] = address
        return address != 0

    def execute_async_v3(self, stream):
        assert self._shape is not None
        assert self._addresses.keys() == self._engine.ports.keys()
        self.log.append(("run", stream, self._shape[0]))
        return self._engine.works


class FakeEngine:
    def __init__(self, file, most):
        self.log, self.works, self.most, self.contexts = [], True, most, 0
        self.ports = {
            each.name: (each is file.images, each.dtype, (-1, *each.shape)) for each in (file.images, *file.outputs)
        }
        self.num_io_tensors = len(self.ports)
        self.get_tensor_name = lambda index: list(self.ports)[index]
        self.get_tensor_mode = lambda name: "in" if self.ports[name][0] else "out"
        self.get_tensor_dtype = lambda name: {torch.float32: "FLOAT", torch.float16: "HALF"}[self.ports[name][1]]
        self.get_tensor_shape = lambda name: self.ports[name][2]

    def get_tensor_profile_shape(self, name, profile):
        assert profile == 0
        sides = self.ports[name][2][1:]
        return [(batch, *sides) for batch in (1, 1, self.most)]

    def create_execution_context(self):
        self.contexts += 1
        return FakeContext(self)


def fake_package(engine, message=""):
    class ILogger:
        INTERNAL_ERROR, ERROR, WARNING = "internal", "error", "warning"

    class Runtime:
        def __init__(self, log):
            self._log = log

        def deserialize_cuda_engine(self, data):
            assert data == b"ftrt"
            self._log.log(ILogger.ERROR, message)
            self._log.log(ILogger.WARNING, "of no interest")
            return engine

    return SimpleNamespace(
        __version__="10.16",
        ILogger=ILogger,
        Runtime=Runtime,
        DataType=SimpleNamespace(FLOAT="FLOAT", HALF="HALF"),
        TensorIOMode=SimpleNamespace(INPUT="in", OUTPUT="out"),
    )


@pytest.fixture
def file(exported, tmp_path):
    """An engine beside the tiny network's file."""
    shutil.copy(exported().path, tmp_path / "tiny.onnx")
    (tmp_path / "tiny.engine").write_bytes(b"ftrt")
    return read_network_file(tmp_path / "tiny.engine")


@pytest.fixture
def opened(file, monkeypatch):
    """Opens a session on a fake engine, with tensors on the CPU."""

    def open_fake(engine, message=""):
        monkeypatch.setitem(sys.modules, "tensorrt", fake_package(engine, message))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: SimpleNamespace(cuda_stream=77))
        return in_tensorrt.TensorRtSession(file, torch.device("cuda", 0))

    return open_fake


def test_shape_and_addresses_are_set_once_and_it_runs_on_the_callers_stream(file, opened):
    engine = FakeEngine(file, most=8)
    session = opened(engine)
    images = torch.zeros(4, *file.images.shape)
    outputs = [torch.empty(4, *each.shape) for each in file.outputs]
    call = session.make_call()
    call(images, outputs)
    names = ["images", "logits", "boxes_cxcywh", "mask_logits"]
    first = [("shape", "images", tuple(images.shape)), *(("address", name) for name in names)]
    assert engine.log == [*first, ("run", 77, 4)]
    call(images, outputs)  # as while a graph is captured
    assert engine.log == [*first, ("run", 77, 4), ("run", 77, 4)]
    call(images.clone(), outputs)
    assert engine.log[-6:] == [*first, ("run", 77, 4)]
    assert session.why_no_graph is None
    assert session.name == "TensorRT 10.16 on cuda:0, not run by maskjet's authors"


def test_large_batches_run_in_parts_each_with_a_context(file, opened):
    engine = FakeEngine(file, most=3)
    runtime = FileRuntime(file, opened(engine), CPU)
    engine.log.clear()
    engine.contexts = 0
    run = runtime.for_batch(8)
    for _ in range(2):
        output = run(torch.zeros(8, *file.images.shape))
    assert [each[2] for each in engine.log if each[0] == "run"] == [3, 3, 2] * 2
    assert engine.contexts == 3
    assert output.logits.shape == (8, *file.outputs[0].shape)


def test_what_does_not_fit_is_one_sentence(file, opened):
    message = r"must be an engine of this GPU and of TensorRT 10.16: built for sm_75\.$"
    with pytest.raises(UnsupportedError, match=message):
        opened(None, "built for sm_75.\n")
    for name, (mode, dtype, shape) in FakeEngine(file, most=8).ports.items():
        engine = FakeEngine(file, most=8)
        engine.ports[name] = (mode, dtype, (*shape[:-1], 5))
        with pytest.raises(UnsupportedError, match=f"{name} of .* must be torch.float32 .* per image"):
            opened(engine)
        engine.ports[name] = (mode, torch.float16, shape)
        with pytest.raises(UnsupportedError, match=f"{name} of .* must be torch.float32 .*, got HALF"):
            opened(engine)
        engine.ports["other"] = engine.ports.pop(name)
        with pytest.raises(UnsupportedError, match=r"must have the inputs and outputs of the ONNX file beside it"):
            opened(engine)


def test_failures_are_not_silent(file, opened):
    engine = FakeEngine(file, most=2)
    call = opened(engine).make_call()
    outputs = [torch.empty(4, *each.shape) for each in file.outputs]
    images = torch.zeros(4, *file.images.shape)
    with pytest.raises(UnsupportedError, match=re.escape(f"takes no images of {tuple(images.shape)}")):
        call(images, outputs)
    engine.works = False
    message = r"tiny.engine' must run in TensorRT 10.16 .*|execution context can't run"
    with pytest.raises(UnsupportedError, match=message):
        FileRuntime(file, opened(engine), CPU)
    engine.create_execution_context = lambda: None
    with pytest.raises(UnsupportedError, match="no memory left for an execution context"):
        opened(engine).make_call()


def test_an_engine_needs_its_onnx_file_the_package_and_a_gpu(file, monkeypatch):
    with pytest.raises(UnsupportedError, match=r"tiny.engine' needs an NVIDIA GPU, got device cpu"):
        maskjet.load(file.path, device="cpu")
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(MissingDependencyError, match=r"runtime='tensorrt' needs tensorrt: pip install tensorrt\.$"):
        in_tensorrt.TensorRtSession(file, torch.device("cuda", 0))
    assert [each.name for each in file.files] == ["tiny.engine", "tiny.onnx"]
    Path(file.path).with_suffix(".onnx").unlink()
    with pytest.raises(CheckpointError, match=r"an engine with its ONNX file beside it, got .*tiny.onnx' is no file"):
        maskjet.load(file.path, device="cpu")
