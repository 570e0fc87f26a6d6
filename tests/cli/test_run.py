"""The command line, in a process of its own and within this one."""

import contextlib
import json
import logging
import os
import pty
import re
import subprocess
import sys

import pytest

from maskjet import traffic
from maskjet.cli import runs
from maskjet.cli.options import progress_of
from maskjet.cli.summary import Summary
from maskjet.errors import DeviceError, InputError, OutputError, SourceError, UnsupportedError
from maskjet.media.frames import ListSource, open_source
from maskjet.model import Model
from tests.cli.command_line import call


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
    return call(capsys, "maskjet", *arguments)


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
    code, out, _ = run("run", clip, other, "--side-by-side", "--out", tmp_path / "all.jsonl", "--json", capsys=capsys)
    summary = json.loads(out)
    assert (code, summary["frames"], summary["outputs"]) == (0, 9, [str(tmp_path / "all.jsonl")])
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines if line["source"] == str(clip)] == [0, 1, 2, 3, 4, 5]
    assert [line["index"] for line in lines if line["source"] == str(other)] == [0, 1, 2]
    assert len(lines) == 9
    assert "stream" not in lines[0]


def test_sources_side_by_side_have_outputs_of_their_own(clip, other, tmp_path, capsys):
    outs = ("--out", tmp_path / "{}.mp4", "--out", tmp_path / "{}.json")
    code, _, err = run("run", clip, other, "--side-by-side", *outs, "--batch", "2", capsys=capsys)
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

    def __init__(self, path, *_):
        super().__init__([path] * 4, "camera")


