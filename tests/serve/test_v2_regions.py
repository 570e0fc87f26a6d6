"""Shared memory: what is registered is read by every process of the service, and nothing else is."""

import base64
import os
import secrets
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import maskjet
from maskjet.errors import InputError
from maskjet.serve import Settings
from maskjet.serve.problems import ProblemError
from maskjet.serve.service import Service
from maskjet.serve.v2_images import ImageTensor, read_images
from maskjet.serve.v2_regions import MOST, Regions
from tests.serve.client import check_equal, encoded, serving

http = pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed", exc_type=ImportError)
grpc = pytest.importorskip("tritonclient.grpc", reason="gRPC is not installed", exc_type=ImportError)
SHARED = Path("/dev/shm")
PREFIX = "maskjet-test-"


@contextmanager
def shared(content):
    """A file of shared memory, as `shm_open` makes it; its key."""
    path = SHARED / f"{PREFIX}{secrets.token_hex(4)}"
    path.write_bytes(content)
    try:
        yield path.name
    finally:
        path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def address(model):
    with serving({"demo": model}, has_grpc=True, shared_memory=PREFIX) as address:
        yield address


@pytest.fixture(params=[http, grpc], ids=["http", "grpc"])
def client(request, address):
    module = request.param
    with module.InferenceServerClient(address if module is http else address.grpc) as client:
        client.module = module
        yield client
        client.unregister_system_shared_memory()


def make_input(client, shape, datatype, *place):
    tensor = client.module.InferInput("image", list(shape), datatype)
    tensor.set_shared_memory(*place)
    return tensor


def names(status):
    return [each["name"] for each in status] if isinstance(status, list) else sorted(status.regions)


def test_images_are_read_where_the_client_put_them(client, model, street):
    image = encoded(street, ".png")
    files = len(image).to_bytes(4, "little") + image
    with shared(bytes(7) + street.tobytes() + files) as key:
        client.register_system_shared_memory("frames", f"/{key}", street.nbytes + len(files), offset=7)
        found = [model.predict(street)]
        pixels = make_input(client, street.shape, "UINT8", "frames", street.nbytes)
        check_equal(client.infer("demo", [pixels]), found)
        file = make_input(client, [1], "BYTES", "frames", len(files), street.nbytes)
        check_equal(client.infer("demo", [file]), found)
        (SHARED / key).write_bytes(bytes(7) + street[::-1].tobytes() + files)  # the next frame, in its place
        check_equal(client.infer("demo", [pixels]), [model.predict(np.ascontiguousarray(street[::-1]))])
        os.truncate(SHARED / key, 1000)  # a mapping of it would now end the process
        with pytest.raises(http.InferenceServerException, match="must be as long as it was"):
            client.infer("demo", [pixels])


def test_each_frame_is_handed_to_one_thread(client, address, model, street, monkeypatch):
    """It reads the region and calls the model; the event loop does the rest, but for the answer to several frames."""
    frames, pool, handed = np.stack([street, street[::-1]]), address.service._pool, []
    submit = pool.submit
    with shared(frames.tobytes()) as key:
        client.register_system_shared_memory("frames", key, frames.nbytes)
        monkeypatch.setattr(pool, "submit", lambda *given: handed.append(given) or submit(*given))
        second = make_input(client, street.shape, "UINT8", "frames", street.nbytes, street.nbytes)
        found = [model.predict(frame) for frame in frames]
        check_equal(client.infer("demo", [second]), found[1:])
        assert len(handed) == 1
        both = make_input(client, frames.shape, "UINT8", "frames", frames.nbytes)
        check_equal(client.infer("demo", [both]), found)
        assert len(handed) == 4


