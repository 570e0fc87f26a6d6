"""Write street scenes as videos and COCO data sets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import cv2

from maskjet.checks import as_int, check_count
from maskjet.errors import InputError, OutputError
from maskjet.host.files import naming, replacing
from maskjet.masks import coco_rle
from maskjet.traffic.bodies import CLASSES
from maskjet.traffic.street import FPS, Street, TrafficFrame, sample

_SMPTE170M, _LIMITED = 6, 1  # as in ITU-T H.273, and FFmpeg's AVCOL_RANGE_MPEG
CATEGORIES = [{"id": class_id + 1, "name": name} for class_id, name in enumerate(CLASSES)]
"""COCO categories of street scenes."""
OnProgress = Callable[[], object]

# The output of x264's AVX-512 code depends on stray memory: with noise on the heap, 24 of 70 runs wrote the same bytes;
# with AVX2 at most, all 70 did (PyAV 18.1, EPYC).
_ENCODING = {
    "preset": "veryfast",
    "crf": "18",
    "x264-params": "asm=mmx2,sse,sse2,sse3,ssse3,sse4,sse4.2,avx,fma3,bmi1,bmi2,avx2",
}


def write_video(
    path: str | Path,
    *,
    size_hw: tuple[int, int] = (720, 1280),
    frames: int = 538,
    seed: int = 0,
    density: float = 1.0,
    on_progress: OnProgress = lambda: None,
) -> None:
    """Write an H.264 video of a street, 30 frames a second. Same arguments, same bytes.

    Args:
        path: Path of the .mp4; its folder is made, an existing file is replaced once the new one is whole.
        size_hw: (height, width) of the frames in pixels, even and at least 16.
        frames: Number of frames, at least 1.
        seed: Random seed of the street.
        density: Traffic density: 1 is lively, 0 empty.
        on_progress: Called after every frame.

    Raises:
        InputError: An argument is not as above.
        OutputError: The file can't be written.
    """
    check_count("frames", as_int(frames))
    if any(side % 2 for side in size_hw):
        raise InputError(f"size_hw must be even for a video, got {size_hw}.")
    street = Street(seed, size_hw, density=density)
    with replacing(path, "path") as temporary, av.open(str(temporary.path), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=int(FPS), options=_ENCODING)
        stream.height, stream.width = size_hw
        stream.codec_context.thread_count = 1  # with more, the bytes depend on the number of cores
        stream.pix_fmt = "yuv420p"
        context = stream.codec_context  # RGB is encoded as BT.601 at any size
        context.colorspace = context.color_primaries = context.color_trc = _SMPTE170M
        context.color_range = _LIMITED
        for index in range(frames):
            image = street.frame(index).image
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            on_progress()
        container.mux(stream.encode(None))


def write_coco(
    directory: str | Path,
    *,
    images: int,
    size_hw: tuple[int, int] = (720, 1280),
    seed: int = 0,
    on_progress: OnProgress = lambda: None,
) -> None:
    """Write stills of random streets as a COCO data set. Same arguments, same bytes.

    Category ids are class ids + 1, as COCO's start at 1.

    Args:
        directory: Folder for images/000000.jpg and so on, and annotations.json; must have neither yet.
        images: Number of images, at least 1.
        size_hw: (height, width) of the images in pixels, at least 16.
        seed: Random seed of the first image; each further image adds one.
        on_progress: Called after every image.

    Raises:
        InputError: An argument is not as above, or the folder has a data set already.
        OutputError: The files can't be written.
    """
    check_count("images", as_int(images))
    directory = Path(directory)
    with naming(str(directory), "directory"):
        for old in (directory / "annotations.json", directory / "images"):
            if old.exists():
                raise InputError(f"directory must have no data set yet, {str(old)!r} exists: choose another.")
        (directory / "images").mkdir(parents=True)
    listed: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for image_id in range(images):
        scene = sample(seed + image_id, size_hw=size_hw)
        name = f"{image_id:06}.jpg"
        pixels = cv2.cvtColor(scene.image, cv2.COLOR_RGB2BGR)
        if not cv2.imwrite(str(directory / "images" / name), pixels, [cv2.IMWRITE_JPEG_QUALITY, 92]):
            raise OutputError(f"directory must be writable, {str(directory)!r} is not.")
        listed.append({"id": image_id, "file_name": name, "height": size_hw[0], "width": size_hw[1]})
        found += annotate(scene, image_id, len(found) + 1)
        on_progress()
    data_set = {
        "info": {"description": f"maskjet traffic, seeds {seed}..{seed + images - 1}"},
        "licenses": [],
        "images": listed,
        "categories": CATEGORIES,
        "annotations": found,
    }
    with replacing(directory / "annotations.json", "directory") as temporary:
        temporary.write(json.dumps(data_set).encode())


def annotate(scene: TrafficFrame, image_id: int, first_id: int) -> Iterator[dict[str, Any]]:
    """The ground truth of one image as COCO annotations, numbered from `first_id`."""
    rles = coco_rle.encode(scene.masks())
    for number, (rle, class_id) in enumerate(zip(rles, scene.class_id.tolist(), strict=True)):
        x1, y1, x2, y2 = coco_rle.to_xyxy(rle)
        yield {
            "id": first_id + number,
            "image_id": image_id,
            "category_id": class_id + 1,
            "bbox": [x1, y1, x2 - x1, y2 - y1],
            "area": coco_rle.area(rle),
            "iscrowd": 0,
            "segmentation": coco_rle.to_json(rle),
        }
