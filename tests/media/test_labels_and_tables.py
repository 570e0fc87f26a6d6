"""CSV, YOLO labels, and outputs of sources read one after another."""

import csv
from dataclasses import replace

import cv2
import numpy as np
import pytest

from maskjet import coco_rle
from maskjet.detections import Detections
from maskjet.errors import InputError, OutputError
from maskjet.media.expansion import expand_sources
from maskjet.media.frames import Frame, open_source
from maskjet.media.sinks import CsvTable, YoloLabels, check_outputs, open_sinks, open_sinks_by_source
from maskjet.media.sinks.labels import _join
from maskjet.media.sinks.outputs import unique_stems
from tests.media.test_frames import picture, write_image, write_video
from tests.media.test_sinks import frames, sources, write
from tests.test_detections import some_detections


def detections_of(*masks, names=None):
    height, width = masks[0].shape
    xyxy = np.array([[0, 0, width, height]] * len(masks), np.float32)
    return Detections(
        image_size=(height, width),
        xyxy=xyxy,
        confidence=np.linspace(0.9, 0.5, len(masks), dtype=np.float32),
        class_id=np.arange(len(masks), dtype=np.int32),
        rle=coco_rle.encode(np.stack(masks)),
        class_names=names or {},
    )


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class TestCsv:
    def test_a_row_per_detection_with_the_values_given(self, tmp_path):
        path = tmp_path / "new" / "out.csv"
        with open_sinks([str(path)]) as sinks:
            for frame, count in zip(frames(3), (2, 0, 1), strict=True):
                sinks.write(frame, some_detections(count))
            assert len((tmp_path / "new" / "out.partial.csv").read_text().splitlines()) == 4
        rows = read_csv(path)
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

    def test_names_from_outside_are_escaped_and_no_formula(self, tmp_path):
        names = {0: '=HYPERLINK("http://x","y")', 1: 'a,"b"\nc', 2: "@x", 3: "\x1b[31m", 4: "\udcff", 5: "Füße 犬"}
        found = detections_of(*[np.ones((4, 4), np.uint8)] * 6, names=names)
        with CsvTable(str(tmp_path / "out.csv")) as sink:
            sink.write(Frame(0, None, np.zeros((4, 4, 3), np.uint8), "-x", "+y"), found)
        text = (tmp_path / "out.csv").read_text()
        assert len(text.splitlines()) == 7
        rows = read_csv(tmp_path / "out.csv")
        assert [row["class_name"] for row in rows] == [
            *('\'=HYPERLINK("http://x","y")', 'a,"b"\\nc', "'@x", "\\x1b[31m", "\\udcff", "Füße 犬")
        ]
        assert (rows[0]["time_s"], rows[0]["source"], rows[0]["name"]) == ("", "'-x", "'+y")

    def test_several_sources_share_a_table(self, tmp_path):
        with open_sinks_by_source([f"{tmp_path}/all.csv"], sources("a.mp4", "a.mp4")) as sinks:
            for stream, frame in enumerate(frames(2)):
                sinks.write(replace(frame, stream=stream), some_detections(1))
        assert [row["stream"] for row in read_csv(tmp_path / "all.csv")] == ["0", "1"]

    def test_no_frames_leave_a_header_and_an_abandoned_table_nothing(self, tmp_path):
        write([tmp_path / "out.csv"], [])
        assert (tmp_path / "out.csv").read_text().startswith("frame,time_s,")
        sink = CsvTable(str(tmp_path / "other.csv"))
        sink.abandon()
        assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]
        with pytest.raises(InputError, match="is closed; open another sink"):
            sink.write(next(frames(1)), some_detections(1))

    @pytest.mark.parametrize("kind", [CsvTable, YoloLabels])
    def test_no_nan_is_written(self, kind, tmp_path):
        found = some_detections(1)
        found.xyxy[0, 0] = np.nan
        with pytest.raises(InputError, match="xyxy and confidence must be finite"), kind(str(tmp_path / "x")) as sink:
            sink.write(next(frames(1)), found)
        with open_sinks([str(tmp_path / "out.csv"), str(tmp_path / "out.yolo")]) as sinks:
            sinks.write(next(frames(1)), found)
        assert (sinks.left_out, read_csv(tmp_path / "out.csv")) == (1, [])

    def test_a_full_disk_is_named(self):
        with pytest.raises(OutputError, match=r"out must be writable, '/dev/full' is not: No space left"):
            CsvTable("/dev/full")


