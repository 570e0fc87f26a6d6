"""RF-DETR in transformers' layout: equal to transformers' own model, and what its configs may say."""

import json

import pytest
import safetensors.torch
import torch

import maskjet
from benchmarks.planted import randomise
from maskjet.errors import CheckpointError, InputError
from maskjet.jobs.segments import Settings
from maskjet.jobs.work import digest_weights
from maskjet.networks import read_network
from maskjet.spec import COCO_CLASS_NAMES
from tests.networks.test_rfdetr_equality import BOX_TOLERANCE, TOLERANCE, noise
from tests.rounding import SameTokens

transformers = pytest.importorskip("transformers", reason="transformers, the oracle, is not installed")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("exact_products")]  # its dependencies'

TINY = {"hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 2, "image_size": 48, "patch_size": 8}
BACKBONE = {*TINY, "hidden_act", "layer_norm_eps", "out_indices"}
SMALL = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6}
SIZES = {  # whether there are masks, fields of the backbone, fields of the rest
    "tiny": (True, {**TINY, "num_windows": 2, "out_indices": [1, 3]}, {"d_model": 32, "intermediate_size": 128}),
    "nano": (False, {**SMALL, "image_size": 384, "patch_size": 16, "num_windows": 2}, {"decoder_layers": 2}),
    "seg-nano": (True, {**SMALL, "image_size": 312, "patch_size": 12, "num_windows": 1}, {"decoder_layers": 4}),
    "seg-medium": (True, {**SMALL, "image_size": 432, "patch_size": 12, "num_windows": 2}, {"decoder_layers": 5}),
}


def save(size, folder, **changes):
    """transformers' model with random weights, saved; returns it as transformers loads it."""
    has_masks, backbone, rest = SIZES[size]
    config = transformers.RfDetrConfig(
        backbone_config={"model_type": "rf_detr_dinov2", "out_indices": [3, 6, 9, 12], **backbone},
        **{"num_queries": 20, "group_detr": 2, "decoder_n_points": 2, "num_labels": 5, **rest, **changes},
    )
    made = getattr(transformers, f"RfDetrFor{'InstanceSegmentation' if has_masks else 'ObjectDetection'}")
    made(config).save_pretrained(folder)
    path = folder / "model.safetensors"
    state = randomise(safetensors.torch.load(path.read_bytes()), seed=3, class_bias=-6.5)  # by rfdetr's names
    safetensors.torch.save_file(state, path, metadata={"format": "pt"})
    return made.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return folder, save("tiny", folder)


