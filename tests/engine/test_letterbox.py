"""Frames that keep their aspect ratio: as padding them, detecting, and cropping what was found."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import maskjet
from maskjet import ops
from maskjet.config import EngineConfig
from maskjet.errors import InputError
from maskjet.model import Model
from maskjet.ops.paste_masks.reference import show
from tests.engine.test_pictures import HD, detect, picture
from tests.engine.test_slot import assert_same
from tests.engine.test_slot import image as frame_of
from tests.networks.checkpoints import save_safetensors
from tests.networks.test_network import TINY, tiny_network
from tests.ops.cases.paste_masks import blobs

SIDE = TINY.input_size
GREY = (114, 114, 114)


def pad(frame, side, color=GREY, place="center"):
    """The frame in a square, and its place there as (top, left)."""
    height, width = frame.shape[:2]
    top, left = ((side - height) // 2, (side - width) // 2) if place == "center" else (0, 0)
    padded = np.empty((side, side, 3), np.uint8)
    padded[:] = color
    padded[top : top + height, left : left + width] = frame
    return padded, (top, left)


def assert_cropped(found, whole, place, size_hw):
    """What was found in a letterbox is what was found in the padded frame, but for what lies in the margin."""
    (top, left), (height, width) = place, size_hw
    offset, most = np.array([left, top, left, top]), np.array([width, height, width, height])
    assert len(found) == len(whole) > 0
    np.testing.assert_array_equal(found.class_id, whole.class_id)
    np.testing.assert_allclose(found.confidence, whole.confidence, atol=1e-5)
    np.testing.assert_allclose(found.xyxy, (whole.xyxy - offset).clip(0, most), atol=0.01)
    crops = whole.masks()[:, top : top + height, left : left + width]
    assert (found.masks() != crops).mean() < 1e-4  # where a value lies within rounding of zero


@pytest.mark.parametrize(
    ("size_hw", "place", "color"),
    [
        ((2 * SIDE, SIDE), "center", (0, 200, 30)),
        ((SIDE, 4 * SIDE), "top-left", GREY),
        ((6 * SIDE, 3 * SIDE), "top-left", (0, 200, 30)),
        ((2 * SIDE, 2 * SIDE), "center", GREY),
    ],
)
def test_padded_detected_and_cropped(size_hw, place, color):
    # The margin begins where four input pixels do: padded first or last, the input is the same.
    frame = frame_of(*size_hw)
    padded, origin = pad(frame, max(size_hw), color, place)
    config = EngineConfig(device="cpu", resize="letterbox", letterbox_color=f"#{bytes(color).hex()}")
    with Model(tiny_network(), replace(config, letterbox_place=place), threshold=0.02) as letterboxed:
        found = letterboxed.predict(frame)
        assert letterboxed.report().resize == f"letterbox, {place}, #{bytes(color).hex()}"
    with Model(tiny_network(), EngineConfig(device="cpu"), threshold=0.02) as stretched:
        assert_cropped(found, stretched.predict(padded), origin, size_hw)


def test_any_size_within_its_frame():
    config = EngineConfig(device="cpu", resize="letterbox")
    with Model(tiny_network(), config, threshold=0.02) as model:
        for size_hw in ((1, 1), (1, 300), (300, 1), (37, 91), (500, 201)):
            found = model.predict(frame_of(*size_hw))
            assert found.image_size == size_hw
            assert found.masks().shape == (len(found), *size_hw)
            assert (found.xyxy >= 0).all()
            assert (found.xyxy <= np.array([size_hw[1], size_hw[0]] * 2)).all()


@pytest.mark.parametrize("size_hw", [(88, 156), (90, 40)])
def test_nv12_gives_what_its_rgb_gives(size_hw):
    with Model(tiny_network(), EngineConfig(device="cpu", resize="letterbox"), threshold=0.02) as model:
        pictures = [picture(*size_hw, seed, HD) for seed in range(2)]
        for actual, expected in zip(
            detect(model, pictures), model.predict([one.to_rgb() for one in pictures]), strict=True
        ):
            assert_same(actual, expected)


def test_a_checkpoint_says_how_it_was_trained(tmp_path):
    network, frame = tiny_network(), frame_of(60, 41)
    rule = {"resize": "letterbox", "letterbox_color": "#0000ff", "letterbox_place": "top-left"}
    path = save_safetensors(network.state_dict(), tmp_path / "trained.safetensors", antialias=True, **rule)
    given = {"threshold": 0.02, "device": "cpu"}
    with maskjet.load(path, **given) as model:
        assert model.report().resize == "letterbox, top-left, #0000ff, antialias"
        found = model.predict(frame)
    with Model(network, EngineConfig(device="cpu", resample="antialias", **rule), threshold=0.02) as model:
        assert_same(model.predict(frame), found)
    with maskjet.load(path, letterbox_place="center", resample="cv2", **given) as model:
        assert model.report().resize == "letterbox, center, #0000ff, cv2"
    with maskjet.load(path, resize="stretch", resample="bilinear", **given) as model:
        assert model.report().resize == "stretch"


def test_choices_for_a_letterbox_need_one():
    for name, value in {"letterbox_color": "#000000", "letterbox_place": "center"}.items():
        with pytest.raises(InputError, match=f"{name} must be left out unless resize='letterbox', got"):
            Model(tiny_network(), EngineConfig(device="cpu", **{name: value}))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_graph_equals_the_eager_engine_bit_for_bit(precision):
    choices = {"device": "cuda", "compile": False, "precision": precision, "resize": "letterbox"}
    with (
        Model(tiny_network(), EngineConfig(engine="graph", **choices), threshold=0.02) as graph,
        Model(tiny_network(), EngineConfig(engine="eager", **choices), threshold=0.02) as eager,
    ):
        for turn in range(3):
            for size_hw in ((720, 1280), (500, 201), (64, 64)):
                frames = [frame_of(*size_hw, seed) for seed in (turn, turn + 9)]
                for actual, expected in zip(graph.predict(frames), eager.predict(frames), strict=True):
                    assert_same(actual, expected)
                pictures = [picture(*(side // 2 * 2 for side in size_hw), turn, HD, "cuda")]
                assert_same(detect(graph, pictures)[0], detect(eager, pictures)[0])


@pytest.mark.parametrize(
    ("size_hw", "implementation"),
    [((720, 1280), "cpu"), ((640, 359), "reference"), ((150, 1000), "cpu"), ((77, 1003), "reference")],
)
def test_masks_are_those_of_exact_positions(size_hw, implementation):
    # The definition in float64, of which a float32 position differs by up to 1e-5 of a logit's width.
    masks = blobs(1, 4, (78, 78), torch.Generator().manual_seed(size_hw[0]))
    canvas = ops.Letterbox().region(size_hw, (312, 312)).canvas(size_hw, (312, 312))
    exact = show(masks[0].double(), size_hw, canvas).numpy()
    (found,) = ops.encode_masks(masks, [torch.arange(4)], [size_hw], canvases=[canvas], implementation=implementation)
    decoded = [maskjet.coco_rle.decode({"size": size_hw, "counts": counts}) for counts in found]
    assert np.abs(exact[(np.stack(decoded) > 0) != (exact > 0)]).max(initial=0) < 1e-5


@pytest.mark.parametrize(
    ("canvases", "message"),
    [
        ([(0, 0, 9)], "canvases must have one .left, top, width, height. per image"),
        ([], "canvases must have one entry per image, 1, got 0"),
        ([(0, 0, 8, 5)], r"canvases\[0\] must be .* around its image of 9 × 5, got"),
        ([(0, 0, float("nan"), 5)], r"canvases\[0\] must be .* around its image"),
        ([(0, 0, float("inf"), 5)], r"canvases\[0\] must be .* around its image"),
    ],
)
def test_a_canvas_must_hold_its_image(canvases, message):
    masks, query, sizes = torch.zeros(1, 2, 4, 4), [torch.tensor([0])], [(5, 9)]
    logits, boxes = torch.zeros(1, 2, 3), torch.zeros(1, 2, 4)
    for call in (
        lambda: ops.encode_masks(masks, query, sizes, canvases=canvases),
        lambda: ops.paste_masks(masks, query, sizes, canvases=canvases),
        lambda: ops.select(logits, boxes, sizes, canvases=canvases),
    ):
        with pytest.raises(InputError, match=message):
            call()
    given = {"boxes": [torch.zeros(1, 4, dtype=torch.int32)], "canvases": [(0, 0, 9, 5)]}
    with pytest.raises(InputError, match="canvases must be None with boxes"):
        ops.encode_masks(masks, query, sizes, **given)
