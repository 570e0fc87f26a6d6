"""Sinks: what they write, and that it is whole whatever happens."""

import json
from dataclasses import replace
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from pycocotools import mask as pycoco_mask
from pycocotools.coco import COCO

from maskjet.detections import Detections
from maskjet.errors import InputError, OutputError
from maskjet.media.drawing import draw
from maskjet.media.frames import Frame, ListSource, open_source
from maskjet.media.sinks import AnnotatedVideo, open_sinks, open_sinks_by_source
from tests.test_detections import some_detections


def frames(count, *, size=(48, 64), clock=True):
    for index in range(count):
        image = np.full((*size, 3), 40 + index, np.uint8)
        yield Frame(index, index / 10 if clock else None, image, "clip.mp4", f"clip.mp4#{index}")


def write(out, items, *, fps=10.0):
    with open_sinks([str(path) for path in out], fps=fps) as sinks:
        for frame in items:
            sinks.write(frame, some_detections(2, size=frame.image.shape[:2]))


def sources(*names):
    return [ListSource([str(name)], str(name)) for name in names]


def indices(path):
    return [json.loads(line)["index"] for line in path.read_text().splitlines()]


def test_json_lines_are_whole_at_any_moment_and_read_back(tmp_path):
    path = tmp_path / "deep" / "out.jsonl"
    with open_sinks([str(path)]) as sinks:
        for index, frame in enumerate(frames(3)):
            sinks.write(frame, some_detections(index))
            lines = [json.loads(line) for line in (tmp_path / "deep" / "out.partial.jsonl").read_text().splitlines()]
            assert len(lines) == index + 1
            assert not path.exists()
    assert [json.loads(line) for line in path.read_text().splitlines()] == lines
    assert [line["index"] for line in lines] == [0, 1, 2]
    assert lines[1]["time_s"] == pytest.approx(0.1)
    assert Detections.from_dict(lines[2]).rle == some_detections(2).rle


def test_json_lines_to_stdout(capsys):
    write(["-"], frames(2))
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_coco_json_is_a_data_set_and_its_annotations_are_results(tmp_path, capsys):
    write([tmp_path / "out.json"], frames(3))
    data_set = COCO(tmp_path / "out.json")
    assert len(data_set.imgs) == 3
    assert [category["name"] for category in data_set.loadCats(data_set.getCatIds())] == ["car", "bus"]
    expected = some_detections(2)
    for annotation, rle in zip(data_set.imgToAnns[1], expected.rle, strict=True):
        np.testing.assert_array_equal(data_set.annToMask(annotation), pycoco_mask.decode(rle))
        assert annotation["area"] == pycoco_mask.area(rle)
    results = json.loads((tmp_path / "out.json").read_text())["annotations"]
    assert len(data_set.loadRes(results).anns) == 6
    capsys.readouterr()


def test_coco_json_appears_only_when_whole(tmp_path):
    sinks = open_sinks([str(tmp_path / "out.json")])
    sinks.write(next(frames(1)), some_detections(1))
    assert not (tmp_path / "out.json").exists()
    sinks.close()
    sinks.close()
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    assert sinks.paths == [str(tmp_path / "out.json")]


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".mov"])
def test_video_keeps_count_size_and_times(suffix, tmp_path):
    write([tmp_path / f"out{suffix}"], frames(12))
    with open_source(tmp_path / f"out{suffix}") as source:
        found = list(source)
    assert [frame.image.shape for frame in found] == [(48, 64, 3)] * 12
    np.testing.assert_allclose([frame.time_s for frame in found], np.arange(12) / 10, atol=2e-3)


def test_video_without_a_clock_runs_at_the_given_rate(tmp_path):
    write([tmp_path / "out.mp4"], frames(5, clock=False), fps=20.0)
    times = [frame.time_s for frame in open_source(tmp_path / "out.mp4")]
    np.testing.assert_allclose(times, np.arange(5) / 20, atol=2e-3)


def test_video_shows_the_drawing(tmp_path):
    write([tmp_path / "out.mp4"], frames(1, size=(240, 320)))
    (shown,) = open_source(tmp_path / "out.mp4")
    (frame,) = frames(1, size=(240, 320))
    expected = draw(frame.image, some_detections(2, size=(240, 320)))
    assert np.abs(shown.image.astype(int) - expected.astype(int)).mean() < 6
    assert (
        np.abs(shown.image.astype(int) - frame.image.astype(int)).mean()
        > 3 * np.abs(shown.image.astype(int) - expected.astype(int)).mean()
    )


