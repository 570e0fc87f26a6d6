"""CSV, YOLO labels, and outputs of sources read one after another."""

import csv
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from pycocotools import mask as pycoco_mask

from maskjet.detections import Detections
from maskjet.drawing import Redaction
from maskjet.errors import InputError, OutputError
from maskjet.masks import coco_rle
from maskjet.outputs.folder import unique_stems
from maskjet.outputs.label_options import LabelOptions
from maskjet.outputs.labels import YoloLabels
from maskjet.outputs.opening import check_outputs, open_sinks
from maskjet.outputs.table import CsvTable
from maskjet.sources.expansion import expand_sources
from maskjet.sources.frames import Frame, ListSource
from tests.detections.test_detections import some_detections, tracked_detections
from tests.outputs.outputs import frames, names, write
from tests.sources.clips import picture, write_image, write_video

pytestmark = pytest.mark.usefixtures("in_folder")


def detections_of(*masks, names=None):
    height, width = masks[0].shape
    return Detections(
        image_size=(height, width),
        xyxy=np.array([[0, 0, width, height]] * len(masks), np.float32),
        confidence=np.linspace(0.9, 0.5, len(masks), dtype=np.float32),
        class_id=np.arange(len(masks), dtype=np.int32),
        rle=coco_rle.encode(np.stack(masks)),
        class_names=names or {},
    )


