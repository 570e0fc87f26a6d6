"""maskjet.load(maskjet.rewrites.optimize(model)) against the model itself, from bytes to masks."""

import copy

import numpy as np
import pytest
import torch
from torchvision.models.detection.roi_heads import expand_boxes

import maskjet
from maskjet.config import EngineConfig
from maskjet.engine.slot import EagerSlot
from maskjet.errors import InputError
from maskjet.export.rewrites import optimize
from maskjet.host.process import convolutions_in_tf32
from maskjet.masks import coco_rle
from maskjet.networks.torchvision import detector as static_detector
from maskjet.ops import FALLBACKS, RECORDS, gpu
from tests.networks.torchvision.detectors import NAMED, detector, named
from tests.rounding import additions, pair_rows, rounding, sure_rows

SCORES = rounding(60_000, 13) / 4
"""Of scores, 9e-5: the additions of `detector`, its class logits of up to 13, and the softmax's steepest slope."""
BOXES = rounding(60_000, 4) * 64
"""Of boxes, 0.008 pixels: `detector` moves proposals by up to 4 sides of their anchors, of 32 to 64 pixels."""
SIZES = [(100, 140), (140, 100), (61, 300), (96, 96), (240, 200), (48, 50)]


def pictures(*sizes, seed=0):
    """uint8 [H, W, 3], with shapes to find."""
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 256, (height, width, 3), dtype=np.uint8) for height, width in sizes]


def run_torchvision(model, image):
    with torch.inference_mode():
        return model([torch.from_numpy(image).permute(2, 0, 1) / 255])[0]


def assert_same(found, expected, *, tolerance=SCORES, box_tolerance=BOXES, mask_tolerance=2e-3):
    """Returns how many detections were compared.

    Images are normalised after they are resized, and batch norms are folded: input and features differ by rounding. The
    small detectors, whose weights were multiplied to find something, multiply that too. A mask moves with its box.
    """
    boxes, scores, labels = (expected[name].numpy() for name in ("boxes", "scores", "labels"))
    assert len(found) == len(boxes)
    assert (np.diff(found.confidence) <= 0).all()
    np.testing.assert_allclose(found.confidence, scores, rtol=0, atol=tolerance)  # in order but for near ties
    ours, theirs = (found.xyxy, found.class_id, found.confidence), (boxes, labels, scores)
    limits = {"box_tolerance": box_tolerance, "margin": 2 * tolerance}
    mine, others = sure_rows(*ours, *theirs[:2], **limits), sure_rows(*theirs, *ours[:2], **limits)
    others = others[pair_rows(found.xyxy[mine], found.class_id[mine], boxes[others], labels[others])]
    np.testing.assert_array_equal(found.class_id[mine], labels[others])
    np.testing.assert_allclose(found.xyxy[mine], boxes[others], rtol=0, atol=box_tolerance)
    np.testing.assert_allclose(found.confidence[mine], scores[others], rtol=0, atol=tolerance)
    for row, other in zip(mine, others, strict=True) if "masks" in expected else ():
        probability = expected["masks"][other, 0].numpy()
        differs = coco_rle.decode(found.rle[row]).astype(bool) != (probability > 0.5)
        if not is_near_a_pixel(boxes[other], box_tolerance):
            assert (abs(probability[differs] - 0.5) < mask_tolerance).all()
    return len(mine)


@pytest.fixture(scope="module")
def usual():
    """A detector and what is made of it; not to be changed."""
    model = detector(seed=5, box_score_thresh=0.3, box_detections_per_img=100)  # fewer are found
    return model, optimize(model, class_names={label: f"thing {label}" for label in range(1, 7)})


def is_near_a_pixel(box, tolerance):
    """Whether a side of the box that a mask is pasted into may round to another pixel."""
    sides = expand_boxes(torch.from_numpy(box)[None], 30 / 28)[0].numpy()
    return (abs(sides - sides.round()) <= tolerance).any()


