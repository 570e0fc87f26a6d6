"""Random frames for preprocess, RGB and YUV."""

import torch

from maskjet.ops import yuv_conversion
from maskjet.spec import IMAGENET_MEAN, IMAGENET_STD

NORMALISATION = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
UNIT = {"mean": (0, 0, 0), "std": (1, 1, 1)}


def random_bytes(*shape, seed=0):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def random_planes(height, width, batch=(), seed=0):
    """Luma and chroma of random frames, with rows that are farther apart than they are long."""
    luma = random_bytes(*batch, height, width + 5, seed=seed)[..., 2 : width + 2]
    chroma = random_bytes(*batch, (height + 1) // 2, (width + 1) // 2 + 3, 2, seed=seed + 1)[..., 1:-2, :]
    return luma, chroma


def conversions(*colours):
    return torch.stack([yuv_conversion(matrix, full_range=is_full) for matrix, is_full in colours])