def test_late_frames_are_dropped_and_counted(clip, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("maskjet.media.expansion.open_with", Camera)
    arguments = ("run", clip, "--side-by-side", "--out", tmp_path / "a.jsonl", "--drop-late")
    code, out, _ = run(*arguments, "--json", capsys=capsys)
    summary = json.loads(out)
    assert code == 0
    assert summary["dropped"] > 0
    assert summary["frames"] + summary["dropped"] == 24
    assert summary["frames"] == len((tmp_path / "a.jsonl").read_text().splitlines())
    assert re.search(r"\n  \d+ frames dropped, newer ones had come\n", run(*arguments, capsys=capsys)[2])


def test_the_network_is_compiled_before_the_progress_bar_opens(clip, other, tmp_path, monkeypatch, capsys):
    calls = []
    stream, progress_of = Model.stream, runs.progress_of

    def recording_stream(self, *arguments, **options):
        calls.append("stream")
        return stream(self, *arguments, **options)

    def recording_progress(sources, note=""):
        calls.append(([(source.name, source.length) for source in sources], note))
        return progress_of(sources, note)

    monkeypatch.setattr(Model, "stream", recording_stream)
    monkeypatch.setattr(runs, "progress_of", recording_progress)
    assert run("run", clip, other, "--side-by-side", "--out", tmp_path / "a.jsonl", capsys=capsys)[0] == 0
    first, second = (str(clip), 6), (str(other), 3)
    assert calls == ["stream", ([first, second], "")]
    calls.clear()
    assert run("run", clip, other, "--out", tmp_path / "a.jsonl", capsys=capsys)[0] == 0
    assert calls == ["stream", ([first], " (1 of 2)"), "stream", ([second], " (2 of 2)")]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_shows_a_line_for_each_source(is_terminal, clip, monkeypatch, capsys):
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "200"}.items() if is_terminal else ():
        monkeypatch.setenv(name, value)
    camera, odd = Camera(clip), ListSource([clip], "[bold]\033[2J")
    camera.frames_dropped = 3
    with progress_of([camera, open_source(clip), odd]) as advance:
        advance(0)
        for _ in range(2):
            advance(1)
    shown = re.sub(r"\033\[[\d;?]*[A-Za-z]", "", capsys.readouterr().err)
    if not is_terminal:
        assert shown == ""
        return
    lines = [" ".join(line.split()) for line in re.split(r"[\r\n]", shown)]
    for start, end in (
        ("camera ", " 1/? connected, 0.0 frames/s, 3 drops"),
        (str(clip)[:40], " 2/6 connected, 0.0 frames/s"),
        (r"[bold]\x1b[2J ", " 0/? connected, 0.0 frames/s"),
    ):
        assert any(line.startswith(start) and line.endswith(end) for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "nothing.mp4", "--out", "a.jsonl"), "maskjet: source must exist, 'nothing.mp4' does not."),
        (("run", "CLIP", "--out", "a.txt"), "maskjet: --out must end in one of .mp4"),
        (
            ("run", "CLIP", "--out", "a.jsonl", "--model", "no"),
            "maskjet: --model must be a name or a checkpoint's path, got 'no'",
        ),
        (
            ("run", "CLIP", "--out", "a.jsonl", "--precision", "fp8"),
            "maskjet: --precision must be one of auto, fp32, fp16, bf16, got 'fp8'",
        ),
        (
            ("run", "CLIP", "--out", "a.jsonl", "--classes", "cow"),
            "maskjet: --classes must name classes of demo, got 'cow'",
        ),
        (("run", "CLIP", "--out", "a.jsonl", "--device", "cuda:77"), "maskjet: --device cuda:77 is not here"),
        (
            ("run", "CLIP", "CLIP", "--out", "a.jsonl", "--out", "a.mp4"),
            "maskjet: --out must contain {} for several sources, got 'a.mp4'; write for example 'out/{}.mp4': {} "
            "becomes each source's name.",
        ),
        (
            ("run", "CLIP", "CLIP", "--out", "shown"),
            "maskjet: --out must contain {} for several sources, got 'shown'; write for example 'out/{}': ",
        ),
        (("run", "CLIP", "CLIP", "--out", "a.txt"), "maskjet: --out must end in one of .mp4"),
        (("run", "CLIP", "--out", "a.jsonl", "--drop-late"), "maskjet: --drop-late must not be given for '"),
        (("run", "CLIP", "--out", "a.jsonl", "--batch", "0"), "maskjet: --batch must be at least 1, got 0."),
        (("run", "CLIP", "--out", "a.jsonl", "--engine", "fast"), "maskjet: --engine must be one of auto, graph"),
        (
            ("run", "CLIP", "--out", "a.jsonl", "--engine", "graph", "--device", "cpu"),
            "maskjet: --engine graph",
        ),
        (
            ("traffic", "video", "a.mp4", "--size", "big"),
            "maskjet: --size must be one of 312, 720p, 1080p or WIDTHxHEIGHT, got 'big'",
        ),
    ],
)
def test_errors_are_one_line_and_exit_code_2_or_for_sources_3(arguments, message, clip, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*(clip if argument == "CLIP" else argument for argument in arguments), capsys=capsys)
    assert (code, out) == (3 if "nothing.mp4" in arguments else 2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_info(capsys):
    code, out, _ = run("info", "--json", "--model", "demo", capsys=capsys)
    facts = json.loads(out)
    assert code == 0
    assert facts["report"]["model"] == "demo"
    assert set(facts["report"]["steps"]) == {"preprocess", "select", "encode_masks"}
    assert "demo" in run("info", capsys=capsys)[1]


def test_letterboxes(clip, tmp_path, capsys):
    choice = ("--resize", "letterbox", "--letterbox-place", "top-left", "--letterbox-color", "#0a0b0c")
    code, out, _ = run("info", "--json", "--model", "demo", *choice, capsys=capsys)
    assert (code, json.loads(out)["report"]["resize"]) == (0, "letterbox, top-left, #0a0b0c")
    found = []
    for number, options in enumerate(((), choice)):
        path = tmp_path / f"{number}.jsonl"
        assert run("run", clip, "--out", path, *options, capsys=capsys)[0] == 0
        found.append(path.read_text())
    assert found[0] != found[1]
    code, _, err = run("info", "--model", "demo", "--letterbox-color", "#0a0b0c", capsys=capsys)
    assert (code, "--letterbox-color must be left out unless --resize letterbox, got" in err) == (2, True), err
    code, _, err = run("info", "--model", "demo", "--resize", "letterbox", "--letterbox-color", "red", capsys=capsys)
    assert (code, "--letterbox-color must be #rrggbb, as in #727272, got 'red'" in err) == (2, True), err


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


def test_options_are_checked_before_an_output_is_opened(clip, tmp_path, capsys):
    out = tmp_path / "a.mp4"
    out.write_bytes(b"precious")
    for flags in (
        ("--depth", "99"),
        ("--batch", "0"),
        ("--threshold", "2"),
        ("--classes", "cow"),
        ("--model", "no"),
        ("--drop-late",),
        ("--out", tmp_path / "b.txt"),
        ("--out", tmp_path / "a.mp4" / "b.mp4"),
    ):
        assert run("run", clip, "--out", out, *flags, capsys=capsys)[0] in (2, 4)
        assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]
        assert out.read_bytes() == b"precious"


