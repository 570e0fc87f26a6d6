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
from pycocotools.cocoeval import COCOeval

from maskjet.detections import Detections
from maskjet.drawing import draw
from maskjet.errors import InputError
from maskjet.masks import coco_rle
from maskjet.outputs.label_options import LabelOptions
from maskjet.outputs.opening import check_outputs, open_sinks
from maskjet.outputs.video import AnnotatedVideo
from maskjet.sources.frames import Frame, ListSource
from maskjet.sources.images import read_image
from tests.detections.test_detections import some_detections, tracked_detections
from tests.outputs.outputs import SIZE, frames, images, lines, names, read_json, times, write
from tests.sources.clips import read

pytestmark = pytest.mark.usefixtures("in_folder")


def sources(*names):
    return [ListSource([str(name)], str(name)) for name in names]


def test_json_lines_are_whole_at_any_moment_and_read_back(capsys):
    with open_sinks(["deep/out.jsonl"]) as sinks:
        for index, frame in enumerate(frames(3)):
            sinks.write(frame, some_detections(index))
            written = lines("deep/out.partial.jsonl")
            assert len(written) == index + 1
            assert not Path("deep/out.jsonl").exists()
    assert lines("deep/out.jsonl") == written
    assert Path("deep/out.jsonl").read_text().startswith('{"index":0,"time_s":0.0,"source":"clip.mp4",')
    assert [line["index"] for line in written] == [0, 1, 2]
    assert written[1]["time_s"] == pytest.approx(0.1)
    assert Detections.from_dict(written[2]).rle == some_detections(2).rle
    write(["-"], frames(2))
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_rotated_boxes_are_in_json_lines_and_csv_if_asked_for(capsys):
    found = tracked_detections(3)
    options = LabelOptions(rotated_boxes=True)
    write(["out.jsonl", "-", "out.csv"], frames(1), found, label_options=options)
    write(["none.csv"], [], label_options=options)
    written = lines("out.jsonl")[0]
    assert json.loads(capsys.readouterr().out) == written
    assert [entry["rotated_box"] for entry in written["detections"]] == found.rotated_boxes().tolist()
    assert json.loads(found.to_json(rotated_boxes=True))["detections"] == written["detections"]
    assert Detections.from_dict(written).as_dict() == found.as_dict()
    header, *rows = [row.split(",") for row in Path("out.csv").read_text().splitlines()]
    start = header.index("rx1")
    assert header[start : start + 8] == ["rx1", "ry1", "rx2", "ry2", "rx3", "ry3", "rx4", "ry4"]
    corners = np.array(rows)[:, start : start + 8].astype(np.float32).reshape(-1, 4, 2)
    np.testing.assert_array_equal(corners, found.rotated_boxes())
    assert Path("none.csv").read_text().strip().split(",")[-8:] == header[start : start + 8]


def test_coco_json_is_a_data_set():
    write(["out.json"], frames(3))
    data_set = COCO("out.json")
    assert len(data_set.imgs) == 3
    assert [category["name"] for category in data_set.loadCats(data_set.getCatIds())] == ["car", "bus"]
    for annotation, rle in zip(data_set.imgToAnns[1], some_detections(2).rle, strict=True):
        np.testing.assert_array_equal(data_set.annToMask(annotation), pycoco_mask.decode(rle))
        assert annotation["area"] == pycoco_mask.area(rle)


