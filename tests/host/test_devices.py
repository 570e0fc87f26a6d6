"""Which devices a service of several processes has, and what each process sees of them."""

import dataclasses
import sys
from types import SimpleNamespace

import pytest
import torch

from maskjet.config import EngineConfig
from maskjet.errors import InputError, UnsupportedError
from maskjet.host import devices
from maskjet.host.devices import choose, place
from maskjet.jobs.local import choose_streams

UUIDS = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6, MIG-12c62eb2-3a5e-5a6b-9a2c-0d5d3e6f7a81 ,GPU-1"


def seen(names, cores=8, **environ):
    """CUDA_VISIBLE_DEVICES and OMP_NUM_THREADS of each process."""
    places = place(names, environ, cores=cores)
    assert [each.number for each in places] == list(range(len(names)))
    assert [each.device for each in places] == names
    return [(each.variables["CUDA_VISIBLE_DEVICES"], each.variables["OMP_NUM_THREADS"]) for each in places]


@pytest.mark.parametrize(
    ("names", "visible", "expected"),
    [
        (["cuda:0", "cuda:1"], None, ["0", "1"]),
        (["cuda:2", "cuda:0", "cuda:2"], None, ["2", "0", "2"]),
        (["cuda:1"], " 5 , 3 ", ["3"]),
        (["cuda:0", "cuda:1", "cuda:2"], UUIDS, [entry.strip() for entry in UUIDS.split(",")]),
        (["cpu", "cuda:1"], "5,3", ["", "3"]),
    ],
)
def test_each_process_sees_its_own_gpu_alone(names, visible, expected):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert [gpu for gpu, _ in seen(names, **environ)] == expected


@pytest.mark.parametrize(("cores", "count", "threads"), [(8, 2, "4"), (8, 3, "2"), (2, 8, "1"), (7, 1, "7")])
def test_processes_share_the_cores(cores, count, threads):
    assert {each for _, each in seen(["cpu"] * count, cores)} == {threads}
    assert {each for _, each in seen(["cpu"] * count, cores, OMP_NUM_THREADS="3")} == {"3"}  # the user's


@pytest.fixture
def gpus(monkeypatch):
    """Sets the number of GPUs that PyTorch sees."""
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)

    def have(count):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return have


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("all", ["cuda:0", "cuda:1", "cuda:2"]),
        ("cuda:2,cuda:0", ["cuda:2", "cuda:0"]),
        ("cuda, cuda:1", ["cuda:0", "cuda:1"]),
        ("2,0", ["cuda:2", "cuda:0"]),
        ("cuda:1,cuda:1", ["cuda:1", "cuda:1"]),
        ("cpu,cuda:1", ["cpu", "cuda:1"]),
    ],
)
def test_devices_have_the_names_of_device(text, names, gpus):
    gpus(3)
    places = choose(text, EngineConfig(device="cuda:7").check_cpu)  # as MASKJET_DEVICE may say
    assert [each.device for each in places] == names
    assert [each.own_device for each in places] == ["cpu" if name == "cpu" else "cuda:0" for name in names]
    assert str(places[0]) == f"process 0 on {names[0]}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"devices must be all, or cpu, cuda or cuda:N with commas between them, got ''\."),
        ("cuda:0,", r"devices must be .*, got '' in 'cuda:0,'\."),
        ("cuda:-1", r"devices must be .*, got 'cuda:-1'\."),
        ("cuda:99999999999999999999", r"devices must be .*, got 'cuda:9+'\."),
    ],
)
def test_what_is_no_device_is_refused(text, message, gpus):
    gpus(3)
    with pytest.raises(InputError, match=message):
        choose(text, EngineConfig().check_cpu)


def test_devices_that_are_not_here_are_refused(gpus, monkeypatch):
    gpus(2)
    with pytest.raises(
        UnsupportedError, match=r"devices must be on this machine, 'cuda:2' is not: PyTorch sees 2 GPUs\."
    ):
        choose("cuda:0,cuda:2", EngineConfig().check_cpu)
    gpus(0)
    with pytest.raises(UnsupportedError, match=r"devices='all' needs a GPU, PyTorch sees none; use 'cpu'\."):
        choose("all", EngineConfig().check_cpu)
    monkeypatch.setattr("torch.cuda.device_count", lambda: pytest.fail("asked"))
    assert len(choose("cpu,cpu", EngineConfig().check_cpu)) == 2
    with pytest.raises(UnsupportedError, match="precision='fp16' needs a GPU"):
        choose("cpu", dataclasses.replace(EngineConfig(), precision="fp16").check_cpu)


