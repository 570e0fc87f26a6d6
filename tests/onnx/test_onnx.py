"""Every comparison is bitwise: the rewrites change what is copied and when, never what is computed."""

import errno
import json
import math
import subprocess
import sys
import warnings
from itertools import chain, repeat

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
import torch
from torchvision.models.detection import FasterRCNN, MaskRCNN, fasterrcnn_resnet50_fpn, maskrcnn_resnet50_fpn
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import MultiScaleRoIAlign

from benchmarks import onnx_files
from maskjet.errors import InputError, MissingDependencyError, OutputError, SourceError
from maskjet.onnx import REWRITES
from maskjet.rewrites import optimize_onnx

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


def build_small(family, **heads):
    torch.manual_seed(0)
    return plant(
        family(
            resnet_fpn_backbone(backbone_name="resnet18", weights=None),
            min_size=64,
            max_size=128,
            box_detections_per_img=KEPT,
            rpn_pre_nms_top_n_test=100,
            rpn_post_nms_top_n_test=50,
            box_roi_pool=MultiScaleRoIAlign(["0", "1", "2", "3"], 7, 2, canonical_scale=28),
            box_head=TwoMLPHead(256 * 7 * 7, 32),
            box_predictor=FastRCNNPredictor(32, 5),
            **heads,
        )
    )