@pytest.mark.parametrize(("seed", "has_masks"), [(0, True), pytest.param(1, False, marks=pytest.mark.slow)])
def test_detections_are_torchvisions(seed, has_masks):
    model = detector(seed=seed, has_masks=has_masks, box_score_thresh=0.3)
    compared = 0
    with maskjet.load(optimize(model), device="cpu") as fast:
        assert fast.spec.class_names == {}
        for image in pictures(*SIZES[seed::2], seed=seed):
            expected = run_torchvision(model, image)
            found = fast.predict(image)
            assert found.image_size == image.shape[:2]
            assert (found.rle is not None) == has_masks
            compared += assert_same(found, expected)
    assert compared > 30


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_torchvisions_own_builders(name):
    model = named(name)
    (image,) = pictures((128, 170), seed=1)
    with maskjet.load(optimize(model), device="cpu") as fast:
        scores = rounding(additions(model), 10) / 4  # logits of up to 10, the softmax's steepest slope
        boxes = 0.05 if "mobilenet" in name else 0.02  # calibrated: see `named`
        limits = {"tolerance": scores, "box_tolerance": boxes}
        assert assert_same(fast.predict(image), run_torchvision(model, image), **limits) > 5


def test_the_model_is_left_as_it_is_and_so_is_what_was_made_of_it():
    model = detector(seed=1, box_score_thresh=0.3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.inference_mode():
        fast = optimize(model)
    assert not any(each.is_inference() for each in fast.parameters())
    assert sum("BatchNorm" in type(module).__name__ for module in model.modules()) > 10
    assert not any("BatchNorm" in type(module).__name__ for module in fast.modules())
    ours = {name: value.clone() for name, value in fast.state_dict().items()}
    (image,) = pictures((100, 140))
    with maskjet.load(fast, device="cpu", precision="bf16", threshold=0.9) as loaded:
        loaded.predict(image)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, ours[name]) for name, value in fast.state_dict().items())
    assert model.state_dict().keys() == before.keys()
    with maskjet.load(fast.double().float(), device="cpu") as loaded:
        assert assert_same(loaded.predict(image), run_torchvision(model, image)) > 5


@pytest.mark.slow
def test_several_images_of_several_sizes_and_streams(usual, monkeypatch):
    model, fast = usual
    images, ran = pictures((100, 140), (90, 90), (100, 140), seed=2), {}
    for op in ("nms", "roi_align"):
        public = getattr(static_detector.ops, op)

        def look(*args, op=op, public=public, **options):
            ran[op] = options["implementation"]
            return public(*args, **options)

        monkeypatch.setattr(static_detector.ops, op, look)
    expected = [run_torchvision(model, image) for image in images]
    with maskjet.load(fast, device="cpu") as loaded:
        for found, wanted in zip(loaded.predict(images), expected, strict=True):
            assert_same(found, wanted)
        for (frame, found), image, wanted in zip(loaded.stream(images, depth=2), images, expected, strict=True):
            assert np.array_equal(frame.image, image)
            assert_same(found, wanted)
        report = loaded.report()
    assert report.model == "MaskRCNN"
    assert set(report.steps) == {"preprocess", "roi_align", "nms", "encode_masks"}
    assert ran == {op: report.steps[op].partition(" ")[0] for op in ran} == {"nms": "cpu", "roi_align": "reference"}
    assert report.network.startswith("not compiled: it takes ten seconds and more for each frame size")


def test_more_candidates_than_there_are_rows_take_the_slower_path(monkeypatch):
    monkeypatch.setattr(static_detector.StaticDetector.forward, "__defaults__", (20,))
    model = detector(seed=4, box_score_thresh=0.0, box_detections_per_img=60)
    (image,) = pictures((100, 140), seed=4)
    optimized = optimize(model)
    FALLBACKS.clear()
    with maskjet.load(optimized, device="cpu") as fast, maskjet.load(optimized, device="cpu") as other:
        assert assert_same(fast.predict(image), run_torchvision(model, image)) == 60
        counted = fast.report().fallbacks
        assert other.report().fallbacks == {}  # each model counts its own
    assert counted == {"two-stage detector: an image with more candidates than fixed rows": 1}
    assert not FALLBACKS


