"""The rewrites on graphs as small as their patterns: their operators' results, and what they leave alone and why."""

import copy

import pytest
import torch
from torch.fx import GraphModule
from torchvision.ops import MultiScaleRoIAlign, poolers
from torchvision.ops import boxes as box_ops

from benchmarks.aten import FOLD_NMS, GATHER_LEVELS, PICK_LEVELS
from benchmarks.aten.capture import _count, _replaced, batched_nms
from benchmarks.aten.nms_topk import nms_topk
from benchmarks.aten.pooler import roi_align_levels
from maskjet.errors import UnsupportedError

aten = torch.ops.aten

POOLERS = [GATHER_LEVELS, PICK_LEVELS]


class Suppressed(torch.nn.Module):
    """The end of an RPN."""

    def __init__(self, rows=slice(5), iou=0.5, is_returned=False):
        super().__init__()
        self.rows, self.iou, self.is_returned = rows, iou, is_returned

    def forward(self, boxes, scores, classes):
        kept = batched_nms(boxes, scores, classes, self.iou)
        first = boxes[kept[self.rows]]
        return (first, kept) if self.is_returned else first


class Halves(Suppressed):
    def forward(self, boxes, scores, classes):
        kept = batched_nms(boxes, scores, classes, self.iou)
        return boxes[kept[:5]], scores[kept[:3]]


def candidates(count, classes=3, dtype=torch.float32, spread=100.0):
    generator = torch.Generator().manual_seed(count)
    corner = spread * torch.rand(count, 2, generator=generator)
    boxes = torch.cat((corner, corner + 5 + 40 * torch.rand(count, 2, generator=generator)), dim=1)
    # A permutation has no two equal scores.
    scores = torch.randperm(count, generator=generator).float() / count
    return boxes.to(dtype), scores.to(dtype), torch.randint(classes, (count,), generator=generator)


def exported(module, *inputs, **options):
    return torch.export.export(module, inputs, strict=False, **options).module()


class TestFoldGuards:
    @pytest.mark.parametrize(
        ("module", "reason"),
        [
            (Suppressed(slice(1, 5)), "the slice is 1:5:1 of dimension 0, not the first k"),
            (Suppressed(slice(0, 5, 2)), "the slice is 0:5:2 of dimension 0, not the first k"),
            (Suppressed(slice(0)), "the slice ends at 0, not at a positive constant"),
            (Suppressed(iou=1.5), "the threshold is 1.5, not 0..1"),
            (Suppressed(is_returned=True), "output uses more of its result than the first 5"),
            (Halves(), "its result is sliced 2 times, not once"),
        ],
    )
    def test_left_alone(self, module, reason):
        inputs = candidates(40)
        graph = exported(module, *inputs)
        before = str(graph.graph)
        report = FOLD_NMS.apply(graph)
        assert report.matches == 0
        assert report.skipped == (f"batched_nms: {reason}",)
        assert str(graph.graph) == before
        with pytest.raises(UnsupportedError, match=r"nms_topk must match 1 times in this graph, got 0\. Not batched"):
            FOLD_NMS.apply(graph, expected=1)

    def test_other_types_are_left_alone(self):
        graph = exported(Suppressed(), *candidates(40, dtype=torch.float64))
        assert FOLD_NMS.apply(graph).skipped == ("batched_nms: the boxes are torch.float64, not torch.float32",)

    def test_nothing_to_match(self):
        graph = exported(torch.nn.ReLU(), torch.zeros(1))
        assert FOLD_NMS.apply(graph).skipped == ()
        with pytest.raises(UnsupportedError, match=r"must match 2 times in this graph, got 0\.$"):
            FOLD_NMS.apply(graph, expected=2)


