"""The laboratory's commands: started as the product's own, with its errors and exit codes."""

import importlib
import json
import re
import subprocess
import sys

import pytest
from safetensors.torch import load_file, save_file

from benchmarks import ablation, capture, ops, replay
from benchmarks.command import start
from maskjet import traffic
from maskjet.cli import app as product
from tests.cli.command_line import call

COMMANDS = (
    *("ablation", "capture", "conversion", "host_time", "images", "jobs", "jpegs", "network", "onnx_files"),
    *("ops", "pictures", "probe", "reach", "replay", "runtimes", "serve", "serve_soak", "soak", "study", "two_stage"),
    *("supervision_masks", "tiles", "tiles_streets", "tracking", "video"),
)


@pytest.fixture
def run(capsys):
    """Exit code, stdout, stderr of a module's command within this process."""

    return lambda module, *arguments: call(capsys, module.__name__, *arguments, start=lambda: start(module.main))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_helps_and_leaves_the_product_as_it_was(name, run):
    module, before = importlib.import_module(f"benchmarks.{name}"), product.app
    code, out, err = run(module, "--help")
    assert (code, err) == (0, "")
    assert re.sub(r"\s+", " ", module.main.__doc__.strip()) in re.sub(r"\s+", " ", out)
    assert product.app is before


@pytest.mark.slow
def test_a_command_runs_as_a_module():
    command = [sys.executable, "-m", "benchmarks.ops", "--only", "select", "--runs", "1", "--device", "tpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("maskjet: device must be ")


def test_errors_are_one_line(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    for module, arguments, code, message in (
        (ops, ("--only", "blur"), 2, "maskjet: only must be of 'preprocess', "),
        (ablation, ("--size", "big"), 2, "maskjet: --size must be one of 312"),
        (ablation, ("--nvtx", "--device", "cpu"), 2, "maskjet: --nvtx needs a GPU, got cpu"),
        (capture, ("nothing.mp4", "--out", "c"), 3, "maskjet: source must exist, 'nothing.mp4' does not."),
    ):
        got, out, err = run(module, *arguments)
        assert (got, out, err.count("\n")) == (code, "", 1)
        assert err.startswith(message)


@pytest.mark.usefixtures("two_threads")
def test_capture_and_replay(tmp_path, run):
    clip, folder = tmp_path / "street.mp4", tmp_path / "captured"
    traffic.write_video(clip, size_hw=(96, 160), frames=2, seed=2)
    code, _, err = run(capture, clip, "--out", folder, "--frames", "2", "--device", "cpu")
    assert (code, err) == (0, f"wrote 2 frames to {folder}\n")
    flags = ("--runs", "1", "--device", "cpu", "--implementation", "cpu")
    code, out, _ = run(replay, folder, *flags, "--out", tmp_path / "replay.json")
    assert code == 0
    assert [line.split()[1] for line in out.splitlines()[1:4]] == ["preprocess", "select", "encode_masks"]
    assert len(json.loads((tmp_path / "replay.json").read_text())["measurements"]) == 3
    frame = folder / "000001.safetensors"
    tensors = load_file(frame)
    save_file({**tensors, "preprocess.out": tensors["preprocess.out"] + 1}, frame)
    code, out, err = run(replay, folder, *flags)
    assert (code, err) == (1, "")
    assert re.search(r"preprocess +cpu .* 1 +0 +1 ", out)
