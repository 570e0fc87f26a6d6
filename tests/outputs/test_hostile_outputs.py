"""Outputs on full disks, under names that are taken, and with contents that break what draws or prints them."""

import os
import resource
import shutil
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from maskjet.detections import Detections
from maskjet.errors import InputError, OutputError, UnsupportedError
from maskjet.outputs.opening import check_outputs, open_sinks
from maskjet.sources.frames import ListSource, open_source
from tests.detections.test_detections import some_detections
from tests.outputs.outputs import frames, images, lines, names, read_json, times, write
from tests.sources.clips import write_image

pytestmark = pytest.mark.usefixtures("in_folder")


@contextmanager
def largest_file(size):
    """Let no file grow beyond a size, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def breaking(count):
    yield from frames(count)
    raise RuntimeError("The source broke.")


class TestFullDisk:
    @pytest.mark.parametrize(
        ("name", "size"),
        [
            *(("a.mp4", 0), ("a.mp4", 10), ("a.mp4", 5_000), ("a.mov", 700), ("a.mov", 20_000), ("a.mkv", 0)),
            *(("a.mkv", 10), ("a.mkv", 20_000), ("a.jsonl", 0), ("a.jsonl", 700), ("a.json", 10), ("a.json", 5_000)),
            *(("a.mp4", 150_000), ("a.mkv", 150_000)),
        ],
    )
    def test_is_an_error_and_the_file_that_was_there_stays(self, name, size):
        Path(name).write_bytes(b"precious")
        with largest_file(size), pytest.raises(OutputError, match=f"be writable, '{name}' is not: File too large"):
            write([name], frames(200))
        assert Path(name).read_bytes() == b"precious"
        if size == 150_000:
            assert len(images(name.replace("a.", "a.partial."))) >= 20

    @pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.webm"])
    def test_a_video_that_is_abandoned_before_any_of_it_fitted_is_gone(self, name):
        sinks = open_sinks([name])
        with largest_file(0):
            sinks.write(next(frames(1)), some_detections(1))
            sinks.abandon()
        assert (names(), sinks.paths) == ([], [])

    def test_lines_that_fitted_are_whole(self):
        with largest_file(1500), pytest.raises(OutputError) as error:
            write(["a.jsonl", "a.json"], frames(20))
        assert error.value.__notes__ == ["What was written lies in a.partial.jsonl, a.partial-2.jsonl."]
        assert all(len(lines(name)) > 1 for name in ("a.partial.jsonl", "a.partial-2.jsonl"))

    def test_of_a_data_set_that_is_made_at_the_end_loses_no_entry(self):
        sinks = open_sinks(["a.json"])
        for frame in frames(20):
            sinks.write(frame, some_detections(2))
        with largest_file(2000), pytest.raises(OutputError, match=r"a\.json' is not"):
            sinks.close()
        assert names() == sinks.paths == ["a.partial.jsonl"]
        assert len(lines("a.partial.jsonl")) == 20 * 3 + 2

    def test_a_device_is_written_to_as_it_is(self):
        Path("a.jsonl").symlink_to("/dev/full")
        with pytest.raises(OutputError, match=r"a\.jsonl' is not: No space left on device"):
            write(["a.jsonl"], frames(1))
        assert names() == ["a.jsonl"]


class TestInterrupted:
    @pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
    def test_what_is_there_of_a_video_plays_at_any_moment(self, suffix, monkeypatch):
        monkeypatch.setattr("os.sched_getaffinity", lambda _: range(16))  # the most threads
        with open_sinks([f"a{suffix}"]) as sinks:
            for frame in frames(60):
                sinks.write(frame, some_detections(1))
            shutil.copy(f"a.partial{suffix}", f"killed{suffix}")
        # A second, seven frames that wait or are drawn, and nine that the encoder holds back.
        assert len(images(f"killed{suffix}")) >= 60 - 11 - 16
        assert len(images(f"a{suffix}")) == 60

    def test_an_error_leaves_what_was_there_and_what_was_written(self):
        with pytest.raises(RuntimeError):
            write(["a.mp4", "a.jsonl", "a.json"], breaking(0))
        assert names() == []
        outs = [Path(name) for name in ("a.mp4", "a.jsonl", "a.json")]
        for out in outs:
            out.write_bytes(b"precious")
        with pytest.raises(RuntimeError) as error:
            write(outs, breaking(7))
        assert [out.read_bytes() for out in outs] == [b"precious"] * 3
        assert error.value.__notes__ == ["What was written lies in a.partial.mp4, a.partial.jsonl, a.partial-2.jsonl."]
        assert len(images("a.partial.mp4")) == len(lines("a.partial.jsonl")) == 7

    def test_frames_that_no_encoder_takes_are_an_error_and_leave_nothing(self):
        message = r"out must be \.webm for frames of more than 16384 pixels a side, got 16386x2"
        with pytest.raises(UnsupportedError, match=message):
            write(["a.mp4"], frames(2, size=(2, 16386)))
        assert names() == []
        sinks = open_sinks(["a.mp4"])
        sinks.write(next(frames(1, size=(2, 16386))), some_detections(0))
        sinks.abandon()
        assert names() == []

    def test_what_an_earlier_run_left_is_not_written_over(self):
        Path("a.partial.jsonl").write_bytes(b"precious")
        write(["a.jsonl"], frames(2))
        assert Path("a.partial.jsonl").read_bytes() == b"precious"
        assert names() == ["a.jsonl", "a.partial.jsonl"]

    def test_two_that_write_the_same_do_not_mix(self):
        one, other = (open_sinks(["a.jsonl"]) for _ in range(2))
        for frame in frames(3):
            one.write(frame, some_detections(2))
            other.write(frame, some_detections(0))
        other.close()
        one.close()
        assert [len(line["detections"]) for line in lines("a.jsonl")] == [2] * 3

    def test_permissions_and_links_are_kept(self):
        kept = Path("kept/b.jsonl")
        kept.parent.mkdir()
        kept.touch(mode=0o600)
        Path("a.jsonl").symlink_to(kept)
        write(["a.jsonl"], frames(1))
        assert Path("a.jsonl").is_symlink()
        assert (kept.stat().st_mode & 0o777, len(lines(kept))) == (0o600, 1)

    def test_a_picture_is_whole_or_not_there(self):
        Path("shown").mkdir()
        Path("shown/clip_000000.jpg").write_bytes(b"precious")
        with largest_file(100), pytest.raises(OutputError, match=r"clip_000000\.jpg"):
            write(["shown"], frames(1))
        assert Path("shown/clip_000000.jpg").read_bytes() == b"precious"
        assert names("shown") == ["clip_000000.jpg"]


class TestTakenNames:
    @pytest.mark.parametrize(
        ("source", "out"),
        [
            *(("vids/*.mp4", "vids/a.mp4"), ("vids/*.mp4", "hard.mp4"), ("**/*.mp4", "./vids/../vids/b.mp4")),
            *(("**/*.mp4", "link.mp4"), ("file://FOLDER/vids/b.mp4", "vids/b.mp4"), ("vids/a.mp4", "hard.mp4")),
        ],
    )
    def test_no_file_of_a_source_is_an_output(self, source, out, tmp_path):
        Path("vids").mkdir()
        for name in ("a.mp4", "b.mp4"):
            write([f"vids/{name}"], frames(2))
        Path("link.mp4").symlink_to("vids/a.mp4")
        os.link("vids/a.mp4", "hard.mp4")
        before = [path.read_bytes() for path in sorted(Path("vids").iterdir())]
        with (
            open_source(source.replace("FOLDER", str(tmp_path))) as opened,
            pytest.raises(InputError, match=r"out must not be the source, got '.*mp4' for both"),
        ):
            check_outputs([out], [opened]).open()
        assert [path.read_bytes() for path in sorted(Path("vids").iterdir())] == before

    @pytest.mark.parametrize(
        ("source", "out"),
        [("imgs", "imgs"), ("imgs/*.png", "./imgs/"), ("imgs", "imgs/2.png"), ("imgs", "./imgs/1.png")],
    )
    def test_no_picture_goes_where_an_image_of_the_source_is(self, source, out):
        Path("imgs").mkdir()
        for name in ("1.png", "1_1.png", "2.png"):
            write_image(f"imgs/{name}", np.zeros((8, 8, 3), np.uint8))
        with open_source(source) as opened, pytest.raises(InputError, match="out must not be"):
            check_outputs([out], [opened]).open()
        assert names("imgs") == ["1.png", "1_1.png", "2.png"]

    def test_nor_where_only_a_link_tells(self):
        Path("shown").mkdir()
        before = write_image(Path("a.jpg"), np.zeros((8, 8, 3), np.uint8)).read_bytes()
        os.link("a.jpg", "shown/clip_000001.jpg")
        sinks = check_outputs(["shown"], [ListSource(["a.jpg", "clip.mp4"], "list")]).open()
        first, second = frames(2)
        sinks.write(first, some_detections(0))
        with pytest.raises(InputError, match=r"out must not be where the source is, '.*clip_000001\.jpg' would be"):
            sinks.write(second, some_detections(0))
        assert Path("shown/clip_000001.jpg").read_bytes() == before

    @pytest.mark.parametrize(
        "outs",
        [
            *(("d.mp4", "./d.mp4"), ("d.jsonl", "x/../d.jsonl"), ("new", "new/")),
            *(("real.json", "link.json"), ("real.json", "hard.json"), ("-", "-")),
        ],
    )
    def test_two_outputs_that_are_one(self, outs):
        Path("real.json").write_bytes(b"precious")
        Path("link.json").symlink_to("real.json")
        os.link("real.json", "hard.json")
        with pytest.raises(InputError, match="out must name each output once"):
            open_sinks(outs)
        assert names() == ["hard.json", "link.json", "real.json"]

    def test_pictures_of_sources_with_similar_names_stay_apart(self):
        with check_outputs(["{}.png"], [ListSource([], name) for name in ("a", "x/a")]).open() as sinks:
            for stream in (0, 1):
                sinks.write(replace(next(frames(1)), stream=stream), some_detections(0))
            with pytest.raises(InputError, match=r"out must be a folder for several frames, got 'a\.png': write 'a/'"):
                sinks.write(next(frames(1)), some_detections(0))
        assert names() == ["a.png", "a_2.png"]

    @pytest.mark.parametrize(
        ("out", "error", "message"),
        [
            ("", InputError, "out must be a path, got ''"),
            ("a\0.mp4", InputError, r"out must be a path, got 'a\\x00\.mp4'"),
            ("file:///tmp/a.mp4", InputError, "out must be a path, got the URL 'file:///tmp/a.mp4'"),
            ("x" * 300 + ".mp4", OutputError, "is not: File name too long"),
            ("new/" + "x/" * 3000 + "a.mp4", OutputError, "is not: File name too long"),
            ("folder.mp4", InputError, r"out must be a file, 'folder\.mp4' is a folder; write 'folder\.mp4/'"),
            ("pipe.mp4", InputError, r"'pipe\.mp4' is neither; only \.jsonl and \.csv may be a pipe"),
            ("file/a.mp4", OutputError, "out must be .*a.* is no"),
            ("file/folder", OutputError, "out must be .*folder.* is no"),
            ("loop/a.mp4", OutputError, "Too many levels"),
            ("closed/a.mp4", OutputError, "closed' is closed to writing"),
            ("closed/new/", OutputError, "closed' is closed to writing"),
        ],
    )
    def test_names_that_can_be_no_output_are_found_before_anything_is_made(self, out, error, message, monkeypatch):
        Path("folder.mp4").mkdir()
        Path("closed").mkdir()
        os.mkfifo("pipe.mp4")
        Path("loop").symlink_to("loop")
        Path("file").touch()
        access = os.access  # root may write everywhere
        monkeypatch.setattr(os, "access", lambda path, mode: "closed" not in str(path) and access(path, mode))
        before = names()
        with pytest.raises(error, match=message):
            open_sinks(["good.jsonl", out])
        assert names() == before

    @pytest.mark.parametrize("name", ["ü" * 124 + "u.jsonl", "cam:1.mp4", "100%d.mp4", "\udcff\x1b[31m.mp4"])
    def test_the_longest_name_and_names_that_mean_something_to_ffmpeg_or_a_terminal_are_names(self, name):
        write([name], frames(2))
        assert names() == [name]


class TestContents:
    OUTS = ("a.mp4", "shown", "a.json", "a.jsonl")

    @pytest.mark.parametrize("name", ["\ud800", "\0", "a\nb\x1b[31m\x9b", "x" * 100_000, "", "車"])
    def test_any_class_name_is_drawn_and_written(self, name):
        write(self.OUTS, frames(1), replace(some_detections(2), class_names={0: name, 2: name}))
        assert lines("a.jsonl")[0]["detections"][0]["class_name"] == name
        assert read_json("a.json")["categories"][0]["name"] == name
        write(["b.jsonl"], [replace(frame, source=name, name=name) for frame in frames(1)])  # as of a file
        assert [lines("b.jsonl")[0][field] for field in ("source", "name")] == [name] * 2
        assert Path("b.jsonl").read_bytes().isascii()

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_what_is_not_finite_is_left_out_and_counted(self, value):
        found = some_detections(3)
        xyxy, confidence = found.xyxy.copy(), found.confidence.copy()
        xyxy[0, 2], confidence[2] = value, value
        broken = replace(found, xyxy=xyxy, confidence=confidence)
        assert write(self.OUTS, frames(2), broken).left_out == 4
        assert Detections.from_dict(lines("a.jsonl")[0]).class_id.tolist() == [found.class_id[1]]
        assert len(read_json("a.json")["annotations"]) == 2
        for convert in (lambda: broken.to_coco(1), broken.as_dict):
            with pytest.raises(InputError, match="xyxy and confidence must be finite, detection 0 has"):
                convert()
        for out in ("b.jsonl", "b.events.jsonl"):
            with pytest.raises(InputError, match="time_s must be finite, frame 0 has"):
                write([out], [replace(frame, time_s=value) for frame in frames(1)])

    @pytest.mark.parametrize("fps", [1e-9, 1e9, float("nan"), -5.0])
    def test_a_source_that_lies_about_its_rate_is_shown_at_30(self, fps):
        source = ListSource([], "clip")
        source.fps = fps
        with check_outputs(["a.mp4"], [source]).open() as sinks:
            for frame in frames(3, clock=False):
                sinks.write(frame, some_detections(0))
        np.testing.assert_allclose(times("a.mp4"), np.arange(3) / 30, atol=2e-3)
        for wrong in (0.0, -1.0, float("nan"), float("inf")):
            with pytest.raises(InputError, match="fps must be above 0, got"):
                open_sinks(["a.mp4"], fps=wrong)

    def test_a_clock_that_jumps_by_years_does_not_end_the_video(self):
        given = zip(frames(7), [0, 0.1, 1e15, 1e15 + 0.125, -1e15, float("nan"), 5.0], strict=True)
        write(["a.mp4"], [replace(frame, time_s=time_s) for frame, time_s in given], fps=10.0)
        np.testing.assert_allclose(times("a.mp4"), [0, 0.1, 0.2, 0.325, 0.425, 0.525, 0.625], atol=2e-3)


class TestCoco:
    def test_categories_start_at_1_where_class_ids_start_at_0_and_cocos_own_stay(self):
        write(["a.json"], frames(1), some_detections(3))
        categories = [("car", 1), ("bus", 3), ("7", 8)]  # the last one is found, and not named
        assert read_json("a.json")["categories"] == [{"name": name, "id": number} for name, number in categories]
        assert [entry["category_id"] for entry in read_json("a.json")["annotations"]] == [1, 3, 8]
        own, class_id = {1: "person", 2: "bicycle"}, np.array([1, 2, 1], np.int32)
        write(["a.json"], frames(1), replace(some_detections(3), class_names=own, class_id=class_id))
        assert [entry["category_id"] for entry in read_json("a.json")["annotations"]] == [1, 2, 1]

    def test_entries_are_on_the_disk_as_they_come(self):
        with open_sinks(["a.json"]) as sinks:
            for number, frame in enumerate(frames(5), start=1):
                sinks.write(frame, some_detections(2))
                entries = lines("a.partial.jsonl")
                assert sum("file_name" in entry for entry in entries) == number
                assert sum("bbox" in entry for entry in entries) == 2 * number
                assert names() == ["a.partial.jsonl"]
        sinks.close()  # again
        assert names() == sinks.paths == ["a.json"]
        whole = [entry for part in read_json("a.json").values() for entry in part]
        assert sorted(map(str, entries)) == sorted(map(str, whole))
