"""maskjet run on folders, globs and lists of files: one after another, some left out, some that fail."""

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from maskjet import traffic
from maskjet.cli import runs
from maskjet.detections import Detections
from maskjet.drawing import DrawStyle, Redaction, draw
from maskjet.errors import UnsupportedError
from maskjet.outputs.sink import Sink
from maskjet.sources.frames import open_source
from maskjet.sources.images import read_image
from tests.outputs.outputs import lines as lines_of
from tests.outputs.test_audio import has_sound, write_with_sound

pytestmark = pytest.mark.usefixtures("quick")
TRAINED = "--input-size 240x240"
"""The input of which the model finds things."""


@pytest.fixture(scope="module")
def files(clip, tmp_path_factory):
    """Two videos, one of them in a sub-folder, one that can't be read, and two images."""
    path = tmp_path_factory.mktemp("files")
    traffic.write_coco(path, images=2, size_hw=(96, 160))
    images = (path / "images").rename(path / "in")
    (images / "day1").mkdir()
    for name in ("a.mp4", "day1/a.mp4"):
        shutil.copy(clip, images / name)
    (images / "bad.mp4").write_bytes(b"no video")
    return images


@pytest.fixture(autouse=True)
def folder(files, tmp_path, monkeypatch):
    """The working directory, with the files in a folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(files, "in")
    return tmp_path


@pytest.fixture
def run(maskjet):
    """Exit code, summary and stderr of maskjet run."""

    def call_it(line):
        code, out, err = maskjet(f"run {line} --json")
        return code, json.loads(out) if out.startswith("{") else None, err

    return call_it


def states(summary):
    return {source["source"]: (source["state"], source["frames"]) for source in summary["sources"]}


def frames(path):
    return len(list(open_source(path)))


def test_each_video_of_a_folder_has_outputs_of_its_own_and_one_that_fails_stops_none(run):
    code, summary, err = run("in --recursive -o out/{}.mp4 -o all.jsonl")
    assert code == 3
    assert err.startswith("maskjet: source must be an image, video or stream, 'in/bad.mp4' can't be read: ")
    assert states(summary) == {
        "in": ("done", 2),
        "in/a.mp4": ("done", 6),
        "in/bad.mp4": ("failed", 0),
        "in/day1/a.mp4": ("done", 6),
    }
    assert "in/bad.mp4" in summary["sources"][2]["error"]
    assert (summary["frames"], summary["error"]) == (14, None)
    assert summary["outputs"] == ["out/in.mp4", "out/a.mp4", "out/day1/a.mp4", "all.jsonl"]
    assert [frames(path) for path in summary["outputs"][:3]] == [2, 6, 6]
    assert len(lines_of("all.jsonl")) == 14


def test_the_summary_names_each(maskjet):
    code, out, err = maskjet("run in/*.mp4 -o out/{}.jsonl")
    lines = err.splitlines()
    assert (code, out) == (3, "")
    assert lines[1:4:2] == ["done; 1 of 2 sources failed", "  in/a.mp4: 6 frames, " + lines[3].partition("frames, ")[2]]
    assert lines[4:] == ["  in/bad.mp4: failed", "  wrote out/a.jsonl"]


@pytest.mark.parametrize("source", ["in/*.jpg", "in/a.mp4"])
def test_one_picture_is_for_one_frame(source, run, monkeypatch):
    assert run(f"{source} --limit 1 -o one.jpg")[0] == run("in/000001.jpg -o one.jpg")[0] == 0
    monkeypatch.setattr("maskjet.model.open_model", lambda *_, **__: pytest.fail("it is refused before work"))
    for line in (f"{source} -o one.jpg", f"{source} --side-by-side -o one.jpg"):
        code, _, err = run(line)
        assert code == 2
        assert "maskjet: --out must be a folder for several frames, got 'one.jpg': write 'one/'.\n" in err


def test_outputs_that_exist_are_told_or_refused(run, maskjet):
    line = "in/000000.jpg -o a.jsonl -o shown"
    Path("shown").mkdir()
    assert run(line)[1]["replaced"] == []
    summary = maskjet(f"run {line} -o b.jsonl")[2].splitlines()
    assert summary[2:] == [
        *("  wrote a.jsonl, replacing an older file", "  wrote shown, which had files", "  wrote b.jsonl")
    ]
    before = Path("a.jsonl").stat()
    assert run("in/000000.jpg -o c.jsonl -o new --no-overwrite")[1]["replaced"] == []
    for out in ("a.jsonl", "shown"):
        code, _, err = maskjet(f"run in/000000.jpg --no-overwrite -o {out}")
        assert (code, err) == (
            2,
            f"maskjet: --out must not exist, {out!r} does: write to another path, or move it away.\n",
        )
    assert Path("a.jsonl").stat() == before


def test_frames_are_chosen(run):
    for flags, indices in (
        ("--every 2", [0, 2, 4]),
        ("--start 0.1s --limit 2", [3, 4]),
        ("--every 3 --start 1 --limit 9", [1, 4]),
    ):
        assert run(f"in/a.mp4 -o a.jsonl {flags}")[0] == 0
        assert [line["index"] for line in lines_of("a.jsonl")] == indices
    code, summary, err = run("in/a.mp4 in/day1/a.mp4 --start 6 -o a.jsonl")
    assert (code, summary["frames"], err.count("\n")) == (3, 0, 2)
    assert "--start must be before the end of 'in/a.mp4', which has 6 frames, got 6." in err


def test_results_on_stdout_leave_the_summary_to_stderr(maskjet):
    code, out, err = maskjet("run in/a.mp4 -o - --json")
    assert (code, err.count("\n")) == (0, 1)
    assert json.loads(err)["frames"] == 6
    assert [json.loads(line)["index"] for line in out.splitlines()] == list(range(6))


def test_thresholds_by_class(run):
    found = []
    for flags in ("", "--threshold car=0.9", "--threshold 0.9 --threshold car=0.05", "--threshold 0.9,car=0.05"):
        assert run(f"in/000000.jpg -o a.jsonl {TRAINED} {flags}")[0] == 0
        (line,) = lines_of("a.jsonl")
        found.append(sorted((each["class_name"], round(each["confidence"], 3)) for each in line["detections"]))
    everything, few_cars, many_cars, the_same = found
    assert few_cars == [(name, score) for name, score in everything if name != "car" or score > 0.9]
    assert few_cars != everything
    others = [(name, score) for name, score in many_cars if name != "car"]
    assert others == [(name, score) for name, score in everything if name != "car" and score > 0.9]
    assert [name for name, _ in many_cars].count("car") > [name for name, _ in everything].count("car")
    assert the_same == many_cars


def test_what_is_drawn_and_what_is_hidden_is_a_choice(run):
    image = f"in/000000.jpg --threshold 0.1 {TRAINED}"
    style = "--no-boxes --no-scores --color-by instance --line-width 9"
    assert run(f"{image} -o drawn.png -o found.jsonl {style}")[0] == 0
    (line,) = lines_of("found.jsonl")
    found, pixels = Detections.from_dict(line), read_image(Path("in/000000.jpg"))
    expected = draw(pixels, found, DrawStyle(boxes=False, scores=False, color_by="instance", line_width=9))
    np.testing.assert_array_equal(read_image(Path("drawn.png")), expected)

    assert run(f"{image} -o kept.jsonl --mask-pixels box")[0] == 0
    kept = Detections.from_dict(lines_of("kept.jsonl")[0])
    assert kept.rle == found.keep_mask_pixels("box").rle != found.rle
    assert run(f"{image} -o raw.png --mask-pixels raw")[0] == 0
    expected = draw(pixels, found, DrawStyle(mask_pixels="raw"))
    np.testing.assert_array_equal(read_image(Path("raw.png")), expected)

    assert run(f"{image} -o all.png --draw redact --mask-pixels box")[0] == 0
    assert {"car", "person"} & set(found.class_name)
    assert not read_image(Path("all.png"))[found.masks().any(axis=0)].any()

    name = found.class_name[0]
    assert run(f"{image} -o cut --draw cutout={name} --replace-with transparent")[0] == 0
    inside = found[found.class_name == name].masks().any(axis=0)
    cut = cv2.imread("cut/000000.png", cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(cut[..., 3], np.where(inside, 255, 0))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--draw redct", "--draw must be one of annotate, rotated, redact, cutout, got 'redct'; did you mean"),
        ("--draw redact=,car", "--draw must name each class, as in redact=person,car, got 'redact=,car'."),
        ("--draw rotated=car", "--draw must be rotated without classes"),
        ("--draw redact=persn", "--draw must name classes of the model"),
        ("--draw redact=persn --side-by-side", "--draw must name classes of the model"),
        ("--draw redact=person --classes car", "--draw must name classes that --classes reports"),
        ("--palette cra=ff0000", "--palette must name classes of the model"),
        ("--label {title}", "--label must have the fields"),
        ("--class-names none.txt", "--class-names must be a text file"),
        ("--margin 3", "--margin must go with --draw redact, got 3 with annotate."),
        ("--draw redact --color-by instance", "--color-by must go with something drawn on top"),
        ("--draw cutout --replace-with transparent", "--replace-with must be a colour"),
    ],
)
def test_options_of_drawing_that_make_no_sense_are_told_before_anything_is_made(flags, message, folder, run):
    before = sorted(folder.rglob("*"))
    code, _, err = run(f"in/a.mp4 -o a.mp4 -o a.jsonl {flags}")
    assert code == 2
    assert f"maskjet: {message}" in err
    assert sorted(folder.rglob("*")) == before


def test_without_a_picture_or_anything_to_write_it_is_refused(run):
    code, _, err = run("in/a.mp4 -o a.jsonl -o a.yolo --draw redact")
    assert code == 2
    assert "maskjet: --draw must have a video, images or a window to change, got only a.jsonl, a.yolo: add" in err
    assert not Path("a.jsonl").exists()
    message = "--out must name at least one output, or --show be given, got neither: for example -o out.mp4."
    assert run("in/a.mp4") == (2, None, f"maskjet: {message}\n")


def test_audio_and_confidences_are_a_choice(run):
    write_with_sound(Path("heard.mp4"))
    for flags, is_heard in (("", True), ("--no-audio", False)):
        assert run(f"heard.mp4 -o a.mkv --limit 2 {flags}")[0] == 0
        assert has_sound("a.mkv") == is_heard
    for flags, is_odd in (("", True), ("--yolo-confidence", False)):
        assert run(f"in/000000.jpg -o b.yolo --threshold 0.1 {TRAINED} {flags}")[0] == 0
        lines = Path("b.yolo/labels/000000.txt").read_text().splitlines()
        assert lines
        assert {len(line.split()) % 2 == 1 for line in lines} == {is_odd}  # a class and points


class FakeWindow(Sink):
    """A window whose user closes it after two frames."""

    made = ()

    def __init__(self, title, *, closed, holds, style):
        self.title, self.closed, self.holds, self.style = title, closed, holds, style
        self.frames, self.is_open = 0, True
        FakeWindow.made += (self,)

    def write(self, *_):
        self.frames += 1
        if self.frames == 2:
            self.closed.set()

    def close(self):
        self.is_open = False

    abandon = close


@pytest.fixture
def windows(monkeypatch):
    """A function that gives all windows that have been opened."""
    monkeypatch.setattr(FakeWindow, "made", ())
    monkeypatch.setattr("maskjet.outputs.window.Window", FakeWindow)
    return lambda: FakeWindow.made


def test_a_window_needs_no_output_and_ends_the_run(run, windows):
    code, summary, _ = run("in/a.mp4 in/day1/a.mp4 --show --no-boxes")
    assert (code, summary["frames"], summary["is_interrupted"]) == (0, 2, False)
    assert states(summary) == {"in/a.mp4": ("stopped", 2), "in/day1/a.mp4": ("waiting", 0)}
    (window,) = windows()
    assert (window.title, window.holds, window.is_open, window.style.boxes) == ("in/a.mp4", False, False, False)


def test_windows_of_an_image_and_of_sources_side_by_side(run, windows):
    assert run("in/000000.jpg --show --draw redact=person")[0] == 0
    assert run("in/a.mp4 in/day1/a.mp4 --show --side-by-side")[0] == 0
    of_image, *of_videos = windows()
    assert (of_image.style, of_image.holds) == (Redaction(["person"]), True)
    assert [window.title for window in of_videos] == ["in/a.mp4", "in/day1/a.mp4"]


def test_what_was_written_before_the_window_was_closed_is_whole(run, windows):
    _, summary, _ = run("in/a.mp4 in/day1/a.mp4 -o out/{}.mp4 --show")
    assert summary["outputs"] == ["out/a.mp4"]
    assert frames("out/a.mp4") == 2
    assert [window.holds for window in windows()] == [False]


def test_a_folder_side_by_side(run):
    assert run("in/[a-d]* --side-by-side -o all.csv")[0] == 3
    Path("in/bad.mp4").unlink()
    code, summary, _ = run("in --recursive --side-by-side -o out/{}.jsonl -o all.csv")
    assert (code, summary["frames"], len(summary["outputs"])) == (0, 14, 4)


def test_without_a_screen_nothing_is_written(run, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    code, _, err = run("in/a.mp4 --show -o a.mp4")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("maskjet: a window needs ")
    assert not Path("a.mp4").exists()


def test_only_errors_of_sources_let_others_go_on(run, monkeypatch):
    def fail(*_, **__):
        raise UnsupportedError("Not here.")

    monkeypatch.setattr(runs, "_write", fail)
    code, summary, err = run("in/a.mp4 in/day1/a.mp4 -o out/{}.jsonl")
    assert (code, err.endswith("maskjet: Not here.\n")) == (2, True)
    assert summary is None or [each["state"] for each in summary["sources"]] == ["failed", "waiting"]
