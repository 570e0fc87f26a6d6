"""Writing and reading checkpoints in tests."""

import json
import zipfile

import safetensors.torch
import torch

from maskjet.networks.rfdetr import read_checkpoint
from maskjet.networks.rfdetr.checkpoint import load_network, resolve_spec
from tests.networks.test_network import TINY


def load(path, size=None):
    checkpoint = read_checkpoint(path)
    return load_network(resolve_spec(checkpoint, size), checkpoint)


def save_safetensors(state, path, **spec):
    fields = TINY.as_dict() | spec
    safetensors.torch.save_file(state, path, metadata={"spec": json.dumps(fields)})
    return path


def save_torch(content, path):
    torch.save(content, path)
    return path


def edit_records(source, target, edit, *, compression=zipfile.ZIP_STORED):
    """Copy a zip file; `edit` takes a record's name and bytes and returns its bytes, or None to leave it out."""
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(target, "w", compression) as after:
        for name in before.namelist():
            data = edit(name, before.read(name))
            if data is not None:
                after.writestr(name, data)
    return target


def write(path, data):
    path.write_bytes(data)
    return path
