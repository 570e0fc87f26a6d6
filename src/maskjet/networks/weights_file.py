"""Open untrusted weights files: formats told apart by first bytes, all sizes checked.

Returned tensors are mapped from the file and not yet read: they have the shapes that the file states, and cost nothing
until they are copied. Nothing here runs code from a file, and no more memory is taken than the file is long.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import pickletools
import types
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import safetensors
import torch
from torch import Tensor

from maskjet import limits
from maskjet.checks import shown
from maskjet.errors import CheckpointError, InputError, translate_errors
from maskjet.host.printing import sanitise

# Limit for everything in a checkpoint but its tensors; rfdetr's largest, with an optimizer's state, have under 1 MB.
# One byte of a pickle can create an object of 64 bytes in a microsecond.
_MAX_PICKLE_BYTES = 2**22
_MAX_HEADER_BYTES = 2**23
_MAX_RECORDS = 2**16
_LEGACY = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20"  # first bytes of files by PyTorch before 1.6
_LEGACY_PICKLES = 5  # number of pickles before the tensors' bytes
# Callables allowed in a pickle. PyTorch allows more; some let a few bytes exhaust memory: bytearray(10**10).
_CALLABLES = {
    *("collections OrderedDict", "collections Counter", "argparse Namespace", "types SimpleNamespace"),
    *("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter", "torch Size", "torch device"),
    *("__builtin__ set", "builtins set", "__builtin__ complex", "builtins complex", "_codecs encode"),
}
_STORAGES = {
    f"torch {kind}Storage"
    for kind in (
        *("Float", "Double", "Half", "BFloat16", "ComplexFloat", "ComplexDouble"),
        *("Long", "Int", "Short", "Char", "Byte", "Bool"),
    )
}
_DTYPES = {str(value).replace(".", " ") for value in vars(torch).values() if isinstance(value, torch.dtype)}


@contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """Turn every error of a weights file into a CheckpointError that names the file and what is `expected`."""
    try:
        with translate_errors(CheckpointError, f"weights must be {expected}, {str(path)!r} is not"):
            yield
    except InputError as error:
        raise CheckpointError(f"weights must state a usable network, {str(path)!r} does not: {error}") from error
    except CheckpointError as error:  # PyTorch's message may quote the file
        raise CheckpointError(sanitise(str(error), most=2000)) from error.__cause__


def check_is_file(path: Path, argument: str = "weights") -> None:
    """Raise a CheckpointError unless a path, given as this argument, is that of a file."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is no file" if path.exists() else "does not exist"
        raise CheckpointError(f"{argument} must be a file, got {str(path)!r}, which {what}.")


def is_safetensors(path: Path, expected: str) -> bool:
    """Whether this is a safetensors file; else `torch.save` wrote it.

    Raises:
        CheckpointError: It is neither; the message says what is `expected`.
    """
    with path.open("rb") as file:
        head = file.read(64)
    if head[4:9] == b"\0\0\0\0{":  # high bytes of the header's length, then its JSON
        return True
    if head.startswith((b"PK\x03\x04", _LEGACY)):
        return False
    what = "neither; pass the checkpoint that training saved"
    if head.startswith(b"version https://git-lfs"):
        what = "a Git LFS pointer and not the file itself; run git lfs pull where it was cloned"
    raise CheckpointError(
        f"weights must be {expected} (.pt, .pth, .ckpt) or a safetensors file, {str(path)!r} is {what}."
    )


def open_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file.

    Raises:
        CheckpointError: It is not whole, or larger than `limits.checkpoint_bytes`.
    """
    size = _file_size(path)
    with translate_errors(CheckpointError, f"weights must be a whole safetensors file, {str(path)!r} is not"):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _MAX_HEADER_BYTES):
            raise ValueError(f"its header would have {length:,} bytes.")
        with safetensors.safe_open(path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a mapping
            return tensors, opened.metadata() or {}


def read_json(metadata: Mapping[str, str], name: str, path: Path) -> Any:
    """Parse the JSON of one name in a safetensors file's metadata; None if it is missing."""
    with translate_errors(
        CheckpointError, f"weights must have JSON in their metadata, {str(path)!r} has other under {name!r}"
    ):
        return json.loads(metadata.get(name, "null"))


