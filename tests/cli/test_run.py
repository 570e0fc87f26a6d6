"""The command line, in a process of its own and within this one."""

import contextlib
import json
import logging
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from maskjet import load, traffic
from maskjet.cli.options import progress_of
from maskjet.cli.summary import Summary
from maskjet.errors import DeviceError, InputError, OutputError, SourceError, UnsupportedError
from maskjet.model import Model
from maskjet.parity import coco
from maskjet.sources.frames import ListSource, open_source
from tests.outputs.outputs import lines as lines_of
from tests.outputs.outputs import names as entries

pytestmark = pytest.mark.usefixtures("quick")
TRAINED = "--input-size 240x240"
"""The input of which the model finds things."""
CLIP, OTHER = "../street.mp4", "../other/street.mp4"
"""Of 6 and 3 frames; the file names are the same."""


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    path = tmp_path_factory.mktemp("other") / "street.mp4"
    traffic.write_video(path, size_hw=(96, 160), frames=3, seed=4)
    return path


@pytest.fixture(autouse=True)
def _files(clip, other, tmp_path, monkeypatch):
    """The clips, outside of the working directory, which is empty."""
    for name in ("other", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    shutil.copy(clip, CLIP)
    shutil.copy(other, OTHER)


def test_run_writes_every_output_and_says_so(maskjet):
    code, out, err = maskjet(f"run {CLIP} -o a.mp4 -o a.jsonl -o a.json -o shown --threshold 0.01")
    assert (code, out) == (0, "")
    assert "6 frames" in err
    assert "dropped" not in err
    assert all(f"wrote {path}" in err for path in ("a.mp4", "a.jsonl", "a.json", "shown"))
    images = json.loads(Path("a.json").read_text())["images"]
    assert len(list(open_source("a.mp4"))) == len(lines_of("a.jsonl")) == len(images) == len(entries("shown")) == 6
    code, out, err = maskjet(f"run {CLIP} -o a.jsonl --json")
    summary = json.loads(out)
    assert (code, err, summary["frames"], summary["bad_frames"], summary["dropped"]) == (0, "", 6, [], 0)
    assert summary["fps"] > 0


def test_a_folder_of_images_whose_bad_ones_count_only_when_strict(maskjet):
    traffic.write_coco(Path("set"), images=3, size_hw=(96, 160))
    Path("set/images/000001.jpg").write_bytes(b"\xff\xd8")
    code, out, err = maskjet("run set/images -o -")
    assert (code, [json.loads(line)["index"] for line in out.splitlines()]) == (0, [0, 2])
    assert "bad frame: frame 1: image must be whole" in err
    assert maskjet("run set/images -o a.jsonl --strict")[0] == 1
    code, _, err = maskjet(f"run {CLIP} set/images -o a.jsonl")  # several, so that each is named
    assert code == 0
    assert "8 frames" in err
    assert "bad frame: set/images: frame 1: image must be whole" in err


def test_sources_side_by_side_share_json_lines_and_have_videos_of_their_own(maskjet):
    code, out, _ = maskjet(f"run {CLIP} {OTHER} --side-by-side -o all.jsonl -o {{}}.mp4 -o {{}}.json --batch 2 --json")
    summary = json.loads(out)
    assert (code, summary["frames"], len(summary["outputs"])) == (0, 9, 5)
    assert set(summary["outputs"]) == set(entries())
    lines = lines_of("all.jsonl")
    assert len(lines) == 9
    for source, stem, frames in ((CLIP, "street", 6), (OTHER, "street_2", 3)):
        assert [line["index"] for line in lines if line["source"] == source] == list(range(frames))
        assert len(list(open_source(f"{stem}.mp4"))) == frames
        images = json.loads(Path(f"{stem}.json").read_text())["images"]
        assert [image["file_name"] for image in images] == [f"{source}#{index}" for index in range(frames)]


class Camera(ListSource):
    """A live source that is faster than any network."""

    kind = "video"
    is_live = True

    def __init__(self, path, *_):
        super().__init__([path] * 4, "camera")


def test_tiles_are_those_of_stream(maskjet):
    code, _, err = maskjet(f"run {OTHER} -o a.jsonl --tile 80x64 --overlap 0.1 --no-full --threshold 0.01")
    assert code == 0, err
    with load("demo", device="cpu", input_size=(80, 80)) as model:
        options = {"tile": (64, 80), "overlap": 0.1, "full": False, "threshold": 0.01}
        expected = [len(found) for _, found in model.stream(OTHER, **options)]
    assert [len(line["detections"]) for line in lines_of("a.jsonl")] == expected


def test_frames_between_detected_ones_are_those_of_stream(maskjet):
    with load("demo", device="cpu", input_size=(80, 80)) as model:
        for flags, options in (("--detect 4", {}), ("--detect 4 --delay 0", {"delay": 0})):
            code, _, err = maskjet(f"run {CLIP} -o a.jsonl {flags} --threshold 0.01")
            assert code == 0, err
            every = [found for _, found in model.stream(CLIP, detect=4, threshold=0.01, **options)]
            moved = [[each["moved"] for each in line["detections"]] for line in lines_of("a.jsonl")]
            assert moved == [found.moved.tolist() for found in every]
            assert any(map(any, moved))


def test_people_are_hidden_on_all_frames_between_detected_ones(monkeypatch, maskjet):
    asked, stream = [], Model.stream

    def recording_stream(self, *arguments, **options):
        asked.append((options["detect"], options["covers"]))
        return stream(self, *arguments, **options)

    monkeypatch.setattr(Model, "stream", recording_stream)
    for draw in ("redact", "annotate"):
        assert maskjet(f"run {CLIP} --detect 3 --draw {draw} -o a.mp4")[0] == 0
    assert asked == [(3, True), (3, False)]


def test_late_frames_are_dropped_and_counted(monkeypatch, maskjet):
    monkeypatch.setattr("maskjet.sources.expansion.open_with", Camera)
    line = f"run {CLIP} --side-by-side -o a.jsonl --drop-late"
    code, out, _ = maskjet(f"{line} --json")
    summary = json.loads(out)
    assert code == 0
    assert summary["dropped"] > 0
    assert summary["frames"] + summary["dropped"] == 24
    assert summary["frames"] == len(lines_of("a.jsonl"))
    assert re.search(r"\n  \d+ frames dropped, newer ones had come\n", maskjet(line)[2])


def test_tracking_changes_no_line_but_for_the_tracks(monkeypatch, maskjet):
    asked, stream = [], Model.stream

    def recording_stream(self, *arguments, **options):
        asked.append(options["track"])
        return stream(self, *arguments, **options)

    monkeypatch.setattr(Model, "stream", recording_stream)
    for flags, name in (("", "plain"), ("--track", "tracked")):
        assert maskjet(f"run {CLIP} --limit 3 -o {name}.jsonl {flags}")[0] == 0
    for plain, tracked in zip(lines_of("plain.jsonl"), lines_of("tracked.jsonl"), strict=True):
        for one, other in zip(plain["detections"], tracked["detections"], strict=True):
            assert one == {name: value for name, value in other.items() if not name.startswith("track")}
    assert asked == [False, True]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_shows_a_line_for_each_source(is_terminal, monkeypatch, capsys):
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "200"}.items() if is_terminal else ():
        monkeypatch.setenv(name, value)
    camera, odd = Camera(CLIP), ListSource([CLIP], "[bold]\033[2J")
    camera.frames_dropped = 3
    with progress_of([camera, open_source(CLIP), odd]) as advance:
        advance(0)
        for _ in range(2):
            advance(1)
    with progress_of([open_source(CLIP)]) as advance:
        sys.stdout.write("a result\n")
        for _ in range(6):
            advance(0)
    out, err = capsys.readouterr()
    assert out == "a result\n"  # though it is no terminal
    shown = re.sub(r"\033\[[\d;?]*[A-Za-z]", "", err)
    if not is_terminal:
        assert shown == ""
        return
    lines = [" ".join(line.split()) for line in re.split(r"[\r\n]", shown)]
    for start, end in (
        ("camera ", " 1/? connected, 0.0 frames/s, 3 drops"),
        (CLIP, " 2/6 connected, 0.0 frames/s"),
        (r"[bold]\x1b[2J ", " 0/? connected, 0.0 frames/s"),
    ):
        assert any(line.startswith(start) and line.endswith(end) for line in lines)
    assert re.search(r"detecting .* 0:00:0\d +6/6 +\d+\.\d/s", shown)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run nothing.mp4 -o a.jsonl", "source must exist, 'nothing.mp4' does not."),
        (f"run {CLIP} -o a.jsonl --device cuda:77", "--device='cuda:77' is not here"),
        (f"run {CLIP} {CLIP} -o a.mp4", "--out must contain {} for several sources, got 'a.mp4'"),
        (f"run {CLIP} -o a.jsonl --tile 16", "--tile must be 32 pixels or more"),
        (f"run {CLIP} -o a.jsonl --tile 64 --overlap 1", "--overlap must be 0..0.9"),
        (f"run {CLIP} -o a.jsonl --detect 65", "--detect must be a whole number from 1 to 64, or 'realtime', got 65"),
        (f"run {CLIP} -o a.jsonl --detect 2 --delay 1", "--delay must be 0"),
        (f"run {CLIP} -o a.mp4 --detect 2 --delay 0 --draw redact", "--detect must be 1 where people are hidden"),
        (f"run {CLIP} -o a.jsonl --drop-late", "--drop-late must be False for '"),
        ("info --letterbox-color #0a0b0c", "--letterbox-color must be left out unless --resize='letterbox', got"),
    ],
)
def test_errors_are_one_line_and_exit_code_2_or_for_sources_3(line, message, maskjet):
    code, out, err = maskjet(f"{line} --model demo" if line.startswith("info") else line)
    assert (code, out) == (3 if "nothing.mp4" in line else 2, "")
    assert err.startswith(f"maskjet: {message}")
    assert err.count("\n") == 1


