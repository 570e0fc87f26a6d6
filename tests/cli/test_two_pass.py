"""`--track=two-pass`: what blinks out stays hidden, what fills gaps is told apart, and live sources are refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from maskjet.detections import Detections
from maskjet.masks import coco_rle
from maskjet.model import Model
from maskjet.sources.frames import open_source
from tests.outputs.outputs import lines, names
from tests.sources.clips import encode

pytestmark = pytest.mark.usefixtures("quick")
SIZE, COUNT, BLINK = (96, 160), 36, range(12, 22)
STOP = {}  # "at": the index of a frame at which the run is stopped
NAMES = {0: "car", 4: "person"}


def face(index):
    """Left, top, right and bottom of a face that moves."""
    return 10 + 3 * index, 30 + index // 2, 26 + 3 * index, 54 + index // 2


def found_in(index):
    """A face, missed in ten frames and once taken for a car; and a ghost in one frame."""
    boxes = [] if index in BLINK else [(face(index), 0.9, 0 if index == 27 else 4)]
    if index == 5:
        boxes.append(((100, 60, 120, 90), 0.8, 4))
    if index == 24:
        boxes[0] = (face(index), 0.3, 4)
    masks = np.zeros((len(boxes), *SIZE), bool)
    for mask, ((x1, y1, x2, y2), *_) in zip(masks, boxes, strict=True):
        mask[y1:y2, x1:x2] = True
    return Detections(
        SIZE,
        np.array([box for box, *_ in boxes], np.float32).reshape(-1, 4),
        np.array([score for _, score, _ in boxes], np.float32),
        np.array([class_id for *_, class_id in boxes], np.int32),
        coco_rle.encode(masks),
        NAMES,
    )


@pytest.fixture(autouse=True)
def _video(tmp_path, monkeypatch):
    """A red face on grey, on which the model finds it as above."""
    images = []
    for index in range(COUNT):
        image = np.full((*SIZE, 3), 128, np.uint8)
        x1, y1, x2, y2 = face(index)
        image[y1:y2, x1:x2] = (255, 0, 0)
        images.append(image)
    monkeypatch.chdir(tmp_path)
    encode("face.mp4", images, options={"crf": "1"}, rate=20)

    def stream(model, source, *, track, weak, stop, **_options):
        tracker = model.tracker()
        for frame in source:
            if frame.index == STOP.get("at"):
                stop.set()
                return
            found = found_in(frame.index)
            tracked = tracker.update(found, frame.time_s) if track else found
            yield frame, tracked if weak else tracked[found.confidence > 0.5]

    monkeypatch.setattr(Model, "stream", stream)


def red_in(path):
    """The frames of a video of which anything red is seen."""
    shown = [frame.image.astype(int) for frame in open_source(path)]
    assert len(shown) == COUNT
    return [index for index, image in enumerate(shown) if (image[..., 0] - image[..., 1]).max() > 60]


def test_a_face_that_blinks_out_stays_hidden(maskjet):
    for flags, seen in (("", [*BLINK, 24, 27]), ("--track=two-pass", [])):
        line = f"run face.mp4 --draw redact=person --hold 0 --margin 2 -o hidden.mp4 -o hidden.jsonl {flags}"
        assert maskjet(line)[0] == 0
        assert red_in("hidden.mp4") == seen
    assert [len(each["detections"]) for each in lines("hidden.jsonl")] == [1] * 5 + [2] + [1] * 30  # with the ghost


def test_what_fills_a_gap_is_told_apart(maskjet):
    code, _, err = maskjet("run face.mp4 --track=two-pass -o all.jsonl -o all.txt -o all.csv --json")
    assert (code, err) == (0, "")
    rows = [(each["index"], *each["detections"]) for each in lines("all.jsonl")]
    assert [index for index, row in rows if row["filled"]] == [*BLINK, 24]
    assert [row["confidence"] for index, row in rows if index in BLINK] == [0] * len(BLINK)
    assert {(row["track_id"], row["track_class_id"]) for _, row in rows} == {(1, 4)}
    assert rows[27][1]["class_name"] == "car"
    for index, row in rows:
        np.testing.assert_allclose(row["xyxy"], face(index), atol=1)
        found = coco_rle.encode(coco_rle.decode(row["rle"]))[0]
        x1, y1, x2, y2 = face(index)
        mask = np.zeros(SIZE, bool)
        mask[y1:y2, x1:x2] = True
        assert coco_rle.iou(found, coco_rle.encode(mask)[0]) > 0.9
    again = [Detections.from_dict(each) for each in lines("all.jsonl")]
    assert [each.filled.item() for each in again] == [row["filled"] for _, row in rows]


@pytest.mark.parametrize("more", ["rtsp://127.0.0.1:9/a", "face.mp4 face.mp4 --side-by-side"])
def test_sources_that_are_read_once_are_refused(maskjet, more):
    code, _, err = maskjet(f"run {more} --track=two-pass -o out.jsonl")
    assert code == 2
    assert err.startswith("maskjet: --track must be without two-pass for cameras, URLs and sources that are read side")
    assert maskjet("run face.mp4 --track=twice -o out.jsonl")[2] == (
        "maskjet: --track must be two-pass, or have no value, got 'twice'.\n"
    )
    assert names() == ["face.mp4"]


def test_a_source_that_changes_is_no_output(maskjet, monkeypatch):
    opened = []

    def shorter(_, unopened):
        opened.append(unopened)
        return open_source(unopened.name, limit=None if len(opened) % 2 else 20)

    monkeypatch.setattr("maskjet.cli.runs.Run.open", shorter)
    code, _, err = maskjet("run face.mp4 --track=two-pass -o out.mp4")
    assert code == 3
    assert "source must stay as it is during both passes, 'face.mp4' has changed" in err
    assert "out.mp4" not in names()


def test_a_first_pass_that_is_stopped_replaces_nothing(maskjet, monkeypatch):
    Path("out.jsonl").write_text("before")
    monkeypatch.setitem(STOP, "at", 20)
    _, out, _ = maskjet("run face.mp4 --track=two-pass -o out.jsonl --json")
    summary = json.loads(out)
    assert (summary["frames"], summary["sources"][0]["state"]) == (0, "stopped")
    assert Path("out.jsonl").read_text() == "before"
    assert names() == ["face.mp4", "out.jsonl"]
