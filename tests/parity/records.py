"""Records with known contents, and with planted faults."""

import numpy as np

from benchmarks.streets import Streets
from maskjet import traffic
from maskjet.detections import Detections
from maskjet.masks import coco_rle
from maskjet.parity.record import read_record, write_record

STREETS = Streets(count=4, size_hw=(96, 160), seed=5)
IMAGES = [(STREETS.name(number), image) for number, image in enumerate(STREETS.read())]
NAMES = {0: "car", 1: "truck"}
BOXES = [(10, 20, 60, 60), (80, 30, 120, 70), (100, 72, 150, 94)]


def detections(
    boxes=BOXES,
    class_id=(0, 1, 0),
    confidence=(0.9, 0.75, 0.5),
    flipped=(),
    *,
    size_hw=STREETS.size_hw,
    class_names=NAMES,
):
    """Whose masks fill their boxes, but for the upper left pixel of those that are flipped."""
    masks = np.zeros((len(boxes), *size_hw), np.uint8)
    for number, (x1, y1, x2, y2) in enumerate(boxes):
        masks[number, y1:y2, x1:x2] = 1
        if number in flipped:
            masks[number, y1, x1] = 0
    return Detections(
        image_size=size_hw,
        xyxy=np.array(boxes, np.float32).reshape(-1, 4),
        confidence=np.array(confidence[: len(boxes)], np.float32),
        class_id=np.array(class_id[: len(boxes)], np.int32),
        rle=coco_rle.encode(masks),
        class_names=class_names,
    )


def record(path, found=None, images=IMAGES, **settings):
    """Of the four streets, three detections on each, written and read; `found` replaces those of the first ones."""
    found = [*(found or []), *(detections() for _ in images)][: len(images)]
    given = {"classes": NAMES, "threshold": 0.05, "config": {"precision": "fp32"}, **settings}
    write_record(path, [(*image, each) for image, each in zip(images, found, strict=True)], **given)
    return read_record(path)


def truthful(path):
    """What is on the four streets, all of it certain."""
    found = []
    for number in range(4):
        scene = traffic.sample(STREETS.seed + number, size_hw=STREETS.size_hw)
        boxes, masks = scene.xyxy(), coco_rle.encode(scene.masks())
        certain = np.full(len(boxes), 0.9, np.float32)
        found.append(
            Detections(STREETS.size_hw, boxes, certain, scene.class_id, masks, dict(enumerate(traffic.CLASSES)))
        )
    return record(path, found, classes=dict(enumerate(traffic.CLASSES)))


FAULTS = {
    "dropped": detections(BOXES[:2]),
    "added": detections([*BOXES, (2, 70, 30, 90)], class_id=(0, 1, 0, 1), confidence=(0.9, 0.75, 0.5, 0.4)),
    "class swapped": detections(class_id=(0, 1, 1)),
    "box moved": detections([BOXES[0], (83, 30, 123, 70), BOXES[2]]),
    "mask changed": detections(flipped=(1,)),
    "confidence changed": detections(confidence=(0.9, 0.75, 0.45)),
}
"""By what `pair.KINDS` calls them: three detections of which one is wrong so."""