def test_info(maskjet):
    code, out, _ = maskjet("info --json --model demo")
    facts = json.loads(out)
    assert code == 0
    assert (facts["report"]["model"], facts["report"]["images"]) == ("demo", 0)
    assert facts["model"]["max_detections"] == 60  # its queries
    assert set(facts["report"]["steps"]) == {"preprocess", "select", "encode_masks"}
    assert "demo" in maskjet("info")[1]


def test_letterboxes(maskjet):
    choice = "--resize letterbox --letterbox-place top-left --letterbox-color #0a0b0c"
    code, out, _ = maskjet(f"info --json --model demo {choice}")
    assert (code, json.loads(out)["report"]["resize"]) == (0, "letterbox, top-left, #0a0b0c")


def test_traffic(maskjet):
    assert maskjet("traffic video v.mp4 --size 160x96 --frames 3")[0] == 0
    assert [frame.image.shape for frame in open_source("v.mp4")] == [(96, 160, 3)] * 3


def test_options_are_checked_before_an_output_is_opened(monkeypatch, maskjet):
    Path("a.mp4").write_bytes(b"precious")
    for flags in ("--depth 99", "--threshold 2", "--classes cow", "--drop-late", "-o b.txt", "-o a.mp4/b.mp4"):
        assert maskjet(f"run {CLIP} -o a.mp4 {flags}")[0] in (2, 4)
        assert entries() == ["a.mp4"]
        assert Path("a.mp4").read_bytes() == b"precious"
    monkeypatch.setattr("maskjet.model.open_model", lambda *_, **__: pytest.fail("too late"))
    code, _, err = maskjet(f"run {CLIP} -o {'x' * 300}.mp4")
    assert (code, err.endswith("File name too long.\n")) == (4, True)


