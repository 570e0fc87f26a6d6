"""Files of PyTorch before 1.6: whatever they state, they run nothing and take no more memory than they are long."""

import collections
import contextlib
import io
import pickle
import random
import re
import resource
import struct
import tracemalloc
from functools import partial

import pytest
import torch

from maskjet.errors import CheckpointError
from maskjet.networks.weights_file import is_safetensors, open_torch

open_legacy = partial(open_torch, expected="a state dict")
STATE = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(4), "c": torch.ones(3).half()}


@pytest.fixture
def path(tmp_path):
    torch.save(STATE, tmp_path / "a.pth", _use_new_zipfile_serialization=False)
    return tmp_path / "a.pth"


def test_tensors_are_those_that_were_saved(path):
    read = open_legacy(path)
    assert all(torch.equal(read[name], tensor) for name, tensor in STATE.items())
    assert not is_safetensors(path, "a state dict")


def test_ordered_dictionaries_with_versions_are_read(tmp_path):
    state = torch.nn.BatchNorm2d(3).state_dict()
    torch.save(state, tmp_path / "a.pth", _use_new_zipfile_serialization=False)
    read = open_legacy(tmp_path / "a.pth")
    assert isinstance(read, collections.OrderedDict)
    assert read._metadata == state._metadata


def test_a_stated_size_takes_no_memory(path):
    # The count of the first tensor's values, a byte in the pickle, becomes 2**30, and that before its data, too.
    data = path.read_bytes()
    begin = data.rindex(struct.pack("<q", 6))
    path.write_bytes(data[:begin] + struct.pack("<q", 2**30) + data[begin + 8 :])
    large = b"\x8a\x05" + struct.pack("<q", 2**30)[:5]
    data, count = re.subn(rb"(cpuq.)K\x06", lambda found: found[1] + large, path.read_bytes(), flags=re.DOTALL)
    assert count == 1
    path.write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match="weights must be a whole PyTorch file"):
        open_legacy(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**16  # KiB


class Harm:
    def __reduce__(self):
        return (print, ("harm",))


@pytest.mark.parametrize("content", [{"a": Harm()}, {"a": bytearray(3)}])
def test_other_objects_are_refused_and_no_code_runs(content, tmp_path, capsys):
    torch.save(content, tmp_path / "a.pth", _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match=r"weights must hold tensors and plain values, .* holds "):
        open_legacy(tmp_path / "a.pth")
    assert capsys.readouterr().out == ""


def test_what_is_no_dictionary_is_told(tmp_path):
    torch.save([1, 2], tmp_path / "a.pth", _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match="weights must hold a dictionary"):
        open_legacy(tmp_path / "a.pth")


def test_a_huge_memo_takes_no_memory(path):
    head = path.read_bytes()
    bomb = b"\x80\x02}r" + struct.pack("<I", 2**32 - 1) + b"."
    path.write_bytes(head[: _end_of_pickles(head, 3)] + bomb + pickle.dumps([], 2))
    tracemalloc.start()
    assert open_legacy(path) == {}
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def _end_of_pickles(data, count):
    file = io.BytesIO(data)
    for _ in range(count):
        reader = pickle._Unpickler(file)
        reader.persistent_load = lambda _: None
        reader.find_class = lambda *_: lambda *_: {}
        reader.load()
    return file.tell()


def test_damage_is_an_error_of_ours_or_harmless(path):
    good = path.read_bytes()
    for seed in range(100):
        choose, data = random.Random(seed), bytearray(good)
        for _ in range(choose.randint(1, 4)):
            data[choose.randrange(len(data))] = choose.randrange(256)
        path.write_bytes(bytes(data[: choose.choice([len(data), choose.randrange(len(data))])]))
        with contextlib.suppress(CheckpointError):
            open_legacy(path)