def change(folder, target, processor=None, **fields):
    """A copy of a folder with other fields in its config, or in its backbone's, and perhaps a processor's file."""
    target.mkdir()
    (target / "model.safetensors").symlink_to(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    for name, value in fields.items():
        (config["backbone_config"] if name in BACKBONE else config)[name] = value
    (target / "config.json").write_text(json.dumps(config))
    if processor is not None:
        (target / "preprocessor_config.json").write_text(json.dumps(processor))
    return target


@pytest.mark.parametrize("size", ["tiny", *(pytest.param(size, marks=pytest.mark.slow) for size in list(SIZES)[1:])])
def test_outputs_equal_transformers(size, tmp_path):
    theirs = save(size, tmp_path)
    ours = read_network(tmp_path if size == "tiny" else tmp_path / "model.safetensors")
    assert ours.spec.name == ("RF-DETR" if size == "tiny" else f"rf-detr-{size}")
    images = noise(2, ours.spec.input_hw)
    with torch.inference_mode(), SameTokens(ours.spec.tokens, TOLERANCE) as choice:
        expected, actual = theirs(images), ours(images)
    assert choice.compared == 1
    torch.testing.assert_close(actual.logits, expected.logits, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(actual.boxes_cxcywh, expected.pred_boxes, atol=BOX_TOLERANCE, rtol=0)
    assert expected.logits.std() > 1
    assert ours.spec.has_masks == SIZES[size][0]
    if ours.spec.has_masks:
        torch.testing.assert_close(actual.mask_logits, expected.pred_masks, atol=TOLERANCE, rtol=0)
        assert expected.pred_masks.std() > 0.3


def test_a_folder_is_a_model(tiny, tmp_path):
    folder = change(
        tiny[0], tmp_path / "a", id2label={"0": "cat", "1": "LABEL_1", "2": "N/A", "3": "dog\x1b", "4": "LABEL_1"}
    )
    model = maskjet.load(folder, device="cpu", threshold={"cat": 0.1})
    assert model.spec.class_names == {0: "cat", 3: "dog\ufffd", 4: "LABEL_1"}
    size = {"size": {"height": 64, "width": 96}, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.2, 0.3, 0.4]}
    spec = read_network(change(tiny[0], tmp_path / "b", size)).spec
    assert (spec.input_hw, spec.mean, spec.std) == ((64, 96), (0.5,) * 3, (0.2, 0.3, 0.4))
    assert spec.class_names == {}
    assert read_network(change(tiny[0], tmp_path / "c", {"size": 64})).spec.input_hw == (64, 64)
    assert maskjet.load(tmp_path / "b", device="cpu", classes=["3"], threshold={"3": 0.1}).thresholds == {}
    with pytest.raises(InputError, match=r"classes must name classes of RF-DETR, got '5'; known: 0, 1, 2, 3, 4\."):
        maskjet.load(tmp_path / "b", device="cpu", classes=["5"])
    digests = {digest_weights(Settings(model=str(path))) for path in (tiny[0], folder, tmp_path / "b")}
    assert None not in digests
    assert len(digests) == 3


def test_91_classes_without_names_are_cocos(tmp_path):
    save("tiny", tmp_path, num_labels=91)
    assert read_network(tmp_path).spec.class_names == COCO_CLASS_NAMES


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "detr"}, "model_type must be rf_detr, which alone is implemented, got 'detr'"),
        ({"activation_function": "relu"}, "activation_function must be silu, which alone is implemented, got 'relu'"),
        ({"hidden_act": "silu"}, "hidden_act must be gelu"),
        ({"layer_norm_eps": [1]}, "layer_norm_eps must be 1e-06"),  # of the backbone
        ({"out_indices": [3, 1]}, r"out_feature_indexes must ascend, got \[3, 1\]"),
        ({"out_indices": None}, "out_feature_indexes must be a list of layers, got None"),
        ({"num_queries": 10**9}, "num_queries must be a whole number from 1 to 4096, got 1000000000"),
        ({"hidden_size": 4096}, "weights must have the network's shapes, .* must be .*4096"),
        ({"image_size": [48, 48]}, r"image_size must be a whole number from 1 to 4096, got \[48, 48\]"),
        ({"decoder_cross_attention_heads": 5}, "cross_attention_heads must be a divisor of hidden_dim = 32, got 5"),
        ({"id2label": {"5": "a"}}, "class_names must map ids from 0 to 4 to names, got 5: 'a'"),
        ({"id2label": ["a"]}, r"class_names must be a mapping of ids to names, got \['a'\]"),
        ({"backbone_config": "dinov2"}, "backbone_config must be a dictionary, got 'dinov2'"),
    ],
)
def test_what_is_not_implemented_is_named(fields, message, tiny, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        read_network(change(tiny[0], tmp_path / "changed", **fields))


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        ({"do_normalize": False}, "do_normalize must be True, which alone is implemented, got False"),
        ({"rescale_factor": 1}, "rescale_factor must be 0.0039.*, which alone is implemented, got 1"),
        (
            {"size": {"shortest_edge": 64}},
            r"size must be a height and a width, got {'shortest_edge': 64}; inputs .*, write its two into preproc",
        ),
        ({"image_mean": "abc"}, "mean must be three finite numbers, got 'abc'"),
    ],
)
def test_a_processor_that_is_not_implemented_is_named(processor, message, tiny, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        read_network(change(tiny[0], tmp_path / "changed", processor))


def test_projector_eps_is_checked(tiny, tmp_path):
    folder = change(tiny[0], tmp_path / "changed")
    config = json.loads((folder / "config.json").read_text())
    assert read_network(folder).spec.projector_eps == 1e-5
    (folder / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 0}))
    with pytest.raises(CheckpointError, match="projector_eps must be a number above 0 and at most 1, got 0"):
        read_network(folder)
    for content in ("[" * 10**5, "7", " " * (2**22 + 1), '{"a": ' + "9" * 10**5 + "}"):
        (folder / "config.json").write_text(content)
        with pytest.raises(CheckpointError, match="weights must"):
            read_network(folder)


def test_what_is_missing_is_told(tiny, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"is a folder without model.safetensors"):
        maskjet.load("rf-detr-seg-nano", weights=tmp_path)
    with pytest.raises(InputError, match="hf download org/some-model --local-dir some-model"):
        maskjet.load("org/some-model")
    tiny[1].save_pretrained(tmp_path, save_original_format=False)
    with pytest.raises(CheckpointError, match="weights must have rfdetr's names"):
        maskjet.load(tmp_path)
