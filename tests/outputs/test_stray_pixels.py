"""Pixels of masks outside their boxes: not drawn unless asked for, but always redacted."""

from pathlib import Path

import numpy as np
import pytest

from maskjet.detections import Detections
from maskjet.drawing import Cutout, DrawStyle, Redaction, draw
from maskjet.masks import coco_rle
from maskjet.outputs.opening import open_sinks
from maskjet.sources.images import read_image
from tests.outputs.outputs import lines
from tests.outputs.test_redaction import even, frame, grown, noise

SIZE = (60, 80)
IMAGE = noise(SIZE, 1)
INSIDE, STRAY = np.zeros(SIZE, bool), np.zeros(SIZE, bool)
INSIDE[10:40, 10:30] = STRAY[45:50, 60:66] = STRAY[5:40, 50:60] = True
SHOWN = {"raw": INSIDE | STRAY, "box": INSIDE}
TINT = {"boxes": False, "labels": False, "scores": False, "outlines": False}


def found():
    rle = coco_rle.encode(SHOWN["raw"])
    box = np.array([[10.4, 10.4, 29.2, 39.5]], np.float32)
    return Detections(SIZE, box, np.ones(1, np.float32), np.zeros(1, np.int32), rle, {0: "person"})


def changed(shown):
    return (shown[..., :3] != IMAGE).any(axis=-1)


@pytest.mark.parametrize("which", [None, *SHOWN])
def test_pictures_show_those_inside_boxes_unless_others_are_asked_for(which):
    style = DrawStyle(**TINT) if which is None else DrawStyle(**TINT, mask_pixels=which)
    expected = SHOWN[which or "box"]
    tinted = changed(draw(IMAGE, found(), style))
    assert not tinted[~expected].any()
    assert tinted[expected].mean() > 0.9
    np.testing.assert_array_equal(changed(draw(IMAGE, found(), Redaction(["car"], on_top=style))), tinted)


@pytest.mark.parametrize("which", SHOWN)
def test_redaction_and_cutouts_take_all_whatever_is_drawn(which):
    style = DrawStyle(**TINT, mask_pixels=which)
    for margin in (0, 3):
        hidden = draw(IMAGE, found(), Redaction(margin=margin))
        np.testing.assert_array_equal((hidden == 0).all(axis=-1), grown(SHOWN["raw"], margin))
        again = draw(IMAGE, found(), Redaction(margin=margin, on_top=style))
        assert not again[grown(SHOWN["raw"], margin) & ~SHOWN[which]].any()
    cut = draw(IMAGE, found(), Cutout(replace_with="transparent"))
    np.testing.assert_array_equal(cut[..., 3] > 0, SHOWN["raw"])


@pytest.mark.parametrize("which", [None, *SHOWN])
def test_outputs_have_all_unless_asked_for_less_beside_pictures_that_redact_all(which, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {} if which is None else {"mask_pixels": which}
    with open_sinks(["a.jsonl", "a.csv", "hidden.png"], style=Redaction(margin=0), **options) as sinks:
        sinks.write(frame(IMAGE), found())
    expected = SHOWN[which or "raw"]
    written = Detections.from_dict(lines("a.jsonl")[0])
    np.testing.assert_array_equal(written.masks()[0], expected)
    np.testing.assert_array_equal(written.xyxy, found().xyxy)
    assert Path("a.csv").read_text().split(",")[-1].strip() == str(expected.sum())
    np.testing.assert_array_equal((read_image(Path("hidden.png")) == 0).all(axis=-1), even(SHOWN["raw"]))
