"""Model: loading, predicting, streaming, reporting."""

import copy
import json
import pickle

import numpy as np
import pytest
import safetensors.torch
import torch

import maskjet
from maskjet import model as models
from maskjet.config import EngineConfig
from maskjet.engine.slot import EagerSlot
from maskjet.errors import InputError, UnsupportedError
from maskjet.spec import SPECS
from tests.networks.test_network import TINY, tiny_network, tolerance
from tests.rounding import pair_rows


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A checkpoint of a tiny network with random weights."""
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    safetensors.torch.save_file(tiny_network().state_dict(), path, metadata={"spec": json.dumps(TINY.as_dict())})
    return path


def load(path, **choices):
    return maskjet.load(path, device="cpu", **{"threshold": 0.02, **choices})


def image(height=48, width=80, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def assert_equal(first, second):
    """But for rounding: of logits up to 10 under the sigmoid's steepest slope, and of corners, cx - w / 2."""
    rows = pair_rows(first.xyxy, first.class_id, second.xyxy, second.class_id)
    np.testing.assert_array_equal(first.class_id, second.class_id[rows])
    np.testing.assert_allclose(first.confidence, second.confidence[rows], rtol=0, atol=tolerance(10) / 4)
    np.testing.assert_allclose(first.xyxy, second.xyxy[rows], rtol=0, atol=1.5 * tolerance(max(first.image_size)))
    assert (first.masks() ^ second.masks()[rows]).mean() < 1e-3  # logits of a few units are rarely within 1e-5 of 0


def test_implementations_detect_the_same(tiny):
    expected = load(tiny, implementation="reference").predict(image())
    assert len(expected) > 3
    actual = load(tiny, implementation="cpu").predict(image())
    assert_equal(expected, actual)
    assert expected.rle == actual.rle


def test_classes_get_names(tiny, tmp_path):
    (path := tmp_path / "names.txt").write_text("frog\n\nnewt\n")
    model = load(tiny, class_names=path, classes=["newt"])
    assert model.spec.class_names == {0: "frog", 2: "newt"}
    assert set(model.predict(image()).class_name) <= {"newt"}
    assert load(tiny, class_names=["frog", "", "newt"], threshold={"frog": 0.7}).thresholds == {
        "frog": 0.7,
        "newt": 0.5,
    }
    assert pickle.loads(pickle.dumps(model)).spec == model.spec


def test_a_list_gives_a_list_in_batches_of_any_sizes(tiny):
    model = load(tiny)
    images = [image(48, 80, seed=i) if i % 3 else image(5, 7, seed=i) for i in range(10)]
    together = model.predict(images)
    assert len(together) == 10
    for alone, found in zip(images, together, strict=True):
        assert found.image_size == alone.shape[:2]
        assert_equal(model.predict(alone), found)
    assert model.predict([]) == []


def test_a_list_is_read_batch_by_batch(tiny, monkeypatch):
    """A list of files as long as a disk holds is not in memory at once."""
    model, events = load(tiny), []
    read, result = models.to_pixels, EagerSlot.result
    monkeypatch.setattr(models, "to_pixels", lambda *args: events.append("read") or read(*args))
    monkeypatch.setattr(EagerSlot, "result", lambda slot: events.append("run") or result(slot))
    assert len(model.predict([image(40, 40)] * 19)) == 19
    assert events == (["read"] * 8 + ["run"]) * 2 + ["read"] * 3 + ["run"]


def test_every_kind_of_image_is_the_same_image(tiny, tmp_path):
    cv2, pil = pytest.importorskip("cv2"), pytest.importorskip("PIL.Image")
    model, array = load(tiny), image()
    cv2.imwrite(str(tmp_path / "image.png"), array[..., ::-1])
    padded = np.zeros((48, 100, 3), np.uint8)
    padded[:, 10:90] = array
    read_only = array.copy()
    read_only.setflags(write=False)
    for same in (
        torch.from_numpy(array),
        pil.fromarray(array),
        tmp_path / "image.png",
        str(tmp_path / "image.png"),
        padded[:, 10:90],
        np.ascontiguousarray(array[::-1])[::-1],
        read_only,
    ):
        assert model.predict(same).rle == model.predict(array).rle


def test_report_says_what_runs_and_why(tiny):
    model = load(tiny)
    model.predict([image(), image()])
    report = model.report()
    assert (report.model, report.precision, report.images) == ("tiny", "fp32", 2)
    why = "cpu (not triton: it needs tensors on an NVIDIA GPU, got cpu)"
    assert report.steps["encode_masks"] == why
    assert load(tiny, implementation="reference").report().steps["select"] == "reference (asked for)"
    half = load(tiny, precision="bf16")
    assert (half.report().precision, len(half.predict(image())) > 0) == ("bf16", True)
    assert "encode_masks" in str(report)
    assert "fallbacks" in str(report)
    assert json.loads(json.dumps(report.as_dict()))["steps"]["preprocess"] == why


def test_it_prints_as_a_line(tiny):
    assert repr(load(tiny, precision="bf16")) == "Model(tiny: RF-DETR of 64×64 with masks, 2 classes, bf16 on cpu)"


@pytest.mark.parametrize("again", [lambda model: pickle.loads(pickle.dumps(model)), copy.deepcopy, copy.copy])
def test_a_copy_is_loaded_as_its_original_was(again, tiny):
    model = load(tiny, threshold=0.03, max_detections=7, precision="bf16", resample="cv2")
    found = again(model)
    assert found is not model
    assert (found.config, found.predict(image()).as_dict()) == (model.config, model.predict(image()).as_dict())


@pytest.mark.parametrize("again", [pickle.dumps, copy.deepcopy])
def test_a_model_of_a_module_says_how_to_send_it(again):
    model = models.Model(tiny_network(), EngineConfig(device="cpu"))
    with pytest.raises(UnsupportedError, match=r"by a name or a path to be pickled or copied, .*: send its"):
        again(model)


@pytest.mark.parametrize(
    "arguments",
    [
        {"model": "yolo"},
        {"model": "demo", "weights": "x.pt"},
        {"engine": "grahp"},
        {"max_detections": 2.5},
        {"threshold": {"a": float("nan")}},
    ],
    ids=str,
)
def test_bad_choices_are_named(arguments, tiny):
    with pytest.raises(InputError) as raised:
        maskjet.load(**{"model": tiny, "device": "cpu", **arguments})
    assert raised.value.argument == next(iter(arguments))


def test_a_misspelt_name_is_answered():
    with pytest.raises(InputError, match=r"model must be .*, got 'rfdetr-seg-nan'; did you mean 'rf-detr-seg-nano'\?$"):
        maskjet.load("rfdetr-seg-nan")


def test_a_named_size_says_which_file_of_rfdetrs_it_needs():
    message = r"maskjet downloads none\. rfdetr's is rf-detr-seg-nano\.pt, which rfdetr downloads to ~"
    with pytest.raises(InputError, match=message):
        maskjet.load("rf-detr-seg-nano")


@pytest.mark.slow  # as importing rfdetr is
def test_the_files_of_named_sizes_are_rfdetrs():
    config = pytest.importorskip("rfdetr.config")
    by_name = {name.lower(): each for name, each in vars(config).items()}
    for size in SPECS:
        theirs = by_name[size.replace("-", "") + "config"].model_fields["pretrain_weights"].default
        with pytest.raises(InputError, match=rf"rfdetr's is {theirs}, which rfdetr downloads to ~"):
            maskjet.load(size)
