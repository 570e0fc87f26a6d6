"""Page-locked memory and scratch."""

import gc
from pathlib import Path

import pytest
import torch

from maskjet.ops import memory
from maskjet.ops.memory import Scratch, pin
from tests.threads import run_at_once


class Runtime:
    """CUDA's functions: they note what is locked, and whether it is mapped then."""

    def __init__(self):
        self.locked, self.unlocked = {}, []

    def cudaHostRegister(self, address, size, _):  # noqa: N802
        self.locked[address] = size
        return 0

    def cudaHostUnregister(self, address):  # noqa: N802
        ranges = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
        assert any(int(first, 16) <= address < int(last, 16) for first, last in ranges), "unmapped too early"
        self.unlocked.append(address)
        del self.locked[address]


def test_memory_is_unlocked_before_it_is_unmapped(monkeypatch):
    runtime = Runtime()
    monkeypatch.setattr(memory.torch.cuda, "cudart", lambda: runtime)
    tensor = pin((3, 2**20))
    part = tensor[1:].view(-1)[:5].fill_(7)
    assert list(runtime.locked.values()) == [3 * 2**20]
    del tensor
    assert part.tolist() == [7] * 5
    assert not runtime.unlocked
    del part
    gc.collect()
    assert len(runtime.unlocked) == 1
    assert not runtime.locked


@pytest.mark.gpu
def test_threads_lock_and_unlock_at_once():
    def work(_):
        for power in [*range(12, 23)] * 20:
            pin((1 << power,))

    torch.zeros(1, device="cuda")
    run_at_once(work, range(8))


def test_scratch_grows_and_what_was_taken_stays():
    scratch = Scratch(torch.device("cpu"))
    small = scratch.take("edges", 10, torch.int32).fill_(1)
    assert scratch.take("edges", 4, torch.int32).data_ptr() == small.data_ptr()
    assert scratch.take("others", 4, torch.int32).data_ptr() != small.data_ptr()
    large = scratch.take("edges", 20, torch.int32).fill_(2)
    assert small.tolist() == [1] * 10
    assert scratch.take("edges", 10, torch.int32).data_ptr() == large.data_ptr()
    assert scratch.nbytes == 4 * (20 + 4)
