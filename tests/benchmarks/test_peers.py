"""Other projects' pipelines find on a frame what ours finds, with the same weights."""

import numpy as np
import pytest
import torch

from benchmarks.peers import PIPELINES, inference_models, rfdetr
from benchmarks.planted import randomise
from maskjet.config import EngineConfig
from maskjet.model import Model
from maskjet.networks.rfdetr import RFDETR
from maskjet.spec import SPECS
from tests.rounding import SameTokens, pair_rows

# The peers' own warnings are theirs.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("exact_products")]

NANO = SPECS["rf-detr-seg-nano"]
THRESHOLD = 0.5
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def network():
    network = RFDETR(NANO)
    randomise(network.state_dict(), seed=3, class_bias=-6.0)
    return network.eval().requires_grad_(requires_grad=False)


@pytest.fixture(autouse=True)
def _exact_peers(monkeypatch):
    """They run at "high" otherwise, ours at what the process has."""
    products = rfdetr.float32_products
    for project in (rfdetr, inference_models):
        monkeypatch.setattr(project, "float32_products", lambda _: products("highest"))


def _frame(height, width):
    coarse = np.random.default_rng(5).integers(0, 256, (height // 20 + 2, width // 20 + 2, 3), dtype=np.uint8)
    return np.ascontiguousarray(coarse.repeat(20, 0).repeat(20, 1)[:height, :width])


def _assert_finds_as_we_do(name, network, frame, *, pixels, is_file=False):
    precision = torch.get_float32_matmul_precision()
    weights = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    peer = PIPELINES[name](weights, NANO, CPU, THRESHOLD)
    detect = peer.detect
    for tensor in weights.values():
        tensor.fill_(np.nan)  # it has copies
    with SameTokens(NANO.tokens, 1e-4) as choice:
        theirs = detect(frame)
        ours = Model(network, EngineConfig(device="cpu"), threshold=THRESHOLD).predict(frame)
    assert len(peer.predict(frame)) == len(theirs)
    first = theirs.xyxy.copy()
    detect(np.zeros_like(frame))

    assert torch.get_float32_matmul_precision() == precision
    assert len(theirs) == len(ours) > 3
    assert theirs.class_names == ours.class_names
    np.testing.assert_array_equal(theirs.xyxy, first)
    rows = pair_rows(theirs.xyxy, theirs.class_id, ours.xyxy, ours.class_id)
    np.testing.assert_array_equal(theirs.class_id, ours.class_id[rows])
    # As in tests/networks/test_rfdetr_equality.py: logits within 1e-4, the sigmoid's slope a quarter and less.
    assert choice.compared == (0 if is_file else 1)  # a file ranks tokens by itself
    np.testing.assert_allclose(theirs.confidence, ours.confidence[rows], rtol=0, atol=1e-4 / 4)
    np.testing.assert_allclose(theirs.xyxy, ours.xyxy[rows], rtol=0, atol=pixels)
    assert ours.masks().any(axis=(1, 2)).all()
    assert (theirs.masks() == ours.masks()[rows]).mean() >= 0.999


@pytest.mark.slow
def test_rfdetr(network):
    pytest.importorskip("rfdetr", reason="rfdetr, a peer, is not installed")
    _assert_finds_as_we_do("rfdetr", network, _frame(176, 312), pixels=0.01)


@pytest.mark.parametrize("is_file", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_inference_models(network, is_file):
    pytest.importorskip("inference_models", reason="inference-models, a peer, is not installed")
    side = NANO.input_size  # nothing to resize: it does that in another way
    name = "inference_models_onnx" if is_file else "inference_models"
    _assert_finds_as_we_do(name, network, _frame(side, side), pixels=0.51, is_file=is_file)  # it rounds boxes
