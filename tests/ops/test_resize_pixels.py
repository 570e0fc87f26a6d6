"""resize_pixels beyond its cases: nothing but the result is written."""

import pytest
import torch

from tests.ops.cases import CHECKS
from tests.ops.network import OPS
from tests.ops.serving import on_cpu


@pytest.mark.parametrize("implementation", on_cpu("resize_pixels"))
def test_every_pixel_is_written_and_nothing_else(implementation):
    image = torch.randn(2, 3, 4, 16, generator=torch.Generator().manual_seed(0)).half()
    expected = OPS["resize_pixels"].public(image, size=(7, 9), implementation="reference")
    whole = torch.full((expected.numel() + 64,), torch.nan, dtype=torch.float16)
    out = whole[32:-32].view(expected.shape)
    OPS["resize_pixels"].variants[implementation].run(image, out=out)
    assert CHECKS["resize_pixels"].tolerance_used({}, expected, out) <= 1
    assert whole[:32].isnan().all()
    assert whole[-32:].isnan().all()
