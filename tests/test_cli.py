"""The command line, in a process of its own and within this one."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file, save_file

from maskjet import cli, traffic
from maskjet.frames import open_source


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    path = tmp_path_factory.mktemp("clip") / "street.mp4"
    traffic.write_video(path, size_hw=(96, 160), frames=6, seed=2)
    return path


def run(*arguments, capsys=None):
    """Exit code, stdout, stderr of the command line within this process."""
    sys.argv = ["maskjet", *map(str, arguments)]
    with pytest.raises(SystemExit) as exit_info:
        cli.main()
    out, err = capsys.readouterr()
    return exit_info.value.code, out, err


def test_run_writes_every_output_and_says_so(clip, tmp_path, capsys):
    outs = [tmp_path / name for name in ("a.mp4", "a.jsonl", "a.json", "shown")]
    flags = [flag for out in outs for flag in ("--out", out)]
    code, out, err = run("run", clip, *flags, "--threshold", "0.01", capsys=capsys)
    assert (code, out) == (0, "")
    assert "6 frames" in err
    assert all(f"wrote {path}" in err for path in outs)
    assert len(list(open_source(outs[0]))) == 6
    assert len(outs[1].read_text().splitlines()) == 6
    assert len(json.loads(outs[2].read_text())["images"]) == 6
    assert len(list(outs[3].iterdir())) == 6


def test_json_summary_on_stdout(clip, tmp_path, capsys):
    code, out, err = run("run", clip, "--out", tmp_path / "a.jsonl", "--json", capsys=capsys)
    summary = json.loads(out)
    assert (code, err, summary["frames"], summary["bad_frames"]) == (0, "", 6, [])
    assert summary["fps"] > 0


def test_a_folder_of_images(tmp_path, capsys):
    traffic.write_coco(tmp_path / "set", images=3, size_hw=(96, 160))
    code, out, _ = run("run", tmp_path / "set" / "images", "--out", "-", capsys=capsys)
    assert code == 0
    assert [json.loads(line)["index"] for line in out.splitlines()] == [0, 1, 2]


def test_bad_frames_count_only_when_strict(tmp_path, capsys):
    traffic.write_coco(tmp_path / "set", images=3, size_hw=(96, 160))
    (tmp_path / "set" / "images" / "000001.jpg").write_bytes(b"\xff\xd8")
    arguments = ("run", tmp_path / "set" / "images", "--out", tmp_path / "a.jsonl")
    code, _, err = run(*arguments, capsys=capsys)
    assert code == 0
    assert "bad frame: frame 1: image must be whole" in err
    assert run(*arguments, "--strict", capsys=capsys)[0] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "nothing.mp4", "--out", "a.jsonl"), "maskjet: source must exist, 'nothing.mp4' does not."),
        (("run", "CLIP", "--out", "a.txt"), "maskjet: out must end in one of .mp4"),
        (
            ("run", "CLIP", "--out", "a.jsonl", "--model", "no"),
            "maskjet: model must be a name or a checkpoint's path, got 'no'",
        ),
        (("run", "CLIP", "--out", "a.jsonl", "--precision", "fp8"), "maskjet: precision must be one of"),
        (
            ("run", "CLIP", "--out", "a.jsonl", "--classes", "cow"),
            "maskjet: classes must name classes of demo, got 'cow'",
        ),
        (("run", "CLIP", "--out", "a.jsonl", "--device", "cuda:77"), "maskjet: device='cuda:77' is not here"),
        (("bench", "ops", "--only", "blur"), "maskjet: only must name ops, preprocess, "),
        (("bench", "ablation", "--size", "big"), "maskjet: --size must be one of 312"),
        (("bench", "ablation", "--nvtx", "--device", "cpu"), "maskjet: --nvtx needs a GPU, got cpu"),
        (("bench", "replay", "CLIP"), "maskjet: capture must be a folder `maskjet bench capture` wrote, got"),
        (("bench", "capture", "nothing.mp4", "--out", "c"), "maskjet: source must exist, 'nothing.mp4' does not."),
        (
            ("traffic", "video", "a.mp4", "--size", "big"),
            "maskjet: --size must be one of 312, 720p, 1080p or WIDTHxHEIGHT, got 'big'",
        ),
    ],
)
def test_errors_are_one_line_and_exit_code_2(arguments, message, clip, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*(clip if argument == "CLIP" else argument for argument in arguments), capsys=capsys)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_info(capsys):
    code, out, _ = run("info", "--json", "--model", "demo", capsys=capsys)
    facts = json.loads(out)
    assert code == 0
    assert facts["report"]["model"] == "demo"
    assert set(facts["report"]["steps"]) == {"preprocess", "select", "encode_masks"}
    assert "demo" in run("info", capsys=capsys)[1]


def test_traffic(tmp_path, capsys):
    assert run("traffic", "video", tmp_path / "v.mp4", "--size", "160x96", "--frames", "3", capsys=capsys)[0] == 0
    assert [frame.image.shape for frame in open_source(tmp_path / "v.mp4")] == [(96, 160, 3)] * 3
    assert run("traffic", "coco", tmp_path / "set", "--size", "160x96", "--images", "2", capsys=capsys)[0] == 0
    assert len(json.loads((tmp_path / "set" / "annotations.json").read_text())["images"]) == 2


def test_bench_ablation(tmp_path, capsys):
    flags = ("--size", "130x90", "--survivors", "3", "--runs", "1", "--only", "eager", "--device", "cpu")
    code, out, err = run("bench", "ablation", *flags, "--out", tmp_path, capsys=capsys)
    assert (code, err) == (0, "")
    assert [line.split("  ")[0] for line in out.splitlines()[:3]] == ["size", "130 × 90", "130 × 90"]
    assert {path.name for path in tmp_path.iterdir()} == {"ablation.csv", "ablation.json", "ablation.png"}


@pytest.mark.usefixtures("two_threads")
def test_bench_capture_and_replay(clip, tmp_path, capsys):
    folder = tmp_path / "captured"
    code, _, err = run("bench", "capture", clip, "--out", folder, "--frames", "2", "--device", "cpu", capsys=capsys)
    assert (code, err) == (0, f"wrote 2 frames to {folder}\n")
    flags = ("--runs", "1", "--device", "cpu", "--implementation", "cpu")
    code, out, _ = run("bench", "replay", folder, *flags, "--out", tmp_path / "replay.json", capsys=capsys)
    assert code == 0
    assert [line.split()[1] for line in out.splitlines()[1:4]] == ["preprocess", "select", "encode_masks"]
    assert len(json.loads((tmp_path / "replay.json").read_text())["measurements"]) == 3
    frame = folder / "000001.safetensors"
    tensors = load_file(frame)
    save_file({**tensors, "preprocess.out": tensors["preprocess.out"] + 1}, frame)
    code, out, err = run("bench", "replay", folder, *flags, capsys=capsys)
    assert (code, err) == (1, "")
    assert re.search(r"preprocess +cpu .* 1 +0 +1 ", out)


def test_a_terminal_sees_progress_with_speed_and_time_left(tmp_path):
    traffic.write_video(tmp_path / "v.mp4", size_hw=(96, 160), frames=40)
    terminal, ours = pty.openpty()
    command = [sys.executable, "-m", "maskjet", "run", tmp_path / "v.mp4", "--out", tmp_path / "v.jsonl"]
    process = subprocess.Popen(command, stderr=ours, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"})
    os.close(ours)
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal's end is told
        while part := os.read(terminal, 4096):
            shown += part
    os.close(terminal)
    assert process.wait(timeout=60) == 0, shown.decode()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert re.search(r"detecting .* 0:00:0\d +\d+/40 +\d+\.\d/s", plain)
    assert "done" in plain


def test_ctrl_c_leaves_whole_outputs(tmp_path):
    source = tmp_path / "long.mp4"
    traffic.write_video(source, size_hw=(96, 160), frames=900)
    outs = [tmp_path / "a.mp4", tmp_path / "a.jsonl", tmp_path / "a.json"]
    # A background job ignores SIGINT, and so would what it starts.
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import maskjet.__main__"
    command = [sys.executable, "-c", program, "run", source, *(flag for out in outs for flag in ("--out", out))]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while not (outs[1].exists() and outs[1].stat().st_size > 1000):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err
    written = len(outs[1].read_text().splitlines())
    assert 0 < written < 900
    assert len(list(open_source(outs[0]))) == written
    assert len(json.loads(outs[2].read_text())["images"]) == written


def test_importing_changes_nothing():
    program = (
        "import torch; before = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads())\n"
        "import maskjet, sys\n"
        "assert before == (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads())\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert not {'PIL', 'supervision', 'pycocotools', 'rfdetr', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
