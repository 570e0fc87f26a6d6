"""What a caller has set in PyTorch changes no result, whether the model was loaded under it, runs under it, or both."""

import ast
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import maskjet
from tests.networks.checkpoints import save_safetensors
from tests.networks.test_fused import SMALL, build
from tests.networks.torchvision.detectors import detector

SOURCES = Path(maskjet.__file__).parent
# Of tensors that torch.set_default_dtype or torch.set_default_device change, unless both are stated.
CONSTRUCTORS = {
    *(
        "arange",
        "as_tensor",
        "asarray",
        "empty",
        "empty_strided",
        "eye",
        "full",
        "linspace",
        "logspace",
        "ones",
        "rand",
    ),
    *("randint", "randn", "randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros"),
}


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def default_device(device):
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def all_of(*states):
    with ExitStack() as stack:
        for state in states:
            stack.enter_context(state)
        yield


STATES = {
    "float16": lambda: default_dtype(torch.float16),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "float64": lambda: default_dtype(torch.float64),
    "default device": lambda: default_device("meta"),
    "device": lambda: torch.device("meta"),
    "autocast on CPUs": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference": torch.inference_mode,
    "gradients": torch.enable_grad,
    "deterministic": deterministic,
}
ALL = {
    "bfloat16 and all others": lambda: all_of(
        default_dtype(torch.bfloat16), default_device("meta"), STATES["autocast on CPUs"](), deterministic()
    ),
    "float64 in inference": lambda: all_of(default_dtype(torch.float64), torch.inference_mode()),
}
GPU_STATES = {
    **{name: state for name, state in STATES.items() if name != "deterministic"},
    "default GPU": lambda: default_device("cuda"),
    "GPU": lambda: torch.device("cuda"),
    "autocast": lambda: torch.autocast("cuda", dtype=torch.bfloat16),
    "autocast to float16": lambda: torch.autocast("cuda", dtype=torch.float16),
}


def frame(seed=0):
    return np.random.default_rng(seed).integers(0, 256, (60, 80, 3), dtype=np.uint8)


def answers(model):
    """The detections of a list, of a call of its own choice and of a stream, to the last bit, and the thresholds."""
    found = [*model.predict([frame(), frame(1)]), model.predict(torch.from_numpy(frame()), threshold=0.3)]
    found += [each for _, each in model.stream([frame(2)])]
    assert len(found[0])
    return [each.as_dict() for each in found], model.thresholds


def check(load, state):
    """Compare a model that was loaded and run under a state, one of both, and none."""
    plain = load()
    expected = answers(plain)
    with state():
        model = load()
        assert answers(model) == expected
        assert answers(plain) == expected
    assert answers(model) == expected


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A checkpoint of a tiny network that every runtime serves."""
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    return save_safetensors(build().state_dict(), path, **SMALL.as_dict())


@pytest.fixture(scope="module")
def two_stage():
    return detector()


@pytest.mark.parametrize(
    ("state", "precision"),
    [*(pytest.param(state, "fp32", id=name) for name, state in STATES.items())]
    + [pytest.param(state, "bf16", id=name) for name, state in ALL.items()],
)
def test_rf_detr_on_a_cpu(state, precision, tiny):
    check(lambda: maskjet.load(tiny, device="cpu", precision=precision, threshold=0.02), state)


@pytest.mark.parametrize(
    ("implementation", "state"),
    [("reference", "bfloat16 and all others"), pytest.param("cpu", "float64 in inference", marks=pytest.mark.slow)],
)
def test_a_two_stage_detector_on_a_cpu(state, implementation, two_stage):
    check(lambda: maskjet.load(two_stage, device="cpu", implementation=implementation), ALL[state])


@pytest.mark.gpu
@pytest.mark.parametrize("runtime", ["fused", "torch"])
@pytest.mark.parametrize("state", GPU_STATES.values(), ids=GPU_STATES)
def test_rf_detr_in_graphs(state, runtime, tiny):
    """Graphs are captured with the second batch, also under the state."""
    check(lambda: maskjet.load(tiny, device="cuda", runtime=runtime, compile=False, threshold=0.02), state)


@pytest.mark.gpu
@pytest.mark.parametrize("state", GPU_STATES.values(), ids=GPU_STATES)
def test_a_two_stage_detector_in_graphs(state, two_stage):
    check(lambda: maskjet.load(two_stage, device="cuda", precision="fp32"), state)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("state", ["autocast", "GPU", "float64"])
def test_a_compiled_network(state, tiny):
    check(lambda: maskjet.load(tiny, device="cuda", compile=True, threshold=0.02), GPU_STATES[state])


@pytest.mark.gpu
@pytest.mark.parametrize("choices", [{"runtime": "fused"}, {"compile": False, "runtime": "torch"}, None])
def test_deterministic_algorithms_on_a_gpu(choices, tiny, two_stage):
    """cuDNN then takes other kernels, which may round otherwise; run after run they give the same bits."""
    with deterministic():
        if choices is None:
            model = maskjet.load(two_stage, device="cuda", precision="fp32")
        else:
            model = maskjet.load(tiny, device="cuda", threshold=0.02, **choices)
        first = answers(model)
        assert [answers(model) for _ in range(2)] == [first] * 2


def incomplete(tree):
    """Calls that make a tensor without a dtype or a device, but for parameters: networks are built on meta."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    parameters = [call for call in calls if call.func.attr in ("Parameter", "ParameterDict")]
    exempt = {id(inner) for call in parameters for inner in ast.walk(call)}
    return [
        call
        for call in calls
        if call.func.attr in CONSTRUCTORS
        and ast.unparse(call.func.value) == "torch"
        and id(call) not in exempt
        and not {"dtype", "device"} <= {keyword.arg for keyword in call.keywords}
    ]


def test_tensors_are_made_with_a_dtype_and_a_device():
    found = [
        f"{file.relative_to(SOURCES)}:{call.lineno}: {ast.unparse(call)}"
        for file in SOURCES.rglob("*.py")
        for call in incomplete(ast.parse(file.read_text()))
        if file.parts[-2:] != ("linear", "reference.py")
    ]
    assert not found