def test_coco_polygons():
    masks = np.zeros((2, 60, 80), np.uint8)
    cv2.circle(masks[0], (20, 30), 15, 1, -1)
    cv2.circle(masks[0], (20, 30), 5, 0, -1)
    masks[0, 5:9, 60:70] = masks[1, 40:50, 50:75] = 1
    boxes = np.float32([[5, 5, 70, 46], [50, 40, 75, 50]])
    found = Detections(
        (60, 80), boxes, np.float32([0.9, 0.8]), np.int32([0, 1]), coco_rle.encode(masks), {0: "car", 1: "bus"}
    )
    options = LabelOptions(coco_masks="polygons", polygon_tolerance=0)
    write(["out.json"], frames(2, size=(60, 80)), found, label_options=options)
    data_set = COCO("out.json")
    annotation = data_set.imgToAnns[0][0]
    assert [len(line) >= 6 for line in annotation["segmentation"]] == [True, True]  # a polygon for each part
    filled = cv2.circle(masks[0].copy(), (20, 30), 5, 1, -1)
    np.testing.assert_array_equal(data_set.annToMask(annotation), filled)
    assert (annotation["area"], annotation["iscrowd"], annotation["bbox"]) == (filled.sum(), 0, [5, 5, 65, 41])
    simple = LabelOptions(coco_masks="polygons", polygon_tolerance=2)
    write(["simple.json"], frames(1, size=(60, 80)), found, label_options=simple)
    simplified = COCO("simple.json")
    assert simplified.getCatIds() == [1, 2]
    shown = simplified.annToMask(simplified.imgToAnns[0][0])
    assert (shown & filled).sum() / (shown | filled).sum() > 0.9


def precision_of_medium(truth, results, kind):
    """Average precision of things of 32² to 96² pixels, by pycocotools."""
    scored = COCOeval(truth, truth.loadRes(results), kind)
    scored.evaluate()
    scored.accumulate()
    scored.summarize()
    return scored.stats[4]


def test_coco_results_of_one_kind_have_sizes_and_boxes_of_that_kind():
    square, thin = np.zeros((2, 120, 200), np.uint8)
    square[10:70, 10:70] = 1  # medium as a mask and as a box
    cv2.line(thin, (100, 20), (160, 80), 1)  # small as a mask, medium as a box
    rle = coco_rle.encode(np.stack([thin, square]))
    boxes = np.float32([[100, 20, 161, 81], [10, 10, 70, 70]])
    found = Detections((120, 200), boxes, np.float32([0.9, 0.8]), np.int32([0, 0]), rle, {0: "car"})
    write(["truth.json"], frames(1), found[1:])
    write(["out.segm.json", "out.bbox.json"], frames(1), found)
    assert [sorted(each) for each in read_json("out.segm.json")] == 2 * [
        ["category_id", "image_id", "score", "segmentation"]
    ]
    assert [each["bbox"] for each in read_json("out.bbox.json")] == [[100, 20, 61, 61], [10, 10, 60, 60]]
    truth = COCO("truth.json")
    assert precision_of_medium(truth, "out.segm.json", "segm") == pytest.approx(1)
    assert precision_of_medium(truth, "out.bbox.json", "bbox") == pytest.approx(0.5)  # the thin thing counts
    assert (read_json("out.segm.json"), read_json("out.bbox.json")) == tuple(
        json.loads(json.dumps(found.to_coco(0, {0: 1}, kind=kind))) for kind in ("segm", "bbox")
    )
    write(["none.bbox.json"], frames(2), found[:0])
    assert read_json("none.bbox.json") == []


def test_coco_data_sets_of_tracks_are_of_videos():
    clips = [replace(frame, source=source) for frame in frames(2) for source in ("a.mp4", "b.mp4")]
    items = [replace(frame, index=index) for index, frame in enumerate(clips)]
    write(["out.json"], items, tracked_detections(2))
    found = read_json("out.json")
    assert found["videos"] == [
        {"height": SIZE[0], "width": SIZE[1], "id": i, "name": name} for i, name in ((1, "a.mp4"), (2, "b.mp4"))
    ]
    assert [(each["video_id"], each["frame_id"]) for each in found["images"]] == [(1, 0), (2, 1), (1, 2), (2, 3)]
    assert [each["track_id"] for each in found["annotations"]] == [-1, 0] * 4
    write(["out.json"], frames(1))
    assert list(read_json("out.json")) == ["images", "categories", "annotations"]


@pytest.mark.parametrize("name", ["out.mp4", "out.mkv", "out.mov"])
def test_video_keeps_count_size_and_times_and_says_how_long_it_is(name):
    write([name], frames(12, fps=30))
    source, found = read(name)
    assert [frame.image.shape for frame in found] == [(*SIZE, 3)] * 12
    np.testing.assert_allclose([frame.time_s for frame in found], np.arange(12) / 30, atol=2e-3)
    if name != "out.mkv":
        assert (source.length, source.fps, source.bad_frames) == (12, 30, [])
    with av.open(name) as container:  # what players play
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
        assert stream.frames == (0 if name == "out.mkv" else 12)  # in the index of the whole; fragments have none