class TestYolo:
    def test_outlines_give_the_masks_back(self, tmp_path):
        masks = np.zeros((2, 60, 80), np.uint8)
        cv2.circle(masks[0], (30, 25), 14, 1, -1)
        cv2.rectangle(masks[1], (50, 5), (70, 50), 1, -1)
        image = Frame(3, None, np.zeros((60, 80, 3), np.uint8), "s", "images/a.b.png")
        write_with(tmp_path / "l.yolo", [(image, detections_of(*masks, names={0: "car", 1: 'a "b"'}))])
        assert sorted(path.name for path in (tmp_path / "l.yolo").iterdir()) == ["a.b.txt", "names.yaml"]
        assert (tmp_path / "l.yolo" / "names.yaml").read_text() == 'names:\n  0: "car"\n  1: "a \\"b\\""\n'
        lines = [line.split() for line in (tmp_path / "l.yolo" / "a.b.txt").read_text().splitlines()]
        assert [line[0] for line in lines] == ["0", "1"]
        for mask, (_, *numbers) in zip(masks, lines, strict=True):
            outline = np.array(numbers, float).reshape(-1, 2) * (80, 60)
            shown = cv2.fillPoly(np.zeros_like(mask), [np.rint(outline).astype(int)], 1)
            np.testing.assert_array_equal(shown, mask)

    def test_boxes_and_confidence(self, tmp_path):
        found = some_detections(2, size=(90, 120), with_masks=False)
        with YoloLabels(str(tmp_path), with_confidence=True) as sink:
            sink.write(next(frames(1, size=(90, 120))), found)
        rows = np.loadtxt(tmp_path / "clip_000000.txt")
        x1, y1, x2, y2 = found.xyxy.T
        expected = [found.class_id, (x1 + x2) / 240, (y1 + y2) / 180, (x2 - x1) / 120, (y2 - y1) / 90, found.confidence]
        np.testing.assert_allclose(rows, np.stack(expected, axis=1), rtol=1e-5)
        with open_sinks([f"{tmp_path}/opened.yolo"], with_confidence=True) as sinks:
            sinks.write(next(frames(1, size=(90, 120))), found)
        opened = tmp_path / "opened.yolo" / "clip_000000.txt"
        assert opened.read_bytes() == (tmp_path / "clip_000000.txt").read_bytes()

    def test_parts_are_one_outline_and_no_mask_is_a_box(self, tmp_path):
        masks = np.zeros((3, 40, 60), np.uint8)
        masks[0, 5:15, 5:15] = masks[0, 20:38, 30:50] = masks[0, 2:6, 50:58] = 1
        masks[1, 3, 3] = 1
        write_with(tmp_path / "l.yolo", [(next(frames(1, size=(40, 60))), detections_of(*masks))])
        lines = (tmp_path / "l.yolo" / "clip_000000.txt").read_text().splitlines()
        outline = np.array(lines[0].split()[1:], float).reshape(-1, 2) * (60, 40)
        shown = cv2.fillPoly(np.zeros((40, 60), np.uint8), [np.rint(outline).astype(int)], 1)
        assert (shown >= masks[0]).all()
        assert shown.sum() < masks[0].sum() + 60  # the lines between the parts
        assert [line.split()[1:] for line in lines[1:]] == [["0", "0", "1", "0", "1", "1", "0", "1"]] * 2

    def test_an_outline_of_many_parts_has_the_area_of_all(self):
        parts = [
            np.array([(x, y), (x + 2, y), (x + 2, y + 2), (x, y + 2)], np.float32) for x, y in ((0, 0), (9, 1), (4, 8))
        ]
        assert cv2.contourArea(_join(parts).astype(np.float32)) == 12

    def test_nothing_found_is_an_empty_file(self, tmp_path):
        write_with(tmp_path / "l.yolo", [(next(frames(1)), some_detections(0))])
        assert (tmp_path / "l.yolo" / "clip_000000.txt").read_bytes() == b""

    def test_a_slash_at_the_end_and_a_file_of_that_name(self, tmp_path):
        write_with(f"{tmp_path}/l.yolo/", [(next(frames(1)), some_detections(1))])
        assert (tmp_path / "l.yolo" / "clip_000000.txt").exists()
        (tmp_path / "f.yolo").touch()
        with pytest.raises(OutputError, match=r"'.*f\.yolo' is no folder"):
            open_sinks([f"{tmp_path}/f.yolo"])


def write_with(out, items):
    with open_sinks([str(out)]) as sinks:
        for frame, detections in items:
            sinks.write(frame, detections)


def detect(source):
    return [(frame, some_detections(1, size=frame.image.shape[:2])) for frame in source]


