"""Measure the demo model on streets it has not seen. Writes the report as JSON and prints it as Markdown.

    python -m tools.train_demo.evaluate --out benchmarks/demo_model.json --picture docs/demo_model.jpg

COCO metrics over all detections above 0.001, at most 100 an image; the truth lists every instance of at least
`maskjet.traffic.MIN_PIXELS` visible pixels.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import cv2
import numpy as np
import rich.progress

import maskjet
from maskjet.detections import Detections
from maskjet.drawing import draw
from maskjet.host.machine import describe_machine
from maskjet.masks import coco_rle
from maskjet.parity.coco import Scores
from maskjet.traffic import CLASSES, MIN_PIXELS, Street, sample
from maskjet.traffic.dataset import CATEGORIES, annotate

FIRST_SEED = 9_000_000  # training draws from 1,000,000 to 3,000,400
SIZE_HW = (176, 312)
SIZES_HW = [(216, 384), (360, 640), (720, 1280), (1080, 1920), (240, 320), (240, 240), (320, 240)]


def changes(random):
    """What happens to images on their way: name to function."""

    def compress(image, quality):
        return cv2.imdecode(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1], cv2.IMREAD_COLOR)

    return {
        "unchanged": lambda image: image,
        "brightness × 0.5": lambda image: _clip(image * 0.5),
        "brightness × 1.5": lambda image: _clip(image * 1.5),
        "contrast × 0.6": lambda image: _clip((image - 128.0) * 0.6 + 128),
        "blur, σ = 0.7 px": lambda image: cv2.GaussianBlur(image, (0, 0), 0.7),
        "blur, σ = 1.5 px": lambda image: cv2.GaussianBlur(image, (0, 0), 1.5),
        "noise, σ = 8 of 255": lambda image: _clip(image + random.normal(0, 8, image.shape)),
        "noise, σ = 20 of 255": lambda image: _clip(image + random.normal(0, 20, image.shape)),
        "JPEG, quality 92": lambda image: compress(image, 92),
        "JPEG, quality 50": lambda image: compress(image, 50),
        "red and blue swapped": lambda image: np.ascontiguousarray(image[..., ::-1]),
        "grey": lambda image: cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB),
    }


def _clip(image):
    return image.round().clip(0, 255).astype(np.uint8)


class Scenes:
    """Streets as a COCO data set in memory, images as they were drawn."""

    def __init__(self, count, size_hw):
        self.images, annotations, entries = [], [], []
        for image_id in range(count):
            scene = sample(FIRST_SEED + image_id, size_hw=size_hw)
            self.images.append(scene.image)
            entries.append({"id": image_id, "height": size_hw[0], "width": size_hw[1]})
            annotations += annotate(scene, image_id, len(annotations) + 1)
        self.truth = {"images": entries, "annotations": annotations, "categories": CATEGORIES}


def evaluate(model, scenes, change=lambda image: image):
    """COCO's numbers of a model, for boxes and for masks; `change` is done to every image before."""
    ids = {category["id"] - 1: category["id"] for category in CATEGORIES}
    found = [model.predict(change(image)) for image in scenes.images]
    numbers = {}
    for kind in KINDS:
        results = [entry for image_id, each in enumerate(found) for entry in each.to_coco(image_id, ids, kind=kind)]
        numbers[kind] = _summarise(Scores.of(scenes.truth, results, kind))
    return numbers


KINDS = ("segm", "bbox")
METRICS = ("AP", "AP50", "AP75", "small", "medium", "large")


def _summarise(scores):
    numbers = dict(zip(METRICS, list(scores.metrics().values())[:6], strict=True))
    numbers |= {name: scores.metrics(number)["ap"] for number, name in enumerate(CLASSES)}
    return {name: round(value, 4) for name, value in numbers.items() if value is not None}  # or there is none