class TestNms:
    @pytest.mark.parametrize("iou", [0.0, 0.3, 0.5, 0.7, 1.0])
    @pytest.mark.parametrize(("count", "k"), [(1, 1), (400, 7), (400, 1000), (1500, 100), (1500, 2000)])
    def test_equals_torchvision(self, count, k, iou):
        boxes, scores, classes = candidates(count)
        expected = box_ops._batched_nms_vanilla(boxes, scores, classes, iou)[:k]
        assert torch.equal(nms_topk(boxes, scores, classes, iou, k), expected)
        assert torch.equal(batched_nms(boxes, scores, classes, iou)[:k], expected)

    @pytest.mark.parametrize(("threshold", "some_stay"), [(0.5, True), (0.7, True), (0.3, False), (0.1, False)])
    def test_overlaps_at_the_threshold(self, threshold, some_stay):
        # Pairs of boxes whose overlap is the threshold but for rounding, each pair a class. torchvision compares a
        # float with a double: the float32 nearest to 0.7 is smaller and stays, that nearest to 0.3 is larger and goes.
        high = torch.arange(10, 4000).float()
        zero, ten = torch.zeros_like(high), torch.full_like(high, 10)
        pairs = [torch.stack((zero, zero, ten, bottom), dim=1) for bottom in (high, high * threshold)]
        scores = torch.cat((1 + high, 1 / high))
        classes = torch.arange(len(high)).repeat(2)
        expected = box_ops._batched_nms_vanilla(torch.cat(pairs), scores, classes, threshold)
        assert torch.equal(nms_topk(torch.cat(pairs), scores, classes, threshold, 10_000), expected)
        assert (len(expected) > len(high)) == some_stay

    def test_no_boxes(self):
        empty = (torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64))
        for kept in (nms_topk(*empty, 0.5, 3), batched_nms(*empty, 0.5)):
            assert kept.dtype == torch.int64
            assert kept.shape == (0,)

    def test_equal_scores_keep_their_order(self):
        boxes, _, classes = candidates(300)
        scores = torch.randint(4, (300,), generator=torch.Generator().manual_seed(0)) / 4
        kept = nms_topk(boxes, scores, classes, 0.5, 1000)
        expected = box_ops._batched_nms_coordinate_trick(boxes, scores, classes, 0.5)
        assert torch.equal(kept, expected)
        assert kept.tolist() == sorted(kept.tolist(), key=lambda row: (-float(scores[row]), row))

    def test_equal_scores_of_many(self):
        # Here torchvision's last sort is not stable: the same boxes, in any order among equals.
        boxes, _, classes = candidates(2000, spread=600)
        scores = torch.randint(4, (2000,), generator=torch.Generator().manual_seed(0)) / 4
        kept = nms_topk(boxes, scores, classes, 0.5, 2000)
        expected = batched_nms(boxes, scores, classes, 0.5)
        assert torch.equal(scores[kept], scores[expected])
        assert set(kept.tolist()) == set(expected.tolist())

    def test_operators_are_sound(self):
        inputs = candidates(30)
        checks = ("test_schema", "test_faketensor")
        torch.library.opcheck(nms_topk, (*inputs, 0.5, 7), test_utils=checks)
        torch.library.opcheck(batched_nms, (*inputs, 0.5), test_utils=checks)


class Pooled(torch.nn.Module):
    """torchvision's pooler on an image of 1024 × 1024 pixels."""

    def __init__(self, levels=4, size=7):
        super().__init__()
        self.names = [str(level) for level in range(levels)]
        self.pool = MultiScaleRoIAlign(self.names, size, 2)

    def forward(self, features, boxes):
        boxes = boxes[torch.where(boxes[:, 0] > -1e9)[0]]  # of a count not known before, as after an NMS
        return self.pool(dict(zip(self.names, features, strict=True)), [boxes], [(1024, 1024)])


def pyramid(levels=4, channels=3):
    generator = torch.Generator().manual_seed(levels)
    return [torch.rand(1, channels, 256 >> level, 256 >> level, generator=generator) for level in range(levels)]


def squares(*sides):
    corner = 10 * torch.arange(len(sides)).float()
    far = corner + torch.tensor(sides).float()
    return torch.stack((corner, corner, far, far), dim=1)


@pytest.fixture(scope="module")
def pooled():
    """An eager pooler, and a maker of its graph."""
    eager, inputs = Pooled(), (pyramid(), squares(30, 120, 240, 500))
    eager(*inputs)  # settles the scales
    with _replaced(poolers, "len", _count):
        graph = exported(eager, *inputs, dynamic_shapes=([{}] * 4, {0: torch.export.Dim("boxes", min=0, max=1000)}))
    return eager, lambda: GraphModule(graph, copy.deepcopy(graph.graph))


@pytest.mark.parametrize("pooler", POOLERS, ids=lambda pooler: pooler.name)
class TestPoolers:
    @pytest.mark.parametrize(
        "sides",
        [
            (500, 30, 240, 120, 31, 501),
            (30, 500),
            (240,),
            (500,) * 5,
            (),
            (0, 300),
            (111.9, 112, 223.9, 224, 448, 447.9),
        ],
        ids=lambda sides: f"{len(sides)} boxes",
    )
    def test_equals_torchvision(self, pooled, pooler, sides):
        eager, graph = pooled
        module, boxes = graph(), squares(*sides)
        assert pooler.apply(module, expected=1).skipped == ()
        assert torch.equal(module(pyramid(), boxes), eager(pyramid(), boxes))

    def test_all_levels_at_once(self, pooled, pooler):
        eager, graph = pooled
        boxes = squares(*(600 * torch.rand(200, generator=torch.Generator().manual_seed(1))).tolist())
        assert set(eager.pool.map_levels([boxes]).tolist()) == {0, 1, 2, 3}
        module = graph()
        pooler.apply(module)
        assert torch.equal(module(pyramid(), boxes), eager(pyramid(), boxes))

    def test_box_of_no_level_pools_zeros(self, pooled, pooler):
        eager, graph = pooled
        boxes = squares(30, 120, 240, 500)
        boxes[1, 3] = torch.nan
        module = graph()
        pooler.apply(module)
        result = module(pyramid(), boxes)
        assert not result[1].any()
        assert torch.equal(result, eager(pyramid(), boxes))

    def test_chain_is_erased(self, pooled, pooler):
        module = pooled[1]()
        pooler.apply(module)
        targets = [node.target for node in module.graph.nodes]
        assert aten.index_put_.default not in targets
        assert aten.zeros.default not in targets
        align = torch.ops.torchvision.roi_align.default
        assert targets.count(align) == (4 if pooler is GATHER_LEVELS else 0)

    def test_two_levels(self, pooler):
        eager, inputs = Pooled(levels=2), (pyramid(2), squares(30, 120, 240, 500))
        expected = eager(*inputs)
        with _replaced(poolers, "len", _count):
            module = exported(eager, *inputs)
        pooler.apply(module, expected=1)
        assert torch.equal(module(*inputs), expected)