def test_sources_of_a_glob_are_not_written_over(clip, maskjet):
    shutil.copy(clip, "a.mp4")
    message = "maskjet: --out must not be the source, got 'a.mp4' for both.\n"
    for out in ("a.mp4", "{}.mp4"):
        assert maskjet(f"run *.mp4 -o {out}") == (2, "", message)
    assert Path("a.mp4").read_bytes() == clip.read_bytes()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SourceError("The camera is gone."), 3),
        (OutputError("The disk is full."), 4),
        (DeviceError("The device failed.", index=3), 5),
        (UnsupportedError("Not here."), 2),
    ],
)
def test_what_a_run_that_failed_did_is_said_and_kept(error, code, monkeypatch, maskjet):
    stream = Model.stream

    def breaking(self, *arguments, **options):
        with contextlib.closing(stream(self, *arguments, **options)) as results:
            yield next(results)
            yield next(results)
            raise error

    monkeypatch.setattr(Model, "stream", breaking)
    found, out, err = maskjet(f"run {CLIP} -o a.jsonl --json")
    summary = json.loads(out)
    assert (found, err) == (code, f"maskjet: {error}\n")
    assert (summary["frames"], summary["outputs"], summary["error"]) == (2, ["a.partial.jsonl"], str(error))
    assert len(lines_of("a.partial.jsonl")) == 2
    Path("a.partial.jsonl").unlink()
    _, out, err = maskjet(f"run {CLIP} -o a.jsonl")
    assert out == ""
    assert re.fullmatch(rf"failed\n2 frames, .*\n  wrote a.partial.jsonl\nmaskjet: {error}\n", err)


