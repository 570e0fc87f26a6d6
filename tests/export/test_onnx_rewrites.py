"""Every comparison is bitwise: the rewrite changes what is copied and when, never what is computed."""

import errno
import json
import sys
import warnings
from collections import OrderedDict
from itertools import pairwise

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import torch
from torch import nn
from torchvision.models.detection import FasterRCNN, MaskRCNN, maskrcnn_resnet50_fpn
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import MultiScaleRoIAlign

from benchmarks import onnx_files
from maskjet.errors import InputError, MissingDependencyError, OutputError, SourceError
from maskjet.export.rewrites import optimize_onnx

KEPT = 12
"""Detections per image at most, of which the small detectors find more."""
SIZE_HW = (96, 128)
OTHER_SIZES_HW = [(70, 150), (131, 64)]


def plant(model):
    """Spread scores and boxes, so that an untrained detector finds something, on every level."""
    with torch.no_grad():
        predictor = model.roi_heads.box_predictor
        predictor.cls_score.weight.mul_(3)
        predictor.bbox_pred.weight.mul_(3)
        sides = torch.tensor([-2.5, -1.0, 0.5]).repeat_interleave(4)  # log of the factor to each anchor's sides
        sides[[0, 1, 4, 5, 8, 9]] = 0
        if model.roi_heads.box_roi_pool.canonical_scale < 224:
            model.rpn.head.bbox_pred.bias.copy_(sides)
    return model.eval()


def build_small(family):
    """Over four convolutions, with narrow heads."""
    torch.manual_seed(0)
    widths = [3, 8, 16, 16, 16]
    body = {
        str(level): nn.Sequential(nn.Conv2d(*pair, 3, stride=2 if level else 4, padding=1), nn.ReLU())
        for level, pair in enumerate(pairwise(widths))
    }
    names = list(body)
    backbone = BackboneWithFPN(nn.Sequential(OrderedDict(body)), dict(zip(names, names, strict=True)), widths[1:], 32)
    heads = {}
    if family is MaskRCNN:
        heads = {
            "mask_roi_pool": MultiScaleRoIAlign(names, 14, 2, canonical_scale=28),
            "mask_head": MaskRCNNHeads(32, (16,), 1),
            "mask_predictor": MaskRCNNPredictor(16, 16, 5),
        }
    return plant(
        family(
            backbone,
            min_size=64,
            max_size=128,
            box_detections_per_img=KEPT,
            rpn_pre_nms_top_n_test=100,
            rpn_post_nms_top_n_test=50,
            box_roi_pool=MultiScaleRoIAlign(names, 7, 2, canonical_scale=28),
            box_head=TwoMLPHead(32 * 7 * 7, 32),
            box_predictor=FastRCNNPredictor(32, 5),
            **heads,
        )
    )


def export(model, path, *, is_dynamic=False, size_hw=SIZE_HW):
    names = ["boxes", "labels", "scores", "masks"][: 4 if isinstance(model, MaskRCNN) else 3]
    axes = {"image": {1: "height", 2: "width"}} if is_dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's, about torchvision
        torch.onnx.export(
            model,
            ([draw(0, size_hw)],),
            path,
            dynamo=False,
            input_names=["image"],
            output_names=names,
            dynamic_axes=axes,
        )
    return path


