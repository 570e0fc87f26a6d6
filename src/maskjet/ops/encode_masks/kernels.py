"""The device code of encode_masks; see `encode_masks/triton.py`."""

from __future__ import annotations

import triton
import triton.language as tl

from maskjet.ops.triton_language import blend, finite, following, place, position, scale_of, taps

# Layout of the int32 header: three counters, the number of masks per image, then four fields per mask.
COUNTERS = tl.constexpr(3)
BYTES, ORDERED, FOUND = (tl.constexpr(counter) for counter in range(3))  # string bytes, ordered edges, found edges
FIELDS = tl.constexpr(4)
OFFSET, LENGTH, EDGES, FIRST_SLOT = (tl.constexpr(field) for field in range(4))
# Values of LENGTH for a mask without a string:
NO_EDGES = tl.constexpr(-1)  # the mask's edges did not fit
NO_BYTES = tl.constexpr(-2)  # its string did not fit
NO_MASK = tl.constexpr(-3)  # its index is out of range

SCANNED_ROWS, SCANNED_COLUMNS = tl.constexpr(128), tl.constexpr(4)  # block of logits per step of the scan


@triton.jit
def _first_slot(query_row_ptr, slot, SLOTS: tl.constexpr, HAS_BOXES: tl.constexpr):
    """The first slot of an image with the same mask as `slot`."""
    earlier = tl.arange(0, SLOTS)
    query = tl.load(query_row_ptr + slot)
    queries = tl.load(query_row_ptr + earlier, mask=earlier <= slot, other=-1)
    first = tl.min(tl.where((queries == query) & (earlier <= slot), earlier, SLOTS))
    return slot if HAS_BOXES else first  # its boxes may differ


@triton.jit(do_not_specialize=range(20))
def find_edges_kernel(
    masks_ptr,
    count_ptr,
    query_ptr,
    sizes_ptr,
    canvases_ptr,
    boxes_ptr,
    edges_ptr,
    segments_ptr,
    header_ptr,
    queries,
    mask_height,
    mask_width,
    slots,
    room,
    size_stride,
    canvas_stride,
    stride_image,
    stride_query,
    stride_y,
    stride_x,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SLOTS: tl.constexpr,
    IMAGES: tl.constexpr,
    HAS_BOXES: tl.constexpr,
):
    """Find the edges of an image's masks, a block of columns at a time; grid (programs per image, B).

    masks: floats [B, Q, mask_height, mask_width], any strides. count, query, sizes: int32 [B], [B, K] and [B, 2]
    (height, width). canvases: float32 [B, 6], `Canvas.split`: what an image's masks cover, unless HAS_BOXES. boxes:
    int32 [B, K, 4], left, top, width, height; read only if HAS_BOXES. slots: K.

    edges: int32 [room], the pool. segments: int32 [blocks, 2], offset in the pool (-1: did not fit) and length, in the
    order of images, masks and blocks; undefined for masks that are not encoded here. header: as in `Buffers`; FOUND
    grows by the number of edges.
    """
    program, image = tl.program_id(0), tl.program_id(1)
    if (program == 0) & (image == 0):
        tl.store(header_ptr + BYTES, 0)  # reset the counters of write_strings_kernel
        tl.store(header_ptr + ORDERED, 0)
    height, width = tl.load(sizes_ptr + size_stride * image), tl.load(sizes_ptr + size_stride * image + 1)
    blocks = tl.cdiv(width, COLUMNS)
    tasks = blocks * tl.minimum(tl.load(count_ptr + image), slots)
    if program >= tasks:
        return
    before = _blocks_before(image, sizes_ptr, size_stride, COLUMNS, IMAGES)
    canvas_ptr = canvases_ptr + canvas_stride * image
    canvas = (
        (tl.load(canvas_ptr).to(tl.int32), tl.load(canvas_ptr + 2).to(tl.int32)),
        (tl.load(canvas_ptr + 1), tl.load(canvas_ptr + 3)),
        (tl.load(canvas_ptr + 4), tl.load(canvas_ptr + 5)),
    )
    first = image.to(tl.int64)
    given = (masks_ptr + first * stride_image, query_ptr + first * slots, boxes_ptr + 4 * first * slots)
    made = (edges_ptr, segments_ptr + 2 * before * slots, header_ptr)
    shape = (queries, mask_height, mask_width, room)
    strides = (stride_query, stride_y, stride_x)
    for task in range(program, tasks, tl.num_programs(0)):
        _find_in_block(
            given, made, shape, strides, (height, width), canvas, task, blocks, ROWS, COLUMNS, SLOTS, HAS_BOXES
        )


