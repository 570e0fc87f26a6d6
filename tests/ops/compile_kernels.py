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
from maskjet.ops.preprocess.kernels import preprocess_antialias_kernel, preprocess_kernel, preprocess_yuv_kernel
from maskjet.ops.rank_tokens.kernels import rank_tokens_kernel
from maskjet.ops.refine_boxes.kernels import refine_boxes_kernel
from maskjet.ops.resize_pixels.kernels import resize_pixels_kernel
from maskjet.ops.roi_align.kernels import roi_align_kernel
from maskjet.ops.select.kernels import select_kernel

FLOATS, HALVES = ["*fp32", "*fp16", "*bf16"], ["*fp16", "*bf16"]
TYPES = {  # of what is not int32
    **dict.fromkeys(("frames_ptr", "luma_ptr", "chroma_ptr", "strings_ptr", "is_inside_ptr"), "*u8"),
    "keys_ptr": "*i64",
    **{f"{name}_ptr": "*fp32" for name in ("bias", "sums", "residual_sums", "out_sums", "parts", "thresholds")},
    **{f"{name}_ptr": "*fp32" for name in ("confidence", "xyxy", "boxes", "canvases", "scores")},
    **{f"{name}_ptr": "*fp32" for name in ("positions", "references", "offsets", "frequencies")},
    **{f"{name}_{part}_ptr": "*fp32" for name in ("residual", "norm", "last") for part in ("weight", "bias")},
    **dict.fromkeys(("eps", "residual_eps", "norm_eps", "last_eps", "threshold"), "fp32"),
    **dict.fromkeys(("left_fraction", "top_fraction", "across_scale", "down_scale"), "fp32"),
    **dict.fromkeys(("mean", "std", "padding"), ("fp32",) * 3),
}


def tensors(types, *names):
    return {f"{name}_ptr": types for name in names}


def constants(**values):
    """Every combination; what is no list has one value."""
    lists = [value if isinstance(value, list) else [value] for value in values.values()]
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*lists)]