def test_thresholds_classes_and_limits(usual):
    model, fast = usual
    (image,) = pictures((100, 140), seed=5)
    names = fast.spec.class_names
    expected = run_torchvision(model, image)
    labels = sorted(set(expected["labels"].tolist()))
    assert len(labels) > 1
    assert len(expected["labels"]) < 100
    with maskjet.load(fast, device="cpu", classes=[names[labels[0]]]) as loaded:
        found = loaded.predict(image)
        assert loaded.thresholds == {names[labels[0]]: model.roi_heads.score_thresh}
    with maskjet.Model(copy.deepcopy(fast), EngineConfig(device="cpu")) as made:
        assert set(made.thresholds.values()) == {model.roi_heads.score_thresh}
    assert len(found) == int((expected["labels"] == labels[0]).sum()) > 0
    assert set(found.class_id.tolist()) == {labels[0]}
    assert (abs(expected["scores"] - 0.6) > SCORES).all()
    with maskjet.load(fast, device="cpu", threshold=0.6) as loaded:
        assert len(loaded.predict(image)) == int((expected["scores"] > 0.6).sum())
    with maskjet.load(fast, device="cpu", threshold={names[labels[0]]: 1.0}) as loaded:
        found = loaded.predict(image)
    assert len(found) == int((expected["labels"] != labels[0]).sum())  # the others keep the detector's own
    assert labels[0] not in found.class_id
    with maskjet.load(fast, device="cpu", max_detections=3) as loaded:
        assert loaded.predict(image).confidence.tolist() == pytest.approx(expected["scores"][:3].tolist(), abs=SCORES)


@pytest.mark.slow
def test_a_fixed_size_is_kept():
    model = detector(seed=5, box_score_thresh=0.3, fixed_size=(160, 96))
    (image,) = pictures((120, 100), seed=5)
    fast = optimize(model)
    assert fast.spec.resized_hw((120, 100)) == (96, 160)
    with maskjet.load(fast, device="cpu") as loaded:
        assert assert_same(loaded.predict(image), run_torchvision(model, image)) > 0


def test_sizes_are_torchvisions():
    model = detector(min_size=800, max_size=1333)  # as usual
    spec = optimize(model).spec
    for size in ((480, 640), (333, 500), (427, 640), (1080, 1920), (101, 4001), (5, 5000), (800, 800)):
        batch, _ = model.transform([torch.zeros(3, *size)])
        assert spec.resized_hw(size) == tuple(batch.image_sizes[0])
        assert spec.padded_hw(size) == tuple(batch.tensors.shape[2:])


def test_what_can_not_be_is_refused(usual):
    _, fast = usual
    with pytest.raises(InputError, match="input_size must be None for torchvision's detectors"):
        maskjet.load(fast, device="cpu", input_size=(320, 320))
    with pytest.raises(InputError, match=r"threshold must be 0\.\.1, got 2"):
        maskjet.load(fast, device="cpu", threshold=2)


@pytest.mark.slow
def test_compiled_it_finds_the_same(usual, monkeypatch):
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *args, **options: real(*args, **options, backend="eager"))
    model, optimized = usual
    (image,) = pictures((100, 140), seed=5)
    with maskjet.load(optimized, device="cpu", compile=True) as fast:
        assert assert_same(fast.predict(image), run_torchvision(model, image)) > 5
        assert fast.report().network.startswith("compiled: batches of 1 × 160 × 96 in ")


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled for the GPU, not interpreted")
# 30 proposals of 6 classes are 180 candidates; of the usual 8,192 most are empty.
@pytest.mark.parametrize(("candidates", "has_masks"), [(200, True), (5, False)])
def test_what_a_graph_would_run_finds_what_the_steps_find(has_masks, candidates, monkeypatch):
    monkeypatch.setattr(static_detector.StaticDetector.forward, "__defaults__", (candidates,))
    limits = {"box_detections_per_img": 8, "rpn_pre_nms_top_n_test": 60, "rpn_post_nms_top_n_test": 30}
    model = detector(seed=1, has_masks=has_masks, box_score_thresh=0.2, **limits)
    images = pictures((48, 50), (48, 50), seed=1)
    with maskjet.load(optimize(model), device="cpu") as fast:
        expected, steps = fast.predict(images), fast._engine.steps
        before = steps.fallbacks.total()
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        gpu.why_not.cache_clear()
        if has_masks:  # only the strings: other kernels take long to interpret
            steps.choices["encode_masks"] = RECORDS["encode_masks"].choose("triton", torch.empty(0))
        slot = EagerSlot(steps)
        for frames in (images[::-1], images):
            slot.submit([torch.from_numpy(frame) for frame in frames], 2)
            found = slot.result()
        monkeypatch.undo()
        gpu.why_not.cache_clear()
    assert steps.fallbacks.total() == 3 * before
    assert (before > 0) == (candidates == 5)
    for one, other in zip(found, expected, strict=True):
        assert len(one) > 3
        assert one.rle == other.rle
        assert np.array_equal(one.xyxy, other.xyxy)
        assert np.array_equal(one.confidence, other.confidence)


