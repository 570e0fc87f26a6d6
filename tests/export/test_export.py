"""Exported files: equal to their networks, plain graphs, and nothing left behind where they are not."""

import json
import re
import sys
from dataclasses import replace
from functools import cache
from operator import attrgetter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch

import maskjet
from benchmarks.planted import TINY, randomise
from maskjet.errors import InputError, MissingDependencyError, OutputError, UnsupportedError
from maskjet.export import export, exporting, translation
from maskjet.networks.exported import comparing
from maskjet.networks.exported.comparing import BATCHES
from maskjet.networks.rfdetr import RFDETR
from maskjet.spec import SPECS, TORCHVISION_NAMES
from tests.networks.test_network import images, tiny_network

NETWORK = ["logits", "boxes_cxcywh", "mask_logits"]
# Ops that ONNX Runtime, TensorRT and OpenVINO all have. None makes a shape depend on values or on the batch (Shape,
# Expand, ConstantOfShape, Range): TensorRT 8.6 can't concatenate a token that was expanded to the batch.
KNOWN = {
    *("Add", "Cast", "Concat", "Conv", "Cos", "Div", "Erf", "Exp", "Gather"),
    *("GatherND", "GridSample", "LayerNormalization", "Less", "MatMul", "Min", "Reciprocal"),
    *(
        "Mul",
        "Pad",
        "ReduceMax",
        "ReduceMean",
        "ReduceSum",
        "Relu",
        "Reshape",
        "Resize",
        "Sigmoid",
        "Sin",
        "Slice",
        "Softmax",
    ),
    *("Sqrt", "Squeeze", "Sub", "TopK", "Transpose", "Unsqueeze", "Where"),
}


def run(path, **inputs):
    """A file's outputs by name, in ONNX Runtime."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(
        zip(names, session.run(names, {name: np.asarray(value) for name, value in inputs.items()}), strict=True)
    )


def assert_plain(path):
    """The graph is valid, static but for the batch, and made of known ops."""
    onnx.checker.check_model(path, full_check=True)
    model = onnx.load(path)
    (opset,) = model.opset_import
    assert (opset.domain, opset.version) == ("", 17)
    assert (model.producer_name, model.producer_version) == ("maskjet", maskjet.__version__)
    assert {node.op_type for node in model.graph.node} <= KNOWN
    assert not [node.name for node in model.graph.node if any(part.HasField("g") for part in node.attribute)]
    work = [(node.op_type, *node.input, *map(str, node.attribute)) for node in model.graph.node]
    assert len({*work}) == len(work), "Something is computed twice."
    read = {name for node in model.graph.node for name in node.input} | {value.name for value in model.graph.output}
    assert {tensor.name for tensor in model.graph.initializer} <= read
    assert {node.output[0] for node in model.graph.node if node.op_type != "TopK"} <= read
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        sizes = value.type.tensor_type.shape.dim
        assert all(size.dim_value or re.fullmatch(r"(\d+\*)?batch", size.dim_param) for size in sizes), value.name
    values = (*model.graph.output, *model.graph.value_info)
    described = {value.name: str(value.type.tensor_type.shape) for value in values}
    assert {name for node in model.graph.node for name in node.output} <= described.keys()
    reshapes = [node for node in model.graph.node if node.op_type == "Reshape"]
    assert not [node.name for node in reshapes if described.get(node.input[0]) == described[node.output[0]]]
    return model


@pytest.mark.parametrize("precision", ["fp32", pytest.param("fp16", marks=pytest.mark.slow)])
def test_a_file_equals_its_network(precision, exported):
    file = exported(precision)
    assert_plain(file.path)
    assert file.differences.keys() == {"token_logits", *NETWORK}
    assert all(0 < difference <= limit for difference, limit in file.differences.values())
    assert (file.size, file.batches) == (Path(file.path).stat().st_size, BATCHES)
    network = tiny_network().cast(torch.float16 if precision == "fp16" else torch.float32)
    seen = images(2, seed=5).to(network.query_feat.weight.dtype)
    found = run(file.path, images=seen)
    assert list(found) == NETWORK
    with torch.inference_mode():
        expected = network(seen)
    for (name, tensor), ours in zip(expected._asdict().items(), found.values(), strict=True):
        assert (ours.dtype, ours.shape) == (tensor.numpy().dtype, tuple(tensor.shape)), name


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 2])
def test_a_file_of_a_fixed_batch_equals_its_network(batch, exported):
    file = exported(batch=batch)
    model = assert_plain(file.path)
    values = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    assert all(size.dim_value for value in values for size in value.type.tensor_type.shape.dim)
    assert file.batches == (batch,)
    assert all(0 < difference <= limit for difference, limit in file.differences.values())
    seen = images(batch, seed=5)
    free, fixed = (run(each.path, images=seen) for each in (exported(), file))
    assert [each.shape[0] for each in fixed.values()] == [batch] * 3
    for name, expected in free.items():
        np.testing.assert_allclose(fixed[name], expected, rtol=0, atol=file.differences[name][1], err_msg=name)


def shrunk(name):
    """A named size's structure (windows, patches, layers, heads, outputs) with few tokens and channels."""
    small = {"backbone_width": 48, "backbone_depth": 4, "backbone_heads": 3, "feature_layers": (1, 2, 3, 4)}
    small |= {"hidden_dim": 32, "feed_forward_dim": 64, "queries": 10, "input_size": 4 * SPECS[name].patch_size}
    return replace(SPECS[name], **small)


