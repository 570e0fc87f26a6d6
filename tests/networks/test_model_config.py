"""Checkpoints that state an architecture: each field of rfdetr's ModelConfig is honoured, or refused by its name."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

import maskjet
from benchmarks.planted import randomise
from maskjet.errors import CheckpointError
from maskjet.networks.rfdetr.checkpoint import read_checkpoint, resolve_spec
from maskjet.spec import SPECS
from tests.networks.test_rfdetr_equality import CONFIDENCE_TOLERANCE, MARGIN, PIXELS, TOLERANCE
from tests.rounding import SameTokens, pair_rows, sure_rows

# rfdetr's own warnings (no pretrained weights, its dependencies' deprecations) are not ours to fix.
pytestmark = pytest.mark.filterwarnings("ignore")
rfdetr = pytest.importorskip("rfdetr", reason="rfdetr, the oracle, is not installed")
config = pytest.importorskip("rfdetr.config")

SMALL = {"resolution": 144}  # 144 tokens, which take a fifth of the time

HONOURED = {
    "encoder": "dinov2_windowed_base",
    "out_feature_indexes": [2, 5, 8, 11],
    "dec_layers": 2,
    "hidden_dim": 128,
    "patch_size": 9,
    "num_windows": 2,
    "sa_nheads": 4,
    "ca_nheads": 8,
    "dec_n_points": 4,
    "num_queries": 50,
    "num_select": 7,
    "num_classes": 2,
    "resolution": 168,
    "group_detr": 3,
    "positional_encoding_size": 10,
    "segmentation_head": False,
    "mask_downsample_ratio": 6,
}
REFUSED = {
    "two_stage": False,
    "projector_scale": ["P3", "P5"],
    "bbox_reparam": False,
    "lite_refpoint_refine": False,
    "layer_norm": False,
    "num_channels": 4,
    "use_grouppose_keypoints": True,
    "dual_projector": True,
    "num_decoder_registers": 2,
    "backbone_lora": True,
}
UNUSED = {
    "amp": False,
    "compile": True,
    "cuda_graphs": True,
    "device": "cuda:3",
    "dual_projector_kp_only": True,
    "freeze_encoder": True,
    "fused_optimizer": False,
    "gradient_checkpointing": True,
    "grouppose_keypoint_dim_downscale": 2,
    "ia_bce_loss": False,
    "inter_instance_kp_attn": True,
    "keypoint_cross_attn": False,
    "license": "AGPL-3.0",
    "model_name": None,
    "num_keypoints_per_class": [3, 4],
    "postprocess_trace_alpha": 0.5,
    "pretrain_weights": "rf-detr-seg-nano.pt",
}


def build(name="RFDETRSegNano", **options):
    model = getattr(rfdetr, name)(pretrain_weights=None, device="cpu", **{**SMALL, **options})
    few = model.model_config.num_classes < 10  # of which the best must still pass
    randomise(model.model.model.state_dict(), seed=3, class_bias=-3.0 if few else -6.5)
    model.model.model.eval()
    return model


def save(model, path, **config):
    """As rfdetr's training saves its best checkpoint; `config` overrides what the model says of itself."""
    torch.save(
        {
            "model": model.model.model.state_dict(),
            "args": {"class_names": [], "group_detr": 13},
            "model_name": type(model).__name__,
            "model_config": model.model_config.model_dump() | config,
            "rfdetr_version": "1.11.2",
        },
        path,
    )
    return path


@pytest.fixture(scope="module")
def nano():
    return build()


def image():
    coarse = np.random.default_rng(5).integers(0, 256, (10, 14, 3), dtype=np.uint8)
    return np.ascontiguousarray(coarse.repeat(20, 0).repeat(20, 1)[:176, :260])


