"""The laboratory's commands: started as the product's own, with its errors and exit codes."""

import json
import re
import subprocess
import sys

import pytest
from safetensors.torch import load_file, save_file

from benchmarks import (
    ablation,
    capture,
    conversion,
    host_time,
    jobs,
    jpeg,
    network,
    onnx_files,
    ops,
    probe,
    reach,
    replay,
    runtimes,
    serve,
    serve_soak,
    soak,
    study,
    two_stage,
    video,
)
from benchmarks.command import start
from maskjet import traffic
from maskjet.cli import app as product
from tests.cli.command_line import call

COMMANDS = (
    ablation,
    capture,
    conversion,
    host_time,
    jobs,
    jpeg,
    network,
    onnx_files,
    ops,
    probe,
    reach,
    replay,
    runtimes,
    serve,
    serve_soak,
    soak,
    study,
    two_stage,
    video,
)
SMALL = ("--size", "160x96")


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    path = tmp_path_factory.mktemp("clip") / "street.mp4"
    traffic.write_video(path, size_hw=(96, 160), frames=6, seed=2)
    return path


@pytest.fixture
def run(capsys):
    """Exit code, stdout, stderr of a module's command within this process."""

    return lambda module, *arguments: call(capsys, module.__name__, *arguments, start=lambda: start(module.main))


@pytest.mark.parametrize("module", COMMANDS)
def test_every_command_helps_and_leaves_the_product_as_it_was(module, run):
    before = product.app
    code, out, err = run(module, "--help")
    assert (code, err) == (0, "")
    assert re.sub(r"\s+", " ", module.main.__doc__.strip()) in re.sub(r"\s+", " ", out)
    assert product.app is before


@pytest.mark.slow
def test_a_command_runs_as_a_module():
    command = [sys.executable, "-m", "benchmarks.ops", "--only", "select", "--runs", "1", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert "select" in done.stdout
    command[-1] = "tpu"
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("maskjet: device must be ")


@pytest.mark.parametrize(
    ("module", "arguments", "code", "message"),
    [
        (ops, ("--only", "blur"), 2, "maskjet: only must be of 'preprocess', "),
        (ablation, ("--size", "big"), 2, "maskjet: --size must be one of 312"),
        (ablation, ("--nvtx", "--device", "cpu"), 2, "maskjet: --nvtx needs a GPU, got cpu"),
        (replay, ("CLIP",), 2, "maskjet: capture must be a folder that benchmarks.capture wrote, got"),
        (capture, ("nothing.mp4", "--out", "c"), 3, "maskjet: source must exist, 'nothing.mp4' does not."),
    ],
)
def test_errors_are_one_line(module, arguments, code, message, clip, tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    got, out, err = run(module, *(clip if argument == "CLIP" else argument for argument in arguments))
    assert (got, out) == (code, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_ablation(tmp_path, run):
    flags = ("--size", "130x90", "--survivors", "3", "--runs", "1", "--only", "eager", "--device", "cpu")
    code, out, err = run(ablation, *flags, "--out", tmp_path)
    assert (code, err) == (0, "")
    assert [line.split("  ")[0] for line in out.splitlines()[:3]] == ["size", "130 × 90", "130 × 90"]
    assert {path.name for path in tmp_path.iterdir()} == {"ablation.csv", "ablation.json", "ablation.png"}


@pytest.mark.usefixtures("two_threads")
def test_capture_and_replay(clip, tmp_path, run):
    folder = tmp_path / "captured"
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


def test_probe(tmp_path, run):
    files = ("--out", tmp_path / "p.json", "--picture", tmp_path / "p.png")
    code, out, _ = run(probe, "--count", 1, *SMALL, "--device", "cpu", *files)
    assert code == 0
    assert "F.interpolate" in out
    assert json.loads((tmp_path / "p.json").read_text())["measurements"]
    assert (tmp_path / "p.png").stat().st_size > 1000


def test_study(tmp_path, run):
    chosen = ("--only", "demo", "--variant", "fp32", "--count", 2, *SMALL, "--resamples", 0)
    code, out, err = run(study, tmp_path, *chosen, "--stage", "dump")
    assert (code, out, "wrote the dumps" in err) == (0, "", True)
    code, out, _ = run(study, tmp_path, *chosen, "--stage", "compare")
    assert code == 0
    assert "average precision" in out
    assert (tmp_path / "study.json").exists()