def build_small_mask():
    heads = {"mask_head": MaskRCNNHeads(256, (16,), 1), "mask_predictor": MaskRCNNPredictor(16, 16, 5)}
    return build_small(
        MaskRCNN, mask_roi_pool=MultiScaleRoIAlign(["0", "1", "2", "3"], 14, 2, canonical_scale=28), **heads
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
            model = build_small(FasterRCNN) if name == "faster" else build_small_mask()
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


def count(report):
    return {outcome.rewrite: outcome.matched for outcome in report.outcomes}


def test_mask_rcnn_finds_the_same(files, tmp_path):
    path = files("mask")
    report = optimize_onnx(path, tmp_path / "fast.onnx")
    assert count(report) == {"nms_top_k": 2, "level_pooling": 2, "loop_concat": 1}
    assert not any(outcome.left_alone for outcome in report.outcomes)
    images = [(draw(seed).numpy(),) for seed in range(3)] + [(np.zeros((3, *SIZE_HW), np.float32),)]
    found = assert_equal(path, tmp_path / "fast.onnx", images)
    assert [len(outputs[0]) for outputs in found[:3]] == [KEPT] * 3
    assert all((outputs[3] > 0).any(axis=(1, 2, 3)).all() for outputs in found)


def test_each_rewrite_alone_finds_the_same(files, tmp_path):
    path = files("mask")
    for rewrite in ("nms_top_k", "level_pooling", "loop_concat"):
        report = optimize_onnx(path, tmp_path / f"{rewrite}.onnx", rewrites=[rewrite])
        assert list(count(report)) == [rewrite]
        assert report.matched(rewrite) == (1 if rewrite == "loop_concat" else 2)
        assert_equal(path, tmp_path / f"{rewrite}.onnx", [(draw(1).numpy(),)])


def test_images_of_other_sizes_with_dynamic_axes(files, tmp_path):
    path = files("mask, dynamic")
    report = optimize_onnx(path, tmp_path / "fast.onnx")
    assert count(report) == {"nms_top_k": 2, "level_pooling": 2, "loop_concat": 1}
    images = [(draw(seed, size_hw).numpy(),) for seed, size_hw in enumerate([SIZE_HW, *OTHER_SIZES_HW])]
    for (image,), outputs in zip(images, assert_equal(path, tmp_path / "fast.onnx", images), strict=True):
        assert outputs[3].shape == (KEPT, 1, *image.shape[1:])


@pytest.mark.parametrize("name", ["mask", "mask, dynamic"])
def test_no_detections(files, tmp_path, name):
    background = {"roi_heads.box_predictor.cls_score.bias": [100, 0, 0, 0, 0]}
    path = change_weights(files(name), tmp_path / "none.onnx", background)
    optimize_onnx(path, tmp_path / "fast.onnx")
    ((boxes, *_, masks),) = assert_equal(path, tmp_path / "fast.onnx", [(draw(1).numpy(),)])
    assert boxes.shape == (0, 4)
    assert masks.shape == (0, 1, *SIZE_HW)


def test_no_proposals(files, tmp_path):
    """Up to the pooled boxes: on what follows, a Reshape to (0, -1), ONNX Runtime fails in the file as exported."""
    tiny = [0, 0, -20, -20] * 3  # below the smallest size, so that the If has nothing to suppress
    path = change_weights(files("mask"), tmp_path / "none.onnx", {"rpn.head.bbox_pred.bias": tiny})
    model = onnx.load(path)
    (flatten,) = (node for node in model.graph.node if node.name == "/roi_heads/box_head/Flatten")
    cut_out(model, flatten.input[0], "nchw", model.graph.input[:], path)
    report = optimize_onnx(path, tmp_path / "fast.onnx")
    assert (report.matched("nms_top_k"), report.matched("level_pooling")) == (1, 1)
    ((pooled,),) = assert_equal(path, tmp_path / "fast.onnx", [(draw(1).numpy(),)])
    assert pooled.shape == (0, 256, 7, 7)


@pytest.mark.parametrize("side", [-2.5, -1.0, 1.5])
def test_levels_without_proposals(files, tmp_path, side):
    path = change_weights(files("mask"), tmp_path / "one.onnx", {"rpn.head.bbox_pred.bias": [0, 0, side, side] * 3})
    optimize_onnx(path, tmp_path / "fast.onnx")
    assert_equal(path, tmp_path / "fast.onnx", [(draw(1).numpy(),)])


def test_faster_rcnn_finds_the_same(files, tmp_path):
    path = files("faster")
    report = optimize_onnx(path, tmp_path / "fast.onnx")
    assert count(report) == {"nms_top_k": 2, "level_pooling": 1, "loop_concat": 0}
    found = assert_equal(path, tmp_path / "fast.onnx", [(draw(seed).numpy(),) for seed in range(3)])
    assert [len(outputs[0]) for outputs in found] == [KEPT] * 3


@pytest.mark.slow
@pytest.mark.parametrize("build", [fasterrcnn_resnet50_fpn, maskrcnn_resnet50_fpn])
def test_full_size_finds_the_same(tmp_path, build):
    """More than 100 candidates, of which the default keeps 100."""
    torch.manual_seed(0)
    model = build(weights=None, weights_backbone=None, min_size=192, max_size=256)
    path = export(plant(model), tmp_path / "model.onnx", size_hw=(192, 256))
    report = optimize_onnx(path)
    is_mask = build is maskrcnn_resnet50_fpn
    expected = {"nms_top_k": 2, "level_pooling": 1 + is_mask, "loop_concat": is_mask}
    assert count(report) == expected
    images = [(draw(seed, (192, 256)).numpy(),) for seed in range(3)]
    found = assert_equal(path, tmp_path / "model.fast.onnx", images)
    assert [len(outputs[0]) for outputs in found] == [100] * 3


def test_a_second_time_changes_nothing(files, tmp_path):
    optimize_onnx(files("mask"), tmp_path / "once.onnx")
    report = optimize_onnx(tmp_path / "once.onnx", tmp_path / "twice.onnx")
    assert sum(count(report).values()) == 0
    assert "already keeps at most 50" in str(report)
    assert report.nodes_before == report.nodes_after
    assert_equal(tmp_path / "once.onnx", tmp_path / "twice.onnx", [(draw(1).numpy(),)])


SUPPRESS = """
<ir_version: 9, opset_import: ["" : 17]>
graph (float[n, 4] boxes, float[n] scores, bool is_empty) => (int64[m] kept) {
  zero = Constant<value_ints = [0]>()
  one = Constant<value_ints = [1]>()
  kept_by_if = If (is_empty) <
    then_branch = nothing () => (int64[m] none) { none = Constant<value = int64[0] {}>() },
    else_branch = suppress () => (int64[m] rows) {
      boxes3 = Unsqueeze(boxes, zero)
      scores2 = Unsqueeze(scores, zero)
      scores3 = Unsqueeze(scores2, zero)
      maximum = Constant<value_ints = [9223372036854775807]>()
      overlap = Constant<value_floats = [0.5]>()
      found = NonMaxSuppression(boxes3, scores3, maximum, overlap)
      column = Constant<value_ints = [2]>()
      picked = Gather<axis = 1>(found, column)
      rows = Squeeze(picked, one)
    }
  >
  end = Constant<value_ints = [3]>()
  kept = Slice(kept_by_if, zero, end, zero)
}
"""


def write(tmp_path, text, *changes):
    """Write a model in ONNX's text format, after some replacements, each of which must apply."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def draw_boxes(number):
    generator = np.random.default_rng(number)
    corner = generator.random((number, 2)) * 20
    boxes = np.concatenate([corner, corner + 1 + generator.random((number, 2)) * 8], axis=1).astype(np.float32)
    return boxes, generator.random(number).astype(np.float32)


@pytest.mark.parametrize("number", [0, 1, 3, 40])
@pytest.mark.parametrize("ties", [False, True])
def test_suppression_stops_at_the_slice(tmp_path, number, ties):
    path = write(tmp_path, SUPPRESS)
    report = optimize_onnx(path)
    assert report.matched("nms_top_k") == 1
    boxes, scores = draw_boxes(number)
    scores = np.full_like(scores, 0.5) if ties else scores
    inputs = [(boxes, scores, np.array(is_empty)) for is_empty in ([True] if number == 0 else [True, False])]
    assert_equal(path, tmp_path / "model.fast.onnx", inputs)


FIRST_ROWS = "kept = Slice(kept_by_if, zero, end, zero)"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([(FIRST_ROWS, "kept = Slice(kept_by_if, one, end, zero)")], "other than the first ones"),
        (
            [(FIRST_ROWS, "two = Constant<value_ints = [2]>()\n kept = Slice(kept_by_if, zero, end, zero, two)")],
            "a step",
        ),
        ([("[3]", "[-1]")], "a number that is not known"),
        (
            [
                ("end = Constant<value_ints = [3]>()", "end = Shape(boxes)"),
                (FIRST_ROWS, "e = Slice(end, zero, one, zero)\nkept = Slice(kept_by_if, zero, e, zero)"),
            ],
            "a number that is not known",
        ),
        (
            [
                (
                    FIRST_ROWS,
                    "first = Slice(kept_by_if, zero, end, zero)\n all = Shape(kept_by_if)\n"
                    "kept = Concat<axis = 0>(first, all)",
                )
            ],
            "Shape uses all it keeps",
        ),
        ([(FIRST_ROWS, "kept = Identity(kept_by_if)")], "all it keeps is returned"),
        ([("[9223372036854775807]", "[2]")], "it already keeps at most 2, and 3 are used"),
        ([("maximum = Constant<value_ints = [9223372036854775807]>()", "maximum = Shape(scores)")], "is no constant"),
        (
            [
                ("scores2 = Unsqueeze(scores, zero)", "scores2 = Concat<axis = 0>(s, s)"),
                ("boxes3 =", "s = Unsqueeze(scores, zero)\n boxes3 ="),
            ],
            "several images or classes",
        ),
    ],
)
def test_suppression_left_alone(tmp_path, changes, reason):
    path = write(tmp_path, SUPPRESS, *changes)
    report = optimize_onnx(path)
    assert report.matched("nms_top_k") == 0
    (left,) = report.outcomes[0].left_alone
    assert reason in left
    boxes, scores = draw_boxes(40)
    assert_equal(path, tmp_path / "model.fast.onnx", [(boxes, scores, np.array(False))])


POOL = """
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
  each = Constant<value_ints = [-1, 1, 1, 1]>()
  number0 = Constant<value_int = 0>()
  is0 = Equal(levels, number0)
  found0 = NonZero(is0)
  turned0 = Transpose<perm = [1, 0]>(found0)
  index0 = Squeeze(turned0, one)
  boxes0 = Gather(boxes, index0)
  images0 = Sub(index0, index0)
  pooled0 = RoiAlign<output_height = 3, output_width = 3, sampling_ratio = 2>(fine, boxes0, images0)
  shape0 = Shape(pooled0)
  reshaped0 = Reshape(index0, each)
  indices0 = Expand(reshaped0, shape0)
  sum0 = ScatterElements<axis = 0>(zeros, indices0, pooled0)
  number1 = Constant<value_int = 1>()
  is1 = Equal(levels, number1)
  found1 = NonZero(is1)
  turned1 = Transpose<perm = [1, 0]>(found1)
  index1 = Squeeze(turned1, one)
  boxes1 = Gather(boxes, index1)
  images1 = Sub(index1, index1)
  pooled1 = RoiAlign<output_height = 3, output_width = 3, sampling_ratio = 2>(coarse, boxes1, images1)
  shape1 = Shape(pooled1)
  reshaped1 = Reshape(index1, each)
  indices1 = Expand(reshaped1, shape1)
  y = ScatterElements<axis = 0>(sum0, indices1, pooled1)
}
"""


def draw_pyramid(levels):
    generator = np.random.default_rng(0)
    features = [generator.random((1, 2, side, side)).astype(np.float32) for side in (16, 8)]
    return *features, draw_boxes(len(levels))[0], np.array(levels, dtype=np.int64)


@pytest.mark.parametrize("levels", [[], [0], [1, 1], [0, 1, 1, 0, 1], [0, 7, 1, -(2**63)], [5]])
def test_levels_are_gathered(tmp_path, levels):
    """Also boxes on a level that there is not, whose rows stay zero."""
    path = write(tmp_path, POOL)
    report = optimize_onnx(path)
    assert report.matched("level_pooling") == 1
    assert report.nodes_after["ScatterElements"] == 1
    assert_equal(path, tmp_path / "model.fast.onnx", [draw_pyramid(levels)])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([("value = float[1] {0.0}", "value = float[1] {1.0}")], "does not start from zeros"),
        ([("number1 = Constant<value_int = 1>", "number1 = Constant<value_int = 0>")], "its levels are the same"),
        ([("is1 = Equal(levels, number1)", "other = Abs(levels)\n is1 = Equal(other, number1)")], "different boxes"),
        ([("y = ScatterElements<axis = 0>", 'y = ScatterElements<axis = 0, reduction = "add">')], "adds up"),
        ([("y = Sc", "z = Sc"), ("pooled1)\n}", "pooled1)\n y = Add(z, sum0)\n}")], "used elsewhere"),
        ([("float[1, 2, 8, 8] coarse", "float[1, c, 8, 8] coarse")], "may differ in channels or size"),
        ([("(shape_of_boxes, two, three, three)", "(shape_of_boxes, two, three, columns)")], "may differ from"),
        ([("is1 = Equal(levels, number1)", "is1 = Greater(levels, number0)")], "not those of one level"),
        ([("reshaped1 = Reshape(index1, each)", "r = Reshape(index1, each)\n reshaped1 = Abs(r)")], "of one level"),
    ],
)  # fmt: skip
def test_levels_left_alone(tmp_path, changes, reason):
    path = write(tmp_path, POOL, *changes)
    report = optimize_onnx(path)
    assert report.matched("level_pooling") == 0
    (left,) = report.outcomes[1].left_alone
    assert reason in left
    assert_equal(path, tmp_path / "model.fast.onnx", [draw_pyramid([0, 1, 1, 0, 1])])


APPEND = """
<ir_version: 9, opset_import: ["" : 17]>
graph (float[n, 4] boxes, int64 trips) => (float[k, 4] y) {
  begin = Constant<value = float[0, 4] {}>()
  y = Loop (trips, , begin) <body = append (int64 i, bool go_on, float[k, 4] carried)
    => (bool again, float[m, 4] more) {
    again = Identity(go_on)
    zero = Constant<value_ints = [0]>()
    row = Gather(boxes, i)
    doubled = Add(row, row)
    rows = Unsqueeze(doubled, zero)
    more = Concat<axis = 0>(carried, rows)
  }>
}
"""


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_rows_are_stacked(tmp_path, trips):
    path = write(tmp_path, APPEND)
    assert optimize_onnx(path).matched("loop_concat") == 1
    assert_equal(path, tmp_path / "model.fast.onnx", [(draw_boxes(6)[0], np.array(trips))])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([("float[0, 4] {}", "float[1, 4] {1, 2, 3, 4}")], "does not begin with nothing"),
        ([("Concat<axis = 0>(carried, rows)", "Concat<axis = 0>(rows, carried)")], "does not append at the end"),
        ([("Concat<axis = 0>(carried, rows)", "Concat<axis = 0>(carried, rows, rows)")], "does not append one row"),
        ([("rows = Unsqueeze(doubled, zero)", "r = Unsqueeze(doubled, zero)\n rows = Concat<axis = 0>(r, r)")],
         "other than one row"),
        ([("doubled = Add(row, row)", "so_far = ReduceSum<keepdims = 0>(carried)\n doubled = Add(row, so_far)")],
         "uses the rows so far"),
    ],
)  # fmt: skip
def test_loops_left_alone(tmp_path, changes, reason):
    path = write(tmp_path, APPEND, *changes)
    report = optimize_onnx(path)
    assert report.matched("loop_concat") == 0
    (left,) = report.outcomes[2].left_alone
    assert reason in left
    assert_equal(path, tmp_path / "model.fast.onnx", [(draw_boxes(6)[0], np.array(3))])


def cut_out(model, output, dimensions, inputs, path):
    """Write the part of a model that makes one of its values."""
    makers = {name: node for node in model.graph.node for name in node.output}
    needed, wanted, used = set(), [output], set()
    while wanted:
        name = wanted.pop()
        used.add(name)
        if name in makers and name not in needed:
            needed |= set(makers[name].output)
            inner = [node for attribute in makers[name].attribute for node in attribute.g.node]
            wanted += [given for node in (makers[name], *inner) for given in node.input]
    weights = [weight for weight in model.graph.initializer if weight.name in used]
    nodes = [node for node in model.graph.node if needed & set(node.output)]
    outputs = [onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, list(dimensions))]
    graph = onnx.helper.make_graph(nodes, "part", inputs, outputs, weights)
    onnx.save(onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version), path)
    return path


PLAIN = '<ir_version: 9, opset_import: ["" : 17]> graph (float[n] x) => (float[n] y) { y = Add(x, w) }'


def write_plain(path, *, is_external):
    model = onnx.parser.parse_model(PLAIN)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(300, dtype=np.float32), "w"))
    onnx.save(model, path, save_as_external_data=is_external, location=f"{path.stem}.bin", size_threshold=0)
    return path


def test_a_file_without_candidates_keeps_its_meaning(tmp_path):
    path = write_plain(tmp_path / "plain.onnx", is_external=False)
    report = optimize_onnx(path)
    assert count(report) == dict.fromkeys(REWRITES, 0)
    assert report.nodes_before == report.nodes_after == {"Add": 1}
    assert_equal(path, tmp_path / "plain.fast.onnx", [(np.ones(300, np.float32),)])


@pytest.mark.parametrize("is_in_place", [False, True])
def test_weights_beside_the_file(tmp_path, is_in_place):
    path = write_plain(tmp_path / "plain.onnx", is_external=True)
    (tmp_path / "elsewhere").mkdir()
    out = path if is_in_place else tmp_path / "elsewhere" / "out.onnx"
    optimize_onnx(path, out)
    if not is_in_place:
        (tmp_path / "plain.bin").unlink()  # the new file must not need it
    (result,) = run(open_session(out), np.ones(300, np.float32))
    np.testing.assert_array_equal(result, np.arange(300) + 1)


def test_more_than_protobuf_can_hold_goes_beside_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("maskjet.onnx.application._LARGEST", 1000)
    path = write_plain(tmp_path / "plain.onnx", is_external=False)
    optimize_onnx(path, tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").stat().st_size >= 1200
    (result,) = run(open_session(tmp_path / "out.onnx"), np.ones(300, np.float32))
    np.testing.assert_array_equal(result, np.arange(300) + 1)


def test_missing_weights_are_named(tmp_path):
    path = write_plain(tmp_path / "plain.onnx", is_external=True)
    (tmp_path / "plain.bin").unlink()
    with pytest.raises(SourceError, match=r"must be in '.*plain\.bin', which is missing"):
        optimize_onnx(path)


def test_files_that_are_no_models(tmp_path):
    with pytest.raises(SourceError, match=r"must be an ONNX file, got '.*missing\.onnx'"):
        optimize_onnx(tmp_path / "missing.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(SourceError, match=r"got '.*text\.onnx', which is none"):
        optimize_onnx(tmp_path / "text.onnx")
    (tmp_path / "empty.onnx").touch()
    with pytest.raises(SourceError, match="which holds no graph"):
        optimize_onnx(tmp_path / "empty.onnx")


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


def test_old_opsets_are_refused(tmp_path):
    path = write(tmp_path, PLAIN.replace("17", "12").replace("Add(x, w)", "Abs(x)"))
    with pytest.raises(InputError, match="opset 13 or later, got 12"):
        optimize_onnx(path)


def test_unknown_rewrites_are_refused():
    with pytest.raises(InputError, match=r"rewrites must be of \['nms_top_k', .*\], got \['fuse'\]"):
        optimize_onnx("model.onnx", rewrites=["fuse"])


def test_the_library_is_named_if_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx_ir", None)
    with pytest.raises(MissingDependencyError, match=r'optimize_onnx\(\) needs onnx-ir: pip install "maskjet\[onnx\]"'):
        optimize_onnx("model.onnx")


def test_the_report_prints(tmp_path):
    text = str(optimize_onnx(write(tmp_path, SUPPRESS)))
    assert "nms_top_k      1        0" in text
    assert text.startswith(str(tmp_path / "model.fast.onnx"))


def test_importing_needs_no_extra():
    code = "import sys, maskjet.rewrites; print([name for name in sys.modules if name.startswith('onnx')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.slow
def test_the_benchmark_times_what_matches(files, tmp_path):
    report = onnx_files.run(files("faster"), tmp_path / "report.json", size_hw=SIZE_HW, runs=1)
    assert [m.variant for m in report.measurements] == ["as exported", "nms_top_k", "level_pooling", "all"]
    assert [m.matched for m in report.measurements] == [0, 2, 1, 3]
    assert report.detections == [KEPT] * 3
    assert report.notes[0] == "loop_concat left out: nothing matches"
    assert all(m.p50_ms > 0 for m in report.measurements)
    assert json.loads((tmp_path / "report.json").read_text())["threads"] == 2


@pytest.mark.slow
def test_the_benchmark_times_nothing_that_differs(files, monkeypatch):
    shares = chain([0.0] * 3, repeat(math.inf))  # as exported on three images, then all others
    monkeypatch.setattr(onnx_files, "_share", lambda *_: next(shares))
    report = onnx_files.run(files("faster"), size_hw=SIZE_HW, runs=1)
    assert [m.variant for m in report.measurements] == ["as exported"]
    assert "all left out: its outputs differ" in report.notes


def test_the_benchmark_says_what_it_needs(files, tmp_path):
    with pytest.raises(InputError, match=r"model must take one image of 3×17×23, got "):
        onnx_files.run(files("faster"), size_hw=(17, 23))
    with pytest.raises(SourceError, match=r"none\.onnx' can't be run by ONNX Runtime"):
        onnx_files.run(tmp_path / "none.onnx")
    with pytest.raises(InputError, match="runs must be at least 1, got 0"):
        onnx_files.run(files("faster"), runs=0)
