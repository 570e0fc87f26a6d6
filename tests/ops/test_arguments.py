"""Wrong arguments of ops, which are all refused alike: by the argument's name."""

import numpy as np
import pytest
import torch

from maskjet import ops
from maskjet.errors import InputError
from maskjet.masks import coco_rle
from maskjet.ops import Selection, YUVFrames, yuv_conversion
from tests.ops.frames import NORMALISATION, conversions, random_bytes, random_planes
from tests.ops.serving import on_cpu

YUV = YUVFrames(*random_planes(20, 30), yuv_conversion("bt709", full_range=False))
NV12, CHROMA = random_bytes(6, 8), random_bytes(2, 3, 2)
BLACK, WHITE = torch.zeros(16, 16, 3, dtype=torch.uint8), torch.full((1, 3), 255, dtype=torch.uint8)


def chosen(count, query):
    """A selection of one image."""
    query = torch.tensor([query])
    blank = torch.zeros(query.shape)
    return Selection(torch.tensor([count]), query, blank.int(), blank, torch.zeros(*query.shape, 4))


def within(memory):
    return YUVFrames.within(memory, yuv_conversion("bt601", full_range=False))


PREPROCESS = {"frames": random_bytes(4, 4, 3), "size": (8, 8), **NORMALISATION}
PLANES = {"luma": random_bytes(4, 6), "chroma": CHROMA, "conversion": conversions(("fcc", True))[0]}
MASKS = {"mask_logits": torch.zeros(1, 4, 5, 5), "query": [torch.tensor([0])], "image_sizes": [(5, 5)]}
WRONG_LOGITS = [torch.zeros(4, 5, 5), torch.zeros(1, 4, 5, 5).double(), torch.zeros(1, 4, 0, 5), np.zeros((1, 4, 5, 5))]
WRONG_MASKS = {
    "mask_logits": WRONG_LOGITS,
    "image_sizes": [[(5, 5, 3)], [(2**17, 2**17)]],
    "query": [
        *(None, [], [[0, 1]], [torch.tensor([True])], [torch.tensor([2**32])], [torch.tensor([-1])]),
        *(chosen(-1, [0, 1]), chosen(2**32 + 1, [0, 1]), chosen(2, [0, 2**32]), chosen(2, [0, -(2**32)])),
        chosen(1, [[0], [1]]),
    ],
}
WRONG_BOXES = [[torch.zeros(1, 4)], [torch.zeros(2, 4).int()], [torch.zeros(4).int()], torch.zeros(1, 2, 4).int()]
# What is called, arguments that are right, and values that each make one of them wrong.
WRONG = [
    (
        ops.preprocess,
        PREPROCESS,
        {
            "frames": [
                *(np.zeros((4, 4, 3), np.uint8), torch.zeros(4, 4, 3), torch.zeros(0, 4, 3).byte()),
                random_bytes(1, 1, 3).expand(1, 2**30, 3),
            ],
            "size": [(0, 4)],
            "mean": [(0, 0), (0, torch.nan, 0)],
            "std": [(1, 0, 1), (1, torch.inf, 1)],
            "order": ["gbr"],
            "letterbox": [256, ops.Letterbox(place="left")],
            "resample": ["nearest"],
            "out": [torch.zeros(1, 3, 4, 5), torch.zeros(1, 3, 8, 8).int()],
        },
    ),
    (ops.preprocess, {**PREPROCESS, "frames": YUV}, {"order": ["bgr"]}),
    (
        YUVFrames,
        PLANES,
        {
            "luma": [
                *(np.zeros((4, 6), np.uint8), torch.zeros(4, 6), random_bytes(0, 6), NV12[0, 0].expand(1, 2**31)),
                torch.empty(5, 2**30, device="meta").byte().t(),
            ],
            "chroma": [None, NV12, CHROMA.to("meta")],
            "conversion": ["bt709", NV12, torch.zeros(2, 4, 2).int(), torch.zeros(2, 4).int().t()],
        },
    ),
    (YUVFrames, {**PLANES, "luma": NV12}, {"chroma": [CHROMA]}),
    (within, {}, {"memory": [NV12[:4], NV12[:, :5]]}),
    (yuv_conversion, {"matrix": "fcc", "full_range": False}, {"matrix": ["rec709"], "full_range": ["no"]}),
    (
        ops.select,
        {"logits": torch.zeros(2, 5, 3), "boxes": torch.zeros(2, 5, 4), "image_sizes": [(4, 4), (5, 5)]},
        {
            "logits": [torch.zeros(5, 3)],
            "boxes": [torch.zeros(2, 5, 3), torch.zeros(2, 5, 4).cfloat()],
            "image_sizes": [
                *([(4, 4)], None, [(4, 4), (0, 5)], [(True, 5), (5, 5)], [(2**31, 1), (5, 5)], [(2**17, 2**17)] * 2),
            ],
            "threshold": [[0.5, 0.5], ["a", "b", "c"]],
            "class_map": [[0, 1.5, 2], [0, 1, 2**31], torch.tensor([0.0, 1, 2]), torch.tensor([0, 1, 2**32])],
            "max_detections": [True, 0, 2**40],
            "num_select": ["7"],
        },
    ),
    (ops.paste_masks, MASKS, WRONG_MASKS),
    *(
        (ops.encode_masks, {**MASKS, "implementation": implementation}, {**WRONG_MASKS, "boxes": WRONG_BOXES})
        for implementation in on_cpu("encode_masks")
    ),
    (
        ops.nms,
        {"boxes": torch.zeros(1, 3, 4), "iou_threshold": 0.5},
        {
            "boxes": [torch.zeros(3, 4)],
            "count": [[1]],
            "groups": [torch.zeros(1, 2, dtype=torch.int32)],
            "iou_threshold": [torch.nan, "1"],
            "max_output": [0, 1.5],
        },
    ),
    (
        ops.roi_align,
        {"boxes": torch.zeros(1, 5, 4), "features": [torch.zeros(1, 2, 8, 8)], "scales": (0.25,), "size": 3},
        {
            "features": [[], [None], [torch.zeros(1, 2, 3)], [torch.zeros(1, 2, 8, 8), torch.zeros(1, 3, 4, 4)]],
            "boxes": [[[0, 0, 1, 1]], torch.zeros(2, 5, 4), torch.zeros(1, 5, 4, device="meta")],
            "scales": [(1, 0.5), (0.0,), ("a",)],
            "size": [0, True],
        },
    ),
    (
        ops.paint,
        {"image": BLACK, "masks": coco_rle.encode(np.eye(16, dtype=bool)), "colours": WHITE, "opacity": 9, "line": 2},
        {
            "image": [BLACK.float(), BLACK[:, :, :2], BLACK.movedim(0, 1)],
            "colours": [WHITE.expand(2, 3)],
            "opacity": [257],
            "line": [33, 1.5],
            "out": [BLACK[1:]],
        },
    ),
]


@pytest.mark.parametrize(
    ("call", "given", "name", "value"),
    [(call, given, name, value) for call, given, wrong in WRONG for name, values in wrong.items() for value in values],
)
def test_what_is_wrong_is_named(call, given, name, value):
    with pytest.raises(InputError, match=rf"^{name}(\[\d\])? must (be|have|hold)\b"):
        call(**{**given, name: value})


def test_messages_say_what_came_and_what_was_expected():
    expected = r"^boxes must be \[2, 5, 4\] on cpu to go with the logits, got float32 \[2, 5, 3\] on cpu\.$"
    with pytest.raises(InputError, match=expected):
        ops.select(torch.zeros(2, 5, 3), torch.zeros(2, 5, 3), [(4, 4), (5, 5)])


@pytest.mark.parametrize(("size", "counts"), [([16, 16], "~"), ([16, 16], [5, 6]), ([9, 16], [144])])
def test_masks_that_are_none_of_the_image_are_not_painted(size, counts):
    with pytest.raises(InputError):
        ops.paint(BLACK, [{"size": size, "counts": counts}], WHITE, opacity=9, line=2)
