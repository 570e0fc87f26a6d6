"""Evaluating the demo model: the truth scores full marks, and calibration moves all scores alike."""

from importlib.resources import files

import numpy as np

import maskjet
from maskjet.detections import Detections
from maskjet.masks import coco_rle
from maskjet.traffic import sample
from tools.train_demo import calibrate, evaluate


class Fake:
    """A model that finds what it is given, image by image."""

    def __init__(self, find):
        self.find, self.asked = find, 0

    def predict(self, image):
        scene = sample(evaluate.FIRST_SEED + self.asked, size_hw=image.shape[:2])
        self.asked += 1
        boxes, classes, masks = self.find(scene)
        certain = np.ones(len(classes), np.float32)
        return Detections(image.shape[:2], boxes, certain, classes, coco_rle.encode(masks))


def truth(scene):
    return scene.xyxy(), scene.class_id, scene.masks()


def one_thing(scene):
    return np.float32([[0, 0, 9, 9]]), np.int32([2]), np.ones((1, *scene.image.shape[:2]), bool)


def test_the_truth_gets_full_marks_and_a_wrong_answer_none():
    scenes = evaluate.Scenes(4, (48, 80))
    perfect, wrong = (evaluate.evaluate(Fake(find), scenes) for find in (truth, one_thing))
    for kind in evaluate.KINDS:
        assert perfect[kind]["AP"] == 1
        assert wrong[kind]["AP"] < 0.1


def test_calibration_puts_a_score_just_below_the_threshold_and_keeps_the_order(tmp_path):
    image = sample(evaluate.FIRST_SEED + 8, size_hw=(96, 160)).image
    with maskjet.load("demo", threshold=0.05) as model:
        before = model.predict(image)
    score = float(before.confidence[1])
    calibrate.shift_scores(files("maskjet.networks.demo") / "weights.safetensors", tmp_path / "new.safetensors", score)
    with maskjet.load(tmp_path / "new.safetensors", threshold=0.01) as model:
        after = model.predict(image)
    assert 0.48 < after.confidence[1] < 0.5
    np.testing.assert_array_equal(after.xyxy[:4], before.xyxy[:4])
