"""Merging of tiles: scenes made by hand, and random ones beside a dense reference."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

from maskjet import limits
from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.masks import coco_rle
from maskjet.tiling.layout import Tile, cut_tiles
from maskjet.tiling.merging import AGREES, NEAR, merge, merge_tiles, to_runs

HW = 64, 96
SEAMS = cut_tiles(HW, 32, 0, (32, 32), full=False)
LAPS = cut_tiles(HW, 40, 0.2, (32, 32), full=False)
FULL = Tile(0, 0, *HW)


class Seen(NamedTuple):
    """A thing of the frame, as a tile saw it."""

    mask: np.ndarray  # of the frame
    confidence: float = 0.5
    class_id: int = 0


def area(*boxes):
    """The pixels of boxes, (top, left, bottom, right), in a frame."""
    mask = np.zeros(HW, bool)
    for top, left, bottom, right in boxes:
        mask[top:bottom, left:right] = True
    return mask


def found_in(tile, seen, has_masks=True):
    """The detections of a tile: the parts of the given masks that lie in it."""
    masks = np.array([one.mask for one in seen], bool).reshape(-1, *HW)
    masks = masks[:, tile.top : tile.top + tile.height, tile.left : tile.left + tile.width]
    rle = coco_rle.encode(masks)
    return Detections(
        image_size=(tile.height, tile.width),
        xyxy=np.array([coco_rle.to_xyxy(one) for one in rle], np.float32).reshape(-1, 4),
        confidence=np.array([one.confidence for one in seen], np.float32),
        class_id=np.array([one.class_id for one in seen], np.int32),
        rle=rle if has_masks else None,
        class_names={0: "car", 1: "bus"},
    )


def look(things, tiles):
    """What an exact model finds: each tile the parts of things that lie in it."""
    views = [area((tile.top, tile.left, tile.top + tile.height, tile.left + tile.width)) for tile in tiles]
    return [[one._replace(mask=one.mask & view) for one in things if (one.mask & view).any()] for view in views]


def run(tiles, seen, most=100, has_masks=True):
    return merge([found_in(*each, has_masks) for each in zip(tiles, seen, strict=True)], tiles, HW, most)


def assert_things(merged, things):
    """The detections are exactly these things, in any order."""
    expected = [(coco_rle.encode(one.mask)[0], one.class_id, float(np.float32(one.confidence))) for one in things]
    rows = list(zip(merged.rle, merged.class_id.tolist(), merged.confidence.tolist(), strict=True))
    assert sorted(rows, key=str) == sorted(expected, key=str)
    for rle, box in zip(merged.rle, merged.xyxy, strict=True):
        assert tuple(box) == coco_rle.to_xyxy(rle)


def regions(p, q, tiles):
    """Both masks where both tiles see; of tiles that touch, the lines at their seam."""
    own, other = tiles[p["tile"]], tiles[q["tile"]]
    spans, seams = [], 0
    for axis in (0, 1):
        start, end = max(own[axis], other[axis]), min(own[axis] + own[axis + 2], other[axis] + other[axis + 2])
        if start == end:
            seams += 1
            lines = slice(end - 1, end), slice(end, end + 1)
            spans.append(lines if own[axis] < end else lines[::-1])
        else:
            spans.append((slice(start, end), slice(start, end)))
        if start > end or seams == 2:
            return None
    (rows, other_rows), (columns, other_columns) = spans
    return p["mask"][rows, columns], q["mask"][other_rows, other_columns]


def reference(tiles, seen):
    """The rules of `merging`, with dense masks: class, confidence and mask of each thing."""
    full, laps = tiles[-1] == FULL, []
    for axis in (0, 1):
        starts = sorted({tile[axis] for tile in tiles[:-1]})
        laps.append(all(after - start < tiles[0][axis + 2] for start, after in pairwise(starts)))
    pieces = []
    for t, one in sorted(((t, one) for t, some in enumerate(seen) for one in some), key=lambda each: -each[1][1]):
        (left, top, right, bottom), tile = coco_rle.to_xyxy(coco_rle.encode(one.mask)[0]), tiles[t]
        cuts = [top - NEAR <= tile.top > 0 or bottom + NEAR >= tile.top + tile.height < HW[0]]
        cuts += [left - NEAR <= tile.left > 0 or right + NEAR >= tile.left + tile.width < HW[1]]
        cuts = [cut and one.mask.any() for cut in cuts]
        pieces.append({"tile": t, "cuts": cuts, "cut": any(cuts), "iou": {}, "in": {}, "of full": {}} | one._asdict())
    for p in pieces:
        for k, q in enumerate(pieces):
            both = regions(p, q, tiles) if p["tile"] != q["tile"] else None
            if both and (shared := (both[0] & both[1]).sum()):
                iou = shared / (both[0] | both[1]).sum()
                if p["class_id"] == q["class_id"]:
                    p["iou"][k], p["in"][k] = iou, shared / p["mask"].sum()
                elif tiles[p["tile"]] == FULL:
                    p["of full"][k] = iou
    whole, kept = [not one["cut"] for one in pieces], [True] * len(pieces)
    for i, p in enumerate(pieces):
        for j, iou in (p["iou"] | p["of full"]).items():
            if kept[i] and j > i and iou >= AGREES and whole[i] and whole[j]:
                kept[j] = False
    is_left = [kept[i] and whole[i] for i in range(len(pieces))]
    for j, q in enumerate(pieces):
        inner = [p["mask"] & q["mask"] for i, p in enumerate(pieces[:j]) if is_left[i] and p["in"].get(j, 0) >= AGREES]
        if len(inner) > 1 and whole[j] and np.sum(inner) >= AGREES * q["mask"].sum():
            kept[j] = whole[j] = False
    for i, p in enumerate(pieces):
        is_in = any(whole[j] and share >= AGREES for j, share in p["in"].items())
        is_judged = full and all(lap or not cut for cut, lap in zip(p["cuts"], laps, strict=True))
        kept[i] &= not (p["cut"] and (is_in or is_judged))
    groups = [[i] for i in range(len(pieces))]
    edges = [(-iou, i, j) for i, p in enumerate(pieces) for j, iou in p["iou"].items() if i < j and iou >= AGREES]
    for _, i, j in sorted(edges):
        both = groups[i] + groups[j]
        is_apart = len({pieces[k]["tile"] for k in both}) == len(both)  # also from itself
        if kept[i] and kept[j] and (pieces[i]["cut"] or pieces[j]["cut"]) and is_apart:
            for k in both:
                groups[k] = both
    things = [[pieces[k] for k in group] for i, group in enumerate(groups) if kept[i] and min(group) == i]
    things = [(some[0]["class_id"], np.float32(max(one["confidence"] for one in some)), some) for some in things]
    things.sort(key=lambda thing: -thing[1])
    return [(*about, np.any([one["mask"] for one in some], axis=0)) for *about, some in things]


def random_scene(random):
    """Boxes, seen badly by tiles."""
    tiles = cut_tiles(HW, 32, random.choice([0, 0.2, 0.4]), (32, 32), full=bool(random.integers(2)))
    things = []
    for _ in range(random.integers(1, 12)):
        top, left = random.integers(-4, HW[0] - 2), random.integers(-4, HW[1] - 2)
        mask = area((max(top, 0), max(left, 0), top + random.integers(4, 40), left + random.integers(4, 40)))
        mask &= random.random(HW) < random.choice([1, 0.8])
        things.append(Seen(mask, class_id=int(random.random() < 0.2)))
    seen = look(things, tiles)
    for some in seen:  # some twice, once by half; some pixels not
        some += [one._replace(mask=one.mask & (np.arange(HW[1]) % 40 < 20)) for one in some if random.random() < 0.3]
        some[:] = [one._replace(class_id=1) if random.random() < 0.2 else one for one in some]
        some[:] = [one._replace(mask=one.mask & (random.random(HW) < 0.95)) for one in some if random.random() < 0.9]
    order = iter(random.permutation(sum(map(len, seen))))
    return tiles, [[one._replace(confidence=float(0.9 - next(order) / 500)) for one in some] for some in seen]


@pytest.mark.parametrize("seed", range(40))
def test_merges_as_a_dense_reference_in_any_order(seed):
    random = np.random.default_rng(seed)
    tiles, seen = random_scene(random)
    expected, merged = reference(tiles, seen), run(tiles, seen)
    assert list(zip(merged.class_id, merged.confidence, strict=True)) == [tuple(each[:2]) for each in expected]
    for rle, (_, _, mask) in zip(merged.rle, expected, strict=True):
        assert rle == coco_rle.encode(mask)[0]
    again = [(tiles[k], [seen[k][i] for i in random.permutation(len(seen[k]))]) for k in random.permutation(len(tiles))]
    assert run(*zip(*again, strict=True)).to_json() == merged.to_json()


SHAPES = {
    "in four tiles' corner": [area((20, 20, 44, 44))],
    "larger than a tile": [area((4, 4, 60, 92))],
    "all of the image": [area((0, 0, 64, 96))],
    "one pixel": [area((31, 32, 32, 33))],
    "L": [area((4, 10, 50, 20), (44, 10, 52, 90))],
    "U, that leaves a tile and comes back": [area((8, 10, 50, 16), (44, 10, 50, 30), (8, 24, 50, 30))],
    "ring": [area((12, 14, 52, 22), (12, 70, 52, 78), (12, 14, 20, 78), (44, 14, 52, 78))],
    "nested": [area((12, 14, 52, 22), (12, 70, 52, 78), (12, 14, 20, 78), (44, 14, 52, 78)), area((26, 26, 40, 66))],
    "bumper to bumper": [area((8, left, 20, left + 14)) for left in range(5, 89, 14)],
    "side by side across a corner": [area((10, left, 54, left + 9)) for left in range(17, 53, 9)],
    "nothing": [],
}


@pytest.mark.parametrize("tiles", [SEAMS, LAPS, [*LAPS, FULL]], ids=["seams", "laps", "full"])
@pytest.mark.parametrize("masks", SHAPES.values(), ids=SHAPES)
def test_things_that_borders_cut_are_whole_again_and_apart(masks, tiles):
    things = [Seen(mask, 0.5 + k / 50) for k, mask in enumerate(masks)]
    seen = look(things, tiles)
    assert_things(run(tiles, seen), things)
    boxes = run(tiles, seen, has_masks=False)
    assert boxes.rle is None
    left, top, right, bottom = coco_rle.to_xyxy(coco_rle.encode(np.any(masks, axis=0))[0]) if masks else [0] * 4
    if len(masks) == 1 and masks[0][top:bottom, left:right].all():  # else the boxes of pieces don't agree
        assert boxes.xyxy.tolist() == [[left, top, right, bottom]]


def test_things_that_meet_on_a_seam_are_apart_in_the_full_image():
    things = [Seen(area((8, 20, 20, 32))), Seen(area((8, 32, 20, 50)))]
    assert_things(run([*SEAMS, FULL], look(things, [*SEAMS, FULL])), things)


BUS, CAR = area((4, 4, 16, 26)), area((4, 24, 16, 48))
TWO = [Seen(area((4, 4, 16, 14)), 0.8), Seen(area((4, 16, 16, 26)), 0.7)]
CUT = [Seen(area((4, 24, 16, 40)), 0.9), Seen(area((4, 28, 16, 48)), 0.6)]  # what two of LAPS see of the car


@pytest.mark.parametrize(
    ("first", "second", "full", "expected"),
    [
        ([Seen(area((4, 31, 16, 37)), 0.6)], [Seen(area((4, 31, 16, 36)), 0.8)], [], "second"),
        ([Seen(BUS)], [], [Seen(area((4, 4, 17, 27)), 0.8)], "full"),
        ([Seen(BUS, 0.9)], [], [Seen(area((4, 4, 17, 27)), 0.8)], "first"),
        ([Seen(BUS, 0.9)], [], [Seen(BUS, 0.8, class_id=1)], "first full"),
        ([Seen(BUS, 0.8)], [], [Seen(BUS, 0.9, class_id=1)], "full"),
        ([Seen(BUS & area((0, 0, 64, 14)), 0.8)], [], [Seen(BUS, 0.9, class_id=1)], "first full"),  # a part alone
        ([Seen(area((4, 31, 16, 37)), 0.6)], [Seen(area((4, 31, 16, 37)), 0.8, class_id=1)], [], "first second"),
        (TWO, [], [Seen(BUS, 0.6)], "first"),  # a crowd
        (TWO, [], [Seen(BUS, 0.75)], "first full"),  # one part alone is more confident
        (TWO, [], [Seen(area((4, 4, 30, 60)), 0.6)], "first full"),  # which they hardly cover
        ([Seen(BUS, 0.9)], [], [Seen(area((4, 12, 16, 34)), 0.6)], "first full"),  # covers half of it, alone
        (CUT[:1], CUT[1:], [Seen(CAR, 0.3)], "full"),
        (CUT[:1], CUT[1:], [], ""),  # the full image would have seen it
        (CUT[:1], CUT[1:], None, "joined"),
        (CUT[:1], [Seen(CAR & area((0, 28, 64, 47)), 0.6, class_id=1)], None, "first second"),
        (CUT[:1], [Seen(area((4, 31, 16, 38)), 0.2)], None, "first"),  # seen whole, but only in part
        (CUT[:1], [Seen(area((4, 41, 16, 47)), 0.6)], None, "first second"),
        ([Seen(area((4, 36, 16, 40)), 0.9)], [Seen(area((4, 36, 16, 48)), 0.6)], None, "second"),
    ],
)
def test_tiles_and_the_full_image_agree_on_what_stays(first, second, full, expected):
    tiles = [*LAPS, FULL] if full is not None else LAPS
    seen = [first, second, *[[] for _ in LAPS[2:]], full][: len(tiles)]
    known = {"first": first, "second": second, "full": full, "joined": [Seen(CAR, 0.9)]}
    assert_things(run(tiles, seen), [one for name in expected.split() for one in known[name]])


def test_cut_pieces_in_a_crowd_stay():
    things, crowd = [*TWO, Seen(area((4, 27, 16, 32)), 0.4)], [Seen(area((4, 4, 16, 32)), 0.6)]
    assert_things(run([*SEAMS, FULL], [things, *[[] for _ in SEAMS[1:]], crowd]), things)


def test_pieces_of_a_tile_that_saw_two_things_are_never_joined():
    crowd, ahead = Seen(area((4, 20, 40, 40)), 0.5), Seen(area((4, 28, 30, 50)), 0.6)
    behind, below = Seen(area((32, 28, 40, 50)), 0.7), Seen(area((32, 20, 60, 40)), 0.8)
    things = [ahead._replace(mask=ahead.mask | crowd.mask), below._replace(mask=below.mask | behind.mask)]
    assert_things(run(LAPS, [[crowd], [ahead, behind], [], [below], [], []]), things)  # the crowd agrees with two


def test_ties_and_the_number_of_detections():
    things = [Seen(area((4 * k, 4, 4 * k + 3, 9)), 0.5, k % 2) for k in range(6)]
    merged = run([FULL], [things], most=4)
    assert run([FULL], [things[::-1]], most=4).to_json() == merged.to_json()
    assert (len(merged), merged.class_names) == (4, {0: "car", 1: "bus"})


def test_frames_too_large_for_a_mask_give_runs_in_crops():
    side, corner, tiles = 50_000, 30_000, [Tile(30_000, 30_000, 64, 96), Tile(30_000, 30_096, 64, 96)]
    found = [found_in(FULL, [Seen(area(box))]) for box in ((20, 50, 30, 96), (20, 0, 30, 7))]
    (strips,) = merge_tiles(found, tiles, (side, side), 9).strips
    assert (strips[0] == (corner + 50, corner + 20, corner + 30)).all()
    crop = to_runs([strips - np.array((corner + 50, corner + 20, corner + 20), np.int32)], (10, 53))
    assert crop.unite().all()


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(limits, "masks_bytes", 10_000)
    with pytest.raises(InputError, match=r"masks need .* bytes"):
        run(LAPS, [[Seen(area((0, 0, 64, 96)))] * 2] * len(LAPS))