class TestInTurn:
    def test_each_source_has_outputs_of_its_own_and_one_is_open_at_a_time(self, tmp_path):
        for name in ("day1/cam.mp4", "day2/cam.mp4", "day1/1.png", "day2/1.png"):
            (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
            write_video(tmp_path / "in" / name, frames=2) if "mp4" in name else write_image(
                tmp_path / "in" / name, picture()
            )
        found = expand_sources(tmp_path / "in", recursive=True)
        outs = [
            f"{tmp_path}/out/{{}}.mp4",
            f"{tmp_path}/out/{{}}_shown",
            f"{tmp_path}/{{}}.yolo",
            f"{tmp_path}/all.csv",
        ]
        outputs = check_outputs(outs, found)
        with outputs.open_in_turn() as sinks:
            for position, unopened in enumerate(found):
                with unopened.open() as source:
                    sinks.begin(position, source)
                    for frame, detections in detect(source):
                        sinks.write(frame, detections)
                    assert len(list((tmp_path / "out").rglob("*.partial.mp4"))) == 1
        written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
        assert written - {f"in/{name}" for name in ("day1/cam.mp4", "day2/cam.mp4", "day1/1.png", "day2/1.png")} == {
            *("all.csv", "out/in.mp4", "out/day1/cam.mp4", "out/day2/cam.mp4"),
            *("out/in_shown/day1/1.png", "out/in_shown/day2/1.png"),
            *(f"out/day{day}/cam_shown/cam_00000{index}.jpg" for day in (1, 2) for index in (0, 1)),
            *("in.yolo/day1/1.txt", "in.yolo/day2/1.txt", "in.yolo/names.yaml"),
            *(f"day{day}/cam.yolo/cam_00000{index}.txt" for day in (1, 2) for index in (0, 1)),
            *(f"day{day}/cam.yolo/names.yaml" for day in (1, 2)),
        }
        assert sinks.paths[0] == f"{tmp_path}/out/in.mp4"
        assert len(sinks.paths) == 10
        assert len(read_csv(tmp_path / "all.csv")) == 6

    def test_a_broken_source_keeps_partial_outputs_and_the_others_go_on(self, tmp_path):
        found = expand_sources([str(write_video(tmp_path / f"{name}.mp4", frames=2)) for name in "abc"])
        outputs = check_outputs([f"{tmp_path}/out/{{}}.jsonl"], found)
        with outputs.open_in_turn() as sinks:
            for position, unopened in enumerate(found):
                sinks.begin(position, source := unopened.open())
                sinks.write(*detect(source)[0])
                if position == 1:
                    sinks.end(is_whole=False)
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.jsonl", "b.partial.jsonl", "c.jsonl"]
        assert [path.rpartition("/")[2] for path in sinks.paths] == ["a.jsonl", "b.partial.jsonl", "c.jsonl"]

    def test_sources_of_one_name_are_told_apart(self, tmp_path):
        video = str(write_video(tmp_path / "a.mp4", frames=1))
        found = expand_sources([video, video])
        with check_outputs([f"{tmp_path}/all.csv"], found).open_in_turn() as sinks:
            for position, unopened in enumerate(found):
                sinks.begin(position, source := unopened.open())
                sinks.write(*detect(source)[0])
        assert [row["stream"] for row in read_csv(tmp_path / "all.csv")] == ["0", "1"]

    def test_no_unopened_source_is_written_over(self, tmp_path):
        found = expand_sources([str(write_video(tmp_path / f"{name}.mp4", frames=1)) for name in "ab"])
        with pytest.raises(InputError, match=r"out must not be the source, got '.*a\.mp4' for both"):
            check_outputs([f"{tmp_path}/{{}}.mp4"], found)
        with pytest.raises(InputError, match=r"out must contain \{\} for several sources, got 'x\.yolo'"):
            check_outputs(["x.yolo"], found)

    def test_names_below_a_folder(self, tmp_path):
        names = [f"{tmp_path}/{name}" for name in ("a/x.mp4", "b/x.mp4", "b/x.mkv", "x.mp4", "c.d;/.. /x.mp4")]
        roots = [tmp_path] * 5
        assert unique_stems(names, roots) == ["a/x", "b/x", "b/x_2", "x", "c_d_/source/x"]
        assert unique_stems(names) == ["x", "x_2", "x_3", "x_4", "x_5"]
        assert unique_stems([str(tmp_path)], [tmp_path]) == [tmp_path.name.replace(".", "_")]


def test_recursive_images_keep_their_folders_in_names(tmp_path):
    for name in ("a/1.jpg", "b/1.jpg"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        write_image(tmp_path / "in" / name, picture())
    with open_source(tmp_path / "in", recursive=True) as source:
        with open_sinks_by_source([f"{tmp_path}/out"], [source]) as sinks:
            for frame, detections in detect(source):
                sinks.write(frame, detections)
        with pytest.raises(InputError, match="out must not be where the source is"):
            check_outputs([f"{tmp_path}/in"], [source])
    assert sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "out").rglob("*.jpg")) == [
        *("out/a/1.jpg", "out/b/1.jpg")
    ]
