"""The images of an inference request; the wire formats are in `v2_codec`."""

from __future__ import annotations

import binascii
import math
import struct
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskjet.errors import InputError
from maskjet.serve import problems
from maskjet.serve.v2_json import expect, show, tensor_parameters

NAME = "image"
"""The input's name."""
PREFIX = struct.Struct("<I")
"""Length before each element of a BYTES tensor."""


def read_images(tensor: Any, binary: memoryview, most_images: int, most_pixels: int) -> list[NDArray[np.uint8] | bytes]:
    """Read the images of the one input.

    Args:
        tensor: The input, as parsed.
        binary: The body after the JSON; all of it belongs to the input.
        most_images: Most images.
        most_pixels: Most pixels of one that is not encoded.

    Returns:
        uint8 [H, W, 3] that share memory with `binary`; or contents of image files, unchecked.

    Raises:
        ProblemError: 413, there are more images, or they have more pixels.
        InputError: The input is not as described in `v2_codec`.
    """
    fields = expect(tensor, dict, "inputs[0]", "a JSON object")
    name = expect(fields.get("name"), str, "inputs[0].name", f"{NAME!r}")
    if name != NAME:
        raise InputError(f"inputs must have one tensor, {NAME!r}, got {show(name)}.")
    datatype = fields.get("datatype")
    if datatype not in ("UINT8", "BYTES"):
        raise InputError(f"image: datatype must be UINT8 or BYTES, got {show(datatype)}.")
    shape = _read_shape(fields.get("shape"), datatype, most_images)
    size = tensor_parameters(fields, name).get("binary_data_size")
    if (size is None) == ("data" not in fields):
        raise InputError("image: must have either data or the parameter binary_data_size.")
    if size is None and len(binary):
        raise InputError(f"The body must end after the JSON, as image has data, got {len(binary):,} bytes more.")
    if size is not None and expect(size, int, "image: binary_data_size", "a whole number") != len(binary):
        raise InputError(f"image: binary_data_size must be the {len(binary):,} bytes after the JSON, got {show(size)}.")
    if datatype == "UINT8":
        return list(_read_pixels(fields.get("data"), binary, shape, most_pixels))
    return list(_read_base64(fields["data"], shape[0]) if size is None else _split_elements(binary, shape[0]))


def _read_shape(value: Any, datatype: str, most_images: int) -> list[int]:
    """The shape of `image`: [N] of BYTES, or [N, H, W, 3] of UINT8, with N = 1 if left out."""
    expected = "[N]" if datatype == "BYTES" else "[H, W, 3] or [N, H, W, 3]"
    sizes: list[int] = expect(value, list, "image: shape", expected)
    is_size = [type(size) is int and 1 <= size < 2**31 for size in sizes[:5]]
    ranks = (1,) if datatype == "BYTES" else (3, 4)
    if len(sizes) not in ranks or not all(is_size) or (datatype == "UINT8" and sizes[-1] != 3):
        got = f"[{', '.join(map(show, sizes))}]" if len(sizes) <= 4 else show(sizes)
        raise InputError(f"image: shape must be {expected} of {datatype}, each at least 1, got {got}.")
    shape = [1, *sizes] if len(sizes) == 3 else sizes
    if shape[0] > most_images:
        raise problems.too_large(f"image: shape must be of at most {most_images} images, got {shape[0]:,}.")
    return shape


def _read_pixels(data: Any, binary: memoryview, shape: list[int], most_pixels: int) -> NDArray[np.uint8]:
    """uint8 [N, H, W, 3] from `binary`, or from `data` if that is not None."""
    if shape[1] * shape[2] > most_pixels:
        raise problems.too_large(f"image must have at most {most_pixels:,} pixels, got {shape[2]}×{shape[1]}.")
    expected = math.prod(shape)
    if data is None:
        if len(binary) != expected:
            raise InputError(f"image: must have {expected:,} bytes, as its shape, got {len(binary):,}.")
        return np.frombuffer(binary, dtype=np.uint8).reshape(shape)
    values = _flatten(expect(data, list, "image: data", "a list"), shape)
    if len(values) != expected:
        raise InputError(f"image: data must be {expected:,} numbers, as its shape, got {len(values):,}.")
    if set(map(type, values)) != {int} or not 0 <= min(values) <= max(values) <= 255:
        raise InputError("image: data must be whole numbers 0..255.")
    return np.frombuffer(bytes(values), dtype=np.uint8).reshape(shape)


def _flatten(values: list[Any], shape: list[int]) -> list[Any]:
    """Flatten lists nested as the shape, without N if it is 1; a flat list stays as it is."""
    if not values or type(values[0]) is not list:
        return values
    is_batch = type(values[0][0]) is list and type(values[0][0][0]) is list if values[0] and values[0][0] else False
    for size in shape[1:] if is_batch else shape[2:]:
        if set(map(type, values)) != {list} or set(map(len, values)) != {size}:
            raise InputError(f"image: data must be flat or nested as its shape, {shape if is_batch else shape[1:]}.")
        values = list(chain.from_iterable(values))
    return values


def _read_base64(data: Any, count: int) -> list[bytes]:
    texts = expect(data, list, "image: data", "a list")
    if len(texts) != count:
        raise InputError(f"image: data must be {count} texts, as its shape, got {len(texts):,}.")
    try:
        return [binascii.a2b_base64(expect(text, str, "image: data", "base64"), strict_mode=True) for text in texts]
    except InputError:
        raise
    except ValueError as error:  # also binascii.Error, and letters beyond ASCII
        raise InputError(
            "image: data must be base64, as an encoded image is no text; or send it in binary, with binary_data_size."
        ) from error


def _split_elements(binary: memoryview, count: int) -> list[bytes]:
    """The elements of a BYTES tensor, each after its length."""
    elements, position = [], 0
    for number in range(count):
        start = position + PREFIX.size
        if start > len(binary):
            raise InputError(f"image: must have {count} elements, as its shape, its bytes end before number {number}.")
        (size,) = PREFIX.unpack_from(binary, position)
        position = start + size
        if position > len(binary):
            left = len(binary) - start
            raise InputError(f"image: element {number} must have the {size:,} bytes its length states, got {left:,}.")
        elements.append(bytes(binary[start:position]))
    if position != len(binary):
        raise InputError(f"image: must end with element {count - 1}, got {len(binary) - position:,} bytes more.")
    return elements
