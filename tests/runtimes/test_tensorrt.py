"""The border to TensorRT, which is not here: a fake of its documented API that refuses what TensorRT refuses."""

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import maskjet
from benchmarks.planted import TINY
from maskjet import runtimes
from maskjet.errors import CheckpointError, InputError, MissingDependencyError, UnsupportedError
from maskjet.networks.exported import in_tensorrt
from maskjet.networks.exported.network_file import read_network_file
from maskjet.networks.exported.running import FileRuntime
from tests.networks.test_network import tiny_network

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


class FakeBuilding:
    """What TensorRT builds engines with; refuses at a step."""

    def __init__(self, monkeypatch, *, refuses=None, flags=("STRONGLY_TYPED",)):
        self.log, self.refuses = [], refuses
        package = fake_package(None)
        package.NetworkDefinitionCreationFlag = SimpleNamespace(**dict.fromkeys(flags, 1))
        package.Builder, package.OnnxParser = self.make_builder, self.make_parser
        monkeypatch.setitem(sys.modules, "tensorrt", package)
        cuda = SimpleNamespace(is_available=lambda: True)  # for the check alone: exporting would look for a driver
        monkeypatch.setattr("maskjet.runtimes.engine_building.torch", SimpleNamespace(cuda=cuda))

    def make_builder(self, logger):
        self.logger = logger
        return SimpleNamespace(
            create_network=lambda flags: self.log.append(("network", flags)) or "network",
            create_optimization_profile=lambda: SimpleNamespace(set_shape=self.note("shape")),
            create_builder_config=lambda: SimpleNamespace(add_optimization_profile=self.add_profile),
            build_serialized_network=lambda network, _: self.answer("build", None, b"ftrt" * (network == "network")),
        )

    def make_parser(self, network, _logger):
        assert network == "network"
        return SimpleNamespace(parse_from_file=lambda path: self.answer("parse", False, Path(path).is_file()))

    def add_profile(self, _profile):
        return self.answer("profile", -1, 0)

    def note(self, name):
        return lambda *given: self.log.append((name, *given))

    def answer(self, step, refusal, good):
        self.log.append((step,))
        if step == self.refuses:
            self.logger.log("error", "no memory.")
            return refusal
        return good


@pytest.fixture
def already_exported(exported, monkeypatch):
    """Only the engine is built; its ONNX file is copied."""

    def copy(_network, out, *_):
        return replace(exported(), path=str(shutil.copy(exported().path, out)))

    monkeypatch.setattr("maskjet.runtimes.exporting.export_network", copy)


@pytest.mark.parametrize(("flags", "bits"), [pytest.param(("STRONGLY_TYPED",), 2, marks=pytest.mark.slow), ((), 0)])
def test_an_engine_is_built_beside_its_onnx_file(flags, bits, tmp_path, monkeypatch, exported, request):
    """The ONNX file has the same bytes as without an engine."""
    if not flags:
        request.getfixturevalue("already_exported")
    building = FakeBuilding(monkeypatch, flags=flags)
    made = runtimes.export(tiny_network(), tmp_path / "tiny.plan")
    assert (made.path, made.engine) == (str(tmp_path / "tiny.onnx"), str(tmp_path / "tiny.plan"))
    assert (tmp_path / "tiny.plan").read_bytes() == b"ftrt"
    assert (tmp_path / "tiny.onnx").read_bytes() == Path(exported().path).read_bytes()
    shape = (3, *TINY.input_hw)
    shapes = ("shape", "images", (1, *shape), (4, *shape), (8, *shape))
    assert building.log == [("network", bits), ("parse",), shapes, ("profile",), ("build",)]
    assert "a TensorRT engine of it for this GPU, which was not compared" in str(made)
    assert read_network_file(tmp_path / "tiny.plan").spec == TINY


@pytest.mark.usefixtures("already_exported")
@pytest.mark.parametrize("step", ["parse", "profile", "build"])
def test_an_engine_that_cant_be_built_is_one_sentence_and_no_file(step, tmp_path, monkeypatch):
    FakeBuilding(monkeypatch, refuses=step)
    with pytest.raises(UnsupportedError, match=r"TensorRT (can't|takes no) .*: no memory\.$"):
        runtimes.export(tiny_network(), tmp_path / "tiny.engine")
    assert [each.name for each in tmp_path.iterdir()] == ["tiny.onnx"]


def test_engines_need_the_package_and_a_gpu_before_any_work(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="postprocess must be None for an engine"):
        runtimes.export("demo", tmp_path / "a.engine", postprocess=runtimes.Postprocess())
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(MissingDependencyError, match=r"to an engine needs tensorrt: pip install tensorrt\.$"):
        runtimes.export("demo", tmp_path / "a.engine")
    FakeBuilding(monkeypatch)
    monkeypatch.setattr("maskjet.runtimes.engine_building.torch.cuda.is_available", lambda: False)
    with pytest.raises(UnsupportedError, match=r"out must end in \.onnx on a machine without an NVIDIA GPU"):
        runtimes.export("demo", tmp_path / "a.engine")
    assert not list(tmp_path.iterdir())
