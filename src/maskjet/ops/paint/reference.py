"""The definition of paint, in plain PyTorch: one dense mask after the other."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from maskjet.masks.coco_rle import Runs
from maskjet.ops.paint.outline import Outline

_OPAQUE = 256


def paint(image: torch.Tensor, runs: Runs, colours: torch.Tensor, *, opacity: int, outline: Outline) -> None:
    """Paint masks into [H, W, 3]; see `ops.paint`."""
    height, width = image.shape[:2]
    for mask in range(len(colours) - 1, -1, -1):
        columns = torch.zeros(width * height, dtype=torch.bool, device="cpu")
        for start, end in runs.spans[runs.firsts[mask] : runs.firsts[mask + 1]].tolist():
            columns[start:end] = True
        inside = columns.view(width, height).T.to(image.device)
        colour = colours[mask].to(image.device, torch.int64)
        _blend(image, inside * opacity, colour)
        if len(outline.reaches):
            _blend(image, _cover(inside, outline), colour)


def _blend(image: torch.Tensor, shares: torch.Tensor, colour: torch.Tensor) -> None:
    """Blend a colour into [H, W, 3], by shares [H, W] in 256ths."""
    share = shares.to(torch.int64)[..., None]
    image.copy_((share * colour + (_OPAQUE - share) * image + _OPAQUE // 2) >> 8)


def _cover(inside: torch.Tensor, outline: Outline) -> torch.Tensor:
    """Opacity of a mask's outline in 256ths, [H, W]; beyond the image nothing is inside."""
    mask = inside.to(torch.float32)[None]
    radius, side = len(outline.reaches) // 2, len(outline.reaches)
    disc = torch.zeros(side, side, dtype=torch.float32, device=mask.device)
    for row, reach in enumerate(outline.reaches.tolist()):
        disc[row, radius - reach : radius + reach + 1] = 1
    count = F.conv2d(mask[None], disc[None, None], padding=radius)[0, 0].round().to(torch.int64)
    table = torch.from_numpy(outline.coverage.astype("int64")).to(mask.device)
    neighbours = F.pad(inside, (1, 1, 1, 1))
    beside = neighbours[1:-1, :-2] | neighbours[1:-1, 2:]
    below = neighbours[:-2, 1:-1] | neighbours[2:, 1:-1]
    is_thin = inside & ~(beside & below)
    outside = _grow(F.pad(1 - mask, (1, 1, 1, 1), value=1), outline.inwards)[1:-1, 1:-1]
    is_near = (_grow(mask, outline.outwards) > 0) & (outside > 0)
    return torch.where(is_thin, _OPAQUE, table[count]) * is_near


def _grow(mask: torch.Tensor, margin: int) -> torch.Tensor:
    """Maximum filter over `margin` rows and columns to each side: [1, H, W] to [H, W]."""
    return F.max_pool2d(mask, 2 * margin + 1, stride=1, padding=margin)[0]