STRUCTURES = {
    "no masks": shrunk("rf-detr-nano"),
    "one window": shrunk("rf-detr-seg-nano"),
    "most layers": shrunk("rf-detr-seg-2xlarge"),
    "masks of no multiple": replace(TINY, mask_stride=3),  # 8 pixels to 21
    "nano": SPECS["rf-detr-nano"],
    "seg nano": SPECS["rf-detr-seg-nano"],
}


def test_structures_stand_for_all_sizes():
    structure = attrgetter("patch_size", "windows", "has_masks", "mask_stride", "cross_attention_heads")
    assert {*map(structure, SPECS.values())} <= {*map(structure, STRUCTURES.values())}
    layers = {spec.decoder_layers for spec in SPECS.values()}
    assert {min(layers), max(layers)} <= {spec.decoder_layers for spec in STRUCTURES.values()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("structure", "precision"),
    [
        ("no masks", "fp32"),
        ("one window", "fp16"),
        ("most layers", "fp32"),
        ("most layers", "fp16"),
        ("masks of no multiple", "fp32"),
        ("nano", "fp16"),
        ("seg nano", "fp32"),
    ],
)
def test_every_structure_is_exported(structure, precision, tmp_path):
    network = RFDETR(STRUCTURES[structure]).eval().requires_grad_(requires_grad=False)
    randomise(network.state_dict(), class_bias=-4.0)
    file = export(network, tmp_path / "a.onnx", precision=precision)
    model = assert_plain(file.path)
    assert [output.name for output in model.graph.output] == NETWORK[: None if network.spec.has_masks else -1]
    if structure == "masks of no multiple":
        assert file.differences["mask_logits"][0] < 1e-5


@pytest.mark.slow
def test_what_cast_keeps_exact_is_exact_in_float16(exported):
    model = onnx.load(exported("fp16").path)
    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    network, compared = tiny_network().cast(torch.float16), set()
    for name, parameter in network.named_parameters():
        exact = parameter.dtype == torch.float32
        if name in kinds:  # others are folded
            assert kinds[name] == (onnx.TensorProto.FLOAT if exact else onnx.TensorProto.FLOAT16), name
            compared.add(exact)
    assert compared == {True, False}
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}
    for node in model.graph.node:
        if node.op_type in ("GridSample", "TopK", "Exp", "Sin", "Cos"):
            assert types[node.input[0]] == onnx.TensorProto.FLOAT, node.name


@pytest.mark.parametrize("made", ["fp32", pytest.param("fp16", marks=pytest.mark.slow)])
def test_the_network_stays_as_it_is(made, exported_network, exported):
    exported(made)
    assert exported_network.training
    before = tiny_network().state_dict()
    for name, tensor in exported_network.state_dict().items():
        assert tensor.dtype == before[name].dtype
        assert torch.equal(tensor, before[name]), name


@cache
def draw_streets(size):
    """What files are compared on."""
    streets = torch.stack([torch.from_numpy(maskjet.traffic.sample(seed=seed).image) for seed in range(max(BATCHES))])
    return maskjet.ops.preprocess(streets, size=(size, size), mean=TINY.mean, std=TINY.std)


def perturbing(monkeypatch, network, change):
    """Let the network's file be changed before it is written."""

    def build_and_change(cast, dtype, batch):
        if dtype not in network.built:
            network.built[dtype] = ir.to_proto(build(cast, dtype, batch))
        model = ir.from_proto(network.built[dtype])
        change(model)
        return model

    build = exporting.build_model
    monkeypatch.setattr(exporting, "build_model", build_and_change)
    monkeypatch.setattr(comparing, "_images", lambda network, batch: draw_streets(network.spec.input_size)[:batch])


@pytest.fixture(scope="module")
def finding():
    """A tiny network that finds something on drawn streets, with what was built of it."""
    network = tiny_network()
    network.class_embed.bias.add_(3)
    network.built = {}
    return network


def adding(name, by):
    def change(model):
        value = model.graph.initializers[name]
        value.const_value = ir.tensor(value.const_value.numpy() + np.asarray(by, value.const_value.numpy().dtype))

    return change


def adding_to_a_half(by):
    """Change the first constant 0.5."""

    def change(model):
        tensors = {name: each.const_value for name, each in model.graph.initializers.items()}
        adding(next(name for name, each in tensors.items() if each.size == 1 and each.numpy() == 0.5), by)(model)

    return change


def setting(op_type, **attributes):
    def change(model):
        (node,) = [node for node in model.graph if node.op_type == op_type]
        for key, value in attributes.items():
            node.attributes[key] = ir.AttrInt64(key, value)

    return change