def test_regions_are_listed_and_forgotten(client, street):
    with shared(bytes(100)) as key:
        client.register_system_shared_memory("a", key, 50, offset=50)
        client.register_system_shared_memory("b", key, 100)
        with pytest.raises(http.InferenceServerException, match=r"name must be new, .* got 'a'") as caught:
            client.register_system_shared_memory("a", key, 100)
        assert caught.value.status() in ("409", "StatusCode.ALREADY_EXISTS")
        status = client.get_system_shared_memory_status()
        assert names(status) == ["a", "b"]
        assert names(client.get_system_shared_memory_status("b")) == ["b"]
        first = status[0] if isinstance(status, list) else status.regions["a"]
        told = first if isinstance(first, dict) else {field.name: value for field, value in first.ListFields()}
        assert told == {"name": "a", "key": key, "offset": 50, "byte_size": 50}
        assert names(client.get_cuda_shared_memory_status()) == []
        client.unregister_cuda_shared_memory()
        client.unregister_system_shared_memory("a")
        client.unregister_system_shared_memory("a")  # as Triton does
        assert names(client.get_system_shared_memory_status()) == ["b"]
        with pytest.raises(http.InferenceServerException, match="name must be a registered region's, got 'a'"):
            client.get_system_shared_memory_status("a")
        with pytest.raises(http.InferenceServerException, match="shared_memory_region must be registered, got 'a'"):
            client.infer("demo", [make_input(client, street.shape, "UINT8", "a", street.nbytes)])
        with pytest.raises(
            http.InferenceServerException, match="must be within the 100 bytes of the region 'b', got 1"
        ):
            client.infer("demo", [make_input(client, street.shape, "UINT8", "b", street.nbytes)])
        with pytest.raises(http.InferenceServerException, match="must be in system shared memory"):
            client.register_cuda_shared_memory("c", b"A" * 86 + b"==", 0, 100)


def regions_of(model, folder=None, **settings):
    """The regions of one process, which shares them with those of the same folder."""
    service = Service({"demo": model}, Settings(**{"shared_memory": PREFIX, **settings}))
    service.other_workers = folder and SimpleNamespace(folder=folder)
    return Regions(service)


@pytest.fixture
def regions(model):
    return regions_of(model)


def system(key, size=1, **more):
    return {"name": "a", "key": key, "byte_size": size, **more}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (system("../etc/passwd"), "key must match pattern"),
        (system("a\n"), "key must match pattern"),
        (system("x" * 251), "key must match pattern"),
        (system("maskjet-test-nothing"), "key must be shared memory to read, got .*: No such file"),
        (system("a", 0), "byte_size must be greater than or equal to 1"),
        (system("a", offset=-1), "offset must be greater than or equal to 0"),
        ({**system("a"), "name": "x" * 257}, "name must have at most 256 characters"),
    ],
)
def test_wrong_regions_are_refused(regions, fields, message):
    with pytest.raises(InputError, match=message):
        regions.register("system", fields)
    assert regions.status("system") == []


def test_only_shared_memory_that_is_there_is_opened(regions, tmp_path):
    with shared(bytes(10)) as key:
        for size, offset in ((11, 0), (10, 1), (1, 10), (2**61, 2**61)):
            with pytest.raises(InputError, match="byte_size must be within the 10 bytes"):
                regions.register("system", system(key, size, offset=offset))
        path = SHARED / key
        path.unlink()
        path.symlink_to(tmp_path / "secret")
        (tmp_path / "secret").write_bytes(bytes(10))
        with pytest.raises(InputError, match="key must be shared memory to read"):
            regions.register("system", system(key))
        path.unlink()
        os.mkfifo(path)  # to open it would block
        with pytest.raises(InputError, match="within the 0 bytes"):
            regions.register("system", system(key))


def test_every_process_knows_a_region_at_once(model, tmp_path):
    first, second = (regions_of(model, tmp_path) for _ in range(2))
    with shared(b"abcdef") as key, shared(b"uvwxyz") as other:
        first.register("system", system(key, 6))
        assert second.read("a", 1, 3).tobytes() == b"bcd"
        second.unregister("system", "a")
        with pytest.raises(InputError, match="must be registered"):
            first.read("a", 0, 1)
        first.register("system", system(other, 6))
        assert second.read("a", 1, 3).tobytes() == b"vwx"  # not the memory that had the name before
        assert regions_of(model, tmp_path).read("a", 5, 1).tobytes() == b"z"


def test_a_region_is_read_while_another_process_registers_one(model, tmp_path):
    regions = regions_of(model, tmp_path)
    with shared(b"abc") as key, closing(sqlite3.connect(tmp_path / "regions.sqlite")) as another:
        regions.register("system", system(key, 3))
        another.execute("BEGIN EXCLUSIVE")
        assert regions.read("a", 0, 3).tobytes() == b"abc"