@pytest.mark.parametrize(
    ("text", "cores", "free_gib", "processes", "expected"),
    [
        ("auto", 16, 79, None, ["cuda:0"] * 4),
        ("auto", 16, 79, 1, ["cuda:0"]),
        ("auto", 16, 79, 6, ["cuda:0"] * 6),
        ("auto", 15, 79, None, ["cuda:0"] * 2),
        ("auto", 7, 79, None, ["cuda:0"]),
        ("auto", 16, 15, None, ["cuda:0"]),
        ("auto", 16, None, None, ["cuda:0"]),  # not known
        ("all", 16, 79, None, ["cuda:0"] * 2 + ["cuda:1"] * 2),
        ("cuda:1,cuda:1", 64, 79, None, ["cuda:1"] * 2),  # chosen by hand
        ("cuda:1,cuda:1", 64, 79, 2, ["cuda:1"] * 4),
        ("cpu", 64, None, None, ["cpu"]),
        ("cpu", 2, None, 3, ["cpu"] * 3),
    ],
)
def test_processes_fill_a_gpu_within_cores_and_memory(text, cores, free_gib, processes, expected, gpus, monkeypatch):
    gpus(2)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(cores))
    monkeypatch.setattr(devices, "free_gpu_bytes", lambda _: free_gib if free_gib is None else free_gib * 2**30)
    places = choose(text, EngineConfig().check_cpu, processes)
    assert [each.device for each in places] == expected
    assert {each.variables["OMP_NUM_THREADS"] for each in places} == {str(max(1, cores // len(places)))}


LISTED = "GPU 0: NVIDIA H200 (UUID: GPU-1)\nGPU 1: NVIDIA H200 (UUID: GPU-2)\n"


@pytest.mark.parametrize(
    ("listed", "visible", "expected"),
    [
        (LISTED, None, 2),
        (LISTED, "1", 1),
        (LISTED, "1,0", 2),
        (LISTED, "", 7),  # and what follows are PyTorch's to tell
        (LISTED, "0,2", 7),
        (LISTED, "0,0", 7),
        (LISTED, "GPU-1", 7),
        (LISTED + "  MIG 1g.18gb Device 0: (UUID: MIG-1)\n", None, 7),
        ("", None, 7),
    ],
)
def test_gpus_are_counted_without_pytorch_where_the_driver_is_sure(listed, visible, expected, gpus, monkeypatch):
    gpus(7)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(devices, "ask_driver", lambda _: listed)
    assert devices.count_gpus() == 7  # it is imported, so it is asked
    modules = {name: module for name, module in sys.modules.items() if name != "torch"}
    monkeypatch.setattr(devices, "sys", SimpleNamespace(modules=modules))
    monkeypatch.setattr("pathlib.Path.exists", lambda path: path.name == "libtorch_cuda.so")
    assert devices.count_gpus() == expected
    monkeypatch.setattr("pathlib.Path.exists", lambda _: False)  # PyTorch for CPUs
    assert devices.count_gpus() == 0


def test_free_memory_is_asked_of_the_gpu_that_a_process_sees(monkeypatch, tmp_path):
    (first, second, cpu) = place(["cuda:0", "cuda:1", "cpu"], {"CUDA_VISIBLE_DEVICES": "7,GPU-1"}, cores=4)
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\n[ "$1" = --id=7 ] && echo 81079 || exit 6\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert devices.free_gpu_bytes(first) == 81079 * 2**20
    assert devices.free_gpu_bytes(second) is None
    assert devices.free_gpu_bytes(cpu) is None
    tool.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert devices.free_gpu_bytes(first) is None


def test_a_gpus_processes_share_its_segments():
    for names, streams in ((["cuda:0"], 8), (["cuda:0", "cuda:0", "cuda:1"], 4), (["cuda:0"] * 9, 1)):
        assert choose_streams(place(names, {}, cores=8)) == streams
