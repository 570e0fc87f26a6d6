"""Masks painted into an image: tinted insides and outlines."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from maskjet.checks import as_int, check_whole
from maskjet.config import Implementation
from maskjet.errors import InputError
from maskjet.masks.coco_rle import RLE, Runs, to_runs
from maskjet.ops.paint import cpu, reference
from maskjet.ops.paint.outline import WIDEST, outline
from maskjet.ops.record import Op, Variant, describe, needs_cpu

OPAQUE = 256
"""Opacity that leaves nothing of the image."""


def paint(
    image: torch.Tensor,
    masks: Sequence[RLE] | Runs,
    colours: torch.Tensor,
    *,
    opacity: int,
    line: int,
    out: torch.Tensor | None = None,
    implementation: Implementation = "auto",
) -> torch.Tensor:
    """Tint masks and draw their outlines, the first mask on top.

    Each pixel's colour follows from the pixel and the masks' pixels around it, as if the masks were painted one after
    the other, from the last to the first: inside the mask the colour is blended by `opacity`, then by the outline's
    coverage, `table[n]` of `ops.paint.outline`, where n of the pixels of a disc around the pixel are inside; pixels
    beyond the image are not. The outline leaves out pixels farther from the border than its width, and covers
    pixels inside that have no pixel of the mask on either side, or above and below. All arithmetic is of integers.

    Args:
        image: uint8 [H, W, 3], contiguous.
        masks: n COCO RLEs of the image's size, or their runs.
        colours: uint8 [n, 3].
        opacity: Of the insides, 0..256 in 256ths; 0 leaves them as they are.
        line: Width of the outlines in pixels, 0..32; 0 for none. It is centred on the border, if odd half a pixel
            further in.
        out: uint8 [H, W, 3] on the image's device, overwritten; may be `image`. None for a new one.
        implementation: "auto", "reference" or "cpu".

    Returns:
        `out`.

    Raises:
        InputError: An argument is not as above, or a mask is malformed.
        UnsupportedError: The implementation asked for can't serve this image.

    Equal to the reference in every pixel. On a CPU, the time follows the runs and the pixels inside, not the masks'
    boxes.

    Examples:
        >>> from maskjet import coco_rle
        >>> (mask,) = coco_rle.encode(torch.eye(2, dtype=torch.uint8).numpy())
        >>> white = torch.tensor([[255, 255, 255]], dtype=torch.uint8)
        >>> paint(torch.zeros(2, 2, 3, dtype=torch.uint8), [mask], white, opacity=64, line=0)[..., 0]
        tensor([[64,  0],
                [ 0, 64]], dtype=torch.uint8)
    """
    is_right = isinstance(image, torch.Tensor) and image.dtype == torch.uint8 and image.ndim == 3
    if not is_right or image.shape[2] != 3 or not image.is_contiguous():
        raise InputError(f"image must be a contiguous uint8 tensor [H, W, 3], got {describe(image)}.")
    if not isinstance(colours, torch.Tensor) or colours.dtype != torch.uint8 or colours.shape != (len(masks), 3):
        raise InputError(f"colours must be uint8 [{len(masks)}, 3], one per mask, got {describe(colours)}.")
    for name, value, most in (("opacity", opacity, OPAQUE), ("line", line, WIDEST)):
        check_whole(name, as_int(value), (0, most))
    if out is None:
        out = torch.empty_like(image)
    is_alike = isinstance(out, torch.Tensor) and (out.dtype, out.device) == (image.dtype, image.device)
    if not is_alike or out.shape != image.shape or not out.is_contiguous():
        wanted = f"uint8 {list(image.shape)} on {image.device}, contiguous"
        raise InputError(f"out must be {wanted}, got {describe(out)}.")
    choice = RECORD.choose(implementation, image)
    height, width = image.shape[:2]
    runs = masks if isinstance(masks, Runs) else to_runs(masks, (height, width))
    if runs.size_hw != (height, width):
        raise InputError(f"masks must have the size {[height, width]}, got {list(runs.size_hw)}.")
    if out.data_ptr() != image.data_ptr():
        out.copy_(image)
    if out.numel():
        choice.run(out, runs, colours, opacity=int(opacity), outline=outline(int(line)))
    return out


RECORD = Op(
    name="paint",
    public=paint,
    variants={"cpu": Variant(cpu.paint, needs_cpu), "reference": Variant(reference.paint)},
)
