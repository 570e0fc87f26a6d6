"""Our networks against rfdetr's own module, with the same random weights."""

import numpy as np
import pytest
import torch

import maskjet
from benchmarks.planted import randomise
from maskjet.errors import InputError
from maskjet.networks import read_network
from maskjet.networks.rfdetr import read_checkpoint
from maskjet.networks.rfdetr.checkpoint import load_network, resolve_spec
from maskjet.spec import SPECS
from tests.rounding import SameTokens, pair_rows

# rfdetr's own warnings (no pretrained weights, its dependencies' deprecations) are not ours to fix.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("exact_products")]
rfdetr = pytest.importorskip("rfdetr", reason="rfdetr, the oracle, is not installed")

CLASSES = {
    "rf-detr-nano": "RFDETRNano",
    "rf-detr-small": "RFDETRSmall",
    "rf-detr-medium": "RFDETRMedium",
    "rf-detr-large": "RFDETRLarge",
    "rf-detr-seg-nano": "RFDETRSegNano",
    "rf-detr-seg-small": "RFDETRSegSmall",
    "rf-detr-seg-medium": "RFDETRSegMedium",
    "rf-detr-seg-large": "RFDETRSegLarge",
    "rf-detr-seg-xlarge": "RFDETRSegXLarge",
    "rf-detr-seg-2xlarge": "RFDETRSeg2XLarge",
}


TOLERANCE = 1e-4
"""Of logits and mask logits, of up to 16, as README promises. `rounding` would allow 4e-4 for the 52,000 additions of
the smallest; its layer scales damp what each block adds."""
BOX_TOLERANCE = 1e-5
"""Of boxes, 0..1: a tenth, since what is predicted scales with a tenth of the image and less."""
CONFIDENCE_TOLERANCE = TOLERANCE / 4  # the sigmoid's steepest slope
PIXELS = 1e-2  # a corner, cx - w / 2, at 640 pixels: 1.5 × BOX_TOLERANCE × 640
MARGIN = 2 * CONFIDENCE_TOLERANCE  # each of two may move by one
"""How far all confidences are from the threshold, and the last one selected from the next."""


def oracle(name, *, seed=0, class_bias=-5.0, **options):
    model = getattr(rfdetr, CLASSES[name])(pretrain_weights=None, device="cpu", **options)
    randomise(model.model.model.state_dict(), seed=seed, class_bias=class_bias)
    model.model.model.eval()
    return model


def save(model, path):
    torch.save({"model": model.model.model.state_dict()}, path)
    return path


def assert_outputs_equal(actual, expected):
    """Also that they are signals, not constants."""
    torch.testing.assert_close(actual.logits, expected["pred_logits"], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(actual.boxes_cxcywh, expected["pred_boxes"], atol=BOX_TOLERANCE, rtol=0)
    assert expected["pred_logits"].std() > 1
    if actual.mask_logits is not None:
        torch.testing.assert_close(actual.mask_logits, expected["pred_masks"], atol=TOLERANCE, rtol=0)
        assert expected["pred_masks"].std() > 0.5


def test_every_named_size_is_compared():
    assert CLASSES.keys() == SPECS.keys()


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        pytest.param(
            name, 3 if name.endswith("-nano") else 1, marks=pytest.mark.slow if name.endswith("xlarge") else ()
        )
        for name in CLASSES
    ],
)
def test_outputs_equal_rfdetr(name, batch, tmp_path):
    theirs = oracle(name)
    checkpoint = read_checkpoint(save(theirs, tmp_path / "weights.pth"))
    spec = resolve_spec(checkpoint)
    assert spec.name == name
    ours = load_network(spec, checkpoint)
    images = torch.randn(batch, 3, *spec.input_hw, generator=torch.Generator().manual_seed(3))

    with torch.inference_mode(), SameTokens(spec.tokens, TOLERANCE) as choice:
        expected, actual = theirs.model.model(images), ours(images)

    assert choice.compared == 1
    assert_outputs_equal(actual, expected)
    assert (actual.mask_logits is not None) == spec.has_masks