@triton.jit
def _blocks_before(image, sizes_ptr, size_stride, COLUMNS: tl.constexpr, IMAGES: tl.constexpr):
    """Number of column blocks in all images before `image`."""
    blocks = 0
    for start in range(0, image, IMAGES):
        earlier = start + tl.arange(0, IMAGES)
        width = tl.load(sizes_ptr + size_stride * earlier + 1, mask=earlier < image, other=0)
        blocks += tl.sum(tl.cdiv(width, COLUMNS))
    return blocks


@triton.jit
def _find_in_block(
    given,
    made,
    shape,
    strides,
    size,
    canvas,
    task,
    blocks,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SLOTS: tl.constexpr,
    HAS_BOXES: tl.constexpr,
):
    """Find a mask's edges in one block of columns, unless an earlier slot has the same mask."""
    masks_ptr, query_ptr, boxes_ptr = given
    edges_ptr, segments_ptr, header_ptr = made
    queries, mask_height, mask_width, room = shape
    stride_query, stride_y, stride_x = strides
    height, width = size
    slot, block = task // blocks, task % blocks
    query = tl.load(query_ptr + slot)
    if (query >= 0) & (query < queries):
        segment_ptr = segments_ptr + 2 * task
        mask = (masks_ptr + query.to(tl.int64) * stride_query, mask_height, mask_width, stride_y, stride_x)
        if HAS_BOXES:
            box_ptr = boxes_ptr + 4 * slot
            left, top = tl.load(box_ptr), tl.load(box_ptr + 1)
            left_fraction, top_fraction = 0.0, 0.0
            shown_width, shown_height = tl.load(box_ptr + 2), tl.load(box_ptr + 3)
        else:
            left, top = canvas[0]
            left_fraction, top_fraction = canvas[1]
            shown_width, shown_height = canvas[2]
        has_pixels = (shown_width > 0) & (shown_height > 0)
        across_scale = scale_of(mask_width, tl.where(has_pixels, shown_width, 1))
        down_scale = scale_of(mask_height, tl.where(has_pixels, shown_height, 1))
        target = (height, down_scale, top, top_fraction)

        x = (block * COLUMNS + tl.arange(0, COLUMNS))[None, :]
        columns = taps(place(x, left, left_fraction), across_scale, mask_width)
        columns_before = taps(place(tl.maximum(x - 1, 0), left, left_fraction), across_scale, mask_width)
        is_bottom_inside = _is_bottom_inside(mask, target, columns_before, (x > 0) & (x < width))
        has_bottom = tl.max(is_bottom_inside.to(tl.int32)) > 0
        low, high = _find_rows(mask, columns, x < width)
        total = 0
        has_edges = has_pixels & ((high >= 0) | has_bottom)
        if has_edges:  # few blocks have edges
            has_edges = _first_slot(query_ptr, slot, SLOTS, HAS_BOXES) == slot
        if has_edges:
            # Range of rows whose stretches can have edges; includes the pixel after the last one inside.
            begin = tl.where(has_bottom, 0, tl.maximum(low - 1, 0))
            # If the image begins inside the canvas, a column's first pixel may lie far down the mask.
            first_row = position(place(0, top, top_fraction), down_scale, mask_height).to(tl.int32)
            last_row = tl.maximum(high, tl.where(has_bottom, first_row, 0))
            end = tl.minimum(tl.maximum(last_row, 0) + 2 + down_scale.to(tl.int32), mask_height)
            counts = tl.zeros([1, COLUMNS], tl.int32)
            for start in range(begin, end, ROWS):
                row = (start + tl.arange(0, ROWS))[:, None]
                is_read = (row < end) & (x < width)
                _, is_edge, has_crossing = _compare(mask, target, row, columns, is_read, is_bottom_inside)
                counts += tl.sum(is_edge + has_crossing, axis=0)[None, :]
            total = tl.sum(counts)
            if total > 0:
                begins = tl.atomic_add(header_ptr + FOUND, total, sem="relaxed")
                fits = _fits(begins, total, room)
                tl.store(segment_ptr, tl.where(fits, begins, -1))
                edge_ptr = edges_ptr + begins + tl.cumsum(counts, axis=1) - counts
                for start in range(begin, tl.where(fits, end, begin), ROWS):
                    row = (start + tl.arange(0, ROWS))[:, None]
                    is_read = (row < end) & (x < width)
                    stretch, is_edge, has_crossing = _compare(mask, target, row, columns, is_read, is_bottom_inside)
                    edges = is_edge + has_crossing
                    place_ptr = edge_ptr + tl.cumsum(edges, axis=0) - edges
                    crossing = _find_crossing(stretch, row, target, mask_height)
                    tl.store(place_ptr, x * height + stretch[0], mask=is_edge != 0)
                    tl.store(place_ptr + is_edge, x * height + crossing, mask=has_crossing != 0)
                    edge_ptr += tl.sum(edges, axis=0)[None, :]
        tl.store(segment_ptr + 1, total)