LINEAR = dict.fromkeys(("INPUTS", "OUTPUTS", "COLUMNS", "STEP"), 64)
PREPROCESS = {"HAS_ROWS": [False, True], "TILE_HEIGHT": 4, "TILE_WIDTH": 32}
ENCODE = {"COLUMNS": 16, "SLOTS": 128, "IMAGES": 64, "HAS_BOXES": [False, True]}
KERNELS = [
    (preprocess_kernel, tensors(FLOATS, "out"), constants(IS_CV2=[False, True], **PREPROCESS)),
    (preprocess_yuv_kernel, tensors(FLOATS, "out"), constants(IS_CV2=[False, True], **PREPROCESS)),
    (preprocess_antialias_kernel, tensors(FLOATS, "out"), constants(IS_YUV=[False, True], **PREPROCESS)),
    (select_kernel, tensors(FLOATS, "logits"), constants(TILE=2048, RANKED=64)),
    (find_edges_kernel, {**tensors(FLOATS, "masks"), "boxes_ptr": ["*i32"]}, constants(ROWS=16, **ENCODE)),
    (write_strings_kernel, {}, constants(**ENCODE, BLOCKS=64, TILE=1024)),
    (find_overlaps_kernel, tensors(["*fp32"], "boxes"), constants(ROWS=64, BITS=32)),
    (choose_kernel, tensors(["*i32"], "overlaps"), constants(BITS=32, WORDS=32)),
    (
        roi_align_kernel,
        tensors(FLOATS, "level0", "level1", "level2", "level3", "out"),
        constants(SIZE=7, BINS=8, CHANNELS=256, BLOCK=128),
    ),
    (
        linear_kernel,
        tensors(HALVES, "x", "weight", "residual", "out"),
        constants(
            **{**LINEAR, "X_STRIDE": 64, "KEPT": 64, "ROWS": 64, "OUT_STRIDE": 128, "RESIDUAL_STRIDE": 128, "PARTS": 6},
            **dict.fromkeys(("HAS_RESIDUAL", "HAS_OUT_SUMS"), True),
            **dict.fromkeys(("HAS_LAST_NORM", "HAS_ROWS", "GIVES_MAXIMA"), False),
            **{name: [False, True] for name in ("HAS_NORM", "READS_EARLY")},
            **{**dict.fromkeys(("HEIGHT", "WIDTH"), 0), "SEGMENTS": 1, "SPLITS": 1, "RESIDUAL_PARTS": [0, 6]},
            ACTIVATION=["gelu", "silu"],
        ),
    ),
    (
        linear_kernel,
        tensors(HALVES, "x", "weight", "residual", "out"),
        constants(
            **{**LINEAR, "X_STRIDE": 64, "KEPT": 60, "ROWS": 16, "OUT_STRIDE": 64, "SEGMENTS": 9, "SPLITS": 4},
            **dict.fromkeys(("HAS_NORM", "HAS_LAST_NORM", "HAS_ROWS"), True),
            **dict.fromkeys(("HAS_RESIDUAL", "HAS_OUT_SUMS", "READS_EARLY"), False),
            **{**dict.fromkeys(("PARTS", "RESIDUAL_PARTS", "RESIDUAL_STRIDE"), 0), "HEIGHT": [0, 26], "WIDTH": 26},
            ACTIVATION="silu",
            GIVES_MAXIMA=[False, True],
        ),
    ),
    (
        bulk_linear_kernel,
        {
            **{name: ["tensordesc<fp16[64, 64]>", "tensordesc<bf16[64, 64]>"] for name in ("x", "weight")},
            **{name: ["tensordesc<fp16[64, 32]>", "tensordesc<bf16[64, 32]>"] for name in ("residual", "out")},
        },
        constants(
            **{**LINEAR, "ROWS": 64, "HAS_RESIDUAL": True, "HAS_OUT_SUMS": True, "PARTS": 6},
            ACTIVATION=["gelu", "silu"],
            IS_PERSISTENT=[False, True],
        ),
    ),
    (
        embed_patches_kernel,
        tensors(HALVES, "images", "weight", "out"),
        constants(HEIGHT=312, WIDTH=312, SIDE=12, WINDOWS=1, OUTPUTS=384, ROWS=64, COLUMNS=64, STEP=64),
    ),
    (
        deformable_attention_kernel,
        tensors(HALVES, "projections", "values", "out"),
        constants(HEADS=16, SIDE=16, HEIGHT=26, WIDTH=26, QUERIES=100, POINTS=2, VALUES_STRIDE=1024, ROWS=2),
    ),
    (resize_pixels_kernel, tensors(HALVES, "image", "out"), constants(CHANNELS=256, ROWS=4, COLUMNS=4)),
    (
        depthwise_norm_kernel,
        {**tensors(HALVES, "image", "out"), "weight_ptr": ["*fp32"] * 2},
        constants(HEIGHT=78, WIDTH=78, CHANNELS=256, ROWS=[4, 39], PAIRS=2),
    ),
    (
        mask_logits_kernel,
        tensors(HALVES, "queries", "pixels", "out"),
        constants(ROWS=128, COLUMNS=128, QUERIES=100, PIXELS=6084, CHANNELS=256, STRIDE=320, STEP=64),
    ),
    (rank_tokens_kernel, {}, constants(TOKENS=676, PARTS=3, COUNT=100, RANKED=[8, 16], RIVALS=[256, 512])),
    (
        refine_boxes_kernel,
        {**tensors(HALVES, "hidden", "embedding"), **tensors(["*fp32"] * 2, "weight", "out")},
        constants(INPUTS=256, REFERENCES=676, OFFSETS=100, FREQUENCIES=128, HAS_ROWS=True, ROWS=2),
    ),
    (
        attention_kernel,
        tensors(HALVES, "projections", "out"),
        constants(LENGTH=677, HEADS=6, SIDE=64, QUERIES=64, KEYS=64, REST=[16, 64]),
    ),
]


def choose(kernel, types, choices):
    """Of all combinations the first, the last and a few others; the tensors of some kernels go together."""
    is_product = kernel in (find_edges_kernel, write_strings_kernel)
    dtypes = itertools.product(*types.values()) if is_product or not types else zip(*types.values(), strict=True)
    first, *others = itertools.product(dtypes, choices)
    return [first, *random.Random(0).sample(others[:-1], min(len(others[:-1]), 2)), *others[-1:]]


def compile_all(capability):
    has_bfloat16, has_bulk_copies = capability >= 80, capability >= 90
    for kernel, types, choices in KERNELS:
        if kernel is bulk_linear_kernel and not has_bulk_copies:
            continue
        for dtypes, values in choose(kernel, types, choices):
            if "*bf16" in dtypes and not has_bfloat16 and "preprocess" not in kernel.__name__:
                continue
            values = {**values, **({"WAITS": False} if "WAITS" in kernel.arg_names else {})}
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
