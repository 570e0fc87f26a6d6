"""Compile every kernel for a GPU that needn't be there: python compile_kernels.py 75 80 ...

A program of its own, because a process that interprets kernels can't compile them.
"""

import itertools
import random
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from maskjet.ops.attention.kernels import attention_kernel
from maskjet.ops.deformable_attention.kernels import deformable_attention_kernel
from maskjet.ops.depthwise_norm.kernels import depthwise_norm_kernel
from maskjet.ops.embed_patches.kernels import embed_patches_kernel
from maskjet.ops.encode_masks.kernels import find_edges_kernel, write_strings_kernel
from maskjet.ops.linear.kernels import bulk_linear_kernel, linear_kernel
from maskjet.ops.mask_logits.kernels import mask_logits_kernel
from maskjet.ops.nms.kernels import choose_kernel, find_overlaps_kernel
from maskjet.ops.paste_masks.kernels import paste_kernel
from maskjet.ops.preprocess.kernels import preprocess_kernel, preprocess_yuv_kernel
from maskjet.ops.rank_tokens.kernels import rank_tokens_kernel
from maskjet.ops.refine_boxes.kernels import refine_boxes_kernel
from maskjet.ops.resize_pixels.kernels import resize_pixels_kernel
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
    "residual_sums_ptr": "*fp32",
    "out_sums_ptr": "*fp32",
    "parts_ptr": "*fp32",
    "eps": "fp32",
    "residual_eps": "fp32",
    "norm_eps": "fp32",
    "last_eps": "fp32",
    **{f"{name}_{part}_ptr": "*fp32" for name in ("residual", "norm", "last") for part in ("weight", "bias")},
    **{f"{name}_ptr": "*fp32" for name in ("positions", "references", "offsets", "frequencies", "scores")},
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
            **{name: [64] for name in ("INPUTS", "OUTPUTS", "KEPT", "X_STRIDE", "COLUMNS", "STEP", "ROWS")},
            **{name: [128] for name in ("OUT_STRIDE", "RESIDUAL_STRIDE")},
            **{name: [True] for name in ("HAS_RESIDUAL", "HAS_OUT_SUMS")},
            HAS_NORM=[False, True],
            HAS_LAST_NORM=[False],
            HAS_ROWS=[False],
            GIVES_MAXIMA=[False],
            SEGMENTS=[1],
            READS_EARLY=[False, True],
            HEIGHT=[0],
            WIDTH=[0],
            SPLITS=[1],
            PARTS=[6],
            RESIDUAL_PARTS=[0, 6],
            ACTIVATION=["gelu", "silu"],
            WAITS=[False],
        ),
    ),
    (
        linear_kernel,
        {f"{name}_ptr": ["*fp16", "*bf16"] for name in ("x", "weight", "residual", "out")},
        constants(
            **{name: [64] for name in ("INPUTS", "OUTPUTS", "X_STRIDE", "OUT_STRIDE", "COLUMNS", "STEP")},
            **{name: [True] for name in ("HAS_NORM", "HAS_LAST_NORM", "HAS_ROWS")},
            **{name: [False] for name in ("HAS_RESIDUAL", "HAS_OUT_SUMS", "READS_EARLY", "WAITS")},
            **{name: [0] for name in ("PARTS", "RESIDUAL_PARTS", "RESIDUAL_STRIDE")},
            ACTIVATION=["silu"],
            GIVES_MAXIMA=[False, True],
            KEPT=[60],
            SEGMENTS=[9],
            HEIGHT=[0, 26],
            WIDTH=[26],
            SPLITS=[4],
            ROWS=[16],
        ),
    ),
    (
        bulk_linear_kernel,
        {
            **{name: ["tensordesc<fp16[64, 64]>", "tensordesc<bf16[64, 64]>"] for name in ("x", "weight")},
            **{name: ["tensordesc<fp16[64, 32]>", "tensordesc<bf16[64, 32]>"] for name in ("residual", "out")},
        },
        constants(
            **{name: [64] for name in ("INPUTS", "OUTPUTS", "ROWS", "COLUMNS", "STEP")},
            **{name: [True] for name in ("HAS_RESIDUAL", "HAS_OUT_SUMS")},
            PARTS=[6],
            ACTIVATION=["gelu", "silu"],
            IS_PERSISTENT=[False, True],
            WAITS=[False],
        ),
    ),
    (
        embed_patches_kernel,
        {f"{name}_ptr": ["*fp16", "*bf16"] for name in ("images", "weight", "out")},
        constants(
            **{name: [312] for name in ("HEIGHT", "WIDTH")},
            **{name: [64] for name in ("ROWS", "COLUMNS", "STEP")},
            SIDE=[12],
            WINDOWS=[1],
            OUTPUTS=[384],
            WAITS=[False],
        ),
    ),
    (
        deformable_attention_kernel,
        {f"{name}_ptr": ["*fp16", "*bf16"] for name in ("projections", "values", "out")},
        constants(
            **{name: [16] for name in ("HEADS", "SIDE")},
            **{name: [26] for name in ("HEIGHT", "WIDTH")},
            QUERIES=[100],
            POINTS=[2],
            VALUES_STRIDE=[1024],
            WAITS=[False],
            ROWS=[2],
        ),
    ),
    (
        resize_pixels_kernel,
        {f"{name}_ptr": ["*fp16", "*bf16"] for name in ("image", "out")},
        constants(CHANNELS=[256], WAITS=[False], ROWS=[4], COLUMNS=[4]),
    ),
    (
        depthwise_norm_kernel,
        {"image_ptr": ["*fp16", "*bf16"], "weight_ptr": ["*fp32"] * 2, "out_ptr": ["*fp16", "*bf16"]},
        constants(HEIGHT=[78], WIDTH=[78], CHANNELS=[256], WAITS=[False], ROWS=[4], PAIRS=[2], AHEAD=[0, 2]),
    ),
    (
        mask_logits_kernel,
        {f"{name}_ptr": ["*fp16", "*bf16"] for name in ("queries", "pixels", "out")},
        constants(
            **{name: [128] for name in ("ROWS", "COLUMNS")},
            QUERIES=[100],
            PIXELS=[6084],
            CHANNELS=[256],
            STRIDE=[320],
            WAITS=[False],
            STEP=[64],
        ),
    ),
    (
        rank_tokens_kernel,
        {"scores_ptr": ["*fp32"], "out_ptr": ["*i32"]},
        constants(TOKENS=[676], PARTS=[3], COUNT=[100], WAITS=[False], RANKED=[8, 16], RIVALS=[256, 512]),
    ),
    (
        refine_boxes_kernel,
        {
            "hidden_ptr": ["*fp16", "*bf16"],
            "embedding_ptr": ["*fp16", "*bf16"],
            **dict.fromkeys(("weight_ptr", "out_ptr"), ["*fp32"] * 2),
        },
        constants(
            INPUTS=[256],
            REFERENCES=[676],
            OFFSETS=[100],
            FREQUENCIES=[128],
            HAS_ROWS=[True],
            WAITS=[False],
            ROWS=[2],
        ),
    ),
    (
        attention_kernel,
        {f"{name}_ptr": ["*fp16", "*bf16"] for name in ("projections", "out")},
        constants(LENGTH=[677], HEADS=[6], SIDE=[64], WAITS=[False], QUERIES=[64], KEYS=[64], REST=[16, 64]),
    ),
    (choose_kernel, {"overlaps_ptr": ["*i32"]}, constants(BITS=[32], WORDS=[32])),
]


def choose(kernel, types, choices):
    """Of all combinations the first, the last and a few others; the tensors of some kernels go together."""
    is_product = kernel in (find_edges_kernel, write_strings_kernel, paste_kernel)
    dtypes = itertools.product(*types.values()) if is_product else zip(*types.values(), strict=True)
    first, *others = itertools.product(dtypes, choices)
    return [first, *random.Random(0).sample(others[:-1], min(len(others[:-1]), 2)), *others[-1:]]


def compile_all(capability):
    has_bfloat16, has_bulk_copies = capability >= 80, capability >= 90
    for kernel, types, choices in KERNELS:
        if kernel is bulk_linear_kernel and not has_bulk_copies:
            continue
        for dtypes, values in choose(kernel, types, choices):
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
