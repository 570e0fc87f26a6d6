"""Launchers: what is compiled when."""

import threading
import time

import pytest
import torch

from maskjet.ops.gpu import Launcher, Launchers, compiling_ahead, fitting_stages, shared_memory
from maskjet.ops.linear.tiles import Tile, fit

CPU = torch.device("cpu")


class Kernel:
    """Counts what it compiles and launches."""

    def __init__(self):
        self.compiled, self.launched, self.threads = [], [], set()
        self.loading, self.loaded_at_once = 0, 0

    def warmup(self, *args, **constants):
        self.threads.add(threading.get_ident())
        if "bad" in args:
            raise ValueError("bad")
        self.compiled.append(constants)
        return self

    @property
    def run(self):
        self.loading += 1
        self.loaded_at_once = max(self.loaded_at_once, self.loading)
        time.sleep(0.01)
        self.loading -= 1

    def __getitem__(self, grid):
        return lambda *args: self.launched.append((grid, args))


@pytest.fixture
def kernel():
    return Kernel()


@pytest.fixture
def launcher(kernel):
    launcher = Launcher(kernel)
    launcher._is_interpreted = False
    return launcher


def test_launches_ahead_are_compiled_once_and_not_launched(kernel, launcher):
    with compiling_ahead(CPU):
        for side in (1, 2, 1):
            launcher((1, 1, 1), "half", 7, SIDE=side)
        assert not kernel.compiled
    assert sorted(each["SIDE"] for each in kernel.compiled) == [1, 2]
    assert threading.get_ident() not in kernel.threads
    assert not kernel.launched
    launcher((4, 1, 1), "half", 7, SIDE=2)
    assert kernel.launched == [((4, 1, 1), (7, 2))]
    assert len(kernel.compiled) == 2
    with compiling_ahead(CPU):
        launcher((1, 1, 1), "half", 7, SIDE=1)
    assert len(kernel.compiled) == 2


def test_what_cannot_be_compiled_is_raised_and_then_launches_are_launches_again(kernel, launcher):
    with pytest.raises(ValueError, match="bad"), compiling_ahead(CPU):
        launcher((1, 1, 1), "half", "bad", SIDE=1)
    launcher((1, 1, 1), "half", 7, SIDE=1)
    assert len(kernel.launched) == 1


def test_other_threads_launch_meanwhile(kernel, launcher):
    with compiling_ahead(CPU):
        other = threading.Thread(target=launcher, args=((1, 1, 1), "half", 7), kwargs={"SIDE": 3})
        other.start()
        other.join()
    assert kernel.launched == [((1, 1, 1), (7, 3))]


def test_code_is_loaded_once_and_by_one_thread_at_a_time(kernel):
    launchers = [Launcher(kernel) for _ in range(4)]
    for each in launchers:
        each._is_interpreted = False
    threads = [threading.Thread(target=each, args=((1, 1, 1), "float", 3)) for each in launchers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    launchers[0]((1, 1, 1), "float", 3)
    assert (len(kernel.compiled), len(kernel.launched), kernel.loaded_at_once) == (4, 5, 1)


def test_products_and_sums_are_fused_unless_told_otherwise(kernel):
    """Triton 3.9 warns if it isn't told, and 3.10 would not fuse."""
    launchers = Launcher(kernel), Launchers(kernel).make(4, 3, waits=True), Launcher(kernel, enable_fp_fusion=False)
    for launcher in launchers:
        launcher._is_interpreted = False
        launcher((1, 1, 1), "half", 7)
    assert [each["enable_fp_fusion"] for each in kernel.compiled] == [True, True, False]


@pytest.fixture
def small_gpu(monkeypatch):
    """An L4, as far as its shared memory goes."""
    properties = type("Properties", (), {"shared_memory_per_block_optin": 99 * 1024})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    shared_memory.cache_clear()
    yield torch.device("cuda")
    shared_memory.cache_clear()


def test_stages_fit_into_shared_memory(small_gpu):
    assert [fitting_stages(4, size * 1024, small_gpu) for size in (16, 32, 64, 128)] == [4, 3, 1, 1]
    assert fitting_stages(4, 64 * 1024, CPU) == 3


def test_tiles_fit_into_shared_memory(small_gpu):
    assert fit(Tile(256, 128, 64, 8, 4), small_gpu) == Tile(128, 128, 64, 8, 3)
    assert fit(Tile(64, 64, 64, 4, 4), small_gpu) == Tile(64, 64, 64, 4, 4)
    assert fit(Tile(16, 512, 64, 8, 2), small_gpu) == Tile(16, 512, 64, 8, 1)
    assert fit(Tile(256, 128, 64, 8, 4), CPU) == Tile(256, 128, 64, 8, 4)
