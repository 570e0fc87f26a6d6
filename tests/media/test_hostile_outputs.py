"""Outputs on full disks, under names that are taken, and with contents that break what draws or prints them."""

import json
import os
import resource
import shutil
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from maskjet.detections import Detections
from maskjet.errors import InputError, OutputError
from maskjet.media.drawing import draw
from maskjet.media.frames import Frame, ListSource, open_source
from maskjet.media.sinks import open_sinks, open_sinks_by_source
from tests.test_detections import some_detections

SIZE = (48, 64)


def frames(count, *, size=SIZE, fps=10):
    noise = np.random.default_rng(5).integers(0, 256, (*size, 3), np.uint8)
    for index in range(count):
        yield Frame(index, index / fps, np.roll(noise, index, axis=1), "clip.mp4", f"clip.mp4#{index}")


def write(outs, items, found=None):
    with open_sinks([str(out) for out in outs]) as sinks:
        for frame in items:
            sinks.write(frame, found or some_detections(2, size=frame.image.shape[:2]))
    return sinks


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def largest_file(size):
    """Let no file grow beyond a size, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class TestFullDisk:
    @pytest.mark.parametrize("name", ["a.mp4", "a.mov", "a.mkv", "a.jsonl", "a.json"])
    @pytest.mark.parametrize("size", [0, 10, 700, 5_000, 20_000])
    def test_is_an_error_and_the_file_that_was_there_stays(self, name, size, tmp_path):
        out = tmp_path / name
        out.write_bytes(b"precious")
        with (
            largest_file(size),
            pytest.raises(OutputError, match=rf"out must be writable, '.*/{name}' is not: File too large"),
        ):
            write([out], frames(60))
        assert out.read_bytes() == b"precious"

    @pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
    def test_what_fitted_of_a_video_plays(self, suffix, tmp_path):
        with largest_file(150_000), pytest.raises(OutputError, match="File too large"):
            write([tmp_path / f"a{suffix}"], frames(200))
        with open_source(tmp_path / f"a.partial{suffix}") as source:
            assert len(list(source)) >= 20

    @pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.webm"])
    def test_a_video_that_is_abandoned_before_any_of_it_fitted_is_gone(self, name, tmp_path):
        sinks = open_sinks([str(tmp_path / name)])
        with largest_file(0):
            sinks.write(next(frames(1)), some_detections(1))
            sinks.abandon()
        assert names(tmp_path) == []
        assert sinks.paths == []

    def test_lines_that_fitted_are_whole(self, tmp_path):
        with largest_file(1500), pytest.raises(OutputError) as error:
            write([tmp_path / "a.jsonl", tmp_path / "a.json"], frames(20))
        assert error.value.__notes__ == [
            f"What was written lies in {tmp_path / 'a.partial.jsonl'}, {tmp_path / 'a.partial-2.jsonl'}."
        ]
        for name in ("a.partial.jsonl", "a.partial-2.jsonl"):
            lines = (tmp_path / name).read_text().splitlines()
            assert all(json.loads(line) for line in lines)
            assert len(lines) > 1

    def test_of_a_data_set_that_is_made_at_the_end_loses_no_entry(self, tmp_path):
        sinks = open_sinks([str(tmp_path / "a.json")])
        for frame in frames(20):
            sinks.write(frame, some_detections(2))
        with largest_file(2000), pytest.raises(OutputError, match=r"a\.json' is not"):
            sinks.close()
        assert names(tmp_path) == ["a.partial.jsonl"]
        assert len((tmp_path / "a.partial.jsonl").read_text().splitlines()) == 20 * 3 + 2
        assert sinks.paths == [str(tmp_path / "a.partial.jsonl")]

    def test_without_room_for_a_copy_the_fragments_are_the_video(self, tmp_path, monkeypatch):
        def fail(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("maskjet.media.sinks.video._copy", fail)
        write([tmp_path / "a.mp4"], frames(12))
        assert names(tmp_path) == ["a.mp4"]
        assert len(list(open_source(tmp_path / "a.mp4"))) == 12

    def test_a_copy_that_lacks_frames_is_no_result(self, tmp_path, monkeypatch):
        monkeypatch.setattr("maskjet.media.sinks.video._copy", lambda *_: 11)
        with pytest.raises(OutputError, match=r"'.*a\.partial\.mp4' must hold 12 frames, it holds 11"):
            write([tmp_path / "a.mp4"], frames(12))
        assert names(tmp_path) == ["a.partial.mp4"]

    def test_a_device_is_written_to_as_it_is(self, tmp_path):
        (tmp_path / "a.jsonl").symlink_to("/dev/full")
        with pytest.raises(OutputError, match=r"a\.jsonl' is not: No space left on device"):
            write([tmp_path / "a.jsonl"], frames(1))
        assert names(tmp_path) == ["a.jsonl"]


class TestInterrupted:
    @pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
    def test_what_is_there_of_a_video_plays_at_any_moment(self, suffix, tmp_path):
        with open_sinks([str(tmp_path / f"a{suffix}")]) as sinks:
            for frame in frames(45):
                sinks.write(frame, some_detections(1))
            shutil.copy(tmp_path / f"a.partial{suffix}", tmp_path / f"killed{suffix}")
        # A second, four frames that wait to be drawn, and those that the encoder holds back.
        assert len(list(open_source(tmp_path / f"killed{suffix}"))) >= 45 - 20
        assert len(list(open_source(tmp_path / f"a{suffix}"))) == 45

    @pytest.mark.parametrize("suffix", [".mp4", ".mov"])
    def test_a_whole_video_has_its_index_first_and_says_how_long_it_is(self, suffix, tmp_path):
        write([tmp_path / f"a{suffix}"], frames(12, fps=30))
        data = (tmp_path / f"a{suffix}").read_bytes()
        assert 0 < data.find(b"moov") < data.find(b"mdat")
        assert b"moof" not in data
        with open_source(tmp_path / f"a{suffix}") as source:
            assert (source.length, source.fps) == (12, 30)
            assert len(list(source)) == 12
            assert source.bad_frames == []

    def test_an_error_leaves_what_was_there_and_what_was_written(self, tmp_path):
        outs = [tmp_path / name for name in ("a.mp4", "a.jsonl", "a.json")]
        for out in outs:
            out.write_bytes(b"precious")

        def breaking():
            yield from frames(7)
            raise RuntimeError("The source broke.")

        with pytest.raises(RuntimeError) as error:
            write(outs, breaking())
        assert [out.read_bytes() for out in outs] == [b"precious"] * 3
        partial = [tmp_path / name for name in ("a.partial.mp4", "a.partial.jsonl", "a.partial-2.jsonl")]
        assert error.value.__notes__ == [f"What was written lies in {', '.join(map(str, partial))}."]
        assert len(list(open_source(partial[0]))) == 7
        assert len(partial[1].read_text().splitlines()) == 7

    def test_an_error_before_the_first_frame_leaves_nothing(self, tmp_path):
        def breaking():
            raise RuntimeError("The source broke.")
            yield

        with pytest.raises(RuntimeError):
            write([tmp_path / name for name in ("a.mp4", "a.jsonl", "a.json")], breaking())
        assert names(tmp_path) == []

    def test_what_an_earlier_run_left_is_not_written_over(self, tmp_path):
        (tmp_path / "a.partial.jsonl").write_bytes(b"precious")
        write([tmp_path / "a.jsonl"], frames(2))
        assert (tmp_path / "a.partial.jsonl").read_bytes() == b"precious"
        assert names(tmp_path) == ["a.jsonl", "a.partial.jsonl"]

    def test_two_that_write_the_same_do_not_mix(self, tmp_path):
        one, other = (open_sinks([str(tmp_path / "a.jsonl")]) for _ in range(2))
        for frame in frames(3):
            one.write(frame, some_detections(2))
            other.write(frame, some_detections(0))
        other.close()
        one.close()
        assert [len(json.loads(line)["detections"]) for line in (tmp_path / "a.jsonl").read_text().splitlines()] == [
            2
        ] * 3

    def test_permissions_and_links_are_kept(self, tmp_path):
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept" / "b.jsonl").touch(mode=0o600)
        (tmp_path / "a.jsonl").symlink_to(tmp_path / "kept" / "b.jsonl")
        write([tmp_path / "a.jsonl"], frames(1))
        assert (tmp_path / "a.jsonl").is_symlink()
        assert (tmp_path / "kept" / "b.jsonl").stat().st_mode & 0o777 == 0o600
        assert len((tmp_path / "kept" / "b.jsonl").read_text().splitlines()) == 1

    def test_a_picture_is_whole_or_not_there(self, tmp_path):
        shown = tmp_path / "shown"
        shown.mkdir()
        (shown / "clip_000000.jpg").write_bytes(b"precious")
        with largest_file(100), pytest.raises(OutputError, match=r"clip_000000\.jpg"):
            write([shown], frames(1))
        assert (shown / "clip_000000.jpg").read_bytes() == b"precious"
        assert names(shown) == ["clip_000000.jpg"]


class TestTakenNames:
    @pytest.fixture
    def videos(self, tmp_path):
        folder = tmp_path / "vids"
        folder.mkdir()
        for name in ("a.mp4", "b.mp4"):
            write([folder / name], frames(2))
        return folder

    @pytest.mark.parametrize("out", ["vids/a.mp4", "./vids/../vids/b.mp4", "link.mp4", "hard.mp4"])
    @pytest.mark.parametrize("source", ["vids/*.mp4", "**/*.mp4", "file://FOLDER/vids/*.mp4"])
    def test_no_file_of_a_source_is_an_output(self, source, out, videos, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        which = "b.mp4" if "b.mp4" in out else "a.mp4"
        Path("link.mp4").symlink_to(videos / "a.mp4")
        os.link(videos / "a.mp4", "hard.mp4")
        before = (videos / which).read_bytes()
        text = source.replace("FOLDER", str(tmp_path))
        text = text.replace("*.mp4", which) if "file:" in text else text
        with (
            open_source(text) as opened,
            pytest.raises(InputError, match=r"out must not be the source, got '.*mp4' for both"),
        ):
            open_sinks_by_source([out], [opened])
        assert (videos / which).read_bytes() == before

    @pytest.mark.parametrize(
        ("source", "out"),
        [("imgs", "imgs"), ("imgs/*.png", "./imgs/"), ("imgs", "imgs/2.png"), ("imgs", "./imgs/1.png")],
    )
    def test_no_picture_goes_where_an_image_of_the_source_is(self, source, out, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        Path("imgs").mkdir()
        for name in ("1.png", "1_1.png", "2.png"):
            assert cv2.imwrite(f"imgs/{name}", np.zeros((8, 8, 3), np.uint8))
        with open_source(source) as opened, pytest.raises(InputError, match="out must not be"):
            open_sinks_by_source([out], [opened])
        assert names(tmp_path / "imgs") == ["1.png", "1_1.png", "2.png"]

    def test_nor_where_only_a_link_tells(self, tmp_path):
        (tmp_path / "shown").mkdir()
        assert cv2.imwrite(str(tmp_path / "a.jpg"), np.zeros((8, 8, 3), np.uint8))
        os.link(tmp_path / "a.jpg", tmp_path / "shown" / "clip_000001.jpg")
        before = (tmp_path / "a.jpg").read_bytes()
        source = ListSource([str(tmp_path / "a.jpg"), "clip.mp4"], "list")
        sinks = open_sinks_by_source([str(tmp_path / "shown")], [source])
        first, second = frames(2)
        sinks.write(first, some_detections(0))
        with pytest.raises(InputError, match=r"out must not be where the source is, '.*clip_000001\.jpg' would be"):
            sinks.write(second, some_detections(0))
        assert (tmp_path / "shown" / "clip_000001.jpg").read_bytes() == before

    @pytest.mark.parametrize(
        "outs",
        [
            ("d.mp4", "./d.mp4"),
            ("d.jsonl", "x/../d.jsonl"),
            ("new", "new/"),
            ("real.json", "link.json"),
            ("real.json", "hard.json"),
            ("-", "-"),
        ],
    )
    def test_two_outputs_that_are_one(self, outs, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "real.json").write_bytes(b"precious")
        Path("link.json").symlink_to("real.json")
        os.link("real.json", "hard.json")
        with pytest.raises(InputError, match="out must name each output once"):
            open_sinks(outs)
        assert names(tmp_path) == ["hard.json", "link.json", "real.json"]

    def test_pictures_of_sources_with_similar_names_stay_apart(self, tmp_path):
        sources = [ListSource([], name) for name in ("a", "x/a")]
        with open_sinks_by_source([f"{tmp_path}/{{}}.png"], sources) as sinks:
            for stream in (0, 1):
                for frame in frames(3):
                    sinks.write(replace(frame, stream=stream), some_detections(0))
        assert len(names(tmp_path)) == 6  # a_2.png is the first one's third and the second one's first

    @pytest.mark.parametrize(
        ("out", "error", "message"),
        [
            ("", InputError, "out must be a path, got ''"),
            ("a\0.mp4", InputError, r"out must be a path, got 'a\\x00\.mp4'"),
            ("file:///tmp/a.mp4", InputError, "out must be a path, got the URL 'file:///tmp/a.mp4'"),
            ("x" * 300 + ".mp4", OutputError, "is not: File name too long"),
            ("x" * 300, OutputError, "is not: File name too long"),
            ("new/" + "x/" * 3000 + "a.mp4", OutputError, "is not: File name too long"),
            (
                "folder.mp4",
                InputError,
                r"out must be a file, 'folder\.mp4' is a folder; write 'folder\.mp4/'",
            ),
            ("pipe.mp4", InputError, r"'pipe\.mp4' is neither; only \.jsonl and \.csv may be a pipe"),
            ("file/a.mp4", OutputError, "is no"),
            ("loop/a.mp4", OutputError, "Too many levels"),
            ("closed/a.mp4", OutputError, "closed' is closed to writing"),
            ("closed/new/", OutputError, "closed' is closed to writing"),
        ],
    )
    def test_names_that_can_be_no_output_are_found_before_anything_is_made(
        self, out, error, message, tmp_path, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        Path("folder.mp4").mkdir()
        Path("closed").mkdir()
        os.mkfifo("pipe.mp4")
        Path("loop").symlink_to("loop")
        (tmp_path / "file").touch()
        access = os.access  # root may write everywhere
        monkeypatch.setattr(os, "access", lambda path, mode: "closed" not in str(path) and access(path, mode))
        before = names(tmp_path)
        with pytest.raises(error, match=message):
            open_sinks(["good.jsonl", out])
        assert names(tmp_path) == before

    def test_the_longest_name_there_is(self, tmp_path):
        out = tmp_path / ("ü" * 124 + "u.jsonl")
        write([out], frames(1))
        assert names(tmp_path) == [out.name]

    @pytest.mark.parametrize("name", ["cam:1.mp4", "100%d.mp4", "\udcff\x1b[31m.mp4"])
    def test_names_that_mean_something_to_ffmpeg_or_a_terminal_are_names(self, name, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write([name], frames(2))
        assert names(tmp_path) == [name]


class TestContents:
    @pytest.mark.parametrize("name", ["\ud800", "\udfff" * 9, "\0", "a\nb\x1b[31m\x9b", "x" * 100_000, "", "車"])
    def test_any_class_name_is_drawn_and_written(self, name, tmp_path):
        found = replace(some_detections(2), class_names={0: name, 2: name})
        write([tmp_path / "a.mp4", tmp_path / "shown", tmp_path / "a.json", tmp_path / "a.jsonl"], frames(1), found)
        assert json.loads((tmp_path / "a.jsonl").read_text())["detections"][0]["class_name"] == name
        assert json.loads((tmp_path / "a.json").read_text())["categories"][0]["name"] == name

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_what_is_not_finite_is_left_out_and_counted(self, value, tmp_path):
        found = some_detections(3)
        xyxy, confidence = found.xyxy.copy(), found.confidence.copy()
        xyxy[0, 2], confidence[2] = value, value
        broken = replace(found, xyxy=xyxy, confidence=confidence)
        sinks = write([tmp_path / name for name in ("a.mp4", "shown", "a.json", "a.jsonl")], frames(2), broken)
        assert sinks.left_out == 4
        (kept,) = Detections.from_dict(json.loads((tmp_path / "a.jsonl").read_text().splitlines()[0])).class_id
        assert kept == found.class_id[1]
        assert len(json.loads((tmp_path / "a.json").read_text())["annotations"]) == 2
        for convert in (lambda: broken.to_coco(1), broken.as_dict):
            with pytest.raises(InputError, match="xyxy and confidence must be finite, detection 0 has"):
                convert()

    @pytest.mark.parametrize("value", [np.nan, np.inf, -3e38, 3e38, 1e6])
    def test_any_box_is_drawn(self, value):
        found = some_detections(2)
        xyxy = found.xyxy.copy()
        xyxy[0] = value
        assert draw(np.zeros((*SIZE, 3), np.uint8), replace(found, xyxy=xyxy)).any()

    @pytest.mark.parametrize("fps", [1e-9, 1e9, float("nan"), float("inf"), -5.0])
    def test_a_source_that_lies_about_its_rate_is_shown_at_30(self, fps, tmp_path):
        source = ListSource([], "clip")
        source.fps = fps
        with open_sinks_by_source([str(tmp_path / "a.mp4")], [source]) as sinks:
            for frame in frames(3):
                sinks.write(replace(frame, time_s=None), some_detections(0))
        times = [frame.time_s for frame in open_source(tmp_path / "a.mp4")]
        np.testing.assert_allclose(times, np.arange(3) / 30, atol=2e-3)

    def test_a_clock_that_jumps_by_years_does_not_end_the_video(self, tmp_path):
        times = [0, 0.1, 1e15, 1e15 + 0.125, -1e15, float("nan"), 5.0]
        items = [replace(frame, time_s=time_s) for frame, time_s in zip(frames(7), times, strict=True)]
        with open_sinks([str(tmp_path / "a.mp4")], fps=10.0) as sinks:
            for frame in items:
                sinks.write(frame, some_detections(0))
        found = [frame.time_s for frame in open_source(tmp_path / "a.mp4")]
        np.testing.assert_allclose(found, [0, 0.1, 0.2, 0.325, 0.425, 0.525, 0.625], atol=2e-3)

    @pytest.mark.parametrize("fps", [0.0, -1.0, float("nan"), float("inf")])
    def test_a_rate_that_is_none_is_refused(self, fps, tmp_path):
        with pytest.raises(InputError, match="fps must be above 0, got"):
            open_sinks([str(tmp_path / "a.mp4")], fps=fps)


class TestCoco:
    def test_categories_start_at_1_where_class_ids_start_at_0(self, tmp_path):
        write([tmp_path / "a.json"], frames(1), some_detections(3))
        data_set = json.loads((tmp_path / "a.json").read_text())
        assert data_set["categories"] == [
            {"name": "car", "id": 1},
            {"name": "bus", "id": 3},
            {"name": "7", "id": 8},  # found, and not named
        ]
        assert [entry["category_id"] for entry in data_set["annotations"]] == [1, 3, 8]

    def test_cocos_own_class_ids_stay(self, tmp_path):
        found = replace(
            some_detections(3), class_names={1: "person", 2: "bicycle"}, class_id=np.array([1, 2, 1], np.int32)
        )
        write([tmp_path / "a.json"], frames(1), found)
        assert [entry["category_id"] for entry in json.loads((tmp_path / "a.json").read_text())["annotations"]] == [
            1,
            2,
            1,
        ]

    def test_entries_are_on_the_disk_as_they_come(self, tmp_path):
        with open_sinks([str(tmp_path / "a.json")]) as sinks:
            for number, frame in enumerate(frames(5), start=1):
                sinks.write(frame, some_detections(2))
                entries = [json.loads(line) for line in (tmp_path / "a.partial.jsonl").read_text().splitlines()]
                assert sum("file_name" in entry for entry in entries) == number
                assert sum("bbox" in entry for entry in entries) == 2 * number
        whole = json.loads((tmp_path / "a.json").read_text())
        assert sorted(map(str, entries)) == sorted(str(entry) for part in whole.values() for entry in part)

    def test_without_a_frame_it_is_an_empty_data_set(self, tmp_path):
        write([tmp_path / "a.json"], [])
        assert json.loads((tmp_path / "a.json").read_text()) == {"images": [], "categories": [], "annotations": []}


def test_sources_tell_their_files(tmp_path):
    write([tmp_path / "a.mp4"], frames(2))
    with open_source(f"file://{tmp_path}/a.mp4") as source:
        assert [path.samefile(tmp_path / "a.mp4") for path in source.files] == [True]
    assert ListSource(["no/such.mp4", np.zeros((2, 2, 3))], "list").files == [Path("no/such.mp4")]
