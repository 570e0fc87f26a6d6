"""Files as somebody else may hand them over: damaged, edited, or made to mislead."""

import io
import json
import zipfile

import numpy as np

from maskjet.parity.coco_files import check_truth, read_json


def read_truth(path):
    """A COCO data set from a file, checked."""
    truth = read_json(path)
    check_truth(truth, repr(str(path)))
    return truth


def unpack(data):
    """A dump's header and arrays."""
    with np.load(io.BytesIO(data)) as archive:
        fields = {name: archive[name] for name in archive.files}
    return json.loads(fields.pop("header").tobytes()), fields


def pack(header, fields):
    """A dump of these."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file = io.BytesIO()
    np.savez_compressed(file, header=np.frombuffer(text, np.uint8), **fields)
    return file.getvalue()


def members(data):
    """The archive's files by name."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def archive(files, compression=zipfile.ZIP_DEFLATED):
    """An archive of (name, bytes) pairs, checksums and all."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as made:
        for name, content in files:
            made.writestr(name, content)
    return file.getvalue()


def flip(random, data, count=1):
    """With some bits turned over."""
    changed = bytearray(data)
    for position in random.integers(0, len(data), count):
        changed[position] ^= 1 << int(random.integers(8))
    return bytes(changed)


def replaced(random, value, strange):
    """A JSON value with one place in it replaced by something strange, or left out, or doubled."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = list(value)[int(random.integers(len(value)))]
        action = random.random()
        if action < 0.1:
            return {name: each for name, each in value.items() if name != key}
        if action < 0.15:
            return {**value, strange[int(random.integers(len(strange)))].__repr__()[:20]: value[key]}
        return {**value, key: replaced(random, value[key], strange)}
    if isinstance(value, list) and value and random.random() < 0.9:
        position = int(random.integers(len(value)))
        if random.random() < 0.1:
            return [*value[:position], *value[position + 1 :]]
        if random.random() < 0.1:
            return [*value, value[position]]
        return [*value[:position], replaced(random, value[position], strange), *value[position + 1 :]]
    return strange[int(random.integers(len(strange)))]


def deep(levels):
    """JSON of lists within lists."""
    value = []
    for _ in range(levels):
        value = [value]
    return value


STRANGE = [
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e300, -1e300, 2**31, 2**63, -(2**63), 10**30, 10**400),
    *(float("nan"), float("inf"), "", "a", "0", "\ud800", "\x00", "\x1b[2J", "<script>alert(1)</script>", "../../x"),
    *([], {}, [[]], [0, 0], [1, 2, 3, 4], [10**6, 10**6], {"name": "x"}, {"size": [1, 1], "counts": "1"}, deep(20)),
]
"""Values that no field expects."""
