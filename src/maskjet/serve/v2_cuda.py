"""A GPU's memory that another process shares, through CUDA's driver."""

from __future__ import annotations

import base64
import ctypes
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from maskjet.errors import InputError
from maskjet.ops.gpu import capturing, on_device

if TYPE_CHECKING:
    from maskjet.serve.v2_regions import CudaRegion

_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS


class _Handle(ctypes.Structure):
    """CUipcMemHandle, which is cudaIpcMemHandle_t."""

    _fields_ = (("reserved", ctypes.c_char * 64),)


class CudaMemory:
    """Memory of another process on a GPU, open until the last tensor in it has gone.

    Args:
        region: The memory.
        device: The GPU of the process' models, "cuda:N"; "cpu" is refused.

    Raises:
        InputError: It can't be opened, or has fewer bytes.
    """

    def __init__(self, region: CudaRegion, device: str) -> None:
        self.region = region
        if not device.startswith("cuda"):
            raise InputError("A region must be in system shared memory, as this service computes on a CPU; got CUDA's.")
        driver, pointer, begin, size = _load_driver(), *(ctypes.c_uint64() for _ in range(3))
        handle = _Handle.from_buffer_copy(base64.b64decode(region.raw_handle))
        with capturing, on_device(torch.device(device)):
            torch.empty(1, device=device)  # a new thread has no context before
            status = driver.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), handle, _PEER_ACCESS)
            if status:
                raise InputError(
                    "raw_handle must be of another process's memory on a GPU of this service, which can't open it "
                    f"(CUDA's error {status})."
                )
            weakref.finalize(self, _close, driver, pointer.value, device).atexit = False
            status = driver.cuMemGetAddressRange_v2(ctypes.byref(begin), ctypes.byref(size), pointer)
        left = begin.value + size.value - pointer.value
        if status or region.byte_size > left:
            raise InputError(f"byte_size must be at most the {left:,} bytes of the memory, got {region.byte_size:,}.")
        address = {"data": (pointer.value, False), "shape": (region.byte_size,), "strides": None}
        self.__cuda_array_interface__ = {**address, "typestr": "|u1", "version": 3}

    def read(self, offset: int, size: int) -> torch.Tensor:
        """These bytes, in place; the tensor keeps the memory open."""
        return torch.as_tensor(self)[offset : offset + size]


def _close(driver: Any, pointer: int, device: str) -> None:
    with on_device(torch.device(device)):
        driver.cuIpcCloseMemHandle(ctypes.c_uint64(pointer))


@cache
def _load_driver() -> Any:
    driver: Any = ctypes.CDLL("libcuda.so.1")
    pointer = ctypes.POINTER(ctypes.c_uint64)
    driver.cuIpcOpenMemHandle_v2.argtypes = (pointer, _Handle, ctypes.c_uint)
    driver.cuMemGetAddressRange_v2.argtypes = (pointer, pointer, ctypes.c_uint64)
    driver.cuIpcCloseMemHandle.argtypes = (ctypes.c_uint64,)
    return driver