def nodes_of(module, target):
    return [node for node in module.graph.nodes if node.target is target]


def accumulate(module):
    write = nodes_of(module, aten.index_put_.default)[2]
    write.args = (*write.args, True)


def swap_levels(module):
    zero, one = nodes_of(module, aten.eq.Scalar)[:2]
    zero.args, one.args = (zero.args[0], 1), (one.args[0], 0)


def compare_otherwise(module):
    nodes_of(module, aten.eq.Scalar)[0].target = aten.le.Scalar


def sample_otherwise(module):
    align = nodes_of(module, torch.ops.torchvision.roi_align.default)[3]
    align.args = (*align.args[:5], 4, *align.args[6:])


def take_other_boxes(module):
    second = nodes_of(module, torch.ops.torchvision.roi_align.default)[1]
    second.args = (second.args[0], second.args[1].args[0], *second.args[2:])  # all of them


def write_something_else(module):
    write = nodes_of(module, aten.index_put_.default)[0]
    write.args = (*write.args[:2], nodes_of(module, aten.sqrt.default)[0])


def write_to_other_rows(module):
    write = nodes_of(module, aten.index_put_.default)[0]
    placeholder = next(node for node in module.graph.nodes if node.op == "placeholder")
    for user in list(write.args[1][0].users):
        user.replace_input_with(write.args[1][0], placeholder)


def return_a_level(module):
    (output,) = module.graph.find_nodes(op="output")
    output.args = ((*output.args[0], nodes_of(module, torch.ops.torchvision.roi_align.default)[1]),)


def of_another_type(module):
    zeros = nodes_of(module, aten.zeros.default)[0]
    zeros.meta["val"] = zeros.meta["val"].double()


def return_the_zeros(module):
    (output,) = module.graph.find_nodes(op="output")
    output.args = ((*output.args[0], nodes_of(module, aten.zeros.default)[0]),)


def more_rows(module):
    zeros = nodes_of(module, aten.zeros.default)[0]
    zeros.meta["val"] = zeros.meta["val"].new_empty(9, 3, 7, 7)


@pytest.mark.parametrize("pooler", POOLERS, ids=lambda pooler: pooler.name)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (accumulate, "index_put__2: it does not write roi_align's result to indexed rows"),
        (write_something_else, "index_put_: it does not write roi_align's result to indexed rows"),
        (swap_levels, "its levels are [1, 0, 2, 3], not 0, 1 and so on"),
        (compare_otherwise, "index_put_: the where does not compare levels with a constant"),
        (sample_otherwise, "level 3 takes other boxes, other levels or another size than level 2"),
        (take_other_boxes, "index_put__1: roi_align does not take the boxes of the written rows"),
        (write_to_other_rows, "index_put_: the written rows are not from a where"),
        (return_a_level, "index_put__1: roi_align_1 is used by output, too"),
        (return_the_zeros, "its users are index_put_ and output, not one index_put_ into it"),
        (of_another_type, "a feature map is torch.float32, the zeros are torch.float64"),
        (more_rows, "the zeros are 9 × 3 × 7 × 7, the boxes pooled u0 × 3 × 7 × 7"),
    ],
)
def test_changed_poolers_are_left_alone(pooled, pooler, change, reason):
    module = pooled[1]()
    change(module)
    before = str(module.graph)
    report = pooler.apply(module)
    assert (report.matches, report.skipped) == (0, (f"zeros: {reason}",))
    assert str(module.graph) == before
    with pytest.raises(UnsupportedError, match=f"{pooler.name} must match 2 times in this graph, got 0. Not zeros: "):
        pooler.apply(module, expected=2)


def test_pooling_operator_is_sound():
    rois = torch.cat((torch.zeros(4, 1), squares(30, 120, 240, 500)), dim=1)
    levels = torch.tensor([0, 1, 3, 1])
    inputs = (pyramid(), rois, levels, [0.25, 0.125, 0.0625, 0.03125], 7, 5, 2, False)
    torch.library.opcheck(roi_align_levels, inputs, test_utils=("test_schema", "test_faketensor"))
