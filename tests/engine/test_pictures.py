"""Frames in NV12 give what their RGB gives, bit for bit."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from maskjet.config import EngineConfig
from maskjet.model import Model
from maskjet.ops.preprocess.yuv import YUVFrames, yuv_conversion
from maskjet.sources.picture import Picture, conversion_of
from tests.engine.test_slot import assert_same
from tests.networks.test_network import tiny_network

HD, SD = (conversion_of(matrix, is_full_range=False) for matrix in (1, 5))


def picture(height, width, seed=0, look=HD, device="cpu"):
    memory = np.random.default_rng(seed).integers(0, 256, (height * 3 // 2, width), dtype=np.uint8)
    return Picture(torch.from_numpy(memory).to(device), look)


def model(**choices):
    return Model(tiny_network(), EngineConfig(**{"compile": False, **choices}), threshold=0.02)


def detect(loaded, pictures, batch=None):
    """The detections of a batch on a slot of the model's engine."""
    with loaded._engine.lease(1) as (slot,):
        slot.submit(pictures, batch or len(pictures))
        return slot.result()


def test_rgb_is_that_of_the_definition():
    one = picture(6, 10)
    expected = YUVFrames.within(one.memory, yuv_conversion("bt709", full_range=False)).to_rgb()
    np.testing.assert_array_equal(one.to_rgb(), expected[0].numpy())
    assert one.size_hw == (6, 10)
    assert conversion_of(1, is_full_range=False) is HD  # so that it is uploaded once


@pytest.mark.parametrize(("size_hw", "looks"), [((88, 156), (HD, SD, HD)), ((2, 2), (HD,))])
def test_step_by_step(size_hw, looks):
    with model(device="cpu") as eager:
        pictures = [picture(*size_hw, seed, look) for seed, look in enumerate(looks)]
        found = detect(eager, pictures)
        assert sum(map(len, found)) > 0
        assert {each.image_size for each in found} == {size_hw}
        for actual, expected in zip(found, eager.predict([one.to_rgb() for one in pictures]), strict=True):
            assert_same(actual, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_as_a_graph(precision, where):
    graph = model(device="cuda", engine="graph", precision=precision)
    for size_hw in ((176, 312), (720, 1280)):
        for turn in range(4):  # replays take other colours, too
            looks = (HD, SD, SD) if turn % 2 else (SD, SD, HD)
            pictures = [picture(*size_hw, 10 * turn + n, look, where) for n, look in enumerate(looks)]
            found = detect(graph, pictures, batch=4)
            expected = detect(graph, [torch.from_numpy(one.to_rgb()).to(where) for one in pictures], batch=4)
            assert sum(map(len, found)) > 0
            for actual, wanted in zip(found, expected, strict=True):
                assert_same(actual, wanted)
    (kinds,) = ({kind.split()[1] for kind in graph.report().graphs},)
    assert kinds == {"RGB", "NV12"}
    assert all(text.startswith("1 launch per batch") for text in graph.report().graphs.values())


@pytest.mark.gpu
def test_threads_download_pictures_while_graphs_are_captured():
    sizes = [(88, 156), (176, 312), (720, 1280), (90, 160)]

    far = [picture(*size, device="cuda") for size in sizes]
    expected = [picture(*size).to_rgb() for size in sizes]
    torch.cuda.synchronize()  # finished, as decoders leave them

    def convert(number):
        for turn in range(number, number + 400):
            np.testing.assert_array_equal(far[turn % 4].to_rgb(), expected[turn % 4])

    with ThreadPoolExecutor(4) as pool:
        busy = [pool.submit(convert, number) for number in range(4)]
        turns = 0
        while not all(each.done() for each in busy) or turns < 2:
            with model(device="cuda", engine="graph") as graph:
                for _ in range(4):
                    detect(graph, [picture(176, 312, device="cuda")])
                assert all(text.startswith("1 launch per batch") for text in graph.report().graphs.values())
            turns += 1
        for each in busy:
            each.result()
