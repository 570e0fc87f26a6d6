"""Copies by the CUDA driver, with a driver of the test's own; tests/media/test_decoding.py has the real one."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from maskjet.sources import surfaces

CONTEXT, EVENT, STREAM = 7, 8, 9
WORD = ctypes.c_uint64


class Driver:
    """Notes each call; copies bytes of the host's memory."""

    def __init__(self):
        self.calls, self.fails, self.stream = [], {}, 0
        for name, count in {
            "cuCtxPushCurrent_v2": 1,
            "cuCtxPopCurrent_v2": 1,
            "cuEventRecord": 2,
            "cuEventSynchronize": 1,
            "cuStreamWaitEvent": 3,
            "cuMemcpy2DAsync_v2": 2,
        }.items():
            setattr(self, name, ctypes.CFUNCTYPE(ctypes.c_int, *[WORD] * count)(self._noting(name)))

    def _noting(self, name):
        def call(*arguments):
            if name == "cuMemcpy2DAsync_v2":
                self._copy(surfaces._Copy.from_address(arguments[0]))
                arguments = arguments[1:]
            self.calls.append((name.removesuffix("_v2"), *arguments))
            return self.fails.get(name, 0)

        return call

    @staticmethod
    def _copy(copy):
        assert (copy.source_x, copy.source_y, copy.target_x, copy.target_y) == (0, 0, 0, 0)
        assert (copy.source_type, copy.target_type) == (2, 2)  # the memory of the GPU
        for row in range(copy.height):
            ctypes.memmove(copy.target + row * copy.target_pitch, copy.source + row * copy.source_pitch, copy.width)

    def cuCtxGetCurrent(self, context):  # noqa: N802
        context._obj.value = CONTEXT
        return self.fails.get("cuCtxGetCurrent", 0)

    def cuEventCreate(self, event, flags):  # noqa: N802
        assert flags == 3  # blocking, without times
        event._obj.value = EVENT
        return 0

    def cuEventDestroy_v2(self, event):  # noqa: N802
        self.calls.append(("cuEventDestroy", event.value))


@pytest.fixture
def driver(monkeypatch):
    made = Driver()
    monkeypatch.setattr(surfaces, "_driver", lambda: made)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=made.stream))
    surfaces._compiled_copies.cache_clear()
    yield made
    surfaces._compiled_copies.cache_clear()


def surface_of(memory, size_hw):
    """A picture as a decoder leaves it, with rows further apart than they are wide."""
    height, width = size_hw
    starts = [rows.ctypes.data for rows in (memory, memory[height:])]
    planes = [SimpleNamespace(buffer_ptr=start, line_size=memory.shape[1]) for start in starts]
    return SimpleNamespace(height=height, width=width, planes=planes)


@pytest.mark.usefixtures("driver")
def test_pictures_are_copied_whole_whatever_their_size():
    copier = surfaces.SurfaceCopier("cpu")
    for height, width in ((2, 2), (8, 12), (64, 30), (8, 12)):
        memory = np.random.default_rng(width).integers(0, 256, (height * 3 // 2, 64), dtype=np.uint8)
        assert np.array_equal(copier.copy(surface_of(memory, (height, width))).numpy(), memory[:, :width])


@pytest.mark.parametrize("stream", [0, STREAM])
def test_the_copy_waits_for_the_decoder_and_is_waited_for(driver, stream):
    driver.stream = stream
    copier = surfaces.SurfaceCopier("cpu")
    copier.copy(surface_of(np.zeros((12, 64), np.uint8), (8, 12)))
    waits = [("cuEventRecord", EVENT, 0), ("cuStreamWaitEvent", stream, EVENT, 0)] if stream else []
    assert driver.calls == [
        ("cuCtxPushCurrent", CONTEXT),
        *waits,
        ("cuMemcpy2DAsync", stream),
        ("cuMemcpy2DAsync", stream),
        ("cuEventRecord", EVENT, stream),
        ("cuCtxPopCurrent", 0),
        ("cuEventSynchronize", EVENT),
    ]
    driver.calls.clear()
    del copier
    assert driver.calls == [("cuEventDestroy", EVENT)]


@pytest.mark.parametrize(
    "name", ["cuCtxPushCurrent_v2", "cuEventRecord", "cuStreamWaitEvent", "cuMemcpy2DAsync_v2", "cuEventSynchronize"]
)
def test_a_driver_that_fails_is_told_and_leaves_no_context_behind(driver, name):
    driver.stream = STREAM
    copier = surfaces.SurfaceCopier("cpu")
    driver.fails[name] = 719
    with pytest.raises(RuntimeError, match="the CUDA driver failed with error 719"):
        copier.copy(surface_of(np.zeros((12, 64), np.uint8), (8, 12)))
    names = [call[0] for call in driver.calls]
    assert names.count("cuCtxPopCurrent") == (name != "cuCtxPushCurrent_v2")
    assert ("cuEventSynchronize" in names) == (name == "cuEventSynchronize")
    assert names.count("cuMemcpy2DAsync") == {"cuMemcpy2DAsync_v2": 1, "cuEventSynchronize": 2}.get(name, 0)
    driver.fails["cuCtxGetCurrent"] = 201  # there is no context
    with pytest.raises(RuntimeError, match="error 201"):
        surfaces.SurfaceCopier("cpu")
