"""Tiles on their way through the engine: a tile is an image of its own, whatever shares its batch."""

import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from maskjet import traffic
from maskjet.config import EngineConfig
from maskjet.engine.reading import Readers
from maskjet.engine.slot import GraphSlot
from maskjet.errors import InputError
from maskjet.model import Model, load
from maskjet.ops.preprocess.yuv import YUVFrames
from maskjet.sources.frames import ListSource, open_source
from maskjet.sources.picture import Picture
from maskjet.sources.source import Frame, Source
from maskjet.tiling.layout import cut_tiles
from maskjet.tiling.merging import merge
from tests.engine.test_pictures import HD, picture
from tests.engine.test_slot import assert_same
from tests.networks.test_network import tiny_network
from tests.waiting import until


@pytest.fixture(scope="module")
def tiny():
    return Model(tiny_network(), EngineConfig(device="cpu", compile=False, batch=4), threshold=0.02)


def image(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def by_hand(predict, whole, tile, overlap=0.2, full=True, most=100):
    """What is found on tiles that are cut out and given one by one."""
    tiles = cut_tiles(whole.shape[:2], tile, overlap, (64, 64), full)
    found = [predict(whole[top : top + height, left : left + width]) for top, left, height, width in tiles]
    return merge(found, tiles, whole.shape[:2], most) if len(found) > 1 else found[0]


class Given(Source):
    """Frames that are there."""

    kind = "video"

    def __init__(self, pixels):
        super().__init__("given")
        self._pixels = pixels

    def _read(self):
        for number, pixels in enumerate(self._pixels):
            yield Frame(number, None, pixels, self.name, f"{self.name}#{number}")


@pytest.mark.parametrize(
    ("size_hw", "choices"),
    [
        ((48, 80), {"tile": 32}),
        ((47, 81), {"tile": (32, 40), "overlap": 0.5, "full": False}),
        ((90, 100), {"tile": "auto", "overlap": 0.0}),
        ((30, 20), {"tile": 64}),
    ],
)
def test_predict_equals_cutting_predicting_and_merging_by_hand(tiny, size_hw, choices):
    images = [image(*size_hw, seed=seed) for seed in range(2)]
    images[1].flags.writeable = False
    found = tiny.predict(images, **choices)
    assert sum(map(len, found)) > 0
    for actual, one in zip(found, images, strict=True):
        assert_same(actual, by_hand(tiny.predict, one, **choices))
    assert_same(tiny.predict(images[0], **choices), found[0])


def test_a_street_and_what_the_call_chooses(tiny):
    street = traffic.Street(seed=3, size_hw=(150, 200)).frame(0).image
    model = load("demo", device="cpu")
    found = model.predict(street, tile=150)
    assert len(found) > 3
    assert_same(found, by_hand(model.predict, street, 150))
    expected = by_hand(lambda crop: tiny.predict(crop, threshold=0.05), street, 150, most=3)
    assert_same(tiny.predict(street, tile=150, threshold=0.05, max_detections=3), expected)


@pytest.mark.parametrize("batch", [1, 3, None])
def test_streams_keep_the_order_of_each_source_across_batches(tiny, batch):
    sources = [[image(*((48, 80) if seed % 2 else (20, 30)), seed) for seed in range(n, n + 3)] for n in (0, 3)]
    before = tiny.report()
    results = list(tiny.stream([open_source(each) for each in sources], batch=batch, tile=32, full=False))
    after = tiny.report()
    for number, images in enumerate(sources):
        own = [(frame, found) for frame, found in results if frame.stream == number]
        assert [frame.index for frame, _ in own] == [0, 1, 2]
        for (frame, found), one in zip(own, images, strict=True):
            np.testing.assert_array_equal(frame.image, one)
            if batch != 3:  # rounds otherwise
                assert_same(found, by_hand(tiny.predict, one, 32, full=False))
    assert (after.images - before.images, after.tiles - before.tiles) == (6, 3 * 6)
    assert after.detections - before.detections == sum(len(found) for _, found in results)


def test_tracking_changes_no_result(tiny):
    images = [image(48, 80, seed) for seed in range(2)]
    model = Model(tiny_network(), tiny.config, threshold=0.15)
    options = {"tile": 32, "full": False, "max_detections": 20}
    plain, tracked = (list(model.stream(images, track=track, **options)) for track in (False, True))
    assert 0 < sum(len(found) for _, found in plain) < 40
    assert sum(len(found) for _, found in model.stream(images, threshold=0.1, **options)) > 0
    for (_, one), (_, other) in zip(plain, tracked, strict=True):
        assert_same(other, one)
        assert other.track_id is not None


@pytest.mark.parametrize("name", ["predict", "stream"])
def test_arguments_are_checked_before_there_is_an_image(tiny, name):
    with pytest.raises(InputError, match=r"^overlap must be 0\.\.0\.9"):
        getattr(tiny, name)([], tile=64, overlap=1)
    wide = np.zeros((1, 30_000, 3), np.uint8)
    given = [wide] if name == "predict" else Given([wide])
    with pytest.raises(InputError, match=r"^tile must be \d+ or larger, or 'auto'"):
        list(getattr(tiny, name)(given, tile=32))


def test_late_frames_are_dropped_whole_unless_they_are_begun():
    begun = threading.Event()

    def produce():
        for number in range(4):
            yield np.zeros((4, 4, 3), np.uint8)
            assert number or begun.wait(30)

    def cut(frame):
        return [replace(frame, pixels=frame.pixels[part:]) for part in range(3)]

    source = ListSource(produce(), "camera")
    with closing(Readers([source], room=1, drops_late=True, cut=cut)) as readers:
        taken = readers.take(2, waits=True)
        begun.set()
        until(lambda: not readers._queues[0].is_reading)
        taken += readers.take(9, waits=True)
        assert [(frame.index, len(frame.pixels)) for frame in taken] == [(i, n) for i in (0, 3) for n in (4, 3, 2)]
        assert readers.dropped == source.frames_dropped == 2


@pytest.mark.parametrize("area", [(0, 0, 8, 12), (2, 4, 4, 6), (6, 10, 2, 2)])
def test_a_tile_of_a_picture_is_a_view_with_its_colours(tiny, area):
    whole = picture(8, 12)
    top, left, height, width = area
    tile = Picture(whole.memory, HD, area)
    assert tile.size_hw == (height, width)
    expected = whole.to_rgb()[top : top + height, left : left + width]
    np.testing.assert_array_equal(tile.to_rgb(), expected)
    luma, chroma = tile.planes(whole.memory)
    places = [plane.data_ptr() - whole.memory.data_ptr() for plane in (luma, chroma)]
    assert list(GraphSlot._describe(SimpleNamespace(_steps=tiny._engine.steps), tile, whole.memory)[2:]) == places
    np.testing.assert_array_equal(YUVFrames(luma, chroma, HD).to_rgb()[0].numpy(), expected)


def test_pictures_on_the_host_equal_their_rgb(tiny):
    pictures = [picture(48, 80), picture(20, 30, seed=1), picture(90, 66, seed=2)]
    for (_, found), shown in zip(tiny.stream(Given(pictures), tile=32), pictures, strict=True):
        assert_same(found, by_hand(tiny.predict, shown.to_rgb(), 32))


def test_an_image_that_is_too_large_is_left_out_of_a_list(tiny, tmp_path):
    for name, size_hw in {"a": (40, 60), "b": (600, 800), "c": (30, 90)}.items():
        Image.fromarray(np.zeros((*size_hw, 3), np.uint8)).save(tmp_path / f"{name}.png")
    source = open_source(str(tmp_path))
    with source:
        assert [Path(frame.name).stem for frame, _ in tiny.stream(source, tile=32)] == ["a", "c"]
    ((index, reason),) = source.bad_frames
    assert index == 1
    assert "tile must be" in reason
    with pytest.raises(InputError, match=r"^tile must be \d+ or larger"):  # as no other image may have another size
        list(tiny.stream(tmp_path / "b.png", tile=32))


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["host", "RGB", "NV12"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_graph_equals_the_eager_engine_bit_for_bit(layout, precision):
    """Of frames on the host and on the GPU, where the tiles are read where they lie, in batches across frames."""
    config = EngineConfig(device="cuda", compile=False, precision=precision, engine="eager")
    eager, graph = (
        Model(tiny_network(), replace(config, engine=engine), threshold=0.02) for engine in ("eager", "graph")
    )
    sizes_hw = [(480, 640), (100, 90), (1080, 1920), (480, 640), (2, 2)]
    pictures = [picture(*size_hw, seed, device="cuda") for seed, size_hw in enumerate(sizes_hw)]
    images = [each.to_rgb() for each in pictures]
    on_gpu = pictures if layout == "NV12" else [torch.from_numpy(each).cuda() for each in images]
    results = list(graph.stream(Given(images if layout == "host" else on_gpu), batch=4, tile=320))
    assert sum(len(found) for _, found in results) > 0
    for (frame, found), shown in zip(results, images, strict=True):
        assert_same(found, by_hand(lambda crop: eager.predict([crop] * 4)[0], shown, 320))
        np.testing.assert_array_equal(frame.image, shown)
    kind = "NV12" if layout == "NV12" else "RGB"
    ((name, text),) = graph.report().graphs.items()
    assert name.startswith(f"4 {kind} ")
    assert text.startswith("1 launch per batch")