@triton.jit
def _fits(begins, length, room):
    """Whether `length` entries from `begins` on fit into a pool; a counter beyond 2**31 is negative."""
    return (begins >= 0) & (begins <= room - length)


@triton.jit
def _is_bottom_inside(mask, target, columns, is_read):
    """Whether the bottom pixel of each column is inside."""
    height, scale, top, fraction = target
    above, below, share = taps(place(height - 1, top, fraction), scale, mask[1])
    return blend(_blend_along(mask, above, columns, is_read), _blend_along(mask, below, columns, is_read), share) > 0


@triton.jit
def _find_rows(mask, columns, is_read):
    """The first and last row with a positive logit, within the range of columns that are blended."""
    mask_ptr, mask_height, mask_width, stride_y, stride_x = mask
    before, after, _ = columns
    first = tl.min(tl.where(is_read, before, mask_width))
    last = tl.max(tl.where(is_read, after, -1))
    low = mask_height
    high = -1
    for left in range(first, last + 1, SCANNED_COLUMNS):
        column = (left + tl.arange(0, SCANNED_COLUMNS))[None, :]
        for start in range(0, mask_height, SCANNED_ROWS):
            row = (start + tl.arange(0, SCANNED_ROWS))[:, None]
            is_logit = (row < mask_height) & (column <= last)
            is_positive = tl.load(mask_ptr + (row * stride_y + column * stride_x), mask=is_logit, other=0) > 0
            low = tl.minimum(low, tl.min(tl.where(is_positive, row, mask_height)))
            high = tl.maximum(high, tl.max(tl.where(is_positive, row, -1)))
    return low, high


@triton.jit
def _compare(mask, target, row, columns, is_read, is_bottom_inside):
    """The stretches of a row of logits, and whether each begins with an edge or has one inside.

    The stretch of a row of logits holds the pixels between this row and the next. It is returned as its first and last
    pixel, the values of the two rows, and whether its last pixel is inside the mask.
    """
    _, scale, top, fraction = target
    mask_height = mask[1]
    first = _first_pixel(row, target, mask_height)
    last = _first_pixel(row + 1, target, mask_height) - 1
    exists = is_read & (first <= last)
    upper = _blend_along(mask, row, columns, exists)
    lower = _blend_along(mask, following(row, mask_height), columns, exists)
    begins_inside = _is_inside(upper, lower, place(first, top, fraction), row, scale, mask_height)
    ends_inside = _is_inside(upper, lower, place(last, top, fraction), row, scale, mask_height)
    # The previous pixel lies above, or at the bottom of the previous column.
    above, below, share = taps(place(tl.maximum(first - 1, 0), top, fraction), scale, mask_height)
    before = blend(_blend_along(mask, above, columns, exists), _blend_along(mask, below, columns, exists), share)
    was_inside = tl.where(first == 0, is_bottom_inside, before > 0)
    is_edge = (exists & (begins_inside != was_inside)).to(tl.int32)
    has_crossing = (exists & (begins_inside != ends_inside)).to(tl.int32)
    return (first, last, upper, lower, ends_inside), is_edge, has_crossing


