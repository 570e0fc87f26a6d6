"""The service on a GPU: batches, graphs for many sizes, and what /metrics tells of them."""

import asyncio

import pytest

import maskjet
from maskjet.parity.pair import Pairing, pair
from tests.serve.client import encoded, run, served

pytestmark = pytest.mark.gpu
SIZES_HW = [(120 + 8 * step, 200 + 16 * step) for step in range(7)]


@pytest.fixture(scope="module")
def on_gpu():
    with maskjet.load("demo", device="cuda", threshold=0.3, compile=False) as loaded:
        yield loaded


def numbers(text):
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def captured(model):
    """The graphs of all slots that are captured."""
    return {id(graph._graph) for slot in model._engine._idle for graph in slot.graphs if graph.is_captured}


async def grown(client):
    """Wait until batches of all sizes are captured."""
    await client.service.warmed_up.wait()
    dispatcher = client.service.dispatcher()
    while dispatcher.largest < dispatcher.batch:
        await asyncio.sleep(0.05)


@run
async def test_clients_of_many_sizes_share_batches_and_get_what_predict_finds(on_gpu):
    streets = [maskjet.traffic.sample(seed=n, size_hw=SIZES_HW[n % 7]).image for n in range(14)]
    alone = [on_gpu.predict(street) for street in streets]
    async with served({"demo": on_gpu}) as client:
        await grown(client)
        before = captured(on_gpu)
        for turn in range(4):
            chosen = [(n + turn) % 14 if turn % 2 else turn for n in range(24)]
            answers = await asyncio.gather(
                *(client.post("/v1/predict", content=encoded(streets[number])) for number in chosen)
            )
            for number, answer in zip(chosen, answers, strict=True):
                assert answer.status_code == 200, answer.text
                found = maskjet.Detections.from_dict(answer.json())
                assert len(found) == len(alone[number])
                assert found.class_id.tolist() == alone[number].class_id.tolist()
                assert found.confidence == pytest.approx(alone[number].confidence, abs=2e-3)  # batches round otherwise
        told = numbers((await client.get("/metrics")).text)
    assert told['maskjet_batch_images_sum{model="demo"}'] == 96
    assert told['maskjet_batch_images_count{model="demo"}'] < 96  # some came together
    assert captured(on_gpu) == before  # nothing was captured because a size was new
    assert told['maskjet_graphs{model="demo"}'] == len(on_gpu.report().graphs) == 4  # batches of 1, 2, 4 and 8
    assert told['maskjet_gpu_memory_bytes{device="cuda:0",kind="allocated"}'] > 2**20


@pytest.fixture(scope="module")
def by_gpu():
    with maskjet.load("demo", device="cuda", decoder="cuda", threshold=0.3, compile=False) as loaded:
        yield loaded


@run
async def test_jpegs_of_any_sizes_are_found_in_as_predict_finds_by_the_gpu(by_gpu):
    streets = [maskjet.traffic.sample(seed=n, size_hw=SIZES_HW[n % 7]).image for n in range(14)]
    files = [encoded(street, ".jpg") for street in streets]
    cut = files[0][:-500]  # the CPU's, which refuses it
    alone = [by_gpu.predict(file, decoder="cuda") for file in files]
    async with served({"demo": by_gpu}, memory_bytes=2**28) as client:
        await grown(client)
        before = captured(by_gpu)
        for number, file in enumerate(files):  # one by one there is nothing to round otherwise
            answer = await client.post("/v1/predict", content=file)
            assert answer.json() == alone[number].as_dict()
        answers = await asyncio.gather(*(client.post("/v1/predict", content=file) for file in [*files, cut] * 2))
        pairing = Pairing()
        for number, answer in enumerate(answers):
            if number % 15 == 14:
                assert answer.status_code == 422
                continue
            pairing.add(pair(alone[number % 15], maskjet.Detections.from_dict(answer.json())))
        assert pairing.share > 0.98  # batches round otherwise: which is the first of two that are alike, for example
        drawn = await client.post("/v1/predict", content=files[0], headers={"Accept": "image/png"})
        assert drawn.headers["content-type"] == "image/png"
        assert captured(by_gpu) == before
        assert (await client.get("/v1/status")).json()["jpegs"] == "cuda:0"
        assert (
            numbers((await client.get("/metrics")).text)['maskjet_jpegs_on_cpu_total{reason="cut off or damaged"}'] == 2
        )
    assert client.service.memory.taken == 0


@run
async def test_both_threads_are_warm_before_it_is_ready(on_gpu):
    async with served({"demo": on_gpu}, batch=2) as client:
        assert (await client.get("/health/ready")).status_code == 503
        await client.service.warmed_up.wait()
        assert (await client.get("/health/ready")).status_code == 200
        await grown(client)
        kinds = {kind.partition(" to ")[0]: text for kind, text in on_gpu.report().graphs.items()}
    for batch in (1, 2):
        assert kinds[f"{batch} RGB"].startswith("1 launch per batch")
