"""What `import maskjet` offers and what it costs."""

import doctest
import functools
import importlib
import inspect
import os
import subprocess
import sys
import typing
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as PILImage

import maskjet
from maskjet import errors
from maskjet.config import EngineConfig

NOT_FOR_AN_IMAGE = (
    *("jobs", "onnx", "runtimes", "tracking", "tiling.frames", "tiling.merging", "parity.record", "serve.service"),
    *("networks.torchvision", "media.keyframes", "media.surfaces", "media.nvjpeg"),
)
"""Modules of maskjet that a plain run of one image on a CPU has no use for."""
NOT_FOR_ANYONE = (
    "torch._dynamo",
    "torch._inductor",
    "torch.onnx",
    "matplotlib",
    "pandas",
    "torchvision",
    "onnxruntime",
)
USERS_SCRIPT = """
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import maskjet
from maskjet.drawing import Redaction

model: maskjet.Model = maskjet.load("demo", device="cpu", engine="auto", resample="cv2", batch=4, nvtx=False)
maskjet.load(Path("a.pt"), threshold={"car": 0.3}, classes=["car"], max_detections=5, implementation={"select": "cpu"})
maskjet.load(torch.nn.Linear(1, 1), weights=None, precision="bf16", compile=False)
maskjet.load("demo", treshold=0.5)  # wrong
maskjet.load("demo", engine="grahp")  # wrong
maskjet.load("demo", batch="8")  # wrong

image: NDArray[np.uint8] = np.zeros((4, 6, 3), np.uint8)
one: maskjet.Detections = model.predict(image, threshold=0.3, classes=["car"], max_detections=3)
several: list[maskjet.Detections] = model.predict([image, "a.jpg", Path("b.jpg"), torch.zeros(3, 4, 5)])
for each in ("a.jpg", Path("a.jpg"), torch.zeros(3, 4, 5), Image.new("RGB", (4, 4))):
    each_found: maskjet.Detections = model.predict(each)
model.predict(image, confidence=0.3)  # wrong
model.predict(5)  # wrong

for frame, found in model.stream("a.mp4", depth=2, threshold=0.5, classes=("car",), max_detections=9):
    pixels: NDArray[np.uint8] = frame.image
    drawn: NDArray[np.uint8] = found.draw(frame.image, labels=False, color_by="instance")
    found.draw(frame.image, colour_by="instance")  # wrong
    found.keep_mask_pixels("box").draw(frame.image, mask_pixels="raw")
    found.keep_mask_pixels("parts")  # wrong
    hidden: NDArray[np.uint8] = maskjet.draw(frame.image, found, Redaction(["car"], margin=3))
    maskjet.draw("a.jpg", found, Redaction(["car"], margn=3))  # wrong
    maskjet.draw(frame.image, found, "redact")  # wrong
model.stream("a.mp4", treshold=0.5)  # wrong

cars: maskjet.Detections = one[(one.class_name == "car") & (one.confidence > 0.8)]
first: maskjet.Detections = one[0]
some: list[maskjet.Detections] = [single for single in one[1:][[0, 1]][np.array([True, False])]]
names: list[str] = one.class_name.tolist()
outlines: list[list[NDArray[np.float32]]] = one.polygons()
text: str = one.to_json()
again: maskjet.Detections = maskjet.Detections.from_dict(one.as_dict())
one["car"]  # wrong
report: maskjet.Report = model.report()
with model as opened:
    opened.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run a.png -o a.jsonl", "info --model demo"])
def test_commands_import_what_they_use(command, tmp_path):
    PILImage.fromarray(np.zeros((96, 96, 3), np.uint8)).save(tmp_path / "a.png")
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "maskjet", *command.split(), "--device", "cpu"],
        check=True,
        timeout=300,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert {"torch", "maskjet.model"} <= imported
    assert not imported & {*NOT_FOR_ANYONE, *(f"maskjet.{name}" for name in NOT_FOR_AN_IMAGE)}


def test_importing_loads_nothing_and_adds_one_variable():
    program = (
        "import os, sys; before = dict(os.environ)\n"
        "import maskjet\n"
        "assert not {'torch', 'numpy', 'cv2', 'av', 'numba', 'typer', 'rich'} & set(sys.modules)\n"
        "assert {name for name, _ in os.environ.items() ^ before.items()} <= {'ONEDNN_MAX_CPU_ISA'}\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.slow
def test_importing_a_model_changes_nothing_and_loads_no_extras():
    program = (
        "import sys, torch; torch.set_num_threads(1)\n"
        "from maskjet import *\n"
        "import maskjet; assert Model is maskjet.Model\n"
        "assert (torch.get_default_dtype(), torch.is_grad_enabled()) == (torch.float32, True)\n"
        "assert torch.get_num_threads() == 1\n"
        "assert not torch.cuda.is_initialized()\n"
        "extras = {'PIL', 'supervision', 'pycocotools', 'rfdetr', 'transformers', 'torchvision'}\n"
        "assert not [name for name in sys.modules if name in extras or name.startswith('onnx')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_all_is_there_and_sorted():
    assert sorted(maskjet.__all__) == maskjet.__all__
    assert all(getattr(maskjet, name) is not None for name in maskjet.__all__)
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    ours = {value.__name__ for value in classes if issubclass(value, errors.MaskjetError)}
    assert ours <= set(maskjet.__all__)
    assert set(maskjet.__all__) < set(dir(maskjet))


FOLDER = Path(maskjet.__file__).parent
SAMPLE = functools.cache(maskjet.traffic.sample)
SLOW = ("export/__init__.py", "networks/torchvision/optimizing.py")
EXAMPLES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.py") if ">>> " in path.read_text())


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=[pytest.mark.slow] if path in SLOW else []) for path in EXAMPLES]
)
def test_examples_run(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # some write files
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # where each would compile for a while
    monkeypatch.setattr("maskjet.traffic.sample", SAMPLE)  # most draw the same street
    parts = ("maskjet", *Path(path).with_suffix("").parts)
    module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
    done = doctest.testmod(module)
    assert done.failed == 0
    assert done.attempted > 0


def test_every_public_name_has_an_example():
    for name in set(maskjet.__all__) - {"__version__"}:
        assert doctest.DocTestParser().get_examples(getattr(maskjet, name).__doc__), name


def test_load_has_every_option_of_the_configuration():
    """With the types and the defaults that `EngineConfig` states, but for two."""
    parameters = inspect.signature(maskjet.load).parameters
    options = {name: each for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}
    hints, expected = typing.get_type_hints(maskjet.load), typing.get_type_hints(EngineConfig)
    assert options.keys() - expected.keys() == {"weights", "class_names", "threshold", "classes"}
    described = inspect.getdoc(maskjet.load)
    other = {
        "device": (str | int | torch.device, "auto"),  # the configuration has its name
        "max_detections": (int | None, None),  # the network's own
    }
    for field in fields(EngineConfig):
        stated = other.get(field.name, (expected[field.name], field.default))
        assert (hints[field.name], options[field.name].default) == stated
    assert all(f"\n    {name}: " in described for name in parameters)


@pytest.mark.slow
def test_a_users_script_is_typed(tmp_path):
    """By `mypy --strict`, from the package's own annotations; each line marked wrong is one error."""
    script = tmp_path / "script.py"
    script.write_text(USERS_SCRIPT)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(script)]
    source = str(FOLDER.parent)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, cwd=tmp_path, env={**os.environ, "MYPYPATH": source}
    )
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    wrong = {number for number, line in enumerate(USERS_SCRIPT.splitlines(), start=1) if "# wrong" in line}
    assert found == wrong, done.stdout + done.stderr


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="module 'maskjet' has no attribute 'lod'"):
        maskjet.lod  # noqa: B018