@triton.jit
def _first_pixel(row, target, rows):
    """The first pixel at or below a row of logits, at least 0; `height` if there is none."""
    height, scale, top, fraction = target
    guess = tl.ceil((row.to(tl.float32) + 0.5) / scale - 0.5 + fraction).to(tl.int32)
    earlier = position(place(guess - 1, 0, fraction), scale, rows).to(tl.int32) < row
    later = earlier & (position(place(guess, 0, fraction), scale, rows).to(tl.int32) < row)
    pixel = top + guess - 1 + earlier.to(tl.int32) + later.to(tl.int32)
    pixel = tl.where(row == 0, 0, tl.where(row >= rows, height, pixel))
    return tl.minimum(tl.maximum(pixel, 0), height)


@triton.jit
def _blend_along(mask, row, columns, is_read):
    """Values of rows of logits at columns of the image, given as taps."""
    mask_ptr, _, _, stride_y, stride_x = mask
    before, after, across = columns
    first = tl.load(mask_ptr + (row * stride_y + before * stride_x), mask=is_read, other=0).to(tl.float32)
    second = tl.load(mask_ptr + (row * stride_y + after * stride_x), mask=is_read, other=0).to(tl.float32)
    return blend(finite(first), finite(second), across)


@triton.jit
def _is_inside(upper, lower, y, row, scale, rows):
    """Whether a pixel of a stretch is inside the mask; counted from the top of its box or canvas."""
    return blend(upper, lower, position(y, scale, rows) - row.to(tl.float32)) > 0


@triton.jit
def _find_crossing(stretch, row, target, rows):
    """Find the pixel at which a stretch changes sides; its ends must lie on different sides.

    It is near the zero of the line through the two values. Rounding moves it by less than a pixel, so three pixels are
    evaluated.
    """
    first, last, upper, lower, ends_inside = stretch
    _, scale, top, fraction = target
    zero = upper / (upper - lower)
    guess = top + tl.ceil((row.to(tl.float32) + zero + 0.5) / scale - 0.5 + fraction).to(tl.int32)
    crossing = last
    for step in tl.static_range(3):
        y = tl.minimum(tl.maximum(guess + 1 - step, first + 1), last)
        is_inside = _is_inside(upper, lower, place(y, top, fraction), row, scale, rows)
        crossing = tl.where(is_inside == ends_inside, y, crossing)
    return crossing


