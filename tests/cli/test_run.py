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

from maskjet import traffic
from maskjet.cli import run as run_command
from maskjet.cli.main import main
from maskjet.errors import InputError
from maskjet.frames import ListSource, open_source
from maskjet.model import Model


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    path = tmp_path_factory.mktemp("clip") / "street.mp4"
    traffic.write_video(path, size_hw=(96, 160), frames=6, seed=2)
    return path


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A clip of another length, whose file has the same name."""
    path = tmp_path_factory.mktemp("other") / "street.mp4"
    traffic.write_video(path, size_hw=(96, 160), frames=3, seed=4)
    return path


def run(*arguments, capsys=None):
    """Exit code, stdout, stderr of the command line within this process."""
    sys.argv = ["maskjet", *map(str, arguments)]
    with pytest.raises(SystemExit) as exit_info:
        main()
    out, err = capsys.readouterr()
    return exit_info.value.code, out, err


def test_run_writes_every_output_and_says_so(clip, tmp_path, capsys):
    outs = [tmp_path / name for name in ("a.mp4", "a.jsonl", "a.json", "shown")]
    flags = [flag for out in outs for flag in ("--out", out)]
    code, out, err = run("run", clip, *flags, "--threshold", "0.01", capsys=capsys)
    assert (code, out) == (0, "")
    assert "6 frames" in err
    assert "dropped" not in err
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
    assert summary["dropped"] == 0


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


def test_sources_side_by_side_share_json_lines(clip, other, tmp_path, capsys):
    code, out, _ = run("run", clip, other, "--out", tmp_path / "all.jsonl", "--json", capsys=capsys)
    summary = json.loads(out)
    assert (code, summary["frames"], summary["outputs"]) == (0, 9, [str(tmp_path / "all.jsonl")])
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines if line["source"] == str(clip)] == [0, 1, 2, 3, 4, 5]
    assert [line["index"] for line in lines if line["source"] == str(other)] == [0, 1, 2]
    assert len(lines) == 9
    assert "stream" not in lines[0]


def test_sources_side_by_side_have_outputs_of_their_own(clip, other, tmp_path, capsys):
    outs = ("--out", tmp_path / "{}.mp4", "--out", tmp_path / "{}.json")
    code, _, err = run("run", clip, other, *outs, "--batch", "2", capsys=capsys)
    assert code == 0
    assert "9 frames" in err
    for source, stem, frames in ((clip, "street", 6), (other, "street_2", 3)):
        assert len(list(open_source(tmp_path / f"{stem}.mp4"))) == frames
        images = json.loads((tmp_path / f"{stem}.json").read_text())["images"]
        assert [image["file_name"] for image in images] == [f"{source}#{index}" for index in range(frames)]
        assert f"wrote {tmp_path / stem}.mp4" in err
    assert len(list(tmp_path.iterdir())) == 4


def test_bad_frames_name_their_source_where_there_are_several(clip, tmp_path, capsys):
    traffic.write_coco(tmp_path / "set", images=2, size_hw=(96, 160))
    images = tmp_path / "set" / "images"
    (images / "000001.jpg").write_bytes(b"\xff\xd8")
    code, _, err = run("run", clip, images, "--out", tmp_path / "a.jsonl", capsys=capsys)
    assert code == 0
    assert "7 frames" in err
    assert f"bad frame: {images}: frame 1: image must be whole" in err


class Camera(ListSource):
    """A live source that is faster than any network."""

    kind = "video"
    is_live = True

    def __init__(self, path):
        super().__init__([path] * 4, "camera")


def test_late_frames_are_dropped_and_counted(clip, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("maskjet.frames.open_source", Camera)
    arguments = ("run", clip, "--out", tmp_path / "a.jsonl", "--drop-late")
    code, out, _ = run(*arguments, "--json", capsys=capsys)
    summary = json.loads(out)
    assert code == 0
    assert summary["dropped"] > 0
    assert summary["frames"] + summary["dropped"] == 24
    assert summary["frames"] == len((tmp_path / "a.jsonl").read_text().splitlines())
    assert re.search(r"\n  \d+ frames dropped, newer ones had come\n", run(*arguments, capsys=capsys)[2])


def test_the_network_is_compiled_before_the_progress_bar_opens(clip, other, tmp_path, monkeypatch, capsys):
    calls = []
    stream, progress = Model.stream, run_command.progress

    def recording_stream(self, *arguments, **options):
        calls.append("stream")
        return stream(self, *arguments, **options)

    def recording_progress(what, total):
        calls.append((what, total))
        return progress(what, total)

    monkeypatch.setattr(Model, "stream", recording_stream)
    monkeypatch.setattr(run_command, "progress", recording_progress)
    assert run("run", clip, other, "--out", tmp_path / "a.jsonl", capsys=capsys)[0] == 0
    assert calls == ["stream", ("detecting", 9)]


def test_no_total_where_a_length_is_not_known(clip):
    assert run_command._total_length([open_source(clip), Camera(clip)]) is None


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
        (
            ("run", "CLIP", "CLIP", "--out", "a.jsonl", "--out", "a.mp4"),
            "maskjet: out must contain {} for several sources, got 'a.mp4'; write for example 'out/{}.mp4': {} becomes "
            "each source's name.",
        ),
        (
            ("run", "CLIP", "CLIP", "--out", "shown"),
            "maskjet: out must contain {} for several sources, got 'shown'; write for example 'out/{}': ",
        ),
        (("run", "CLIP", "CLIP", "--out", "a.txt"), "maskjet: out must end in one of .mp4"),
        (("run", "CLIP", "--out", "a.jsonl", "--drop-late"), "maskjet: drop_late must be False for '"),
        (("run", "CLIP", "--out", "a.jsonl", "--batch", "0"), "maskjet: batch must be at least 1, got 0."),
        (("run", "CLIP", "--out", "a.jsonl", "--engine", "fast"), "maskjet: engine must be one of ('auto', 'graph'"),
        (
            ("run", "CLIP", "--out", "a.jsonl", "--engine", "graph", "--device", "cpu"),
            "maskjet: engine='graph'",
        ),
        (("bench", "ops", "--only", "blur"), "maskjet: only must be of 'preprocess', "),
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


@pytest.mark.parametrize("command", [("info",), ("run", "CLIP", "--out", "a.jsonl")])
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), ("auto", None)),
        (("--engine", "eager", "--compile"), ("eager", True)),
        (("--no-compile",), ("auto", False)),
    ],
)
def test_engine_and_compile_reach_the_model(command, flags, expected, clip, tmp_path, monkeypatch, capsys):
    def record(_, config, **__):
        configs.append(config)
        raise InputError("This is enough.")

    configs = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("maskjet.model.Model", record)
    words = (clip if word == "CLIP" else word for word in command)
    assert run(*words, "--model", "demo", *flags, capsys=capsys) == (2, "", "maskjet: This is enough.\n")
    assert [(config.engine, config.compile) for config in configs] == [expected]


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
    traffic.write_video(source, size_hw=(96, 160), frames=300)
    outs = [tmp_path / "a.mp4", tmp_path / "a.jsonl", tmp_path / "a.json"]
    # A background job ignores SIGINT, and so would what it starts.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from maskjet.cli.main import main; main()"
    )
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
    assert 0 < written < 300
    assert len(list(open_source(outs[0]))) == written
    assert len(json.loads(outs[2].read_text())["images"]) == written
