"""The device code of embed_patches; see `embed_patches/triton.py`."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from maskjet.ops.triton_language import dot


@triton.jit(do_not_specialize=["rows"])
def embed_patches_kernel(
    images_ptr,
    weight_ptr,
    positions_ptr,
    out_ptr,
    out_sums_ptr,
    rows,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    SIDE: tl.constexpr,
    WINDOWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    WAITS: tl.constexpr,
):
    """Compute one tile of the tokens; grid (tiles down × tiles across).

    images: floats [B, 3, HEIGHT, WIDTH]. weight: floats [OUTPUTS, 3 × SIDE × SIDE]. positions: float32
    [tokens of an image, OUTPUTS].

    out: floats [rows, OUTPUTS]. out_sums: float32 [rows, 2, OUTPUTS / COLUMNS].
    """
    pixels: tl.constexpr = SIDE * SIDE
    down: tl.constexpr = HEIGHT // SIDE // WINDOWS
    across: tl.constexpr = WIDTH // SIDE // WINDOWS
    tokens: tl.constexpr = 1 + down * across
    tiles: tl.constexpr = OUTPUTS // COLUMNS
    # Pixels of a patch's row that are loaded together: the compiler can't see that they are contiguous.
    run: tl.constexpr = 8 if SIDE % 8 == 0 else 4 if SIDE % 4 == 0 else 2 if SIDE % 2 == 0 else 1
    tile = tl.program_id(0) % tiles
    row = (tl.program_id(0) // tiles) * ROWS + tl.arange(0, ROWS)
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    is_row = row < rows
    row = tl.where(is_row, row, 0)
    in_image = row % (WINDOWS * WINDOWS * tokens)
    image = row // (WINDOWS * WINDOWS * tokens)
    window = in_image // tokens
    patch = in_image % tokens - 1  # -1 is the class token, which sees no pixels
    top = ((window // WINDOWS) * down + tl.maximum(patch, 0) // across) * SIDE
    left = ((window % WINDOWS) * across + tl.maximum(patch, 0) % across) * SIDE
    corner = image.to(tl.int64) * (3 * HEIGHT * WIDTH) + top * WIDTH + left
    value = tl.load(positions_ptr + in_image[:, None] * OUTPUTS + column[None, :])
    if WAITS:
        gdc_wait()
    for start in range(0, 3 * pixels, STEP):
        pixel = start + tl.arange(0, STEP)
        is_pixel = pixel < 3 * pixels
        offset = pixel // pixels * (HEIGHT * WIDTH) + pixel % pixels // SIDE * WIDTH + pixel % SIDE
        offset = tl.max_contiguous(tl.multiple_of(offset, run), run)
        is_seen = (patch >= 0)[:, None] & is_pixel[None, :]
        x = tl.load(images_ptr + corner[:, None] + offset[None, :], mask=is_seen, other=0.0)
        weight = tl.load(
            weight_ptr + column[None, :] * (3 * pixels) + pixel[:, None], mask=is_pixel[:, None], other=0.0
        )
        value = dot(x, weight, value)
    if WAITS:
        gdc_launch_dependents()
    target = row.to(tl.int64)
    out_ptr += target[:, None] * OUTPUTS + column[None, :]
    tl.store(out_ptr, value.to(out_ptr.dtype.element_ty), mask=is_row[:, None])
    out_sums_ptr += target * (2 * tiles) + tile
    tl.store(out_sums_ptr, tl.sum(value, axis=1), mask=is_row)
    tl.store(out_sums_ptr + tiles, tl.sum(value * value, axis=1), mask=is_row)
