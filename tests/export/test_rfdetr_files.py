"""Files that rfdetr writes: their detections are rfdetr's own, from the same file."""

import numpy as np
import pytest
import torch

import maskjet
from maskjet.errors import InputError
from maskjet.networks.exported.network_file import read_network_file, rfdetr_spec
from maskjet.spec import COCO_CLASS_NAMES, SPECS

rfdetr = pytest.importorskip("rfdetr")
MASKS = (78, 78)


def test_named_sizes_are_recognised():
    for spec in SPECS.values():
        outputs = [(spec.queries, 91), (spec.queries, 4), (spec.queries, *spec.mask_hw)][: 3 if spec.has_masks else 2]
        assert rfdetr_spec(spec.input_hw, outputs) == spec


def test_fine_tuned_ones_have_their_own_size_and_no_names():
    spec = rfdetr_spec((240, 420), [(100, 4), (100, 4), (100, 60, 105)])
    assert (spec.input_hw, spec.queries, spec.class_logits, spec.class_names) == ((240, 420), 100, 4, {})
    assert rfdetr_spec((312, 312), [(100, 91), (100, 4), (100, *MASKS)]).class_names == COCO_CLASS_NAMES


@pytest.mark.parametrize(
    ("input_hw", "outputs", "message"),
    [
        ((313, 312), [(100, 91), (100, 4), (100, *MASKS)], r"sides that patches of RF-DETR fill, got \[313, 312\]"),
        ((384, 384), [(91,), (300, 4)], r"labels must be \[batch, queries, classes\], got \[91\] after the batch"),
        ((384, 384), [(10_000, 91), (10_000, 4)], "queries must be a whole number from 1 to 4096"),
    ],
)
def test_other_shapes_are_refused(input_hw, outputs, message):
    with pytest.raises(InputError, match=message):
        rfdetr_spec(input_hw, outputs)


def from_file(path, image, threshold):
    """What rfdetr's own steps make of a file: its preprocessing, and the postprocessing of its `predict`."""
    import onnxruntime
    from PIL import Image
    from rfdetr.export._runtime.preprocess import preprocess_to_nchw
    from rfdetr.models.postprocess import PostProcess

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    side = session.get_inputs()[0].shape[2]
    inputs = preprocess_to_nchw(Image.fromarray(image), side, side, 3)
    boxes, logits, masks = map(torch.from_numpy, session.run(["dets", "labels", "masks"], {"input": inputs}))
    outputs = {"pred_logits": logits, "pred_boxes": boxes, "pred_masks": masks}
    (found,) = PostProcess(num_select=boxes.shape[1])(outputs, torch.tensor([image.shape[:2]]))
    kept = found["scores"] > threshold
    return {name: value[kept] for name, value in found.items()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of PyTorch's tracer
@pytest.mark.parametrize("dynamic_batch", [False, True])
def test_detections_are_rfdetrs_from_the_same_file(dynamic_batch, tmp_path):
    torch.manual_seed(0)
    theirs = rfdetr.RFDETRSegNano(pretrain_weights=None, device="cpu", resolution=144)
    path = theirs.export(output_dir=str(tmp_path), verbose=False, dynamic_batch=dynamic_batch)
    file = read_network_file(path)
    assert file.spec.input_hw == (144, 144)
    assert file.batch == (None if dynamic_batch else 1)
    image = maskjet.traffic.sample(seed=3).image
    threshold = 0.012  # of a network that has learned nothing
    expected = from_file(path, image, threshold)
    for runtime in ("onnxruntime", "openvino"):
        with maskjet.load(path, device="cpu", runtime=runtime, threshold=threshold) as model:
            found, again = model.predict([image, image])
        assert len(found) == len(again) == len(expected["scores"]) > 3
        np.testing.assert_allclose(found.confidence, expected["scores"], atol=1e-5)
        for row, confidence in enumerate(found.confidence):
            near = (expected["scores"] - float(confidence)).abs() < 2e-5
            same = near & (expected["labels"] == int(found.class_id[row]))
            distances = (expected["boxes"][same] - torch.from_numpy(found.xyxy[row])).abs().amax(dim=1)
            best = int(distances.argmin())
            assert distances[best] < 0.05
            mask = expected["masks"][same][best].squeeze().numpy().astype(bool)
            assert (found.masks()[row] != mask).mean() < 1e-3