def _images():
    generator = np.random.default_rng(5)
    for height, width in ((176, 312), (360, 640), (97, 61)):
        coarse = generator.integers(0, 256, (height // 20 + 2, width // 20 + 2, 3), dtype=np.uint8)
        yield np.ascontiguousarray(coarse.repeat(20, 0).repeat(20, 1)[:height, :width])


@pytest.mark.parametrize(
    ("name", "threshold", "size_hw"),
    [
        ("rf-detr-seg-nano", 0.5, None),
        ("rf-detr-seg-nano", 0.1, None),
        ("rf-detr-seg-nano", 0.5, (192, 336)),
        ("rf-detr-nano", 0.5, None),
    ],
)
def test_predict_equals_rfdetr(name, threshold, size_hw, tmp_path):
    theirs = oracle(name, seed=3, class_bias=-6.5)
    ours = maskjet.load(
        name,
        weights=save(theirs, tmp_path / "weights.pth"),
        device="cpu",
        threshold=threshold,
        max_detections=300,
        input_size=size_hw,
    )
    queries = ours.spec.queries  # at most so many are selected
    theirs.model.postprocess.num_select = queries + 1  # to see how far the first that is left out is from the last
    found = 0
    for image in _images():
        with SameTokens(ours.spec.tokens, TOLERANCE):
            expected = theirs.predict(image, threshold=threshold - MARGIN, shape=size_hw)
            actual = ours.predict(image)
        assert (abs(expected.confidence - threshold) > MARGIN).all()
        assert (expected.confidence[queries - 1 : -1] - expected.confidence[queries:] > MARGIN).all()
        expected = expected[expected.confidence > threshold][:queries]
        found += len(expected)
        expected = expected[pair_rows(actual.xyxy, actual.class_id, expected.xyxy, expected.class_id)]
        assert (np.diff(actual.confidence) <= 0).all()
        np.testing.assert_array_equal(actual.class_id, expected.class_id)
        np.testing.assert_allclose(actual.confidence, expected.confidence, rtol=0, atol=CONFIDENCE_TOLERANCE)
        np.testing.assert_allclose(actual.xyxy, expected.xyxy, rtol=0, atol=PIXELS)
        if expected.mask is not None:
            _assert_masks_equal(ours, image, actual.masks(), expected.mask)
    assert found > 10


def _assert_masks_equal(model, image, actual, expected):
    differing = np.argwhere(actual != expected)
    if len(differing) == 0:
        return
    # Only pixels whose value lies that close to zero may differ: recompute the values in double precision.
    steps = model._engine.steps
    with torch.inference_mode():
        normalisation = {"mean": model.spec.mean, "std": model.spec.std}
        inputs = maskjet.ops.preprocess(torch.from_numpy(image), size=model.spec.input_hw, **normalisation)
        output = steps.runtime.for_batch(1)(inputs)
    selection = maskjet.ops.select(
        output.logits,
        output.boxes_cxcywh,
        [image.shape[:2]],
        threshold=steps.postprocessing.thresholds,
        max_detections=300,
        num_select=model.spec.queries,
    )
    masks = output.mask_logits[0, selection.queries()[0].long()].double()[:, None]
    values = torch.nn.functional.interpolate(masks, image.shape[:2], mode="bilinear", align_corners=False)[:, 0]
    assert max(abs(float(values[tuple(place)])) for place in differing) < TOLERANCE


def test_positions_of_another_resolution_are_resized_as_rfdetr_does(tmp_path):
    theirs = oracle("rf-detr-seg-nano")
    path = tmp_path / "weights.pth"
    torch.save(
        {"model": theirs.model.model.state_dict(), "model_name": "RFDETRSegNano", "model_config": {"resolution": 384}},
        path,
    )
    checkpoint = read_checkpoint(path)
    spec = resolve_spec(checkpoint)
    assert (spec.input_hw, spec.mask_hw) == ((384, 384), (96, 96))
    images = torch.randn(1, 3, 384, 384, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode(), SameTokens(spec.tokens, TOLERANCE):
        expected, actual = theirs.model.model(images), load_network(spec, checkpoint)(images)
    assert_outputs_equal(actual, expected)


@pytest.mark.parametrize(
    ("name", "size_hw"),
    [("rf-detr-seg-nano", (192, 324)), ("rf-detr-seg-small", (480, 240)), ("rf-detr-nano", (256, 448))],
)
def test_rectangular_inputs_equal_rfdetrs(name, size_hw, tmp_path):
    theirs = oracle(name)
    ours = read_network(name, save(theirs, tmp_path / "weights.pth"), size_hw)
    assert ours.spec.input_hw == size_hw
    images = torch.randn(2, 3, *size_hw, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode(), SameTokens(ours.spec.tokens, TOLERANCE) as choice:
        expected, actual = theirs.model.model(images), ours(images)
    assert choice.compared == 1
    assert_outputs_equal(actual, expected)


@pytest.mark.parametrize("size_hw", [(192, 330), (0, 192), (190, 192)])
def test_sizes_that_rfdetr_refuses_are_refused(size_hw, tmp_path):
    theirs = oracle("rf-detr-seg-nano")
    path = save(theirs, tmp_path / "weights.pth")
    with pytest.raises(ValueError, match="shape"):
        theirs.predict(next(_images()), shape=size_hw)
    with pytest.raises(InputError, match="input_size must be"):
        maskjet.load("rf-detr-seg-nano", weights=path, device="cpu", input_size=size_hw)


def test_fine_tuned_classes_come_along(tmp_path):
    theirs = oracle("rf-detr-seg-nano", num_classes=2)
    path = tmp_path / "fine_tuned.pth"
    torch.save({"model": theirs.model.model.state_dict(), "args": {"class_names": ["bolt", "nut"]}}, path)
    model = maskjet.load(path, device="cpu", classes=["nut"])
    assert model.spec.class_logits == theirs.model.model.class_embed.out_features
    assert model.spec.class_names == {0: "bolt", 1: "nut"}
    image = next(_images())
    with SameTokens(model.spec.tokens, TOLERANCE):
        expected, actual = theirs.predict(image, threshold=0.5 - MARGIN), model.predict(image)
    assert (abs(expected.confidence - 0.5) > MARGIN).all()
    expected = expected[expected.confidence > 0.5]
    np.testing.assert_array_equal(actual.class_id, expected.class_id[expected.class_id == 1])
