"""Frames that tests write to outputs, and what lies in those."""

import json
from pathlib import Path

import numpy as np

from maskjet.outputs.opening import check_outputs, open_sinks
from maskjet.sources.frames import open_source
from maskjet.sources.source import Frame
from tests.detections.test_detections import some_detections

SIZE = (48, 64)


def frames(count, *, size=SIZE, fps=10, clock=True):
    noise = np.random.default_rng(5).integers(0, 256, (*size, 3), np.uint8)
    for index in range(count):
        image = np.roll(noise, index, axis=1)
        yield Frame(index, index / fps if clock else None, image, "clip.mp4", f"clip.mp4#{index}")


def write(outs, items, found=None, **options):
    with open_sinks([str(out) for out in outs], **options) as sinks:
        for frame in items:
            sinks.write(frame, some_detections(2, size=frame.size_hw) if found is None else found)
    return sinks


def annotate(source, out, *, instances=1, **options):
    """Write a video of a source's frames, with instances drawn in; returns the frames' number."""
    with open_source(source, **options) as opened, check_outputs([str(out)], [opened]).open() as sinks:
        count = 0
        for frame in opened:
            sinks.write(frame, some_detections(instances, size=frame.size_hw))
            count += 1
    return count


def names(folder="."):
    return sorted(path.name for path in Path(folder).iterdir())


def images(path):
    return [frame.image for frame in open_source(path)]


def times(path):
    return [frame.time_s for frame in open_source(path)]


def lines(path):
    """What the lines of a file of JSON lines say."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def read_json(path):
    return json.loads(Path(path).read_text())
