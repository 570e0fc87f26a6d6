"""maskjet run on folders, globs and lists of files: one after another, some left out, some that fail."""

import json
import os

import cv2
import numpy as np
import pytest

from maskjet import traffic
from maskjet.cli import runs
from maskjet.detections import Detections
from maskjet.errors import UnsupportedError
from maskjet.media import sinks
from maskjet.media.drawing import Redaction
from maskjet.media.frames import open_source
from maskjet.media.images import read_image
from tests.cli.command_line import call
from tests.media.test_audio import has_sound, write_with_sound

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def folder(clip, tmp_path, monkeypatch):
    """Two videos, one of them in a sub-folder, one that can't be read, and two images."""
    monkeypatch.chdir(tmp_path)
    for name in ("in/a.mp4", "in/day1/a.mp4"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(clip.read_bytes())
    (tmp_path / "in" / "bad.mp4").write_bytes(b"no video")
    traffic.write_coco(tmp_path / "set", images=2, size_hw=(96, 160))
    for path in (tmp_path / "set" / "images").iterdir():
        path.rename(tmp_path / "in" / path.name)
    return tmp_path


@pytest.fixture
def run(capsys):
    """Exit code, summary and stderr of maskjet run."""

    def call_it(*arguments):
        code, out, err = call(capsys, "maskjet", "run", *arguments, "--json")
        return code, json.loads(out) if out.startswith("{") else None, err

    return call_it


def states(summary):
    return {source["source"]: (source["state"], source["frames"]) for source in summary["sources"]}


def frames(path):
    return len(list(open_source(path)))


def test_each_video_of_a_folder_has_outputs_of_its_own_and_one_that_fails_stops_none(folder, run):
    code, summary, err = run("in", "--recursive", "-o", "out/{}.mp4", "-o", "all.jsonl")
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
    assert len((folder / "all.jsonl").read_text().splitlines()) == 14


def test_the_summary_names_each(capsys):
    code, out, err = call(capsys, "maskjet", "run", "in/*.mp4", "-o", "out/{}.jsonl")
    lines = err.splitlines()
    assert (code, out) == (3, "")
    assert lines[1:4:2] == ["done; 1 of 2 sources failed", "  in/a.mp4: 6 frames, " + lines[3].partition("frames, ")[2]]
    assert lines[4:] == ["  in/bad.mp4: failed", "  wrote out/a.jsonl"]


def test_a_repeated_run_leaves_out_what_is_done(folder, run, monkeypatch):
    arguments = ("in", "--recursive", "--skip-existing", "-o", "out/{}.mp4", "-o", "out/{}.json")
    run(*arguments)
    os.remove(folder / "out" / "day1" / "a.json")  # noqa: PTH107 - as a user does
    (folder / "in" / "bad.mp4").unlink()
    _, summary, _ = run(*arguments)
    assert states(summary) == {"in": ("skipped", 0), "in/a.mp4": ("skipped", 0), "in/day1/a.mp4": ("done", 6)}
    monkeypatch.setattr("maskjet.model.read_network", lambda *_: pytest.fail("nothing needs the model"))
    code, summary, _ = run(*arguments)
    assert (code, summary["frames"], {state for state, _ in states(summary).values()}) == (0, 0, {"skipped"})


def test_images_are_left_out_one_by_one(folder, run):
    arguments = ("in/*.jpg", "--skip-existing", "-o", "shown", "-o", "labels.yolo")
    assert run(*arguments)[1]["frames"] == 2
    (folder / "shown" / "000001.jpg").unlink()
    before = (folder / "shown" / "000000.jpg").stat().st_mtime_ns
    assert run(*arguments)[1]["frames"] == 1
    assert (folder / "shown" / "000001.jpg").exists()
    assert (folder / "shown" / "000000.jpg").stat().st_mtime_ns == before
    assert states(run(*arguments)[1]) == {"in/*.jpg": ("skipped", 0)}
    assert run(*arguments, "--limit", "1")[1]["frames"] == 1  # which images were wanted before is not known


def test_images_of_one_name_are_all_done_again(folder, run):
    (folder / "in" / "day1" / "000000.jpg").write_bytes((folder / "in" / "000000.jpg").read_bytes())
    arguments = ("in/**/*.jpg", "--skip-existing", "-o", "shown")
    assert run(*arguments)[1]["frames"] == 3
    (folder / "shown" / "000000.jpg").unlink()
    assert run(*arguments)[1]["frames"] == 3
    assert len(list((folder / "shown").iterdir())) == 3


def test_frames_of_a_video_are_never_known_to_be_all(run):
    arguments = ("in/a.mp4", "--skip-existing", "-o", "shown")
    assert [run(*arguments)[1]["frames"] for _ in range(2)] == [6, 6]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("in/a.mp4", "-o", "-"), "--skip-existing must not be given for out '-': what was printed can't be found"),
        (("in/*.mp4", "-o", "a.csv"), "--skip-existing must not be given for out 'a.csv', which all sources share; "),
        (("in/a.mp4", "in/b.mp4", "--side-by-side", "-o", "a.csv"), "--skip-existing must not be given for sources "),
    ],
)
def test_where_skipping_can_not_work_it_is_refused(arguments, message, run):
    code, _, err = run(*arguments, "--skip-existing")
    assert code == 2
    assert err.startswith(f"maskjet: {message}")


