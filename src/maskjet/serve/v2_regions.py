"""Shared memory regions registered by local clients, from which frames are read in place of being sent.

Registrations are in a database that all processes of the service share. So each of them knows a region before its
registration is answered, also one that is started again.
"""

from __future__ import annotations

import base64
import ctypes
import os
import sqlite3
import stat
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from maskjet.errors import InputError, explain
from maskjet.ops.gpu import capturing
from maskjet.serve import problems
from maskjet.serve.service import Service
from maskjet.serve.v2_json import Fields, read, show

MOST = 64
"""Largest number of regions of a service."""
_SHARED = Path("/dev/shm")
_Name = Annotated[str, Field(min_length=1, max_length=256)]
_Size = Annotated[int, Field(ge=1, lt=2**62)]
_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
# WAL, so that no one who registers without end holds up who reads; nothing is kept beyond the service.
_TABLE = """
PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; CREATE TABLE IF NOT EXISTS regions
(number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, kind TEXT, fields TEXT)
"""


class SystemRegion(Fields):
    """Memory that `shm_open` has made."""

    name: _Name
    key: Annotated[str, Field(pattern=r"^/?[A-Za-z0-9_-]{1,250}$")]
    offset: int = Field(default=0, ge=0, lt=2**62)
    byte_size: _Size


def _to_text(handle: Any) -> Any:
    """Convert a handle to text, from bytes in gRPC or an object in JSON."""
    if isinstance(handle, bytes):
        return base64.b64encode(handle).decode()
    return handle.get("b64") if isinstance(handle, dict) else handle


class CudaRegion(Fields):
    """A GPU's memory: base64 of its cudaIpcMemHandle_t, and the client's number of the GPU."""

    name: _Name
    raw_handle: Annotated[str, Field(pattern="^[A-Za-z0-9+/]{86}==$"), BeforeValidator(_to_text)]
    device_id: int = Field(ge=0, lt=2**31)
    byte_size: _Size


KINDS: dict[str, type[SystemRegion | CudaRegion]] = {"system": SystemRegion, "cuda": CudaRegion}
"""Regions by kind."""