def test_outputs_are_checked_before_the_model_is_read(clip, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("maskjet.model.read_network", lambda *_: pytest.fail("too late"))
    code, out, err = run("run", clip, "--out", tmp_path / ("x" * 300 + ".mp4"), capsys=capsys)
    assert (code, out) == (4, "")
    assert err.endswith("File name too long.\n")


def test_sources_of_a_glob_are_not_written_over(clip, tmp_path, capsys):
    (tmp_path / "a.mp4").write_bytes(clip.read_bytes())
    code, _, err = run("run", f"{tmp_path}/*.mp4", "--out", tmp_path / "a.mp4", capsys=capsys)
    assert code == 2
    assert err == f"maskjet: --out must not be the source, got '{tmp_path}/a.mp4' for both.\n"
    assert (tmp_path / "a.mp4").read_bytes() == clip.read_bytes()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SourceError("The camera is gone."), 3),
        (OutputError("The disk is full."), 4),
        (DeviceError("The device failed.", index=3), 5),
        (UnsupportedError("Not here."), 2),
    ],
)
def test_what_a_run_that_failed_did_is_said_and_kept(error, code, clip, tmp_path, monkeypatch, capsys):
    stream = Model.stream

    def breaking(self, *arguments, **options):
        with contextlib.closing(stream(self, *arguments, **options)) as results:
            yield next(results)
            yield next(results)
            raise error

    monkeypatch.setattr(Model, "stream", breaking)
    arguments = ("run", clip, "--out", tmp_path / "a.jsonl")
    found, out, err = run(*arguments, "--json", capsys=capsys)
    summary = json.loads(out)
    part = tmp_path / "a.partial.jsonl"
    assert (found, err) == (code, f"maskjet: {error}\n")
    assert (summary["frames"], summary["outputs"], summary["error"]) == (2, [str(part)], str(error))
    assert len(part.read_text().splitlines()) == 2
    part.unlink()
    _, out, err = run(*arguments, capsys=capsys)
    assert out == ""
    assert re.fullmatch(rf"failed\n2 frames, .*\n  wrote {part}\nmaskjet: {error}\n", err)


def test_coco_results_are_numbered_as_the_streets_are(tmp_path, capsys):
    assert run("traffic", "coco", tmp_path / "set", "--size", "320x180", "--images", "6", capsys=capsys)[0] == 0
    found = tmp_path / "found.json"
    code, _, _ = run("run", tmp_path / "set" / "images", "--out", found, "--threshold", "0.05", capsys=capsys)
    assert code == 0
    report = tmp_path / "report.json"
    code, _, err = run("parity", "coco", found, "--coco-dir", tmp_path / "set", "--out", report, capsys=capsys)
    assert code == 0, err
    precisions = {m["kind"]: m["ap"] for m in json.loads(report.read_text())["measurements"]}
    assert precisions["bbox"] > 0.4
    assert precisions["segm"] > 0.4


@pytest.mark.parametrize("text", ["\x1b]0;owned\x07", "\x9b31m", "a\nmaskjet: b", "\u202egnp.exe", "\ud800", "\u2028"])
def test_nothing_printed_acts_on_a_terminal(text, tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise InputError(f"classes must name classes of {text}.")

    monkeypatch.setattr("maskjet.model.read_network", fail)
    traffic.write_coco(tmp_path / "set", images=1, size_hw=(96, 160))
    code, _, err = run("run", tmp_path / "set" / "images", "--out", tmp_path / "a.jsonl", capsys=capsys)
    escaped = ascii(text)[1:-1]
    assert (code, err) == (2, f"maskjet: --classes must name classes of {escaped}.\n")
    logger = logging.getLogger("maskjet")
    monkeypatch.setattr(logger, "propagate", False)  # pytest-xdist can't send what pytest keeps of it
    logger.warning("source %d broke off: %s", 1, text)
    assert capsys.readouterr().err == f"maskjet: source 1 broke off: {escaped}\n"
    summary = str(Summary(frames=1, bad_frames=[text], outputs=[text]))
    assert summary.splitlines()[-2:] == [f"  bad frame: {escaped}", f"  wrote {escaped}"]


def test_exit_codes_are_in_the_help(capsys):
    code, out, _ = run("run", "--help", capsys=capsys)
    assert code == 0
    assert "4 an output can't be written" in " ".join(out.split())


@pytest.mark.parametrize("command", [("info", "--json"), ("run", "CLIP", "--out", "-")])
def test_a_stdout_that_takes_nothing_is_one_line(command, clip):
    words = [sys.executable, "-m", "maskjet", *(str(clip) if word == "CLIP" else word for word in command)]
    reader, writer = os.pipe()
    os.close(reader)
    if "info" in command:  # a full disk, or a reader that has gone
        os.close(writer)
        writer = os.open("/dev/full", os.O_WRONLY)
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    os.close(writer)
    assert done.returncode == 4
    assert re.fullmatch(r"(failed\n.*\n  wrote -\n)?maskjet: .* must be writable, .*\n", done.stderr)
