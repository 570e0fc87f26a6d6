"""The device code of select; see `select/triton.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from maskjet.ops.triton_language import sigmoid


@triton.jit(do_not_specialize=range(18))
def select_kernel(
    logits_ptr,
    boxes_ptr,
    sizes_ptr,
    canvases_ptr,
    thresholds_ptr,
    class_map_ptr,
    keys_ptr,
    count_ptr,
    query_ptr,
    class_id_ptr,
    confidence_ptr,
    xyxy_ptr,
    queries,
    classes,
    num_select,
    max_detections,
    size_stride,
    canvas_stride,
    TILE: tl.constexpr,
    RANKED: tl.constexpr,
):
    """Choose the detections of one image; grid (B).

    logits: floats [B, queries, classes]. boxes: floats [B, queries, 4] cxcywh, 0..1. sizes: int32 [B, 2] (height,
    width). canvases: float32 [B, 6], `Canvas.split`. thresholds, class_map: float32 and int32 [classes]. keys: int64
    [B, queries × classes], scratch. All contiguous but for the rows of sizes and canvases.

    count, query, class_id, confidence, xyxy: the fields of `Selection`, K = max_detections.
    """
    image = tl.program_id(0)
    pairs = queries * classes
    keys_ptr += image.to(tl.int64) * pairs
    found, nans = _collect(logits_ptr + image.to(tl.int64) * pairs, thresholds_ptr, keys_ptr, pairs, classes, TILE)
    allowed = tl.maximum(num_select - nans, 0)  # NaNs rank first, but never pass
    if found > allowed:
        found = _keep_best(keys_ptr, found, allowed, TILE)
    found = _keep_passing(keys_ptr, thresholds_ptr, class_map_ptr, found, classes, TILE)
    if found > max_detections:
        found = _keep_best(keys_ptr, found, max_detections, TILE)
    tl.store(count_ptr + image, found)

    height = tl.load(sizes_ptr + size_stride * image).to(tl.float32)
    width = tl.load(sizes_ptr + size_stride * image + 1).to(tl.float32)
    canvas_ptr = canvases_ptr + canvas_stride * image
    for start in range(0, found, RANKED):
        row = start + tl.arange(0, RANKED)
        is_row = row < found
        key = tl.load(keys_ptr + row, mask=is_row, other=0)
        rank = tl.zeros([RANKED], tl.int32)
        for other_start in range(0, found, RANKED):
            other = other_start + tl.arange(0, RANKED)
            other_key = tl.load(keys_ptr + other, mask=other < found, other=0)
            rank += tl.sum((other_key[None, :] > key[:, None]).to(tl.int32), axis=1)
        score, query, label = _unpack(key, classes)
        slot = image * max_detections + rank
        tl.store(query_ptr + slot, query, mask=is_row)
        tl.store(class_id_ptr + slot, tl.load(class_map_ptr + label, mask=is_row, other=0), mask=is_row)
        tl.store(confidence_ptr + slot, score, mask=is_row)
        box_ptr = boxes_ptr + (image.to(tl.int64) * queries + query) * 4
        for axis in tl.static_range(2):
            extent = width if axis == 0 else height
            begin = tl.load(canvas_ptr + 2 * axis) + tl.load(canvas_ptr + 2 * axis + 1)
            scale = tl.load(canvas_ptr + 4 + axis)
            centre = tl.load(box_ptr + axis, mask=is_row, other=0).to(tl.float32)
            side = tl.load(box_ptr + axis + 2, mask=is_row, other=0).to(tl.float32)
            half = 0.5 * tl.maximum(side, 0.0, propagate_nan=tl.PropagateNan.ALL)
            first = _to_pixels(centre - half, begin, scale, extent)
            last = _to_pixels(centre + half, begin, scale, extent)
            tl.store(xyxy_ptr + 4 * slot + axis, first, mask=is_row)
            tl.store(xyxy_ptr + 4 * slot + axis + 2, last, mask=is_row)


@triton.jit
def _collect(logits_ptr, thresholds_ptr, keys_ptr, pairs, classes, TILE: tl.constexpr):
    """Write the keys of all scores above the lowest threshold; returns how many, and how many logits are NaN."""
    offsets = tl.arange(0, TILE)
    lowest = float("inf")
    for start in range(0, classes, TILE):
        thresholds = tl.load(thresholds_ptr + start + offsets, mask=start + offsets < classes, other=float("inf"))
        lowest = tl.minimum(lowest, tl.min(tl.where(thresholds == thresholds, thresholds, float("inf"))))
    found = 0
    nans = 0
    upcoming = tl.load(logits_ptr + offsets, mask=offsets < pairs, other=-float("inf"))
    for start in range(0, pairs, TILE):
        flat = start + offsets
        logit = upcoming.to(tl.float32)
        upcoming = tl.load(logits_ptr + flat + TILE, mask=flat + TILE < pairs, other=-float("inf"))
        score = sigmoid(logit)
        is_above = (score > lowest) & (flat < pairs)
        bits = score.to(tl.int32, bitcast=True).to(tl.int64)  # scores are not negative, so their bits order them
        key = (bits << 32) | (0x7FFFFFFF - flat)
        counts = is_above.to(tl.int32) | ((logit != logit).to(tl.int32) << 16)
        slot = found + tl.cumsum(is_above.to(tl.int32)) - 1
        tl.store(keys_ptr + slot, key, mask=is_above)
        totals = tl.sum(counts)
        found += totals & 0xFFFF
        nans += totals >> 16
    tl.debug_barrier()
    return found, nans


@triton.jit
def _unpack(key, classes):
    """Decode a sorting key into score, query and class."""
    flat = 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)
    return (key >> 32).to(tl.int32).to(tl.float32, bitcast=True), flat // classes, flat % classes


@triton.jit
def _keep_best(keys_ptr, found, limit, TILE: tl.constexpr):
    """Move the `limit` largest of `found` keys to the front, their order unchanged; returns `limit`."""
    smallest = tl.zeros([], tl.int64)  # key to keep: the largest number that at least `limit` keys reach
    reaching = found
    step = 61
    while (reaching != limit) & (step >= 0):
        raised = smallest | (tl.full([], 1, tl.int64) << step)
        above = 0
        for start in range(0, found, TILE):
            row = start + tl.arange(0, TILE)
            key = tl.load(keys_ptr + row, mask=row < found, other=-1)
            above += tl.sum((key >= raised).to(tl.int32))
        if above >= limit:
            smallest = raised
            reaching = above
        step -= 1
    kept = 0
    for start in range(0, found, TILE):
        row = start + tl.arange(0, TILE)
        key = tl.load(keys_ptr + row, mask=row < found, other=-1)
        kept = _append(keys_ptr, kept, key, key >= smallest)
    tl.debug_barrier()
    return kept


@triton.jit
def _keep_passing(keys_ptr, thresholds_ptr, class_map_ptr, found, classes, TILE: tl.constexpr):
    """Move the keys of mapped classes above their own class's threshold to the front; returns how many."""
    kept = 0
    for start in range(0, found, TILE):
        row = start + tl.arange(0, TILE)
        is_row = row < found
        key = tl.load(keys_ptr + row, mask=is_row, other=0)
        score, _, label = _unpack(key, classes)
        threshold = tl.load(thresholds_ptr + label, mask=is_row, other=float("inf"))
        mapped = tl.load(class_map_ptr + label, mask=is_row, other=-1)
        kept = _append(keys_ptr, kept, key, (score > threshold) & (mapped >= 0))
    tl.debug_barrier()
    return kept


@triton.jit
def _append(keys_ptr, kept, key, is_kept):
    """Append a tile's selected keys behind the `kept` ones, perhaps over the tile itself; returns the new count."""
    slot = kept + tl.cumsum(is_kept.to(tl.int32)) - 1
    tl.debug_barrier()
    tl.store(keys_ptr + slot, key, mask=is_kept)
    return kept + tl.sum(is_kept.to(tl.int32))


@triton.jit
def _to_pixels(coordinate, begin, scale, extent):
    """A coordinate on the canvas's 0..1 scale in pixels, clamped to the image; 0 for a NaN."""
    pixels = coordinate * scale + begin
    return tl.minimum(tl.where(pixels > 0.0, pixels, 0.0), extent)