def images_of_nothing(first_seed):
    """Images without any thing on them, by kind."""
    random = np.random.default_rng(first_seed)
    height, width = SIZE_HW
    return {
        "empty street": [Street(first_seed + number, SIZE_HW, density=0).frame(0).image for number in range(200)],
        "uniform noise": [random.integers(0, 256, (height, width, 3), np.uint8) for _ in range(100)],
        "normal noise": [_clip(random.normal(128, 40, (height, width, 3))) for _ in range(100)],
        "noise in patches": [
            cv2.resize(random.integers(0, 256, (11, 20, 3), np.uint8), (width, height)) for _ in range(100)
        ],
        "one colour": [np.full((height, width, 3), random.integers(0, 256, 3), np.uint8) for _ in range(100)],
    }


def count_ghosts(model):
    """Detections at the default threshold where there is nothing: {kind: (images, detections)}."""
    kinds = images_of_nothing(FIRST_SEED)
    return {kind: (len(images), sum(len(model.predict(image)) for image in images)) for kind, images in kinds.items()}


def draw_pairs(model, path):
    """A picture of predictions, left, beside the truth, right."""
    rows = []
    for seed in range(FIRST_SEED + 2, FIRST_SEED + 6):
        scene = sample(seed, size_hw=(360, 640))
        names = dict(enumerate(CLASSES))
        rles = coco_rle.encode(scene.masks())
        certain = np.ones(len(rles), np.float32)
        truth = Detections((360, 640), scene.xyxy(), certain, scene.class_id, rles, names)
        rows.append(np.hstack([draw(scene.image, model.predict(scene.image)), draw(scene.image, truth)]))
    cv2.imwrite(str(path), np.vstack(rows)[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 82])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="demo", help="a safetensors file, or the demo model in the package")
    parser.add_argument("--scenes", type=int, default=500)
    parser.add_argument("--robustness-scenes", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True, help="the report, a JSON file")
    parser.add_argument("--picture", type=Path, help="predictions beside the truth, a .jpg")
    args = parser.parse_args()
    machine = describe_machine()
    eager = maskjet.load(args.weights, threshold=0.001, max_detections=100)
    half = maskjet.load(args.weights, threshold=0.001, max_detections=100, precision="bf16")
    report = {"machine": asdict(machine), "scenes": args.scenes, "first_seed": FIRST_SEED, "size_hw": SIZE_HW}
    scenes = Scenes(args.scenes, SIZE_HW)
    report["fp32"], report["bf16"] = evaluate(eager, scenes), evaluate(half, scenes)
    table = report["robustness"] = {}
    few = Scenes(args.robustness_scenes, SIZE_HW)
    for name, change in rich.progress.track(changes(np.random.default_rng(1)).items(), "changes"):
        table[name] = evaluate(eager, few, change)
    for size_hw in rich.progress.track(SIZES_HW, "sizes"):
        table["{1} × {0} px".format(*size_hw)] = evaluate(eager, Scenes(args.robustness_scenes, size_hw))
    with maskjet.load(args.weights) as default:
        report["ghosts"] = count_ghosts(default)
        if args.picture:
            draw_pairs(default, args.picture)
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(as_markdown(report))


def as_markdown(report):
    """The report's tables."""
    height, width = report["size_hw"]
    columns = [*METRICS, *CLASSES]
    lines = [
        f"{report['scenes']} scenes of {width} × {height} px, seeds from {report['first_seed']}, all instances of at "
        f"least {MIN_PIXELS} visible pixels:",
        "",
        f"| | {' | '.join(columns)} |",
        f"|---|{'---|' * len(columns)}",
    ]
    for precision in ("fp32", "bf16"):
        for kind in KINDS:
            numbers = report[precision][kind]
            cells = " | ".join(f"{numbers[column]:.3f}" if column in numbers else "–" for column in columns)
            lines.append(f"| {kind}, {precision} | {cells} |")
    lines += ["", "| | segm AP | segm AP50 | bbox AP |", "|---|---|---|---|"]
    for name, numbers in report["robustness"].items():
        segm, bbox = numbers["segm"], numbers["bbox"]
        lines.append(f"| {name} | {segm['AP']:.3f} | {segm['AP50']:.3f} | {bbox['AP']:.3f} |")
    lines += ["", "| Nothing to see | images | detections |", "|---|---|---|"]
    lines += [f"| {what} | {images} | {found} |" for what, (images, found) in report["ghosts"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
