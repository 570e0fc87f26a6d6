"""Functions that the Triton kernels share: sigmoid and bilinear interpolation as ATen's CUDA kernels compute them.

The kernels also run in Triton's interpreter (`TRITON_INTERPRET=1`), without a GPU. A multiplication followed by an
addition rounds once on a GPU, where the compiler fuses them, and twice in the interpreter. ATen's CUDA and CPU kernels
differ likewise. Therefore source positions are written unfused, and blends with an explicit `fma`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from maskjet.ops.paste_masks.reference import LARGEST

_IS_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
_LARGEST = tl.constexpr(LARGEST)


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)) of float32, with the exponential and the division of CUDA's math library."""
    exponential = tl.exp(-x) if _IS_INTERPRETED else libdevice.exp(-x)
    return tl.div_rn(tl.full(x.shape, 1.0, tl.float32), 1.0 + exponential)


@triton.jit
def dot(first, second, total):
    """Total + first @ second in float32; the interpreter has no products of bfloat16."""
    if _IS_INTERPRETED:
        first, second = first.to(tl.float32), second.to(tl.float32)
    return tl.dot(first, second, total)


@triton.jit
def gelu(x):
    """GELU of float32, within 3e-5 plus the error of the hardware's tanh, 2⁻¹¹ of it.

    erf(x / √2) = tanh(x (a + b x² + c x⁴)), with coefficients of the smallest maximal error of GELU in -8..8; beyond
    ±4, where GELU is x or 0, the polynomial is constant. A large layer takes 36 µs with it, and 50 with the error
    function (H200, shared experiments).
    """
    square = tl.minimum(x * x, 16.0)
    return 0.5 * x * (1.0 + _tanh(x * (0.79750659 + square * (0.03700682 - square * 0.000351707488))))


@triton.jit
def _tanh(x):
    if _IS_INTERPRETED:
        return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def scale_of(source, target):
    """Source size / target size in float32, rounded as in ATen."""
    return tl.div_rn(source.to(tl.float32), target.to(tl.float32))


@triton.jit
def position(index, scale, source):
    """The source position of an output index: half-pixel centres, at least 0.

    Only an index beyond the output reaches the upper limit.
    """
    return tl.minimum(tl.maximum(scale * (index.to(tl.float32) + 0.5) - 0.5, 0.0), source.to(tl.float32))


@triton.jit
def place(index, whole, fraction):
    """Position of an image pixel on the canvas, whose origin is at `whole` + `fraction` pixels."""
    return (index - whole).to(tl.float32) - fraction


@triton.jit
def following(index, source):
    """The source index after `index`; `index` itself at the far border."""
    return tl.minimum(index + 1, source - 1)


@triton.jit
def taps(index, scale, source):
    """The two source indices of an output index, and the weight of the second."""
    where = position(index, scale, source)
    first = tl.minimum(where.to(tl.int32), source - 1)
    return first, following(first, source), where - first.to(tl.float32)


@triton.jit
def finite(logit):
    """A mask logit clamped to ±`LARGEST`; NaN counts as minus infinity."""
    return tl.minimum(tl.where(logit > -_LARGEST, logit, -_LARGEST), _LARGEST)


@triton.jit
def blend(first, second, share):
    """First × (1 - share) + second × share, rounding the second product and the sum."""
    return tl.fma(first, 1.0 - share, second * share)