def test_files_are_closed_with_their_regions(regions):
    before = len(list(Path("/proc/self/fd").iterdir()))
    with shared(bytes(10)) as key:
        for _ in range(3):
            for number in range(MOST):
                regions.register("system", {**system(key), "name": str(number)})
                regions.read(str(number), 0, 1)
            with pytest.raises(ProblemError, match=f"one of at most {MOST}"):
                regions.register("system", {**system(key), "name": "another"})
            regions.unregister("system")
        regions.register("system", system(key))
        regions.read("a", 0, 1)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2


def test_only_memory_that_the_operator_named_is_read(model, regions, monkeypatch):
    for made, key, status in ((regions_of(model, shared_memory=None), PREFIX, 403), (regions, "other", 403)):
        with pytest.raises(ProblemError, match="shared_memory") as caught:
            made.register("system", system(key))
        assert caught.value.status == status
    fields = {"name": "a", "raw_handle": "A" * 86 + "==", "device_id": 0, "byte_size": 1}
    with pytest.raises(ProblemError, match="shared_memory"):
        regions_of(model, shared_memory=None).register("cuda", fields)
    with shared(bytes(10)) as key:
        regions.register("system", system(f"/{key}"))
        (SHARED / f"{key}-2").hardlink_to(SHARED / key)
        for name in (key, f"{key}-2"):
            with pytest.raises(InputError, match="with no other name, "):
                regions.register("system", {**system(name), "name": "b"})
        (SHARED / f"{key}-2").unlink()
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(InputError, match=f"key must be memory of the user who runs .* '{key}' is not"):
            regions.register("system", {**system(key), "name": "b"})
    with pytest.raises(InputError, match="token must be given with shared_memory where the service is insecure"):
        Settings(shared_memory=PREFIX, insecure=True).check_exposure()
    with pytest.raises(InputError, match=r"shared_memory must be 1\.\.250 letters, digits, _ and -, got ''"):
        Settings(shared_memory="")


def test_errors_tell_nothing_of_what_a_region_contains(client):
    huge = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDRabcdabcd\x08\x02\x00\x00\x00" + bytes(100)
    cases = [b"root:x:0:0:root:/root", *((len(one)).to_bytes(4, "little") + one for one in (b"root:x:0:0:root", huge))]
    cases.append(cases[-1] + b"root")
    told = set()
    for content in cases:
        with shared(content) as key:
            client.register_system_shared_memory("secret", key, len(content))
            with pytest.raises(http.InferenceServerException) as caught:
                client.infer("demo", [make_input(client, [1], "BYTES", "secret", len(content))])
            told.add(caught.value.message())
            client.unregister_system_shared_memory()
    assert told == {
        "image: element 0 must have as many bytes as its length states, it has fewer.",
        "image must have files that can be decoded, within the limits; those in the region are not.",
        "image: must end with element 0, more bytes follow.",
    }


def test_sizes_are_checked_before_a_region_is_read():
    def read_region(*place):
        pytest.fail(f"It was read: {place}.")

    def state(shape, size, datatype="UINT8"):
        place = {"shared_memory_region": "a", "shared_memory_byte_size": size}
        return ImageTensor(name="image", datatype=datatype, shape=shape, parameters=place)

    for fields in (state([1, 1, 3], 2), state([1, 1, 3], 2**62), state([9, 1, 1, 3], 27), state([101, 100, 3], 30_300)):
        with pytest.raises((InputError, ProblemError)):
            read_images(fields, memoryview(b""), read_region, most_images=8, most_pixels=10_000)


EXPORTS = """
import base64, ctypes, sys
import numpy as np
import cuda.bindings.runtime as cudart

def call(function, *arguments):
    error, *results = function(*arguments)
    assert error == cudart.cudaError_t.cudaSuccess, error
    return results[0] if results else None

size = int(sys.argv[1])
pointer = call(cudart.cudaMalloc, size)
handle = call(cudart.cudaIpcGetMemHandle, pointer)
raw = bytes((ctypes.c_char * 64).from_address(handle.getPtr()))
print(base64.b64encode(raw).decode(), flush=True)
while frame := sys.stdin.buffer.read(size):
    values = np.frombuffer(frame, np.uint8)
    call(cudart.cudaMemcpy, pointer, values.ctypes.data, size, cudart.cudaMemcpyKind.cudaMemcpyHostToDevice)
    call(cudart.cudaDeviceSynchronize)
    print("written", flush=True)
"""
"""A client in a process of its own, as CUDA opens no memory in the process that made it: writes each frame that it
reads from standard input."""