class Regions:
    """Registered regions, as seen by one process of the service; thread-safe."""

    def __init__(self, service: Service) -> None:
        self._prefix, other_workers = service.settings.shared_memory, service.other_workers
        self._device = next(iter(service.dispatchers.values())).model.report().device.partition(" ")[0]
        path = ":memory:" if other_workers is None else other_workers.folder / "regions.sqlite"
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._database.close)
        self._database.executescript(_TABLE)
        self._lock = threading.RLock()
        self._opened: dict[int, _SystemMemory | _CudaMemory] = {}  # by registration number, never reused

    def register(self, kind: str, fields: dict[str, Any]) -> None:
        """Register a region from the fields of its kind; its memory must be readable.

        Raises:
            ProblemError: 403, the setting `shared_memory` is off, or names other memory; 409, the name is taken, or
                there are `MOST` regions.
            InputError: A field is invalid, there is no such memory, or it is another user's.
        """
        region = read(KINDS[kind], fields)
        if self._prefix is None:
            detail = "This service reads no shared memory, as it was started without shared_memory."
            raise problems.ProblemError(403, "no-shared-memory", detail)
        if isinstance(region, SystemRegion) and not region.key.removeprefix("/").startswith(self._prefix):
            detail = f"key must begin with {self._prefix!r}, the setting shared_memory, got {show(region.key)}."
            raise problems.ProblemError(403, "no-shared-memory", detail)
        self._open(region)
        room = f"(SELECT count(*) FROM regions) < {MOST}"
        insert = f"INSERT OR IGNORE INTO regions (name, kind, fields) SELECT ?, ?, ? WHERE {room} RETURNING number"
        if not self._ask(insert, region.name, kind, region.model_dump_json()):
            detail = f"name must be new, and one of at most {MOST}, got {show(region.name)}: unregister some."
            raise problems.ProblemError(409, "name-taken", detail)

    def unregister(self, kind: str, name: str = "") -> None:
        """Unregister a region by name, or all of a kind for ""; requests in progress can still read them."""
        self._ask("DELETE FROM regions WHERE kind = ? AND ? IN ('', name)", kind, name)
        self._close_unregistered()

    def status(self, kind: str, name: str = "") -> list[dict[str, Any]]:
        """Fields of a region by name, or of all of a kind for ""; raises ProblemError 404 if unknown."""
        found = self._ask("SELECT fields FROM regions WHERE kind = ? AND ? IN ('', name)", kind, name)
        if name and not found:
            raise problems.ProblemError(404, "no-such-region", f"name must be a registered region's, got {show(name)}.")
        return [KINDS[kind].model_validate_json(text).model_dump(exclude={"raw_handle"}) for (text,) in found]

    def read(self, name: str, offset: int, size: int) -> NDArray[np.uint8] | torch.Tensor:
        """Read from a region: a copy of system memory, or a GPU's memory in place; uint8 [size].

        Raises:
            InputError: There is no such region, or it has fewer bytes.
        """
        found = self._ask("SELECT number, kind, fields FROM regions WHERE name = ?", name)
        if not found:
            raise InputError(f"shared_memory_region must be registered, got {show(name)}.")
        ((number, kind, text),) = found
        with self._lock:
            memory = self._opened.get(number)
            if memory is None:
                self._close_unregistered()
                memory = self._opened[number] = self._open(KINDS[kind].model_validate_json(text))
        most = memory.region.byte_size
        if offset + size > most:
            raise InputError(
                f"shared_memory_byte_size must be within the {most:,} bytes of the region {show(name)}, got {size:,} "
                f"behind {offset:,}."
            )
        return memory.read(offset, size)

    def _open(self, region: SystemRegion | CudaRegion) -> _SystemMemory | _CudaMemory:
        return _SystemMemory(region) if isinstance(region, SystemRegion) else _CudaMemory(region, self._device)

    def _close_unregistered(self) -> None:
        with self._lock:
            registered = {number for (number,) in self._ask("SELECT number FROM regions")}
            self._opened = {number: memory for number, memory in self._opened.items() if number in registered}

    def _ask(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._database.execute(query, values).fetchall()


class _SystemMemory:
    """System shared memory, read by file operations: mapped memory truncated by a client would crash us."""

    def __init__(self, region: SystemRegion) -> None:
        self.region = region
        try:
            self._file = os.open(_SHARED / region.key.removeprefix("/"), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise InputError(f"key must be shared memory to read, got {show(region.key)}: {explain(error)}.") from error
        weakref.finalize(self, os.close, self._file)
        found = os.fstat(self._file)
        if found.st_uid != os.geteuid() or found.st_nlink > 1:  # a service's rights may be more than its client's
            expected = "memory of the user who runs the service, with no other name"
            raise InputError(f"key must be {expected}, {show(region.key)} is not.")
        if not stat.S_ISREG(found.st_mode) or region.offset + region.byte_size > found.st_size:
            raise InputError(
                f"byte_size must be within the {found.st_size:,} bytes of {show(region.key)}, got {region.byte_size:,} "
                f"behind {region.offset:,}."
            )

    def read(self, offset: int, size: int) -> NDArray[np.uint8]:
        """Copy bytes; raises InputError if the client has truncated the memory."""
        values, begin = np.empty(size, dtype=np.uint8), self.region.offset + offset
        left = values.data
        while count := os.preadv(self._file, [left], begin + size - len(left)):  # at most 2 GiB at a time
            left = left[count:]
        if left:
            raise InputError(f"The region {show(self.region.name)} must be as long as it was, it is shorter.")
        return values


class _Handle(ctypes.Structure):
    """CUipcMemHandle, which is cudaIpcMemHandle_t."""

    _fields_ = (("reserved", ctypes.c_char * 64),)


class _CudaMemory:
    """GPU memory of another process, kept open while tensors refer to it.

    Raises:
        InputError: It can't be opened, or has fewer bytes; or the models are on a CPU.
    """

    def __init__(self, region: CudaRegion, device: str) -> None:
        self.region, self._device = region, device
        if not device.startswith("cuda"):
            raise InputError("A region must be in system shared memory, as this service computes on a CPU; got CUDA's.")
        driver, pointer, begin, size = ctypes.CDLL("libcuda.so.1"), *(ctypes.c_uint64() for _ in range(3))
        handle = _Handle.from_buffer_copy(base64.b64decode(region.raw_handle))
        with capturing, _context_of(driver, device):
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
        """View bytes in place, uint8 [size]; the tensor keeps the memory open."""
        return torch.as_tensor(self, dtype=torch.uint8, device=self._device)[offset : offset + size]


def _close(driver: Any, pointer: int, device: str) -> None:
    with _context_of(driver, device):
        driver.cuIpcCloseMemHandle(ctypes.c_uint64(pointer))


@contextmanager
def _context_of(driver: Any, device: str) -> Iterator[None]:
    """Make PyTorch's context of a GPU current, as new threads have none."""
    number, context = ctypes.c_int(), ctypes.c_void_p()
    driver.cuDeviceGet(ctypes.byref(number), torch.device(device).index)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number)
    driver.cuCtxPushCurrent_v2(context)
    try:
        yield
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
        driver.cuDevicePrimaryCtxRelease_v2(number)