def open_torch(path: Path, expected: str) -> dict[Any, Any]:
    """The dictionary in a file that `torch.save` wrote; messages say what is `expected`.

    The tensors of a file of PyTorch before 1.6, as torchvision's first COCO weights, are in memory.

    Raises:
        CheckpointError: It is not whole, larger than `limits.checkpoint_bytes`, compressed, holds objects other than
            tensors and plain values, or no dictionary.
    """
    size = _file_size(path)
    with translate_errors(CheckpointError, f"weights must be a whole PyTorch file, {str(path)!r} is not"):
        with path.open("rb") as file:
            is_legacy = file.read(len(_LEGACY)) == _LEGACY
        records = None
        if is_legacy:
            _check_legacy(path)
        else:
            records = _check_archive(path, size, expected)
        content = _unpickle(path, is_mapped=not is_legacy)
        if not isinstance(content, dict):
            raise CheckpointError(f"weights must hold a dictionary, {str(path)!r} holds {shown(content)}.")
        if records is not None:
            _check_storages(content, records)
        return content


def _file_size(path: Path) -> int:
    size = path.stat().st_size
    limits.check("checkpoint_bytes", size, f"{str(path)!r} has", CheckpointError)
    return size


def _check_archive(path: Path, size: int, expected: str) -> Counter[int]:
    """Check the records of a zip file before PyTorch reads it; returns the number of records by size."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        names = [entry.filename for entry in entries]
        pickles = [
            entry for entry in entries if entry.filename.count("/") == 1 and entry.filename.endswith("/data.pkl")
        ]
        if len(pickles) != 1 or any(name.endswith("/constants.pkl") for name in names):
            raise CheckpointError(
                f"weights must be {expected}, {str(path)!r} is a zip archive of something else, such as an exported "
                "program; pass the checkpoint that training saved."
            )
        file.seek(-22, os.SEEK_END)
        # Refuse bytes before or after the archive: other readers might find another archive there.
        if file.read(4) != b"PK\x05\x06" or min(entry.header_offset for entry in entries) != 0:
            raise ValueError("something is before or after its zip archive.")
        if len(entries) > _MAX_RECORDS or len(set(names)) < len(names):
            raise ValueError(f"it has {len(names):,} records, {len(set(names)):,} of them by different names.")
        if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries):
            raise CheckpointError(
                f"weights must be stored as torch.save stores them, {str(path)!r} is compressed or encrypted; "
                "save it again, or unpack and pack it without compression."
            )
        stated = sum(entry.file_size for entry in entries)
        if stated > size or pickles[0].file_size > _MAX_PICKLE_BYTES:
            raise ValueError(f"it states {stated:,} bytes, {pickles[0].file_size:,} of them without tensors.")
        _check_names(archive.read(pickles[0]), path)
    return Counter(entry.file_size for entry in entries)


def _check_legacy(path: Path) -> None:
    """Check the names in a file's pickles; PyTorch then reads no more bytes for a tensor than the file has."""
    with path.open("rb") as file:
        head = io.BytesIO(file.read(_MAX_PICKLE_BYTES))
    for _ in range(_LEGACY_PICKLES):
        _check_names(head, path)


def _check_names(pickled: bytes | IO[bytes], path: Path) -> None:
    """Refuse a pickle that names anything but tensors and plain values."""
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name == "GLOBAL" and argument not in _CALLABLES | _STORAGES | _DTYPES:
            kind = shown(str(argument).replace(" ", "."))
            hint = "an Ultralytics model, which is another network" if "ultralytics" in kind else kind
            raise CheckpointError(
                f"weights must hold tensors and plain values, {str(path)!r} holds {hint}. Save the network's state "
                'dict alone: torch.save({"model": network.state_dict()}, PATH).'
            )


def _unpickle(path: Path, *, is_mapped: bool) -> Any:
    try:
        with torch.serialization.safe_globals([argparse.Namespace, types.SimpleNamespace]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_mapped)
    except pickle.UnpicklingError as error:  # PyTorch's text advises unsafe loading
        raise ValueError("its pickle is damaged, or none that torch.save writes.") from error


def _check_storages(content: dict[Any, Any], records: Counter[int]) -> None:
    """Refuse tensors whose data is not one whole record of the file.

    PyTorch maps as many bytes as a pickle asks for, past the record and into its neighbours.
    """
    dictionaries = [each for each in (content, *content.values()) if isinstance(each, dict)]  # one is the state dict
    tensors = (value for each in dictionaries for value in each.values() if isinstance(value, Tensor))
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    foreign = Counter(filter(None, storages.values())) - records
    if foreign:
        raise ValueError(f"{next(iter(foreign)):,} bytes of a tensor are no record of it.")
