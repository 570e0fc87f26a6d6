"""How large things that come from outside may be: asked before memory is taken for them.

Files state sizes, and a few bytes can state any. What is larger than a limit is refused with the limit's name; whoever
trusts the file raises it, in Python by assigning (`maskjet.limits.image_pixels = 10**9`) or for the command line in the
environment (`MASKJET_LIMIT_IMAGE_PIXELS=1000000000`).
"""

from __future__ import annotations

import os

from maskjet.errors import InputError

image_pixels = 2**28
"""Height × width of one image or frame: 16,384 × 16,384. Decoded it takes three bytes a pixel, and as much to turn."""
image_bytes = 2**31
"""Bytes of one image file, which is read as a whole; what an uncompressed one of that many pixels takes."""
mask_pixels = 2**28
"""Height × width that a COCO RLE from outside may state; decoded it takes one byte a pixel."""
masks_bytes = 2**33
"""Bytes that the dense masks of one image's detections may take together, one a pixel."""
json_bytes = 2**31
"""Bytes of one COCO file; read, it takes up to ten times as many."""
dump_bytes = 2**33
"""Bytes that one parity dump may take in memory: its arrays, unpacked, and Python's objects for its detections."""
checkpoint_bytes = 2**33
"""Bytes that the tensors of one checkpoint may take; the largest RF-DETR takes 0.15 GB in float32."""

NAMES = ("image_pixels", "image_bytes", "mask_pixels", "masks_bytes", "json_bytes", "dump_bytes", "checkpoint_bytes")
_PREFIX = "MASKJET_LIMIT_"


def check(name: str, value: int, what: str, error: type[Exception] = InputError) -> None:
    """Refuse what is larger than a limit.

    Args:
        name: Of the limit.
        value: What was stated.
        what: Whose, for the message: "'a.png' has".
        error: Which of our exceptions to raise.

    Raises:
        InputError: The value is larger; or `error`.
    """
    limit = globals()[name]
    if value > limit:
        cure = f"raise maskjet.limits.{name} or {_PREFIX}{name.upper()} if you trust it"
        raise error(f"{what} {value:,} {name.rpartition('_')[2]}, the limit is {limit:,}; {cure}.")


def read_environment() -> None:
    """Take limits from MASKJET_LIMIT_*; for the command line.

    Raises:
        InputError: A value is not a whole number of at least 1.
    """
    for name in NAMES:
        text = os.environ.get(_PREFIX + name.upper())
        if text is None:
            continue
        if not text.isdecimal() or int(text) < 1:
            raise InputError(f"{_PREFIX}{name.upper()} must be a whole number of at least 1, got {text!r}.")
        globals()[name] = int(text)