QUICK = [
    (adding("class_embed.bias", 3e-4), "its logits differ by 0.0003 in ONNX Runtime .* with 1 image, the limit is"),
    (adding("class_embed.bias", np.nan), "its logits differ by nan"),
    (setting("TopK", largest=0), "must decode the tokens of the highest logits"),
    (setting("TopK", axis=5), "must run in ONNX Runtime .*, it does not: "),
]
SLOW = [
    (adding("bbox_embed.layers.2.bias", 3e-3), "its boxes_cxcywh differ"),
    (adding("segmentation_head.bias", 1e-3), "its mask_logits differ"),
    (adding("transformer.enc_out_class_embed.0.bias", 1e-3), "its token_logits differ"),
    (adding_to_a_half(0.01), "differ by"),
]


@pytest.mark.parametrize(
    ("change", "message"), [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW)]
)
def test_a_file_that_differs_is_an_error_and_not_left_behind(change, message, finding, tmp_path, monkeypatch):
    perturbing(monkeypatch, finding, change)
    out = tmp_path / "a.onnx"
    out.write_bytes(b"the file before")
    with pytest.raises(UnsupportedError, match=message):
        export(finding, out)
    assert [*tmp_path.iterdir()] == [out]
    assert out.read_bytes() == b"the file before"


@pytest.mark.slow
@pytest.mark.parametrize("bias", ["segmentation_head.bias", "bbox_embed.layers.2.bias"])  # in float16, and in float32
def test_a_file_in_float16_that_differs_is_an_error(bias, finding, tmp_path, monkeypatch):
    perturbing(monkeypatch, finding, adding(bias, 0.05))
    with pytest.raises(UnsupportedError, match="differ by"):
        export(finding, tmp_path / "a.onnx", precision="fp16")
    assert not [*tmp_path.iterdir()]


class Odd(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (lambda x: torch.linalg.eigvals(x[:, None] * x[..., None]), r"can be exported: .*aten\.linalg_eig"),
        (torch.nn.GELU("tanh"), r"can be exported: .*aten\.gelu\.default.* tanh"),
    ],
)
def test_operators_that_cannot_be_exported_are_named(inner, message):
    with pytest.raises(UnsupportedError, match=message):
        translation.translate(Odd(inner), {"x": torch.zeros(2, 3)}, ["y"])


@pytest.mark.parametrize("sides", [(24, 80), (26, 78), (10, 26), (7, 13), (36, 126), (41, 100)])
def test_images_are_resized_to_their_size(sides, tmp_path):
    side, size = sides
    module = Odd(lambda x: torch.nn.functional.interpolate(x, size=(size, 2 * size), mode="bilinear"))
    model = translation.translate(module, {"x": torch.zeros(2, 1, side, side)}, ["y"])
    ir.save(model, tmp_path / "a.onnx")
    onnx.checker.check_model(tmp_path / "a.onnx", full_check=True)
    seen = torch.rand(3, 1, side, side, generator=torch.Generator().manual_seed(0))
    found = run(tmp_path / "a.onnx", x=seen)["y"]
    np.testing.assert_allclose(found, module(seen).numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "error", "argument"),
    [
        ({"out": "a.pt"}, InputError, "out"),
        ({"out": 3}, InputError, "out"),
        ({"out": "folder.onnx", "model": tiny_network()}, OutputError, "out"),
        ({"out": "file/a.onnx", "model": tiny_network()}, OutputError, "out"),
        ({"precision": "fp61"}, InputError, "precision"),
        *(({"batch": batch}, InputError, "batch") for batch in (0, -1, 257, 1.0, True, "2")),
        ({"model": "demmo"}, InputError, "model"),
        ({"model": "rf-detr-seg-nano"}, InputError, "weights"),
        ({"model": 5}, InputError, "model"),
        ({"weights": "a.pt"}, InputError, "model"),
        ({"model": TORCHVISION_NAMES[0]}, UnsupportedError, "model"),
        ({"model": torch.nn.Linear(1, 1)}, UnsupportedError, "model"),
        ({"model": tiny_network(), "weights": "a.pt"}, InputError, "weights"),
    ],
)
def test_wrong_arguments_are_told_before_any_work(arguments, error, argument, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr(torch.export, "export")
    Path("file").touch()
    Path("folder.onnx").mkdir()
    with pytest.raises(error) as caught:
        export(**{"model": "demo", "out": "a.onnx", **arguments})
    assert caught.value.argument == argument
    assert {each.name for each in tmp_path.iterdir()} == {"file", "folder.onnx"}


@pytest.mark.parametrize("package", ["onnx_ir", "onnxruntime", "onnxscript"])
def test_a_missing_extra_is_one_sentence(package, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=r'^maskjet export needs .*: pip install "maskjet\[onnx\]"\.$'):
        export("demo", tmp_path / "a.onnx")


def test_a_report_is_text_and_json(exported):
    file = exported()
    lines = str(file).splitlines()
    assert re.fullmatch(r"wrote .*fp32\.onnx: 0\.8 MB, opset 17, \d+ nodes", lines[0])
    assert len(lines) == 2 + len(file.differences)
    stated = json.loads(json.dumps(file.as_dict()))
    assert stated["ops"] == dict(file.ops)
    assert stated["differences"]["logits"]["limit"] == 1e-4