def read_csv(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def test_mot_text_lists_boxes_of_tracks():
    found = tracked_detections(3)
    write(["out.txt"], frames(2), found)
    x1, y1, x2, y2 = found.xyxy[1].tolist()
    first = f"1,0,{x1:g},{y1:g},{x2 - x1:g},{y2 - y1:g},0.7,-1,-1,-1"
    text = Path("out.txt").read_text().splitlines()
    assert text[0] == first
    assert [line.split(",")[:2] for line in text] == [["1", "0"], ["1", "1"], ["2", "0"], ["2", "1"]]
    with pytest.raises(InputError, match=r"^detections must be tracked for 'b.txt', got no track_id"):
        write(["b.txt"], frames(1), some_detections(1))


class TestCsv:
    def test_a_row_per_detection_with_the_values_given(self):
        with open_sinks(["new/out.csv"]) as sinks:
            for frame, count in zip(frames(3), (2, 0, 1), strict=True):
                sinks.write(frame, some_detections(count))
            assert len(Path("new/out.partial.csv").read_text().splitlines()) == 4
        rows = read_csv("new/out.csv")
        assert list(rows[0]) == [
            *("frame", "time_s", "source", "name", "class_id", "class_name", "confidence"),
            *("x1", "y1", "x2", "y2", "area"),
        ]
        assert [row["frame"] for row in rows] == ["0", "0", "2"]
        assert (rows[2]["time_s"], rows[2]["source"], rows[2]["name"]) == ("0.2", "clip.mp4", "clip.mp4#2")
        found = some_detections(2)
        for i in range(2):
            numbers = [np.float32(rows[i][name]) for name in ("x1", "y1", "x2", "y2", "confidence")]
            np.testing.assert_array_equal(numbers, [*found.xyxy[i], found.confidence[i]])
            assert (rows[i]["area"], rows[i]["class_name"]) == (str(found.area[i]), found.class_name[i])

    def test_names_from_outside_are_escaped_and_no_formula(self):
        names = {0: '=HYPERLINK("http://x","y")', 1: 'a,"b"\nc', 2: "@x", 3: "\x1b[31m", 4: "\udcff", 5: "Füße 犬"}
        found = detections_of(*[np.ones((4, 4), np.uint8)] * 6, names=names)
        write(["out.csv"], [Frame(0, None, np.zeros((4, 4, 3), np.uint8), "-x", "+y")], found)
        assert len(Path("out.csv").read_text().splitlines()) == 7
        rows = read_csv("out.csv")
        assert [row["class_name"] for row in rows] == [
            *('\'=HYPERLINK("http://x","y")', 'a,"b"\\nc', "'@x", "\\x1b[31m", "\\udcff", "Füße 犬")
        ]
        assert (rows[0]["time_s"], rows[0]["source"], rows[0]["name"]) == ("", "'-x", "'+y")

    def test_no_frames_leave_a_header_and_an_abandoned_table_nothing(self):
        write(["out.csv"], [])
        assert Path("out.csv").read_text().startswith("frame,time_s,")
        sink = CsvTable("other.csv")
        sink.abandon()
        assert names() == ["out.csv"]
        with pytest.raises(InputError, match="is closed; open another sink"):
            sink.write(next(frames(1)), some_detections(1))
        with pytest.raises(OutputError, match=r"out must be writable, '/dev/full' is not: No space left"):
            CsvTable("/dev/full").write(next(frames(1)), some_detections(1))

    def test_the_first_frame_tells_whether_there_are_tracks(self):
        with open_sinks(["out.csv"]) as sinks:
            for frame, found in zip(frames(2), (tracked_detections(2), some_detections(1)), strict=True):
                sinks.write(frame, found)
        rows = [list(row.values())[-3:] for row in read_csv("out.csv")]
        assert list(read_csv("out.csv")[0])[-3:] == ["area", "track_id", "track_class_id"]
        assert [row[1:] for row in rows] == [["-1", "-2"], ["0", "0"], ["", ""]]

    @pytest.mark.parametrize("kind", [CsvTable, YoloLabels])
    def test_no_nan_is_written(self, kind):
        found = some_detections(1)
        found.xyxy[0, 0] = np.nan
        with pytest.raises(InputError, match="xyxy and confidence must be finite"), kind("x") as sink:
            sink.write(next(frames(1)), found)
        assert write(["out.csv", "out.yolo"], frames(1), found).left_out == 1
        assert read_csv("out.csv") == []


def yolo_lines(path, size=(1, 1)):
    """Class ids, and numbers as points in pixels of an image of (width, height)."""
    rows = [row.split() for row in Path(path).read_text().splitlines()]
    return [int(row[0]) for row in rows], [np.array(row[1:], float).reshape(-1, 2) * size for row in rows]


def decoded(outline, shape):
    """The mask of a polygon, as pycocotools reads it."""
    return pycoco_mask.decode(pycoco_mask.frPyObjects([np.rint(outline).ravel().tolist()], *shape))[..., 0]


EXACT = LabelOptions(polygon_tolerance=0)


class TestYolo:
    def test_outlines_give_the_masks_and_their_boxes_back(self):
        masks = np.zeros((2, 60, 80), np.uint8)
        cv2.circle(masks[0], (30, 25), 14, 1, -1)
        cv2.rectangle(masks[1], (50, 5), (70, 50), 1, -1)
        image = Frame(3, None, np.zeros((60, 80, 3), np.uint8), "s", "images/a.b.png")
        found = detections_of(*masks, names={0: "car", 2: 'a "🚗"\uffff'})
        write(["l.yolo"], [image], found, label_options=EXACT)
        write(["s.yolo"], [image], found)
        assert names("l.yolo") == ["data.yaml", "labels"]
        data = yaml.safe_load(Path("l.yolo/data.yaml").read_text())
        assert data == {"train": "images", "val": "images", "names": {0: "car", 1: "1", 2: 'a "🚗"\ufffd'}}
        ids, lines = yolo_lines("l.yolo/labels/a.b.txt", (80, 60))
        assert ids == [0, 1]
        for mask, rle, line in zip(masks, found.rle, lines, strict=True):
            np.testing.assert_array_equal(decoded(line, mask.shape), mask)
            assert (*line.min(axis=0), *line.max(axis=0)) == pytest.approx(coco_rle.to_xyxy(rle), abs=1e-3)
        _, simple = yolo_lines("s.yolo/labels/a.b.txt", (80, 60))
        assert ([len(line) for line in simple] < [20, 5], len(lines[0]) > 40) == (True, True)

    def test_boxes_and_confidence(self):
        found = some_detections(2, size=(90, 120), with_masks=False)
        write(["opened.yolo"], frames(1, size=(90, 120)), found, label_options=LabelOptions(yolo_confidence=True))
        rows = np.loadtxt("opened.yolo/labels/clip_000000.txt")
        x1, y1, x2, y2 = found.xyxy.T
        expected = [found.class_id, (x1 + x2) / 240, (y1 + y2) / 180, (x2 - x1) / 120, (y2 - y1) / 90, found.confidence]
        np.testing.assert_allclose(rows, np.stack(expected, axis=1), rtol=1e-5)

    def test_boxes_end_at_the_image_and_class_ids_are_bounded(self):
        found = some_detections(1, size=(90, 120), with_masks=False)
        found.xyxy[:] = -5, -5, 300, 45
        write(["l.yolo"], frames(1, size=(90, 120)), found)
        assert Path("l.yolo/labels/clip_000000.txt").read_text() == "0 0.5 0.25 1 0.5\n"
        for found.class_id[0] in (-1, 2**31 - 1):
            with pytest.raises(InputError, match=r"class_id must be 0\.\.65535 in YOLO's labels, got "):
                write(["l.yolo"], frames(1, size=(90, 120)), found)

    def test_rotated_boxes_are_labels_of_four_corners_within_the_image(self):
        masks = np.zeros((3, 60, 80), np.uint8)
        cv2.ellipse(masks[0], (40, 30), (25, 8), 30, 0, 360, 1, -1)
        cv2.ellipse(masks[1], (40, 16), (25, 8), 30, 0, 360, 1, -1)
        found = detections_of(*masks)
        write(["l.yolo"], frames(1, size=(60, 80)), found, label_options=LabelOptions(rotated_boxes=True))
        ids, lines = yolo_lines("l.yolo/labels/clip_000000.txt", (80, 60))
        boxes = found.rotated_boxes()
        assert ids == [0, 1, 2]
        np.testing.assert_allclose(lines, boxes.clip(0, (80, 60)), atol=1e-3)
        assert boxes[1, :, 1].min() < -2
        for line, box in zip(lines, boxes, strict=True):  # read as a rectangle again, as by Ultralytics
            assert cv2.contourArea(line.astype(np.float32)) <= cv2.contourArea(box) + 1e-2
            np.testing.assert_allclose(
                sorted(cv2.minAreaRect(line.astype(np.float32))[1]), sorted(cv2.minAreaRect(box)[1]), rtol=1e-3
            )

    def test_labels_may_be_a_link(self):
        Path("elsewhere").mkdir()
        Path("l.yolo").mkdir()
        Path("l.yolo/labels").symlink_to("../elsewhere")
        write(["l.yolo"], frames(1), some_detections(1), label_options=LabelOptions(yolo_images="copy"))
        assert (names("l.yolo"), names("elsewhere")) == (["data.yaml", "images", "labels"], ["clip_000000.txt"])
        assert names() == ["elsewhere", "l.yolo"]

    @pytest.mark.parametrize("parts", ["largest", "all"])
    def test_a_line_is_one_part_and_no_mask_is_a_box(self, parts):
        largest, square, low = masks = np.zeros((3, 40, 60), np.uint8)
        largest[38:, 2:58] = 1
        square[5:15, 5:15] = 1
        low[2, 50] = 1
        found = detections_of(masks.max(axis=0), np.zeros_like(low))
        options = LabelOptions(yolo_parts=parts, polygon_tolerance=3)
        write(["l.yolo"], frames(1, size=(40, 60)), found, label_options=options)
        ids, lines = yolo_lines("l.yolo/labels/clip_000000.txt", (60, 40))
        expected = masks if parts == "all" else masks[:1]
        assert ids == [0] * len(expected) + [1]
        extents = [[*line.min(axis=0), *line.max(axis=0)] for line in lines]
        boxes = [coco_rle.to_xyxy(rle) for rle in coco_rle.encode(expected)]
        np.testing.assert_allclose(sorted(extents[:-1]), sorted(boxes), atol=1e-3)
        np.testing.assert_allclose(extents[-1], [0, 0, 60, 40])

    @pytest.mark.parametrize("how", ["copy", "link"])
    def test_images_lie_where_a_trainer_looks_for_them(self, how):
        for path in ("in/images/day1/1.png", "in/images/day2/1.png", "in/2.gif"):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write_image(path, picture())
        write_video("clip.mp4", frames=2)
        options = LabelOptions(yolo_images=how)
        for name in ("in", "clip.mp4"):
            (unopened,) = expand_sources(name, recursive=True)
            with check_outputs(["d.yolo"], [unopened], label_options=options).open_in_turn() as sinks:
                sinks.begin(0, source := unopened.open())
                for each in detect(source):
                    sinks.write(*each)
        found = [path.relative_to("d.yolo/images") for path in Path("d.yolo/images").rglob("*.*")]
        assert sorted(map(str, found)) == [
            *("2.jpg", "clip_000000.jpg", "clip_000001.jpg", "day1/1.png", "day2/1.png"),
        ]
        assert all(Path("d.yolo/labels", path).with_suffix(".txt").exists() for path in found)
        assert Path("d.yolo/images/day1/1.png").read_bytes() == Path("in/images/day1/1.png").read_bytes()
        assert Path("d.yolo/images/day1/1.png").is_symlink() == (how == "link")
        (again,) = expand_sources("d.yolo", recursive=True)  # images that are there already stay
        with check_outputs(["d.yolo"], [again], label_options=options).open_in_turn() as sinks:
            sinks.begin(0, source := again.open())
            for each in detect(source):
                sinks.write(*each)
        assert Path("d.yolo/images/day1/1.png").is_symlink() == (how == "link")
        assert len(list(Path("d.yolo/images").rglob("*.*"))) == 5

    def test_no_image_overwrites_that_of_another_source_or_shows_what_is_redacted(self):
        for path in ("a.yolo/images/1.png", "other/1.png"):
            Path(path).parent.mkdir(parents=True)
            write_image(path, picture())
        sources = [ListSource(["a.yolo/images/1.png", "other/1.png"], "s")]
        options = LabelOptions(yolo_images="copy")
        with check_outputs(["a.yolo"], sources, label_options=options).open() as sinks:
            frame = Frame(0, None, picture(), "s", "other/1.png")
            with pytest.raises(InputError, match=r"out must not be where the source is, '.*images/1.png' would be"):
                sinks.write(frame, some_detections(1, size=frame.size_hw))
        with pytest.raises(InputError, match=r"out must not show frames that are .*, 'b.yolo' has"):
            check_outputs(["b.yolo"], sources, style=Redaction(), label_options=options)

    def test_nothing_found_is_an_empty_file_and_a_folder_may_end_in_a_slash(self):
        write(["l.yolo/"], frames(1), some_detections(0))
        assert Path("l.yolo/labels/clip_000000.txt").read_bytes() == b""
        Path("f.yolo").touch()
        with pytest.raises(OutputError, match=r"'.*f\.yolo' is no folder"):
            open_sinks(["f.yolo"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"polygon_tolerance": -1}, "polygon_tolerance must be pixels, at least 0, got -1"),
        ({"polygon_tolerance": np.nan}, "polygon_tolerance must be pixels, at least 0, got nan"),
        ({"yolo_images": "move"}, r"yolo_images must be one of \('none', 'copy', 'link'\), got 'move'"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        LabelOptions(**options)


def detect(source):
    return [(frame, some_detections(1, size=frame.size_hw)) for frame in source]


class TestInTurn:
    def test_each_source_has_outputs_of_its_own_and_one_is_open_at_a_time(self):
        for day in ("in/day1", "in/day2"):
            Path(day).mkdir(parents=True)
            write_video(f"{day}/cam.mp4", frames=2)
            write_image(f"{day}/1.png", picture())
        given = {str(path) for path in Path("in").rglob("*")}
        found = expand_sources("in", recursive=True)
        with check_outputs(["out/{}.mp4", "out/{}_shown", "{}.yolo", "all.csv"], found).open_in_turn() as sinks:
            for position, unopened in enumerate(found):
                with unopened.open() as source:
                    sinks.begin(position, source)
                    for frame, detections in detect(source):
                        sinks.write(frame, detections)
                    assert len(list(Path("out").rglob("*.partial.mp4"))) == 1
        assert {str(path) for path in Path().rglob("*") if path.is_file()} - given == {
            *("all.csv", "out/in.mp4", "out/day1/cam.mp4", "out/day2/cam.mp4"),
            *("out/in_shown/day1/1.png", "out/in_shown/day2/1.png"),
            *(f"out/day{day}/cam_shown/cam_00000{index}.jpg" for day in (1, 2) for index in (0, 1)),
            *("in.yolo/labels/day1/1.txt", "in.yolo/labels/day2/1.txt", "in.yolo/data.yaml"),
            *(f"day{day}/cam.yolo/labels/cam_00000{index}.txt" for day in (1, 2) for index in (0, 1)),
            *(f"day{day}/cam.yolo/data.yaml" for day in (1, 2)),
        }
        assert (sinks.paths[0], len(sinks.paths)) == ("out/in.mp4", 10)
        assert len(read_csv("all.csv")) == 6

    def test_a_broken_source_keeps_partial_outputs_and_the_others_go_on(self):
        found = expand_sources([str(write_video(f"{name}.mp4", frames=2)) for name in "abc"])
        with check_outputs(["out/{}.jsonl"], found).open_in_turn() as sinks:
            for position, unopened in enumerate(found):
                sinks.begin(position, source := unopened.open())
                sinks.write(*detect(source)[0])
                if position == 1:
                    sinks.end(is_whole=False)
        assert names("out") == ["a.jsonl", "b.partial.jsonl", "c.jsonl"]
        assert sinks.paths == [f"out/{name}" for name in names("out")]

    def test_names_below_a_folder(self, tmp_path):
        names = [f"{tmp_path}/{name}" for name in ("a/x.mp4", "b/x.mp4", "b/x.mkv", "x.mp4", "c.d;/.. /x.mp4")]
        assert unique_stems(names, [tmp_path] * 5) == ["a/x", "b/x", "b/x_2", "x", "c_d_/source/x"]
        assert unique_stems(names) == ["x", "x_2", "x_3", "x_4", "x_5"]
        alike = ["a.mp4", "x/a.mp4", "a_2.mp4", "y/a.mkv"]
        assert sorted(unique_stems(alike)) == ["a", "a_2", "a_2_2", "a_3"]
        assert unique_stems([str(tmp_path)], [tmp_path]) == [tmp_path.name.replace(".", "_")]
