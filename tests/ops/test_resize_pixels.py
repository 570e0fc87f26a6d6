"""resize_pixels beyond its cases: what is refused, and that nothing but the result is written."""

import pytest
import torch

from maskjet import ops
from maskjet.errors import InputError
from maskjet.ops import RECORDS
from tests.ops.cases import CHECKS
from tests.ops.serving import on_cpu

IMAGE = torch.zeros(1, 3, 4, 16, dtype=torch.float16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": IMAGE.float()}, r"image must be float16 or bfloat16 \[B, H, W, C\], .*, got float32 \[1, 3,"),
        ({"image": IMAGE[0]}, r"image must be .*, got float16 \[3, 4, 16\] on cpu"),
        ({"image": IMAGE.mT}, r"image must be .*, contiguous, .*, got float16 \[1, 3, 16, 4\]"),
        ({"image": IMAGE[..., :12].contiguous()}, r"C a power of two up to 512, got float16 \[1, 3, 4, 12\]"),
        ({"image": IMAGE.expand(64, -1, -1, -1).reshape(1, 3, 4, 1024)}, r"up to 512, got float16 \[1, 3, 4, 1024\]"),
        ({"image": IMAGE[:, :0]}, r"of at least one pixel, .*, got float16 \[1, 0, 4, 16\]"),
        ({"image": None}, "image must be .*, got NoneType"),
        ({"size": (3, 0)}, r"size must be \(h, w\), at least 1 each, got \(3, 0\)"),
        ({"size": (3, 1.5)}, r"size must be \(h, w\), at least 1 each, got \(3, 1\.5\)"),
        ({"size": 3}, r"size must be \(h, w\), at least 1 each, got 3"),
    ],
)
def test_bad_arguments_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        ops.resize_pixels(**{"image": IMAGE, "size": (6, 8), **changes})


@pytest.mark.parametrize("implementation", on_cpu("resize_pixels"))
def test_every_pixel_is_written_and_nothing_else(implementation):
    image = torch.randn(2, 3, 4, 16, generator=torch.Generator().manual_seed(0)).half()
    expected = ops.resize_pixels(image, size=(7, 9), implementation="reference")
    whole = torch.full((expected.numel() + 64,), torch.nan, dtype=torch.float16)
    out = whole[32:-32].view(expected.shape)
    RECORDS["resize_pixels"].variants[implementation].run(image, out=out)
    assert CHECKS["resize_pixels"].tolerance_used({}, expected, out) <= 1
    assert whole[:32].isnan().all()
    assert whole[-32:].isnan().all()