@contextmanager
def exported(size):
    """A client with GPU memory: its handle in base64, and a function that writes a frame into it."""
    pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings is not installed", exc_type=ImportError)
    command = [sys.executable, "-c", EXPORTS, str(size)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:

        def write(frame):
            client.stdin.write(frame.tobytes())
            client.stdin.flush()
            assert client.stdout.readline() == b"written\n"

        try:
            yield client.stdout.readline().strip(), write
        finally:
            client.stdin.close()
            client.wait(30)


@pytest.mark.gpu
@pytest.mark.parametrize("module", [http, grpc], ids=["http", "grpc"])
def test_a_gpus_memory_is_read_in_place(module, street):
    frames = [street, np.ascontiguousarray(street[::-1]), np.zeros_like(street)]
    large = 2 * street.nbytes + 512
    with (
        maskjet.load("demo", device="cuda", threshold=0.3, compile=False) as model,
        serving({"demo": model}, has_grpc=True, shared_memory=PREFIX) as address,
        module.InferenceServerClient(address if module is http else address.grpc) as client,
        exported(large) as (handle, write),
    ):
        client.module = module
        for wrong, size, message in (
            (handle, 2**40, "byte_size must be at most the"),
            (base64.b64encode(bytes(64)), 100, "raw_handle must be of another process's memory"),
        ):
            with pytest.raises(http.InferenceServerException, match=message):
                client.register_cuda_shared_memory("wrong", wrong, 0, size)
        client.register_cuda_shared_memory("frames", handle, 0, large)
        for at, frame in enumerate(frames):
            offset = 512 + at % 2 * street.nbytes
            padded = np.full(large, 255, np.uint8)
            padded[offset : offset + street.nbytes] = frame.ravel()
            write(padded)
            tensor = make_input(client, street.shape, "UINT8", "frames", street.nbytes, offset)
            result = client.infer("demo", [tensor])
            found = model.predict(frame)
            assert result.as_numpy("class_ids").tolist() == found.class_id.tolist()
            assert result.as_numpy("scores") == pytest.approx(found.confidence, abs=2e-3)
            assert result.as_numpy("masks").tolist() == [rle["counts"] for rle in found.rle]
        memory = next(iter(address.regions._opened.values()))
        begin = memory.__cuda_array_interface__["data"][0]
        assert memory.read(512, 10).data_ptr() == begin + 512  # in place
        both = make_input(client, (2, *street.shape), "UINT8", "frames", 2 * street.nbytes, 512)
        assert client.infer("demo", [both]).as_numpy("count").shape == (2,)
        with pytest.raises(http.InferenceServerException, match="must be within"):
            client.infer("demo", [make_input(client, street.shape, "UINT8", "frames", street.nbytes, large)])
        with pytest.raises(http.InferenceServerException, match="must be UINT8 in a GPU's memory"):
            client.infer("demo", [make_input(client, [1], "BYTES", "frames", 100)])
        client.unregister_cuda_shared_memory("frames")
        assert address.regions._opened == {}
        client.register_cuda_shared_memory("frames", handle, 0, large)  # opened anew
        kept = address.regions.read("frames", 0, 10)
        client.unregister_cuda_shared_memory()
        del memory
        assert kept.tolist() == [255] * 10  # a tensor that is still used keeps the memory open


@pytest.mark.gpu
def test_a_client_that_ends_leaves_the_service_alive(street):
    with (
        maskjet.load("demo", device="cuda", threshold=0.3, compile=False) as model,
        serving({"demo": model}, has_grpc=True, shared_memory=PREFIX) as address,
        grpc.InferenceServerClient(address.grpc) as client,
    ):
        client.module = grpc
        with exported(street.nbytes) as (handle, write):
            write(street)
            client.register_cuda_shared_memory("frame", handle, 0, street.nbytes)
            tensor = make_input(client, street.shape, "UINT8", "frame", street.nbytes)
            expected = client.infer("demo", [tensor]).as_numpy("scores").tolist()
            assert len(expected) == len(model.predict(street))
        with suppress(http.InferenceServerException):
            client.infer("demo", [tensor])  # the memory stays until the service closes it
        client.unregister_cuda_shared_memory()
        pixels = grpc.InferInput("image", list(street.shape), "UINT8").set_data_from_numpy(street)
        assert client.infer("demo", [pixels]).as_numpy("scores") == pytest.approx(np.array(expected), abs=2e-3)
