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

BY_LOWER_CASE = {name.lower(): name for name in dir(rfdetr)}
CLASSES = {size: BY_LOWER_CASE[size.replace("-", "")] for size in SPECS}
SMALLEST = ("rf-detr-nano", "rf-detr-seg-nano")

TOLERANCE = 1e-4
"""Of logits and mask logits, of up to 16, as README promises. `rounding` would allow 4e-4 for the 52,000 additions of
the smallest; its layer scales damp what each block adds."""
BOX_TOLERANCE = 1e-5
"""Of boxes, 0..1: a tenth, since what is predicted scales with a tenth of the image and less."""
CONFIDENCE_TOLERANCE = TOLERANCE / 4  # the sigmoid's steepest slope
PIXELS = 1e-2  # a corner, cx - w / 2, at 640 pixels: 1.5 × BOX_TOLERANCE × 640
MARGIN = 2 * CONFIDENCE_TOLERANCE  # each of two may move by one
"""How far all confidences are from the threshold, and the last one selected from the next."""


@pytest.fixture(scope="module")
def oracles(tmp_path_factory):
    """rfdetr's models and the files of their weights; the smallest are made once, and not to be changed."""
    folder, made = tmp_path_factory.mktemp("oracles"), {}

    def get(name):
        if name in made:
            return made[name]
        model = getattr(rfdetr, CLASSES[name])(pretrain_weights=None, device="cpu")
        model.model.model.eval()
        state = randomise(model.model.model.state_dict(), seed=3, class_bias=-6.5)
        path = folder / f"{name if name in SMALLEST else 'latest'}.pth"
        torch.save({"model": state}, path)
        if name in SMALLEST:
            made[name] = model, path
        return model, path

    return get


def assert_outputs_equal(theirs, ours, images):
    """Also that they are signals, not constants."""
    with torch.inference_mode(), SameTokens(ours.spec.tokens, TOLERANCE) as choice:
        expected, actual = theirs.model.model(images), ours(images)
    assert choice.compared == 1
    torch.testing.assert_close(actual.logits, expected["pred_logits"], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(actual.boxes_cxcywh, expected["pred_boxes"], atol=BOX_TOLERANCE, rtol=0)
    assert expected["pred_logits"].std() > 1
    assert (actual.mask_logits is not None) == ours.spec.has_masks
    if actual.mask_logits is not None:
        torch.testing.assert_close(actual.mask_logits, expected["pred_masks"], atol=TOLERANCE, rtol=0)
        assert expected["pred_masks"].std() > 0.5


def noise(batch, size_hw):
    return torch.randn(batch, 3, *size_hw, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("name", "size_hw"),
    [
        ("rf-detr-seg-nano", None),
        *(pytest.param(name, None, marks=pytest.mark.slow) for name in CLASSES if name != "rf-detr-seg-nano"),
        pytest.param("rf-detr-seg-small", (480, 240), marks=pytest.mark.slow),
        pytest.param("rf-detr-nano", (256, 448), marks=pytest.mark.slow),
    ],
)
def test_outputs_equal_rfdetr(name, size_hw, oracles):
    theirs, path = oracles(name)
    assert resolve_spec(read_checkpoint(path)) == SPECS[name]
    ours = read_network(name, path, size_hw)
    assert ours.spec.input_hw == (size_hw or SPECS[name].input_hw)
    assert_outputs_equal(theirs, ours, noise(2 if name in SMALLEST else 1, ours.spec.input_hw))


def _images():
    generator = np.random.default_rng(5)
    for height, width in ((176, 312), (360, 640), (97, 61)):
        coarse = generator.integers(0, 256, (height // 20 + 2, width // 20 + 2, 3), dtype=np.uint8)
        yield np.ascontiguousarray(coarse.repeat(20, 0).repeat(20, 1)[:height, :width])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "threshold", "size_hw"),
    [("rf-detr-seg-nano", 0.5, (192, 336)), ("rf-detr-seg-nano", 0.1, None), ("rf-detr-nano", 0.5, None)],
)
def test_predict_equals_rfdetr(name, threshold, size_hw, oracles, monkeypatch):
    theirs, path = oracles(name)
    options = {"threshold": threshold, "max_detections": 300, "input_size": size_hw}
    ours = maskjet.load(name, weights=path, device="cpu", **options)
    queries = ours.spec.queries  # at most so many are selected
    # To see how far the first that is left out is from the last.
    monkeypatch.setattr(theirs.model.postprocess, "num_select", queries + 1)
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


@pytest.mark.slow
def test_positions_of_another_resolution_are_resized_as_rfdetr_does(oracles, tmp_path):
    theirs, _ = oracles("rf-detr-seg-nano")
    stated = {"model_name": "RFDETRSegNano", "model_config": {"resolution": 384}}
    torch.save({"model": theirs.model.model.state_dict(), **stated}, tmp_path / "weights.pth")
    checkpoint = read_checkpoint(tmp_path / "weights.pth")
    spec = resolve_spec(checkpoint)
    assert (spec.input_hw, spec.mask_hw) == ((384, 384), (96, 96))
    assert_outputs_equal(theirs, load_network(spec, checkpoint), noise(1, (384, 384)))


@pytest.mark.parametrize("size_hw", [(192, 330), (0, 192), (190, 192)])
def test_sizes_that_rfdetr_refuses_are_refused(size_hw, oracles):
    theirs, path = oracles("rf-detr-seg-nano")
    with pytest.raises(ValueError, match="shape"):
        theirs.predict(next(_images()), shape=size_hw)
    with pytest.raises(InputError, match="input_size must be"):
        maskjet.load("rf-detr-seg-nano", weights=path, device="cpu", input_size=size_hw)