def test_odd_sizes_lose_a_row_and_other_sizes_are_letterboxed(tmp_path):
    items = [*frames(2, size=(49, 65)), *frames(2, size=(100, 20))]
    write([tmp_path / "out.mp4"], [Frame(i, i / 10, frame.image, "s", "n") for i, frame in enumerate(items)])
    found = list(open_source(tmp_path / "out.mp4"))
    assert [frame.image.shape for frame in found] == [(48, 64, 3)] * 4
    assert found[3].image[:, :20].max() < 30  # black beside the tall frame


def test_a_broken_run_leaves_whole_outputs(tmp_path):
    outs = [tmp_path / name for name in ("out.mp4", "out.jsonl", "out.json")]

    def interrupted():
        yield from frames(7)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(outs, interrupted())
    assert len(list(open_source(outs[0]))) == 7
    assert len(outs[1].read_text().splitlines()) == 7
    assert len(json.loads(outs[2].read_text())["images"]) == 7


def test_no_frames_leave_no_video(tmp_path):
    write([tmp_path / "out.mp4", tmp_path / "out.jsonl"], [])
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_a_closed_video_says_so(tmp_path):
    sink = AnnotatedVideo(str(tmp_path / "out.mp4"), 10.0)
    sink.close()
    sink.close()
    with pytest.raises(InputError, match="The output is closed"):
        sink.write(next(frames(1)), some_detections(1))


def test_images_keep_their_names_and_none_is_lost(tmp_path):
    names = ["a/one.png", "b/one.png", "clip.mp4#7"]
    items = [
        Frame(index, None, frame.image, "s", name)
        for index, (frame, name) in enumerate(zip(frames(3), names, strict=True))
    ]
    write([tmp_path / "shown"], items)
    written = sorted(path.name for path in (tmp_path / "shown").iterdir())
    assert written == ["clip_000007.jpg", "one.png", "one_1.png"]
    shown = cv2.imread(str(tmp_path / "shown" / "one.png"))
    assert shown.shape == (48, 64, 3)


def test_one_image_under_the_name_asked_for(tmp_path):
    write([tmp_path / "new" / "x.jpg"], frames(1))
    assert cv2.imread(str(tmp_path / "new" / "x.jpg")).shape == (48, 64, 3)


def test_a_picture_is_not_drawn_over_its_source(tmp_path):
    path = tmp_path / "a.png"
    assert cv2.imwrite(str(path), np.zeros((48, 64, 3), np.uint8))
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"out must not be where the source is, '.*a\.png' would be overwritten"):
        write([tmp_path], [Frame(0, None, np.zeros((48, 64, 3), np.uint8), "s", str(path))])
    assert path.read_bytes() == before


def test_the_source_is_no_output(tmp_path):
    (tmp_path / "v.mp4").write_bytes(b"video")
    with pytest.raises(InputError, match=r"out must not be the source, got '.*v\.mp4' for both"):
        open_sinks_by_source([str(tmp_path / "v.mp4")], sources(tmp_path / "v.mp4"))
    assert (tmp_path / "v.mp4").read_bytes() == b"video"


def test_no_source_is_an_output_of_another(tmp_path):
    (tmp_path / "b.mp4").write_bytes(b"video")
    with pytest.raises(InputError, match=r"out must not be the source, got '.*b\.mp4' for both"):
        open_sinks_by_source([f"{tmp_path}/all.jsonl", f"{tmp_path}/{{}}.mp4"], sources("a.mp4", tmp_path / "b.mp4"))
    assert [path.name for path in tmp_path.iterdir()] == ["b.mp4"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("videos/a b-c.mp4", "a b-c"),
        ("v.1.mp4", "v_1"),
        ("street/", "street"),
        ("street_*.jpg", "street__"),
        ("images/*.jpg", "source"),
        ("..", "source"),
        ("/dev/video3", "video3"),
        ("rtsp://me:secret@10.0.0.5:554/live.sdp?key=secret", "10_0_0_5_live"),
        ("http://cam", "cam"),
        ("Straße.mp4", "Straße"),
    ],
)
def test_a_source_gives_its_outputs_their_name(name, expected, tmp_path):
    with open_sinks_by_source([f"{tmp_path}/{{}}.jsonl", f"{tmp_path}/{{}}"], sources(name)) as sinks:
        pass
    assert sinks.paths == [f"{tmp_path}/{expected}.jsonl", f"{tmp_path}/{expected}"]
    assert {path.name for path in tmp_path.iterdir()} == {expected, f"{expected}.jsonl"}