def test_coco_results_are_numbered_as_the_streets_are(maskjet):
    assert maskjet("traffic coco set --size 320x180 --images 4")[0] == 0
    assert maskjet(f"run set/images -o found.json --threshold 0.05 {TRAINED}")[0] == 0
    truth = json.loads(Path("set/annotations.json").read_text())
    fields = ("image_id", "category_id", "bbox", "segmentation", "score")
    found = [
        {name: entry[name] for name in fields} for entry in json.loads(Path("found.json").read_text())["annotations"]
    ]
    precisions = {m.kind: m.metrics["ap"] for m in coco.evaluate(truth, {"found": found}).measurements}
    assert precisions["bbox"] > 0.4
    assert precisions["segm"] > 0.4


@pytest.mark.parametrize("text", ["\x1b]0;owned\x07", "\x9b31m", "a\nmaskjet: b", "\u202egnp.exe", "\ud800", "\u2028"])
def test_nothing_printed_acts_on_a_terminal(text, monkeypatch, maskjet, capsys):
    def fail(*_, **__):
        raise InputError(f"classes must name classes of {text}.")

    monkeypatch.setattr("maskjet.model.open_model", fail)
    code, _, err = maskjet(f"run {CLIP} -o a.jsonl --classes car")
    escaped = ascii(text)[1:-1]
    assert (code, err) == (2, f"maskjet: --classes must name classes of {escaped}.\n")
    logger = logging.getLogger("maskjet")
    monkeypatch.setattr(logger, "propagate", False)  # pytest-xdist can't send what pytest keeps of it
    logger.warning("source %d broke off: %s", 1, text)
    assert capsys.readouterr().err == f"maskjet: source 1 broke off: {escaped}\n"
    summary = str(Summary(frames=1, bad_frames=[text], outputs=[text]))
    assert summary.splitlines()[-2:] == [f"  bad frame: {escaped}", f"  wrote {escaped}"]


@pytest.mark.parametrize("line", ["--help", "run -h", "--version", "info --json", f"run {CLIP} -o - -o other.jsonl"])
@pytest.mark.parametrize(("kind", "expected"), [("full", 4), ("closed", 4), ("unread", 141)])
def test_a_stdout_that_takes_nothing_is_one_line_or_a_quiet_end(line, kind, expected, monkeypatch, maskjet):
    reader, writer = os.pipe()
    os.close(reader)
    with open("/dev/full", "w") as full, open(writer, "w") as unread:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", {"full": full, "closed": None, "unread": unread}[kind])
        code, _, err = maskjet(line)
    assert code == expected
    *summary, last = err.splitlines() or [""]
    assert last.startswith("maskjet: stdout must be writable, it is ") if code == 4 else not last or last == "  wrote -"
    assert summary[:1] == ({4: ["failed"], 141: ["interrupted"]}[code] if "-o" in line else [])
    assert not Path("other.jsonl").exists()  # of no frames
