"""Size limits of untrusted input, checked before memory is allocated for it.

A few bytes in a file can state any size. Input above a limit is refused with the limit's name. To read a trusted file,
raise the limit: in Python by assigning (`maskjet.limits.image_pixels = 10**9`), for the command line in the environment
(`MASKJET_LIMIT_IMAGE_PIXELS=1000000000`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from maskjet.errors import InputError

image_pixels = 2**28
"""Most pixels of one image or frame, 16,384 × 16,384. Decoding takes three bytes a pixel, rotation as much again."""
image_bytes = 2**31
"""Most bytes of one image file, which is read as a whole; room for `image_pixels` without compression."""
mask_pixels = 2**28
"""Most pixels, height × width, that a COCO RLE from outside may state; decoding takes one byte a pixel."""
masks_bytes = 2**33
"""Most bytes of the dense masks of one image's detections together, one a pixel."""
json_bytes = 2**31
"""Most bytes of one COCO file or record, or of all labels of a YOLO data set; parsed, it takes ten times as many."""
line_bytes = 2**26
"""Most bytes of one line of a record that `maskjet run --record` wrote; parsed, it takes up to 25 times as many."""
checkpoint_bytes = 2**33
"""Most bytes of the tensors of one checkpoint; the largest RF-DETR takes 0.15 GB in float32."""

NAMES = (
    *("image_pixels", "image_bytes", "mask_pixels", "masks_bytes", "json_bytes", "line_bytes"),
    "checkpoint_bytes",
)
_PREFIX = "MASKJET_LIMIT_"


def check(name: str, value: int, subject: str, error: type[Exception] = InputError) -> None:
    """Raise `error` if a value exceeds the named limit; `subject` begins the message: "'a.png' has"."""
    limit = globals()[name]
    if value > limit:
        cure = f"raise maskjet.limits.{name} or {_PREFIX}{name.upper()} if you trust it"
        raise error(f"{subject} {value:,} {name.rpartition('_')[2]}, the limit is {limit:,}; {cure}.")


def read_small(path: Path, most: int = 2**22) -> bytes:
    """Read a small file of settings; raises ValueError if it has more than `most` bytes or is endless."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most:,} bytes.")
    return content


def read_environment() -> None:
    """Set the limits from the variables MASKJET_LIMIT_*, or raise InputError; called by the command line."""
    for name in NAMES:
        text = os.environ.get(_PREFIX + name.upper())
        if text is None:
            continue
        if not re.fullmatch("[0-9]{1,18}", text) or int(text) < 1:
            raise InputError(f"{_PREFIX}{name.upper()} must be a whole number of at least 1, got {text!r}.")
        globals()[name] = int(text)
