"""Files that PyTorch before 1.6 wrote, as torchvision's first COCO weights: opened without trusting their numbers.

Such a file is five pickles and then the tensors' bytes. Before PyTorch reads it, the pickles are read by a reader that
makes nothing but dictionaries and counts what the tensors would take.
"""

from __future__ import annotations

import collections
import io
import pickle
from pathlib import Path
from typing import Any

import torch

from maskjet import limits
from maskjet.errors import CheckpointError, translate_errors
from maskjet.networks.foreign_files import LEGACY
from maskjet.spec import shown

_MAX_PICKLE_BYTES = 2**22  # of all pickles; those of torchvision's largest detector have 0.1 MB
_PICKLES = 5
_BYTES = {
    **dict.fromkeys(("DoubleStorage", "LongStorage"), 8),
    **dict.fromkeys(("FloatStorage", "IntStorage"), 4),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2),
    **dict.fromkeys(("CharStorage", "ByteStorage", "BoolStorage"), 1),
}


def is_legacy(path: Path) -> bool:
    """Whether PyTorch before 1.6 wrote a file."""
    with path.open("rb") as file:
        return file.read(len(LEGACY)) == LEGACY


def open_legacy(path: Path) -> dict[Any, Any]:
    """The dictionary in a file of PyTorch before 1.6; its tensors are in memory, and take no more than the file.

    Raises:
        CheckpointError: The file is not whole, larger than `limits.checkpoint_bytes`, holds objects other than tensors
            and dictionaries, or no dictionary.
    """
    size = path.stat().st_size
    limits.check("checkpoint_bytes", size, f"{str(path)!r} has", CheckpointError)
    with translate_errors(CheckpointError, f"weights must be a whole PyTorch file, {str(path)!r} is not"):
        with path.open("rb") as file:
            head = io.BytesIO(file.read(_MAX_PICKLE_BYTES))
        stated = 0
        for _ in range(_PICKLES):
            reader = _Reader(head)
            reader.load()
            stated += sum(reader.sizes.values())
        if head.tell() + stated > size:
            raise ValueError(f"its tensors would have {stated:,} bytes.")
        content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict):
        raise CheckpointError(f"weights must hold a dictionary, {str(path)!r} holds {shown(content)}.")
    return content


class _Reader(pickle._Unpickler):  # the one in C takes memory for any number in a pickle
    """Reads a pickle of tensors and plain values, and makes no tensor."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.sizes: dict[str, int] = {}
        """Bytes of each tensor's data, by its key."""

    def find_class(self, module: str, name: str) -> Any:
        """A class of a plain value, or a stand-in."""
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) in (("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_parameter")):
            return lambda *_: None
        if module == "torch" and name in _BYTES:
            return _BYTES[name]
        raise ValueError(f"it holds {shown(f'{module}.{name}')}.")

    def persistent_load(self, saved: Any) -> None:
        """Count a tensor's data."""
        kind, item_bytes, key, _, count, view = saved
        if kind != "storage" or view is not None or type(item_bytes) is not int or type(count) is not int or count < 0:
            raise ValueError("its tensors are stored in an unknown way.")
        self.sizes[str(key)] = max(self.sizes.get(str(key), 0), item_bytes * count)
