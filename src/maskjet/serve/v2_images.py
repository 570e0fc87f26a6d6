"""Read the images of an inference request, in the forms that docs/serving.md describes."""

from __future__ import annotations

import binascii
import math
import struct
from itertools import chain
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from maskjet.errors import InputError
from maskjet.serve import problems
from maskjet.serve.v2_json import Fields

NAME = "image"
"""Name of the input tensor."""
PREFIX = struct.Struct("<I")
"""Length prefix of each element of a BYTES tensor."""


class _Place(Fields):
    """Where an input's values are, if it has no `data`."""

    binary_data_size: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    shared_memory_region: None = None  # of Triton's extension; refused


class ImageTensor(Fields):
    """The input as a request describes it."""

    name: Literal["image"]
    datatype: Literal["UINT8", "BYTES"]
    shape: list[Annotated[int, Field(ge=1, lt=2**31)]] = Field(max_length=4)
    data: list[Any] | None = None
    parameters: _Place = _Place()


def read_images(tensor: ImageTensor, binary: memoryview, most_images: int, most_pixels: int) -> list[Any]:
    """Read the images of the single input, uint8 [H, W, 3] that share memory with `binary`, or image files, unchecked.

    `binary` may be all bytes after the JSON. Raises ProblemError 413 for more images or pixels, and InputError for an
    input that is not as described there.
    """
    shape, data, size = _check_shape(tensor, most_images), tensor.data, tensor.parameters.binary_data_size
    if (data is None) == (size is None):
        raise InputError("image must have either data or binary_data_size.")
    if (size or 0) != len(binary):
        raise InputError(f"image: binary_data_size must be the {len(binary):,} bytes after the JSON, got {size or 0}.")
    if tensor.datatype == "BYTES":
        return _split_elements(binary, shape[0]) if data is None else _read_base64(data, shape[0])
    if shape[1] * shape[2] > most_pixels:
        raise problems.too_large(f"image must have at most {most_pixels:,} pixels, got {shape[2]}×{shape[1]}.")
    if data is not None:
        binary = memoryview(_read_numbers(data))
    if len(binary) != math.prod(shape):
        raise InputError(f"image must have {math.prod(shape):,} values, as its shape, got {len(binary):,}.")
    return list(np.frombuffer(binary, dtype=np.uint8).reshape(shape))


def _check_shape(tensor: ImageTensor, most_images: int) -> list[int]:
    """Check the shape: [N] for BYTES, [N, H, W, 3] for UINT8, where N = 1 may be omitted."""
    shape = tensor.shape
    expected, ranks = ("[N]", (1,)) if tensor.datatype == "BYTES" else ("[H, W, 3] or [N, H, W, 3]", (3, 4))
    if len(shape) not in ranks or (tensor.datatype == "UINT8" and shape[-1] != 3):
        raise InputError(f"image: shape must be {expected} of {tensor.datatype}, got {shape}.")
    shape = [1, *shape] if len(shape) == 3 else shape
    if shape[0] > most_images:
        raise problems.too_large(f"image: shape must be of at most {most_images} images, got {shape[0]:,}.")
    return shape


def _read_numbers(data: list[Any]) -> bytes:
    """Convert possibly nested lists of numbers to bytes."""
    try:
        while data and isinstance(data[0], list):
            data = list(chain.from_iterable(data))
        return bytes(data)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError("image: data must be whole numbers 0..255, flat or nested as its shape.") from error


def _read_base64(data: list[Any], count: int) -> list[bytes]:
    if len(data) != count:
        raise InputError(f"image: data must be {count} texts, as its shape, got {len(data):,}.")
    try:
        return [binascii.a2b_base64(text, strict_mode=True) for text in data]
    except (TypeError, ValueError) as error:  # includes binascii.Error and non-ASCII letters
        raise InputError(
            "image: data must be base64, as an encoded image is no text; or send it in binary, with binary_data_size."
        ) from error


def _split_elements(binary: memoryview, count: int) -> list[bytes]:
    """Split a BYTES tensor into its length-prefixed elements."""
    elements, position = [], 0
    for number in range(count):
        start = position + PREFIX.size
        if start > len(binary):
            raise InputError(f"image: must have {count} elements, as its shape, its bytes end before number {number}.")
        (size,) = PREFIX.unpack_from(binary, position)
        position = start + size
        if position > len(binary):
            raise InputError(f"image: element {number} must have as many bytes as its length states, it has fewer.")
        elements.append(bytes(binary[start:position]))
    if position != len(binary):
        raise InputError(f"image: must end with element {count - 1}, more bytes follow.")
    return elements
