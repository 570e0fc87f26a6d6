"""The benchmark of videos: every contender sees the frames, is compared, and the report is written as it prints."""

import json
from types import SimpleNamespace

import pytest
from torch.autograd import DeviceType

from benchmarks import contenders, video
from benchmarks.chart import draw_videos
from benchmarks.planted import plant_network
from maskjet.config import EngineConfig
from maskjet.errors import InputError, MaskjetError
from maskjet.model import Model
from maskjet.profiling import HostWork, sum_up_host
from maskjet.traffic import sample
from tests.networks.test_network import TINY

CPU = EngineConfig(device="cpu")


@pytest.fixture(scope="module", autouse=True)
def short():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(video, "_IN_MEMORY", 3)
        patch.setattr(video, "_WARM_UP", 1)
        yield


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("video")
    only = ["eager", "kernels", "graph", "compile", "rfdetr"]
    found = video.run(
        folder / "video.json", sizes_hw=[(96, 160), (64, 64)], config=CPU, frames=4, runs=1, only=only, videos=folder
    )
    return folder, found


@pytest.mark.slow
def test_every_contender_runs_every_size(report):
    folder, found = report
    assert json.loads((folder / "video.json").read_text()) == json.loads(json.dumps(found.as_dict()))
    assert [(m.size_hw, m.name) for m in found.measurements] == [
        (size, name) for size in ((96, 160), (64, 64)) for name in ("eager", "kernels")
    ]
    for m in found.measurements:
        assert m.matched == 1
        assert m.max_confidence_difference < 1e-5
        assert m.fps > 0
        assert m.memory_fps > 0
        assert 0 < m.p50_ms <= m.p99_ms
        assert m.launches is m.gpu_busy is None
    assert {o.output for o in found.outputs} == set(video.OUTPUTS)
    assert sorted(path.name for path in folder.glob("*.mp4")) == ["street_160x96_4_7.mp4", "street_64x64_4_7.mp4"]


@pytest.mark.slow
def test_what_cannot_be_had_is_named(report):
    _, found = report
    assert [note.split(" left out")[0] for note in found.notes] == ["graph", "compile", "rfdetr"]
    assert "it needs an NVIDIA GPU" in found.notes[0]


@pytest.mark.slow
def test_the_table_has_a_row_for_each(report):
    _, found = report
    lines = str(found).splitlines()
    assert len(lines) == 1 + len(found.measurements) + 1 + len(found.notes) + len(found.outputs)
    assert lines[0].split()[:2] == ["size", "frames/s"]


@pytest.mark.slow
def test_the_chart_is_drawn(report, tmp_path):
    pytest.importorskip("matplotlib")
    draw_videos(report[1].as_dict(), tmp_path / "video.png")
    assert (tmp_path / "video.png").stat().st_size > 10_000


def test_a_rung_that_finds_something_else_is_an_error(monkeypatch):
    build = contenders.build

    def cheat(*args):
        built, notes, models = build(*args)
        find = built[1].detect
        monkeypatch.setattr(built[1], "detect", lambda image: find(image)[1:])
        return built, notes, models

    rungs = dict.fromkeys(("kernels",), contenders.RUNGS["kernels"])
    rungs["again"] = contenders.EngineRung("again", "", {"engine": "eager", "compile": False})
    monkeypatch.setattr(contenders, "RUNGS", rungs)
    monkeypatch.setattr(video, "build", cheat)
    with pytest.raises(MaskjetError, match="again must find exactly the same as kernels"):
        video.run(sizes_hw=[(96, 160)], config=CPU, frames=3, runs=1, only=["kernels", "again"])


def test_planted_networks_find_about_what_they_should():
    frames = [sample(seed=seed, size_hw=(96, 160)).image for seed in range(5)]
    network = plant_network(TINY, frames, survivors=6, seed=2)
    with Model(network, CPU) as model:
        found = sorted(len(model.predict(frame)) for frame in frames)
    assert abs(found[2] - 6) <= 2


def event(name, start, stop, device):
    return SimpleNamespace(name=name, device_type=device, time_range=SimpleNamespace(start=start, end=stop))


def test_host_work_is_counted():
    events = [
        event("cudaGraphLaunch", 0, 5, DeviceType.CPU),
        event("cudaLaunchKernelExC", 5, 6, DeviceType.CPU),
        event("cudaMemcpyAsync", 6, 7, DeviceType.CPU),
        event("cudaEventQuery", 7, 8, DeviceType.CPU),
        event("cudaDeviceSynchronize", 8, 9, DeviceType.CPU),  # the profiler's
        event("cudaStreamSynchronize", 20, 30, DeviceType.CPU),
        event("cudaDeviceSynchronize", 60, 61, DeviceType.CPU),  # the profile's own
        event("kernel", 10, 20, DeviceType.CUDA),
        event("kernel", 15, 30, DeviceType.CUDA),  # at the same time
        event("Memcpy HtoD", 40, 50, DeviceType.CUDA),
        event("Stream Sync", 0, 100, DeviceType.CUDA),
    ]
    assert sum_up_host(events, times=2) == HostWork(launches=1.0, copies=0.5, waits=0.5, busy=0.75)


def test_bad_arguments():
    with pytest.raises(InputError, match="runs must be at least 1, got 0"):
        video.run(runs=0)
    with pytest.raises(InputError, match="frames must be at least 1, got 0"):
        video.run(frames=0)
    with pytest.raises(InputError, match=r"only must be of 'eager', 'kernels'.*got 'warp'"):
        video.run(frames=2, sizes_hw=[(64, 64)], config=CPU, only=["warp"])