@triton.jit(do_not_specialize=range(13))
def write_strings_kernel(
    count_ptr,
    query_ptr,
    sizes_ptr,
    edges_ptr,
    segments_ptr,
    ordered_ptr,
    header_ptr,
    strings_ptr,
    queries,
    slots,
    room,
    capacity,
    size_stride,
    COLUMNS: tl.constexpr,
    SLOTS: tl.constexpr,
    IMAGES: tl.constexpr,
    HAS_BOXES: tl.constexpr,
    BLOCKS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write the COCO string of one mask from its segments of edges; grid (K, B).

    count, query, sizes, edges, segments: as `find_edges_kernel` takes and writes them.

    ordered: int32 [room], the edges of each mask in order. header: as in `Buffers`; counts and the mask's fields are
    written, BYTES and ORDERED grow. strings: uint8 [capacity], the strings one after the other.
    """
    slot = tl.program_id(0)
    image = tl.program_id(1)
    count = tl.load(count_ptr + image)
    if slot == 0:
        tl.store(header_ptr + COUNTERS + image, count)
        if image == 0:
            tl.store(header_ptr + FOUND, 0)  # reset find_edges_kernel's counter for the next launch
    if slot >= count:
        return
    mask = image.to(tl.int64) * slots + slot
    row_ptr = header_ptr + COUNTERS + tl.num_programs(1) + FIELDS * mask
    query = tl.load(query_ptr + mask)
    if (query < 0) | (query >= queries):
        tl.store(row_ptr + LENGTH, NO_MASK)
        tl.store(row_ptr + FIRST_SLOT, slot)
        return
    first_slot = _first_slot(query_ptr + image * slots, slot, SLOTS, HAS_BOXES)
    tl.store(row_ptr + FIRST_SLOT, first_slot)
    if first_slot < slot:
        return
    height = tl.load(sizes_ptr + size_stride * image)
    width = tl.load(sizes_ptr + size_stride * image + 1)
    used = tl.cdiv(width, COLUMNS)
    before = _blocks_before(image, sizes_ptr, size_stride, COLUMNS, IMAGES)
    segments_ptr += 2 * (before * slots + slot * used)
    edges, has_all = _count_edges(segments_ptr, used, BLOCKS)
    tl.store(row_ptr + EDGES, edges)
    begins = 0
    if has_all:
        begins = tl.atomic_add(header_ptr + ORDERED, edges, sem="relaxed")
    if (not has_all) | (not _fits(begins, edges, room)):
        tl.store(row_ptr + LENGTH, NO_EDGES)
        return
    ordered_ptr += begins
    _put_in_order(edges_ptr, segments_ptr, ordered_ptr, used, BLOCKS, TILE // BLOCKS)
    length = 0
    for start in range(0, edges + 1, TILE):
        number = start + tl.arange(0, TILE)
        length += tl.sum(_characters(_difference(ordered_ptr, number, edges, height * width), number <= edges))
    offset = tl.atomic_add(header_ptr + BYTES, length, sem="relaxed")
    if not _fits(offset, length, capacity):
        tl.store(row_ptr + LENGTH, NO_BYTES)
        return
    tl.store(row_ptr + OFFSET, offset)
    tl.store(row_ptr + LENGTH, length)
    string_ptr = strings_ptr + offset
    for start in range(0, edges + 1, TILE):
        number = start + tl.arange(0, TILE)
        value = _difference(ordered_ptr, number, edges, height * width)
        characters = _characters(value, number <= edges)
        place = tl.cumsum(characters) - characters
        for group in tl.static_range(7):
            more = tl.where(group + 1 < characters, 32, 0)
            character = 48 + ((value >> (5 * group)) & 31) + more
            tl.store(string_ptr + place + group, character.to(tl.uint8), mask=group < characters)
        string_ptr += tl.sum(characters)


@triton.jit
def _count_edges(segments_ptr, used, BLOCKS: tl.constexpr):
    """Count a mask's edges; also returns whether all of them fit into the buffer."""
    edges = 0
    lowest = 0
    for start in range(0, used, BLOCKS):
        block = start + tl.arange(0, BLOCKS)
        found = tl.load(segments_ptr + 2 * block + 1, mask=block < used, other=0)
        begins = tl.load(segments_ptr + 2 * block, mask=found > 0, other=0)
        edges += tl.sum(found)
        lowest = tl.minimum(lowest, tl.min(begins))
    return edges, lowest >= 0


@triton.jit
def _put_in_order(edges_ptr, segments_ptr, ordered_ptr, used, BLOCKS: tl.constexpr, WIDTH: tl.constexpr):
    """Copy the edges of a mask's segments to consecutive places, in order."""
    for start in range(0, used, BLOCKS):
        block = start + tl.arange(0, BLOCKS)
        found = tl.load(segments_ptr + 2 * block + 1, mask=block < used, other=0)
        begins = tl.load(segments_ptr + 2 * block, mask=found > 0, other=0)[:, None]
        place = (tl.cumsum(found) - found)[:, None]
        for first in range(0, tl.max(found), WIDTH):
            number = (first + tl.arange(0, WIDTH))[None, :]
            is_edge = number < found[:, None]
            edge = tl.load(edges_ptr + begins + number, mask=is_edge, other=0)
            tl.store(ordered_ptr + place + number, edge, mask=is_edge)
        ordered_ptr += tl.sum(found)
    tl.debug_barrier()


@triton.jit
def _difference(edges_ptr, number, edges, pixels):
    """COCO's delta coding of a run: its length; from the fourth run on, minus the length two runs before."""
    run = _edge(edges_ptr, number, edges, pixels) - _edge(edges_ptr, number - 1, edges, pixels)
    earlier = _edge(edges_ptr, number - 2, edges, pixels) - _edge(edges_ptr, number - 3, edges, pixels)
    return tl.where(number > 2, run - earlier, run)


@triton.jit
def _edge(edges_ptr, number, edges, pixels):
    """The pixel at which a run ends: its edge, or the end of the image for the last; 0 before the first run."""
    edge = tl.load(edges_ptr + number, mask=(number >= 0) & (number < edges), other=0)
    return tl.where(number >= edges, pixels, edge)


@triton.jit
def _characters(value, is_run):
    """Length of an encoded number: one character per five bits, sign included; 0 where there is no run."""
    magnitude = value ^ (value >> 31)
    characters = tl.full(value.shape, 1, tl.int32)
    for group in tl.static_range(1, 7):
        characters += (magnitude >= (1 << (5 * group - 1))).to(tl.int32)
    return tl.where(is_run, characters, 0)