def test_sources_of_one_name_get_numbers_and_none_gets_anothers(tmp_path):
    names = ("a.mp4", "x/a.mp4", "a_2.mp4", "y/a.mkv")
    with open_sinks_by_source([f"{tmp_path}/{{}}.jsonl"], sources(*names)):
        pass
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["a", "a_2", "a_2_2", "a_3"]


def test_each_frame_goes_to_the_sinks_of_its_source(tmp_path):
    outs = [f"{tmp_path}/all.jsonl", f"{tmp_path}/{{}}/out.jsonl"]
    with open_sinks_by_source(outs, sources("a.mp4", "b.mp4")) as sinks:
        for stream, frame in zip((0, 1, 1, 0), frames(4), strict=True):
            sinks.write(replace(frame, stream=stream), some_detections(1))
    written = {path: indices(tmp_path / path) for path in ("all.jsonl", "a/out.jsonl", "b/out.jsonl")}
    assert written == {"all.jsonl": [0, 1, 2, 3], "a/out.jsonl": [0, 3], "b/out.jsonl": [1, 2]}


@pytest.mark.parametrize(("names", "expected"), [(["a.mp4", "b.mp4"], [None, None]), (["a.mp4", "a.mp4"], [0, 1])])
def test_lines_tell_the_stream_only_where_the_name_does_not(names, expected, tmp_path):
    with open_sinks_by_source([f"{tmp_path}/all.jsonl"], sources(*names)) as sinks:
        for stream, frame in enumerate(frames(2)):
            sinks.write(replace(frame, stream=stream), some_detections(1))
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [line.get("stream") for line in lines] == expected


def test_an_output_for_all_is_none_of_those_for_each(tmp_path):
    outs = [f"{tmp_path}/a.jsonl", f"{tmp_path}/{{}}.jsonl"]
    with pytest.raises(InputError, match="out must name each output once"):
        open_sinks_by_source(outs, sources("a.mp4", "b.mp4"))
    assert not list(tmp_path.iterdir())


def test_an_output_named_twice(tmp_path):
    with pytest.raises(InputError, match="out must name each output once"):
        open_sinks([str(tmp_path / "a.mp4")] * 2)


def test_several_videos_follow_each_other(tmp_path):
    items = [
        Frame(i, time_s, frame.image, "s", "n")
        for i, (frame, time_s) in enumerate(zip(frames(4), [5.0, 5.1, 0.0, 0.1], strict=True))
    ]
    write([tmp_path / "out.mp4"], items)
    times = [frame.time_s for frame in open_source(tmp_path / "out.mp4")]
    np.testing.assert_allclose(times, [0, 0.1, 0.2, 0.3], atol=2e-3)


def test_several_outputs_at_once(tmp_path):
    outs = [tmp_path / name for name in ("a.mp4", "a.jsonl", "a.json", "folder")]
    write(outs, frames(2))
    assert all(path.exists() for path in outs)


@pytest.mark.parametrize("out", ["out.txt", "out.avi", "x.gif"])
def test_unknown_outputs_list_the_known(out, tmp_path):
    with pytest.raises(
        InputError,
        match=r"must end in one of \.mp4, \.mkv, \.mov, \.webm, \.jsonl, \.json, \.csv, \.yolo, .*, or be a folder",
    ):
        open_sinks([str(tmp_path / "fine.jsonl"), str(tmp_path / out)])


def test_nothing_to_write_is_an_error():
    with pytest.raises(InputError, match="out must name at least one output, got none"):
        open_sinks([])


@pytest.mark.parametrize("name", ["out.jsonl", "out.json", "out.mp4", "folder"])
def test_unwritable_outputs_are_named_before_any_work(name, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=rf"out must be .*{Path(name).stem}"):
        open_sinks([str(tmp_path / "file" / name)])


def test_video_codec_is_what_players_play(tmp_path):
    write([tmp_path / "out.mp4"], frames(3))
    with av.open(str(tmp_path / "out.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