def test_video_without_a_clock_runs_at_the_given_rate_and_several_videos_follow_each_other():
    write(["out.mp4"], frames(5, clock=False), fps=20.0)
    np.testing.assert_allclose(times("out.mp4"), np.arange(5) / 20, atol=2e-3)
    given = zip(frames(4), [5.0, 5.1, 0.0, 0.1], strict=True)
    write(["out.mp4"], [replace(frame, time_s=time_s) for frame, time_s in given], fps=10.0)
    np.testing.assert_allclose(times("out.mp4"), [0, 0.1, 0.2, 0.3], atol=2e-3)


def test_video_shows_the_drawing():
    image = np.full((240, 320, 3), 40, np.uint8)
    write(["out.mp4"], [Frame(0, 0.0, image, "s", "n")])
    (shown,), expected = images("out.mp4"), draw(image, some_detections(2, size=(240, 320)))
    error = np.abs(shown.astype(int) - expected).mean()
    assert error < 6
    assert np.abs(shown.astype(int) - image).mean() > 3 * error


def test_odd_sizes_lose_a_row_and_other_sizes_are_letterboxed():
    items = [*frames(2, size=(49, 65)), *frames(2, size=(100, 20))]
    write(["out.mp4"], [replace(frame, index=i, time_s=i / 10) for i, frame in enumerate(items)])
    shown = images("out.mp4")
    assert [image.shape for image in shown] == [(48, 64, 3)] * 4
    assert shown[3][:, :20].max() < 30  # black beside the tall frame


def test_a_broken_run_leaves_whole_outputs():
    def interrupted():
        yield from frames(7)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(["out.mp4", "out.jsonl", "out.json"], interrupted())
    assert len(images("out.mp4")) == len(lines("out.jsonl")) == len(read_json("out.json")["images"]) == 7


def test_no_frames_leave_no_video_and_an_empty_data_set_and_a_closed_video_says_so():
    write(["out.mp4", "out.jsonl", "out.json"], [])
    assert names() == ["out.json", "out.jsonl"]
    assert read_json("out.json") == {"images": [], "categories": [], "annotations": []}
    sink = AnnotatedVideo("out.mp4")
    sink.close()
    sink.close()
    with pytest.raises(InputError, match="The output is closed"):
        sink.write(next(frames(1)), some_detections(1))


def test_images_keep_their_names_and_none_is_lost():
    given = ["a/one.png", "b/one.png", "clip.mp4#7"]
    write(["shown"], [replace(frame, name=name) for frame, name in zip(frames(3), given, strict=True)])
    assert names("shown") == ["clip_000007.jpg", "one.png", "one_1.png"]
    write(["new/x.jpg"], frames(1))  # one image under the name asked for
    assert [read_image(Path(path)).shape for path in ("shown/one.png", "new/x.jpg")] == [(*SIZE, 3)] * 2


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
def test_a_source_gives_its_outputs_their_name(name, expected):
    with check_outputs(["{}.jsonl", "{}"], sources(name)).open() as sinks:
        pass
    assert sinks.paths == [f"{expected}.jsonl", expected]
    assert names() == sorted(sinks.paths)


def test_unknown_outputs_list_the_known_and_one_for_all_is_none_of_those_for_each():
    known = r"\.mp4, \.mkv, \.mov, \.webm, \.jsonl, \.json, \.csv, \.yolo, .*, or be a folder"
    for out in ("out.text", "out.avi", "x.gif"):
        with pytest.raises(InputError, match=f"must end in one of {known}"):
            open_sinks(["fine.jsonl", out])
    with pytest.raises(InputError, match="out must name at least one output, got none"):
        open_sinks([])
    with pytest.raises(InputError, match="out must name each output once"):
        check_outputs(["a.jsonl", "{}.jsonl"], sources("a.mp4", "b.mp4")).open()
    assert names() == []