def assert_predicts_alike(path, theirs):
    ours = maskjet.load(path, device="cpu", threshold=0.1, max_detections=300)
    with SameTokens(ours.spec.tokens, TOLERANCE) as choice:
        expected, actual = theirs.predict(image(), threshold=0.1), ours.predict(image())
    assert choice.compared == 1
    assert len(actual) == len(expected) > 0
    # The weakest may be others, where their number is limited.
    limits = {"box_tolerance": PIXELS, "margin": MARGIN}
    theirs_found = expected.xyxy, expected.class_id
    mine = sure_rows(actual.xyxy, actual.class_id, actual.confidence, *theirs_found, **limits)
    rows = sure_rows(*theirs_found, expected.confidence, actual.xyxy, actual.class_id, **limits)
    actual, expected = actual[mine], expected[rows]
    expected = expected[pair_rows(actual.xyxy, actual.class_id, expected.xyxy, expected.class_id)]
    np.testing.assert_allclose(actual.confidence, expected.confidence, rtol=0, atol=CONFIDENCE_TOLERANCE)
    assert (expected.mask is not None) == ours.spec.has_masks
    if ours.spec.has_masks:  # mask logits change by less than 1 between neighbours: so few are near enough to zero
        assert (actual.masks() != expected.mask).mean() < TOLERANCE
    return ours


def test_every_field_is_varied():
    assert {*HONOURED, *REFUSED, *UNUSED} == config.ModelConfig.model_fields.keys()
    default = config.RFDETRSegNanoConfig(pretrain_weights=None).model_dump()
    assert not [name for name, value in (HONOURED | REFUSED).items() if default[name] == value]
    assert {*chain(*TOGETHER)} == {*HONOURED, *UNUSED}


TOGETHER = [
    ["encoder", "dec_layers", "num_select"],
    ["out_feature_indexes", "hidden_dim", "sa_nheads", "ca_nheads", "dec_n_points"],
    ["patch_size", "num_windows", "mask_downsample_ratio"],
    ["num_queries", "num_classes", "resolution", "group_detr"],
    ["segmentation_head", "positional_encoding_size"],
    [*UNUSED],
]


@pytest.mark.slow
@pytest.mark.parametrize("fields", TOGETHER, ids=lambda fields: fields[0])
def test_predicts_as_rfdetr_with(fields, tmp_path):
    options = {field: (HONOURED | UNUSED)[field] for field in fields}
    own = {name: value for name, value in options.items() if name in HONOURED or name == "num_keypoints_per_class"}
    path = save(build(**own), tmp_path / "rf-detr-seg-nano.pth", **options)
    ours = assert_predicts_alike(path, rfdetr.RFDETR.from_checkpoint(path, device="cpu"))
    assert ours.spec.queries == options.get("num_queries", 100)
    assert ours.spec.selected_pairs == options.get("num_select", 100)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [("RFDETRBase", {"resolution": 336, "positional_encoding_size": 25}), ("RFDETRSegPreview", {"resolution": 240})],
)
def test_sizes_without_a_name_of_ours_are_described_by_their_config(name, options, tmp_path):
    theirs = build(name, **options)
    ours = assert_predicts_alike(save(theirs, tmp_path / "weights.pth"), theirs)
    assert ours.spec.name == name


@pytest.fixture(scope="module")
def described():
    """What a size is recognised by, without the rest."""
    spec = SPECS["rf-detr-seg-nano"]
    state = {f"transformer.enc_output.{group}.weight": torch.zeros(1) for group in range(13)}
    embeddings = "backbone.0.encoder.encoder.embeddings."
    state[f"{embeddings}patch_embeddings.projection.weight"] = torch.zeros(384, 3, 12, 12)
    state[f"{embeddings}position_embeddings"] = torch.zeros(1, 145, 384)
    state |= {"class_embed.bias": torch.zeros(91), "query_feat.weight": torch.zeros(13 * spec.queries, 1)}
    stated = config.RFDETRSegNanoConfig(pretrain_weights=None, **SMALL).model_dump()
    return {"model": state, "model_name": "RFDETRSegNano", "model_config": stated}


