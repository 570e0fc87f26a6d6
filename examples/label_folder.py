"""Label a folder of images for YOLO, and draw the labels on one sheet, for whoever checks them before training.

    python examples/label_folder.py frames street.yolo sheet.jpg

The sheet shows the files of labels, read as a trainer reads them, on up to 20 images from the whole folder. Train with
`yolo segment train data=street.yolo/data.yaml`.
"""

import re
import sys
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

import maskjet

WIDTH, HEIGHT, COLUMNS, MOST = 480, 270, 4, 20
COLOURS = [(40, 120, 255), (255, 120, 40), (80, 220, 80), (220, 80, 220), (0, 220, 220)]  # BGR, by class in turn


def label(folder: str, out: str) -> list[str]:
    """Write images, labels and data.yaml; returns the classes' names, as it has them."""
    options = maskjet.LabelOptions(yolo_images="copy")
    with (
        maskjet.load("demo", threshold=0.6) as model,  # or a checkpoint of your own
        maskjet.open_source(folder) as source,
        maskjet.check_outputs([out], [source], label_options=options, mask_pixels="box").open() as sinks,
    ):
        for frame, found in model.stream(source):
            sinks.write(frame, found)
    return re.findall(r'^  \d+: "(.*)"$', Path(out, "data.yaml").read_text(), re.MULTILINE)


def draw(image: NDArray[np.uint8], labels: Path, names: list[str]) -> NDArray[np.uint8]:
    """Draw the labels of an RGB image, a line each of a class and its outline, x y x y … in 0..1; returns BGR."""
    picture = cv2.resize(image[..., ::-1], (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA).astype(np.uint8)
    for line in labels.read_text().splitlines():
        number, *values = line.split()
        outline = (np.array(values, np.float64).reshape(-1, 2) * (WIDTH, HEIGHT)).round().astype(np.int32)
        colour = COLOURS[int(number) % len(COLOURS)]
        cv2.polylines(picture, [outline], isClosed=True, color=colour, lineType=cv2.LINE_AA)
        corner = np.maximum(outline.min(axis=0), (0, 10)).tolist()  # the name is below the upper edge
        cv2.putText(picture, names[int(number)], corner, cv2.FONT_HERSHEY_SIMPLEX, 0.4, colour, 1, cv2.LINE_AA)
    return picture


if __name__ == "__main__":
    _, images, data, sheet = sys.argv
    class_names = label(images, data)
    labels = Path(data, "labels")
    count = len(list(labels.iterdir()))
    with maskjet.open_source(f"{data}/images", every=-(-count // MOST)) as source:
        shown = [draw(frame.image, labels / f"{Path(frame.name).stem}.txt", class_names) for frame in source]
    shown += [np.zeros((HEIGHT, WIDTH, 3), np.uint8)] * (-len(shown) % COLUMNS)
    cv2.imwrite(sheet, np.vstack([np.hstack(shown[k : k + COLUMNS]) for k in range(0, len(shown), COLUMNS)]))
    print(f"{count} images in {data}, labels drawn in {sheet}")