def test_frames_are_chosen(folder, run):
    for flags, indices in (
        (("--every", "2"), [0, 2, 4]),
        (("--start", "4"), [4, 5]),
        (("--start", "0.1s", "--limit", "2"), [3, 4]),
        (("--every", "3", "--start", "1", "--limit", "9"), [1, 4]),
    ):
        assert run("in/a.mp4", "-o", "a.jsonl", *flags)[0] == 0
        assert [json.loads(line)["index"] for line in (folder / "a.jsonl").read_text().splitlines()] == indices
    code, summary, err = run("in/a.mp4", "in/day1/a.mp4", "--start", "6", "-o", "a.jsonl")
    assert (code, summary["frames"], err.count("\n")) == (3, 0, 2)
    assert "--start must be before the end of 'in/a.mp4', which has 6 frames, got 6." in err


def test_results_on_stdout_leave_the_summary_to_stderr(capsys):
    code, out, err = call(capsys, "maskjet", "run", "in/a.mp4", "-o", "-", "--json")
    assert (code, err.count("\n")) == (0, 1)
    assert json.loads(err)["frames"] == 6
    assert [json.loads(line)["index"] for line in out.splitlines()] == list(range(6))


def test_thresholds_by_class(folder, run):
    found = {}
    for flags in ((), ("0.9",), ("car=0.9",), ("0.9", "car=0.05"), ("0.9,car=0.05",)):
        given = [each for flag in flags for each in ("--threshold", flag)]
        assert run("in/000000.jpg", "-o", "a.jsonl", *given)[0] == 0
        detections = json.loads((folder / "a.jsonl").read_text())["detections"]
        found[flags] = sorted((each["class_name"], round(each["confidence"], 3)) for each in detections)
    assert found[()] != found[("0.9",)]
    assert all(score > 0.9 for name, score in found[("car=0.9",)] if name == "car")
    assert [each for each in found[("car=0.9",)] if each[0] != "car"] == [
        each for each in found[()] if each[0] != "car"
    ]
    assert all(score > 0.9 for name, score in found[("0.9", "car=0.05")] if name != "car")
    assert found[("0.9", "car=0.05")] == found[("0.9,car=0.05",)]


def test_a_style_reaches_what_is_drawn(folder, run):
    pictures = set()
    for flags in (
        (),
        ("--no-boxes",),
        ("--no-labels", "--no-scores"),
        ("--color-by", "instance"),
        ("--line-width", "9"),
    ):
        assert run("in/000000.jpg", "-o", "shown", "--threshold", "0.1", *flags)[0] == 0
        pictures.add((folder / "shown" / "000000.jpg").read_bytes())
    assert len(pictures) == 5