def resolve(described, path, **config):
    torch.save({**described, "model_config": described["model_config"] | config}, path)
    return resolve_spec(read_checkpoint(path))


def test_fields_for_training_change_nothing(described, tmp_path):
    for field, value in UNUSED.items():
        spec = resolve(described, tmp_path / "weights.pth", **{field: value})
        assert spec == replace(SPECS["rf-detr-seg-nano"], input_size=144, num_select=100), field


@pytest.mark.parametrize("field", REFUSED)
def test_what_is_not_implemented_is_refused(field, described, tmp_path):
    with pytest.raises(CheckpointError, match=rf"weights\.pth' does not: {field} must be .*, got "):
        resolve(described, tmp_path / "weights.pth", **{field: REFUSED[field]})


INDEXES = "out_feature_indexes that can't be used: feature_layers must be ascending whole numbers from 1 to 12"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("resolution", 12_000, "resolution must be a whole number from 1 to 4096, got 12000"),
        ("resolution", 145, "has a resolution that can't be used: input_size must be a multiple"),
        pytest.param("resolution", 10**300, "resolution must be .*, got a number of more than 64 bits", id="digits"),
        ("num_queries", True, "num_queries must be a whole number .*, got True"),
        ("num_queries", 145, "has a num_queries that can't be used: queries must be at most the 144"),
        ("sa_nheads", 7, "self_attention_heads must be a divisor of hidden_dim = 256, got 7"),
        ("encoder", "dinov2_registers_windowed_small", "encoder must be one of .*, got 'dinov2_registers"),
        ("out_feature_indexes", [3, 13], INDEXES),
        ("out_feature_indexes", [6, 3], r"out_feature_indexes must ascend, got \[6, 3\]"),
        ("out_feature_indexes", [0, 3], "each of out_feature_indexes must be a whole number from 1 to 64, got 0"),
        ("segmentation_head", None, "segmentation_head must be True or False, got None"),
        ("mask_downsample_ratio", 10**6, "mask_downsample_ratio must be"),
        ("rotary_positions", True, "'rotary_positions' is unknown and may change the network"),
    ],
)
def test_impossible_values_are_refused_by_name(field, value, message, described, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        resolve(described, tmp_path / "weights.pth", **{field: value})


def test_unknown_fields_that_are_off_are_let_through(described, tmp_path):
    resolve(described, tmp_path / "weights.pth", rotary_positions=False, new_layers=[])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_queries", 60, "num_queries must be 100, the rows of .* in each of its 13 groups, .* states 60"),
        ("ca_nheads", 8, r"sampling_offsets\.weight must be \[32, 256\], got \[64, 256\]"),
        ("segmentation_head", False, "segmentation_head.* is foreign"),
    ],
)
def test_what_the_tensors_contradict_is_refused(field, value, message, nano, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        maskjet.load(save(nano, tmp_path / "weights.pth", **{field: value}), device="cpu")


def test_the_wrong_size_is_refused(nano, tmp_path):
    path = save(nano, tmp_path / "weights.pth")
    message = r"must be of rf-detr-seg-small, .* says that it is RFDETRSegNano; load it by"
    with pytest.raises(CheckpointError, match=message):
        maskjet.load("rf-detr-seg-small", weights=path, device="cpu")
    assert maskjet.load("rf-detr-seg-nano", weights=path, device="cpu").spec.input_size == 144


def test_lightning_files_say_the_same(nano, tmp_path):
    state = {f"model._orig_mod.{name}": tensor for name, tensor in nano.model.model.state_dict().items()}
    described = {"model_name": "RFDETRSegNano", "model_config": nano.model_config.model_dump(), "args": {}}
    torch.save({"state_dict": state, "optimizer_states": [], "epoch": 3, **described}, tmp_path / "last.ckpt")
    assert_predicts_alike(tmp_path / "last.ckpt", nano)
