"""Compile every kernel for a GPU that needn't be there: python compile_kernels.py 75 80 ...

A program of its own, because a process that interprets kernels can't compile them.
"""

import itertools
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from maskjet.ops.attention.kernels import attention_kernel
from maskjet.ops.encode_masks.kernels import find_edges_kernel, write_strings_kernel
from maskjet.ops.linear.kernels import linear_kernel
from maskjet.ops.nms.kernels import choose_kernel, find_overlaps_kernel
from maskjet.ops.paste_masks.kernels import paste_kernel
from maskjet.ops.preprocess.kernels import preprocess_kernel, preprocess_yuv_kernel
from maskjet.ops.roi_align.kernels import roi_align_kernel
from maskjet.ops.select.kernels import select_kernel

TYPES = {  # of what is not int32
    "frames_ptr": "*u8",
    "luma_ptr": "*u8",
    "chroma_ptr": "*u8",
    "strings_ptr": "*u8",
    "is_inside_ptr": "*u8",
    "keys_ptr": "*i64",
    "bias_ptr": "*fp32",
    "sums_ptr": "*fp32",
    "out_sums_ptr": "*fp32",
    "eps": "fp32",
    "norm_eps": "fp32",
    "norm_weight_ptr": "*fp32",
    "norm_bias_ptr": "*fp32",
    "thresholds_ptr": "*fp32",
    "confidence_ptr": "*fp32",
    "xyxy_ptr": "*fp32",
    "boxes_ptr": "*fp32",
    "mean": ("fp32",) * 3,
    "std": ("fp32",) * 3,
    "padding": ("fp32",) * 3,
    "canvases_ptr": "*fp32",
    "left_fraction": "fp32",
    "top_fraction": "fp32",
    "across_scale": "fp32",
    "down_scale": "fp32",
    "threshold": "fp32",
}


def constants(**values):
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


KERNELS = [
    (
        preprocess_kernel,
        {"out_ptr": ["*fp32", "*fp16", "*bf16"]},
        constants(IS_BGR=[True], IS_CV2=[False, True], TILE_HEIGHT=[4], TILE_WIDTH=[32]),
    ),
    (
        preprocess_yuv_kernel,
        {"out_ptr": ["*fp32", "*fp16", "*bf16"]},
        constants(IS_CV2=[False, True], TILE_HEIGHT=[4], TILE_WIDTH=[32]),
    ),
    (
        select_kernel,
        {"logits_ptr": ["*fp32", "*fp16", "*bf16"]},
        constants(IS_ROUNDED=[True], TILE=[2048], RANKED=[64]),
    ),
    (
        find_edges_kernel,
        {"masks_ptr": ["*fp32", "*fp16", "*bf16"], "boxes_ptr": ["*i32"]},
        constants(ROWS=[16], COLUMNS=[16], SLOTS=[128], HAS_BOXES=[False, True]),
    ),
    (
        write_strings_kernel,
        {"strings_ptr": ["*u8"]},
        constants(COLUMNS=[16], SLOTS=[128], HAS_BOXES=[False, True], BLOCKS=[64], TILE=[1024]),
    ),
    (
        paste_kernel,
        {"masks_ptr": ["*fp32", "*fp16", "*bf16"], "out_ptr": ["*u8"]},
        constants(TILE_HEIGHT=[8], TILE_WIDTH=[128], LOGITS_HEIGHT=[8], LOGITS_WIDTH=[16]),
    ),
    (find_overlaps_kernel, {"boxes_ptr": ["*fp32"]}, constants(ROWS=[64], BITS=[32])),
    (
        roi_align_kernel,
        {f"{name}_ptr": ["*fp32", "*fp16", "*bf16"] for name in ("level0", "level1", "level2", "level3", "out")},
        constants(SIZE=[7], BINS=[8], CHANNELS=[256], BLOCK=[128]),
    ),
    (
        linear_kernel,
        {f"{name}_ptr": ["*fp16", "*bf16"] for name in ("x", "weight", "residual", "out")},
        constants(
            **{name: [64] for name in ("INPUTS", "OUTPUTS", "X_STRIDE", "COLUMNS", "STEP", "ROWS")},
            **{name: [128] for name in ("OUT_STRIDE", "RESIDUAL_STRIDE")},
            **{name: [True] for name in ("HAS_RESIDUAL", "HAS_OUT_SUMS")},
            HAS_NORM=[False, True],
            PARTS=[6],
            ACTIVATION=["gelu", "relu", "silu", "none"],
            WAITS=[False],
        ),
    ),
    (
        attention_kernel,
        {f"{name}_ptr": ["*fp16", "*bf16"] for name in ("projections", "out")},
        constants(LENGTH=[677], HEADS=[6], SIDE=[64], WAITS=[False], QUERIES=[64], KEYS=[64]),
    ),
    (choose_kernel, {"overlaps_ptr": ["*i32"]}, constants(BITS=[32], WORDS=[32])),
]


def _choose_types(kernel, types):
    """All combinations; the tensors of some kernels are of one type."""
    alike = (roi_align_kernel, linear_kernel, attention_kernel)
    return zip(*types.values(), strict=True) if kernel in alike else itertools.product(*types.values())


def compile_all(capability):
    has_bfloat16 = capability >= 80
    for kernel, types, choices in KERNELS:
        for dtypes, values in itertools.product(_choose_types(kernel, types), choices):
            if "*bf16" in dtypes and not has_bfloat16 and kernel not in (preprocess_kernel, preprocess_yuv_kernel):
                continue
            chosen = {**TYPES, **dict(zip(types, dtypes, strict=True)), **dict.fromkeys(values, "constexpr")}
            signature = {
                name: chosen.get(name, "*i32" if name.endswith("_ptr") else "i32") for name in kernel.arg_names
            }
            constexprs = {(kernel.arg_names.index(name),): value for name, value in values.items()}
            source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs)
            options = {"num_warps": 8, "enable_fp_fusion": not values.get("IS_CV2")}
            compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
            assert compiled.asm["cubin"]


if __name__ == "__main__":
    for each in sys.argv[1:]:
        compile_all(int(each))
