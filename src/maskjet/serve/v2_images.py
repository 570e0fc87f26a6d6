"""Read the images of an inference request; for wire formats see `v2_codec`."""

from __future__ import annotations

import binascii
import math
import struct
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from maskjet.errors import InputError
from maskjet.serve import problems
from maskjet.serve.v2_json import Fields

if TYPE_CHECKING:
    import torch

NAME = "image"
"""Name of the input tensor."""
PREFIX = struct.Struct("<I")
"""Length prefix of each element of a BYTES tensor."""
ReadRegion = Callable[[str, int, list[int]], "NDArray[np.uint8] | torch.Tensor"]
"""Reads uint8 values from a shared memory region, given its name, an offset and a shape."""
_Size = Annotated[int, Field(ge=0, lt=2**63)]


class _Place(Fields):
    """Where an input's values are, if it has no `data`."""

    binary_data_size: _Size | None = None
    shared_memory_region: str | None = None
    shared_memory_offset: _Size = 0
    shared_memory_byte_size: _Size = 0


class ImageTensor(Fields):
    """The input as a request describes it."""

    name: Literal["image"]
    datatype: Literal["UINT8", "BYTES"]
    shape: list[Annotated[int, Field(ge=1, lt=2**31)]] = Field(max_length=4)
    data: list[Any] | None = None
    parameters: _Place = _Place()


def read_images(
    tensor: ImageTensor, binary: memoryview, read_region: ReadRegion, most_images: int, most_pixels: int
) -> list[Any]:
    """Read the images of the single input; its bytes may be all those after the JSON.

    Returns:
        uint8 [H, W, 3] that share memory with `binary`; functions that read one from the region; or contents of image
        files, unchecked.

    Raises:
        ProblemError: 413, there are more images, or they have more pixels.
        InputError: The input is not as described in `v2_codec`.
    """
    shape, data, place = _check_shape(tensor, most_images), tensor.data, tensor.parameters
    region, size = place.shared_memory_region, place.binary_data_size
    if [data, size, region].count(None) != 2:
        raise InputError("image must have one of data, binary_data_size (raw_input_contents) and shared_memory_region.")
    if (size or 0) != len(binary):
        raise InputError(f"image: binary_data_size must be the {len(binary):,} bytes after the JSON, got {size or 0}.")
    is_encoded = tensor.datatype == "BYTES"
    if not is_encoded and shape[1] * shape[2] > most_pixels:
        raise problems.too_large(f"image must have at most {most_pixels:,} pixels, got {shape[2]}×{shape[1]}.")
    if data is not None:
        if is_encoded:
            return _read_base64(data, shape[0])
        binary = memoryview(_read_numbers(data))
    length = len(binary) if region is None else place.shared_memory_byte_size
    if not is_encoded and length != math.prod(shape):
        raise InputError(f"image must have {math.prod(shape):,} values, as its shape, got {length:,}.")
    if not is_encoded and region is not None:
        begins = range(place.shared_memory_offset, place.shared_memory_offset + length, length // shape[0])
        return [partial(read_region, region, begin, shape[1:]) for begin in begins]
    if not is_encoded:
        return list(np.frombuffer(binary, dtype=np.uint8).reshape(shape))
    values: Any = binary if region is None else read_region(region, place.shared_memory_offset, [length])
    if region is not None and not isinstance(values, np.ndarray):
        raise InputError("image must be UINT8 in a GPU's memory, got BYTES: use system shared memory for them.")
    return _split_elements(memoryview(values), shape[0])


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
            # A region's content, as a length is, stays out of errors.
            raise InputError(f"image: element {number} must have as many bytes as its length states, it has fewer.")
        elements.append(bytes(binary[start:position]))
    if position != len(binary):
        raise InputError(f"image: must end with element {count - 1}, more bytes follow.")
    return elements