@pytest.mark.gpu
@pytest.mark.parametrize("has_masks", [True, False])
def test_graphs_find_what_the_steps_find(has_masks):
    model = detector(seed=1, has_masks=has_masks, box_score_thresh=0.3)
    fast, images = optimize(model), pictures((100, 140), (100, 140), (240, 200), (100, 140), (100, 140), seed=1)
    eager = maskjet.Model(
        optimize(model), EngineConfig(device="cuda", precision="fp32", engine="eager", max_detections=40), threshold=0.3
    )
    with eager, maskjet.load(fast, device="cuda", precision="fp32") as graph:
        together, expected = eager.predict(images), [eager.predict(image) for image in images]
        for _ in range(3):
            for found, wanted in zip(graph.predict(images), together, strict=True):
                assert found.rle == wanted.rle
                assert np.array_equal(found.xyxy, wanted.xyxy)
                assert np.array_equal(found.confidence, wanted.confidence)
        for (_, found), wanted in zip(graph.stream(images, depth=3), expected, strict=True):
            assert found.rle == wanted.rle
        assert sum(map(len, expected)) > 20
        assert any(text.startswith("1 launch per batch") for text in graph.report().graphs.values())


@pytest.mark.gpu
def test_a_call_on_a_graph_has_its_own_choices():
    fast = optimize(
        detector(seed=5, box_score_thresh=0.5), class_names={label: f"thing {label}" for label in range(1, 7)}
    )
    (image,) = pictures((100, 140), seed=5)
    counts, options = set(), {"device": "cuda", "precision": "fp32"}
    with maskjet.load(fast, **options) as graph:
        for _ in range(3):
            graph.predict(image)
        before = graph.report().graphs
        assert [text.startswith("1 launch per batch") for text in before.values()] == [True]
        for choices in ({}, {"threshold": 0.1}, {"threshold": 0.8}, {"classes": ["thing 1", "thing 3"]}, {}):
            with maskjet.load(fast, **options, engine="eager", **choices) as eager:
                wanted = eager.predict(image)
            found = graph.predict(image, **choices)
            counts.add(len(found))
            assert found.rle == wanted.rle
            assert np.array_equal(found.xyxy, wanted.xyxy)
            assert np.array_equal(found.confidence, wanted.confidence)
            (first,) = graph.predict([image], **choices, max_detections=1)
            assert first.rle == wanted.rle[:1]
        assert graph.report().graphs == before
    assert len(counts) > 2


@pytest.mark.gpu
def test_graphs_take_the_slower_path_too(monkeypatch):
    monkeypatch.setattr(static_detector.StaticDetector.forward, "__defaults__", (20,))
    model = detector(seed=4, box_score_thresh=0.0, box_detections_per_img=60)
    (image,) = pictures((100, 140), seed=4)
    with maskjet.load(optimize(model), device="cuda", precision="fp32") as fast:
        found = [fast.predict(image) for _ in range(3)]
        assert sum(fast.report().fallbacks.values()) == 3
    monkeypatch.undo()
    with maskjet.load(optimize(model), device="cuda", precision="fp32") as fast:
        assert all(each.rle == fast.predict(image).rle for each in found)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_on_a_gpu_too_they_are_torchvisions(precision):
    model = detector(seed=1, box_score_thresh=0.3).cuda()
    compared = 0
    exactly = convolutions_in_tf32(False)
    with exactly, maskjet.load(optimize(model), device="cuda", precision=precision) as fast:
        for image in pictures(*SIZES, seed=1):
            with torch.inference_mode():
                expected = model([torch.from_numpy(image).cuda().permute(2, 0, 1) / 255])[0]
            expected = {name: value.cpu() for name, value in expected.items()}
            found = fast.predict(image)
            if precision == "fp32":
                compared += assert_same(found, expected, tolerance=2 * SCORES)
            else:  # certain ones are there, nearly as certain
                compared += len(found)
                count = min(len(found), len(expected["scores"]))
                assert abs(len(found) - len(expected["scores"])) <= 0.1 * count + 2
    assert compared > 30