def draw(seed, size_hw=SIZE_HW):
    return torch.rand(3, *size_hw, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Exports, made once."""
    folder, made = tmp_path_factory.mktemp("exports"), {}

    def get(name):
        if name not in made:
            model = build_small(FasterRCNN if name == "faster" else MaskRCNN)
            made[name] = export(model, folder / f"{name}.onnx", is_dynamic=name == "mask, dynamic")
        return made[name]

    return get


def open_session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 2, 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run(session, *values):
    return session.run(None, {given.name: value for given, value in zip(session.get_inputs(), values, strict=True)})


def assert_equal(path, out, inputs):
    """Outputs of the first file on each input, once the second's are the same to the last bit."""
    onnx.checker.check_model(out)
    before, after, found = open_session(path), open_session(out), []
    for values in inputs:
        expected, actual = run(before, *values), run(after, *values)
        for one, other in zip(expected, actual, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
        found.append(expected)
    return found


def change_weights(path, out, changes):
    """Write a model with other weights."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.name in changes:
            values = onnx.numpy_helper.to_array(tensor).copy()
            values[:] = changes[tensor.name]
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    onnx.save(model, out)
    return out


def test_mask_rcnn_finds_the_same(files, tmp_path):
    path = files("mask")
    report = optimize_onnx(path, tmp_path / "fast.onnx")
    assert (report.matched, report.left_alone) == (2, [])
    images = [(draw(seed).numpy(),) for seed in range(3)] + [(np.zeros((3, *SIZE_HW), np.float32),)]
    found = assert_equal(path, tmp_path / "fast.onnx", images)
    assert [len(outputs[0]) for outputs in found[:3]] == [KEPT] * 3
    assert all((outputs[3] > 0).any(axis=(1, 2, 3)).all() for outputs in found)


def test_images_of_other_sizes_with_dynamic_axes(files, tmp_path):
    path = files("mask, dynamic")
    assert optimize_onnx(path, tmp_path / "fast.onnx").matched == 2
    images = [(draw(seed, size_hw).numpy(),) for seed, size_hw in enumerate([SIZE_HW, *OTHER_SIZES_HW])]
    for (image,), outputs in zip(images, assert_equal(path, tmp_path / "fast.onnx", images), strict=True):
        assert outputs[3].shape == (KEPT, 1, *image.shape[1:])


def test_no_detections(files, tmp_path):
    background = {"roi_heads.box_predictor.cls_score.bias": [100, 0, 0, 0, 0]}
    path = change_weights(files("mask, dynamic"), tmp_path / "none.onnx", background)
    optimize_onnx(path, tmp_path / "fast.onnx")
    ((boxes, *_, masks),) = assert_equal(path, tmp_path / "fast.onnx", [(draw(1).numpy(),)])
    assert boxes.shape == (0, 4)
    assert masks.shape == (0, 1, *SIZE_HW)


def cut_out(model, output, path):
    """Write the part of a model that makes one of its values."""
    makers = {name: node for node in model.graph.node for name in node.output}
    needed, wanted = set(), [output]
    while wanted:
        name = wanted.pop()
        if name in makers and name not in needed:
            needed |= set(makers[name].output)
            inner = [node for attribute in makers[name].attribute for node in attribute.g.node]
            wanted += [given for node in (makers[name], *inner) for given in node.input]
    nodes = [node for node in model.graph.node if needed & set(node.output)]
    outputs = [onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, list("nchw"))]
    graph = onnx.helper.make_graph(nodes, "part", model.graph.input, outputs, model.graph.initializer)
    onnx.save(onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version), path)


def test_no_proposals(files, tmp_path):
    """Up to the pooled boxes: on what follows, a Reshape to (0, -1), ONNX Runtime fails in the file as exported."""
    tiny = [0, 0, -20, -20] * 3  # below the smallest size, so that the If has nothing to suppress
    path = change_weights(files("mask"), tmp_path / "none.onnx", {"rpn.head.bbox_pred.bias": tiny})
    model = onnx.load(path)
    (flatten,) = (node for node in model.graph.node if node.name == "/roi_heads/box_head/Flatten")
    cut_out(model, flatten.input[0], path)
    assert optimize_onnx(path, tmp_path / "fast.onnx").matched == 1
    ((found,),) = assert_equal(path, tmp_path / "fast.onnx", [(draw(1).numpy(),)])
    assert found.shape == (0, 32, 7, 7)


@pytest.mark.slow
@pytest.mark.parametrize("side", [-2.5, 1.5])
def test_levels_without_proposals(files, tmp_path, side):
    path = change_weights(files("mask"), tmp_path / "one.onnx", {"rpn.head.bbox_pred.bias": [0, 0, side, side] * 3})
    optimize_onnx(path, tmp_path / "fast.onnx")
    assert_equal(path, tmp_path / "fast.onnx", [(draw(1).numpy(),)])


def test_faster_rcnn_finds_the_same(files, tmp_path):
    path = files("faster")
    assert optimize_onnx(path, tmp_path / "fast.onnx").matched == 1
    found = assert_equal(path, tmp_path / "fast.onnx", [(draw(seed).numpy(),) for seed in range(2)])
    assert [len(outputs[0]) for outputs in found] == [KEPT] * 2


@pytest.mark.slow
def test_full_size_finds_the_same(tmp_path):
    """More than 100 candidates, of which the default keeps 100."""
    torch.manual_seed(0)
    model = maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, min_size=192, max_size=256)
    path = export(plant(model), tmp_path / "model.onnx", size_hw=(192, 256))
    assert optimize_onnx(path).matched == 2
    (found,) = assert_equal(path, tmp_path / "model.fast.onnx", [(draw(0, (192, 256)).numpy(),)])
    assert len(found[0]) == 100


def test_a_second_time_changes_nothing(files, tmp_path):
    optimize_onnx(files("mask"), tmp_path / "once.onnx")
    report = optimize_onnx(tmp_path / "once.onnx", tmp_path / "twice.onnx")
    assert report.matched == 0
    assert report.nodes_before == report.nodes_after
    assert_equal(tmp_path / "once.onnx", tmp_path / "twice.onnx", [(draw(1).numpy(),)])


def write(tmp_path, text):
    """Write a model in ONNX's text format."""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def draw_boxes(number):
    generator = np.random.default_rng(number)
    corner = generator.random((number, 2)) * 20
    boxes = np.concatenate([corner, corner + 1 + generator.random((number, 2)) * 8], axis=1).astype(np.float32)
    return boxes, generator.random(number).astype(np.float32)


ZEROS = """
<ir_version: 9, opset_import: ["" : 18]>
graph (float[1, 2, 16, 16] fine, float[1, 2, 8, 8] coarse, float[n, 4] boxes, int64[n] levels)
  => (float[n, 2, 3, 3] y) {
  one = Constant<value_ints = [1]>()
  shape_of_boxes = Shape<start = 0, end = 1>(boxes)
  size = Constant<value_ints = [2, 3, 3]>()
  channels, rows, columns = Split<num_outputs = 3>(size)
  two = Constant<value_ints = [2]>()
  three = Constant<value_ints = [3]>()
  zeros_shape = Concat<axis = 0>(shape_of_boxes, two, three, three)
  zeros = ConstantOfShape<value = float[1] {0.0}>(zeros_shape)
  each = Constant<value_ints = [-1, 1, 1, 1]>()"""


def pool(number, features, before, after):
    """A level's rows, put into those before."""
    return f"""
  number{number} = Constant<value_int = {number}>()
  is{number} = Equal(levels, number{number})
  found{number} = NonZero(is{number})
  turned{number} = Transpose<perm = [1, 0]>(found{number})
  index{number} = Squeeze(turned{number}, one)
  boxes{number} = Gather(boxes, index{number})
  images{number} = Sub(index{number}, index{number})
  pooled{number} = RoiAlign<output_height = 3, output_width = 3, sampling_ratio = 2>
    ({features}, boxes{number}, images{number})
  shape{number} = Shape(pooled{number})
  reshaped{number} = Reshape(index{number}, each)
  indices{number} = Expand(reshaped{number}, shape{number})
  {after} = ScatterElements<axis = 0>({before}, indices{number}, pooled{number})"""


POOL = f"{ZEROS}{pool(0, 'fine', 'zeros', 'sum0')}{pool(1, 'coarse', 'sum0', 'y')}\n}}"


def draw_pyramid(levels):
    generator = np.random.default_rng(0)
    features = [generator.random((1, 2, side, side)).astype(np.float32) for side in (16, 8)]
    return *features, draw_boxes(len(levels))[0], np.array(levels, dtype=np.int64)


def test_levels_are_gathered(tmp_path):
    """Also boxes on a level that there is not, whose rows stay zero."""
    path = write(tmp_path, POOL)
    report = optimize_onnx(path)
    assert report.matched == 1
    assert str(report).startswith(str(tmp_path / "model.fast.onnx"))
    assert "poolings: 1 rewritten, 0 left alone" in str(report)
    assert report.nodes_after["ScatterElements"] == 1
    levels = [], [0], [1, 1], [0, 1, 1, 0, 1], [0, 7, 1, -(2**63)], [5]
    assert_equal(path, tmp_path / "model.fast.onnx", map(draw_pyramid, levels))


IS_LEVEL = "is1 = Equal(levels, number1)"
LEVELS_LEFT_ALONE = [
    ("value = float[1] {0.0}", "value = float[1] {1.0}", "does not start from zeros"),
    ("number1 = Constant<value_int = 1>", "number1 = Constant<value_int = 0>", "its levels are the same"),
    (IS_LEVEL, "other = Abs(levels)\nis1 = Equal(other, number1)", "different boxes"),
    ("y = ScatterElements<axis = 0>", 'y = ScatterElements<axis = 0, reduction = "add">', "adds up"),
    ("indices1 =", "other = Abs(sum0)\nindices1 =", "used elsewhere"),
    ("float[1, 2, 8, 8] coarse", "float[1, c, 8, 8] coarse", "may differ in channels or size"),
    ("(shape_of_boxes, two, three, three)", "(shape_of_boxes, two, three, columns)", "may differ from"),
    (IS_LEVEL, "is1 = Greater(levels, number0)", "not those of one level"),
    ("reshaped1 = Reshape(index1, each)", "r = Reshape(index1, each)\nreshaped1 = Abs(r)", "of one level"),
]


@pytest.mark.parametrize(("old", "new", "reason"), LEVELS_LEFT_ALONE)
def test_what_does_not_match_is_left_alone(old, new, reason, tmp_path):
    assert old in POOL
    path = write(tmp_path, POOL.replace(old, new))
    report = optimize_onnx(path)
    assert report.matched == 0
    (left,) = report.left_alone
    assert reason in left
    assert f"left alone: {left}" in str(report)
    assert_equal(path, tmp_path / "model.fast.onnx", [draw_pyramid([0, 1, 1, 0, 1])])


PLAIN = '<ir_version: 9, opset_import: ["" : 17]> graph (float[n] x) => (float[n] y) { y = Add(x, w) }'


def write_plain(path, *, is_external):
    model = onnx.parser.parse_model(PLAIN)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(300, dtype=np.float32), "w"))
    onnx.save(model, path, save_as_external_data=is_external, location=f"{path.stem}.bin", size_threshold=0)
    return path