def test_what_is_hidden_is_a_choice(folder, run):
    assert run("in/000000.jpg", "-o", "all.png", "-o", "found.jsonl", "--threshold", "0.1", "--draw", "redact")[0] == 0
    (line,) = (folder / "found.jsonl").read_text().splitlines()
    found = Detections.from_dict(json.loads(line))
    assert {"car", "person"} & set(found.class_name)
    assert not read_image(folder / "all.png")[found.masks().any(axis=0)].any()
    name = found.class_name[0]
    flags = ("--draw", f"cutout={name}", "--replace-with", "transparent")
    assert run("in/000000.jpg", "-o", "cut", "--threshold", "0.1", *flags)[0] == 0
    inside = found[found.class_name == name].masks().any(axis=0)
    cut = cv2.imread("cut/000000.png", cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(cut[..., 3], np.where(inside, 255, 0))
    _, summary, _ = run("in/000000.jpg", "-o", "cut", "--threshold", "0.1", *flags, "--skip-existing")
    assert states(summary) == {"in/000000.jpg": ("skipped", 0)}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--draw", "redct"], "--draw must be annotate, redact or cutout, got 'redct'; did you mean 'redact'?"),
        (["--draw", "redact=,car"], "--draw must name each class, as in redact=person,car, got 'redact=,car'."),
        (["--draw", "annotate=car"], "--draw must be annotate without classes, got 'annotate=car'; --classes chooses"),
        (["--draw", "redact=persn"], "--draw must name classes of the model, got 'persn'; did you mean 'person'?"),
        (
            ["--draw", "redact=person", "--classes", "car"],
            "--draw must name classes that --classes reports, got 'person': add it there.",
        ),
        (["--margin", "3"], "--margin must go with --draw redact, got 3 with annotate."),
        (["--draw", "cutout", "--hold", "3"], "--hold must go with --draw redact, got 3 with cutout."),
        (
            ["--replace-with", "blur"],
            "--replace-with must go with --draw redact or cutout, got 'blur' with annotate.",
        ),
        (["--draw", "redact", "--replace-with", "blurr"], "--replace-with must be black, white, grey, mosaic, blur, "),
        (["--draw", "redact", "--margin", "-1"], "--margin must be a number of pixels of at least 0, got -1."),
        (["--draw", "redact", "--hold", "999"], "--hold must be a number of frames, 0 to 254, got 999."),
        (
            ["--draw", "redact", "--color-by", "instance"],
            "--color-by must go with something drawn on top, such as --outlines, with --draw redact.",
        ),
        (
            ["--draw", "cutout", "--replace-with", "transparent"],
            "--replace-with must be a colour, 'mosaic' or 'blur' for 'a.mp4', which holds no transparency",
        ),
    ],
)
def test_options_of_drawing_that_make_no_sense_are_told_before_anything_is_made(flags, message, folder, run):
    before = sorted(folder.rglob("*"))
    for source in (["in/a.mp4"], ["in/a.mp4", "--side-by-side"]):
        code, _, err = run(*source, "-o", "a.mp4", "-o", "a.jsonl", *flags)
        assert code == 2
        assert f"maskjet: {message}" in err
    assert sorted(folder.rglob("*")) == before


def test_hiding_without_a_picture_is_an_error(folder, run):
    code, _, err = run("in/a.mp4", "-o", "a.jsonl", "-o", "a.yolo", "--draw", "redact")
    assert code == 2
    assert "maskjet: --draw must have a video, images or a window to change, got only a.jsonl, a.yolo: add" in err
    assert not (folder / "a.jsonl").exists()


def test_a_window_hides_the_same(run, windows):
    assert run("in/a.mp4", "--show", "--draw", "redact=person")[0] == 0
    assert windows[0].style == Redaction(["person"])


def test_audio_and_confidences_are_a_choice(folder, run):
    write_with_sound(folder / "heard.mp4")
    for flags, is_heard in (((), True), (("--no-audio",), False)):
        assert run("heard.mp4", "-o", "a.mkv", "--limit", "8", *flags)[0] == 0
        assert has_sound(folder / "a.mkv") == is_heard
    for flags, is_odd in (((), True), (("--yolo-confidence",), False)):
        assert run("in/000000.jpg", "-o", "b.yolo", "--threshold", "0.1", *flags)[0] == 0
        lines = (folder / "b.yolo" / "000000.txt").read_text().splitlines()
        assert lines
        assert {len(line.split()) % 2 == 1 for line in lines} == {is_odd}  # a class and points


class FakeWindow(sinks.Sink):
    """A window whose user closes it after some frames."""

    def __init__(self, title, *, closed, holds, style):
        self.title, self.closed, self.holds, self.style = title, closed, holds, style
        self.frames, self.is_open = 0, True
        made.append(self)

    def write(self, *_):
        self.frames += 1
        if self.frames == most:
            self.closed.set()

    def close(self):
        self.is_open = False

    abandon = close


made, most = [], 2


@pytest.fixture
def windows(monkeypatch):
    made.clear()
    monkeypatch.setattr(sinks, "Window", FakeWindow)
    return made


def test_a_window_needs_no_output_and_ends_the_run(run, windows):
    code, summary, _ = run("in/a.mp4", "in/day1/a.mp4", "--show", "--no-boxes")
    assert (code, summary["frames"], summary["is_interrupted"]) == (0, 2, False)
    assert states(summary) == {"in/a.mp4": ("stopped", 2), "in/day1/a.mp4": ("waiting", 0)}
    (window,) = windows
    assert (window.title, window.holds, window.is_open, window.style.boxes) == ("in/a.mp4", False, False, False)


def test_what_was_written_before_the_window_was_closed_is_whole(run, windows):
    assert run("in/a.mp4", "--show", "-o", "a.mp4")[0] == 0
    assert frames("a.mp4") == 2
    assert run("in/000000.jpg", "--show")[0] == 0
    assert [window.holds for window in windows] == [False, True]


def test_what_is_broken_off_is_not_taken_for_whole(run, windows):
    arguments = ("in/a.mp4", "in/day1/a.mp4", "--skip-existing", "-o", "out/{}.mp4")
    _, summary, _ = run(*arguments, "--show")
    assert summary["outputs"] == ["out/a.partial.mp4"]
    assert frames("out/a.partial.mp4") == most
    assert states(run(*arguments)[1]) == {"in/a.mp4": ("done", 6), "in/day1/a.mp4": ("done", 6)}
    run("in/a.mp4", "-o", "one.mp4", "--skip-existing", "--show")
    assert frames("one.partial.mp4") == most
    assert len(windows) == 2


def test_a_folder_side_by_side(run):
    code, summary, _ = run("in/[a-d]*", "--side-by-side", "-o", "all.csv")
    assert code == 3
    os.remove("in/bad.mp4")  # noqa: PTH107
    code, summary, _ = run("in", "--recursive", "--side-by-side", "-o", "out/{}.jsonl", "-o", "all.csv")
    assert (code, summary["frames"]) == (0, 14)
    assert len(summary["outputs"]) == 4


def test_side_by_side_has_a_window_for_each(run, windows):
    assert run("in/a.mp4", "in/day1/a.mp4", "--show", "--side-by-side")[0] == 0
    assert [window.title for window in windows] == ["in/a.mp4", "in/day1/a.mp4"]


def test_without_a_screen_nothing_is_written(folder, run, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    code, _, err = run("in/a.mp4", "--show", "-o", "a.mp4")
    assert code == 2
    assert err.count("\n") == 1
    assert not (folder / "a.mp4").exists()


def test_neither_an_output_nor_a_window_is_refused(run):
    code, _, err = run("in/a.mp4")
    assert (code, err) == (
        2,
        "maskjet: --out must name at least one output, or --show be given, got neither: for example -o out.mp4.\n",
    )


def test_only_errors_of_sources_let_others_go_on(run, monkeypatch):
    def fail(*_):
        raise UnsupportedError("Not here.")

    monkeypatch.setattr(runs, "_write", fail)
    code, summary, err = run("in/a.mp4", "in/day1/a.mp4", "-o", "out/{}.jsonl")
    assert (code, err.endswith("maskjet: Not here.\n")) == (2, True)
    assert summary is None or [each["state"] for each in summary["sources"]] == ["failed", "waiting"]