def test_a_file_without_candidates_keeps_its_meaning(tmp_path):
    path = write_plain(tmp_path / "plain.onnx", is_external=False)
    report = optimize_onnx(path)
    assert (report.matched, report.left_alone) == (0, [])
    assert report.nodes_before == report.nodes_after == {"Add": 1}
    assert_equal(path, tmp_path / "plain.fast.onnx", [(np.ones(300, np.float32),)])


def assert_runs(path):
    (result,) = run(open_session(path), np.ones(300, np.float32))
    np.testing.assert_array_equal(result, np.arange(300) + 1)


@pytest.mark.parametrize("is_in_place", [False, True])
def test_weights_beside_the_file(tmp_path, is_in_place):
    path = write_plain(tmp_path / "plain.onnx", is_external=True)
    (tmp_path / "elsewhere").mkdir()
    out = path if is_in_place else tmp_path / "elsewhere" / "out.onnx"
    optimize_onnx(path, out)
    if not is_in_place:
        (tmp_path / "plain.bin").unlink()  # the new file must not need it
    assert_runs(out)


def test_more_than_protobuf_can_hold_goes_beside_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("maskjet.export.onnx_rewrites.application._LARGEST", 1000)
    path = write_plain(tmp_path / "plain.onnx", is_external=False)
    optimize_onnx(path, tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").stat().st_size >= 1200
    assert_runs(tmp_path / "out.onnx")


def test_files_that_are_no_models(tmp_path):
    def assert_refused(path, message, error=SourceError):
        with pytest.raises(error, match=message):
            optimize_onnx(path)

    assert_refused(tmp_path / "missing.onnx", r"must be an ONNX file, got '.*missing\.onnx'")
    (tmp_path / "text.onnx").write_text("no model")
    assert_refused(tmp_path / "text.onnx", r"got '.*text\.onnx', which is none")
    (tmp_path / "empty.onnx").touch()
    assert_refused(tmp_path / "empty.onnx", "which holds no graph")
    path = write_plain(tmp_path / "plain.onnx", is_external=True)
    (tmp_path / "plain.bin").unlink()
    assert_refused(path, r"must be in '.*plain\.bin', which is missing")
    path = write(tmp_path, PLAIN.replace("17", "12").replace("Add(x, w)", "Abs(x)"))
    assert_refused(path, "opset 13 or later, got 12", InputError)
    for node in ("a = ScatterElements(b, x, x) b = ScatterElements(a, x, x) y = Add(a, b)", "y = ScatterElements(x)"):
        path = write(tmp_path, PLAIN.replace("y = Add(x, w)", node))
        assert_refused(path, r"must be (an|a valid) ONNX file")
    path = write(tmp_path, PLAIN.replace("Add(x, w)", "Abs(x) c = Constant()"))
    model = onnx.load(path)
    value = onnx.TensorProto(dims=[2], data_type=1, data_location=1, name="c")
    value.external_data.add(key="location", value="gone.bin")
    model.graph.node[1].attribute.add(name="value", type=4, t=value)
    path.write_bytes(model.SerializeToString())
    assert_refused(path, r"must be in '.*gone\.bin', which is missing")


@pytest.mark.parametrize("is_external", [False, True])
def test_what_can_not_be_written_leaves_what_was_there(is_external, tmp_path, monkeypatch):
    path = write_plain(tmp_path / "plain.onnx", is_external=is_external)
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"out must be writable, '.*file/out\.onnx' is not: "):
        optimize_onnx(path, tmp_path / "file" / "out.onnx")
    before = {found.name: found.read_bytes() for found in tmp_path.iterdir()}

    def breaks(_, out, **__):
        out.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("onnx_ir.save", breaks)
    with pytest.raises(OutputError, match="No space left on device"):
        optimize_onnx(path, path)
    assert {found.name: found.read_bytes() for found in tmp_path.iterdir()} == before


def test_a_missing_library_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx_ir", None)
    with pytest.raises(MissingDependencyError, match=r'optimize_onnx\(\) needs onnx-ir: pip install "maskjet\[onnx\]"'):
        optimize_onnx("model.onnx")


@pytest.mark.slow
def test_the_benchmark_times_what_matches(files, tmp_path):
    report = onnx_files.run(files("faster"), tmp_path / "report.json", size_hw=SIZE_HW, runs=1)
    assert [m.variant for m in report.measurements] == ["as exported", "rewritten"]
    assert [m.matched for m in report.measurements] == [0, 1]
    assert report.detections == [KEPT] * 3
    assert all(m.p50_ms > 0 for m in report.measurements)
    assert json.loads((tmp_path / "report.json").read_text())["threads"] == 2
