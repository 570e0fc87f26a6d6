"""A rewrite of the ONNX files that `torch.onnx.export(..., dynamo=False)` makes of torchvision's Faster and Mask R-CNN.

`level_pooling` finds candidate nodes and rewrites each one unless a guard fails. Values are computed as before, only
with fewer copies, so outputs stay the same to the last bit.
"""

from __future__ import annotations

from pathlib import Path

from maskjet.export.onnx_rewrites.report import OptimizedFile
from maskjet.host.extras import require

__all__ = ["OptimizedFile", "optimize_onnx"]


def optimize_onnx(path: str | Path, out: str | Path | None = None) -> OptimizedFile:
    """Rewrite an exported detector so that a runtime needs less time for the same outputs.

    Pools the boxes of all pyramid levels with fewer copies. Equal to the unchanged file in ONNX Runtime 1.31 on a CPU,
    bit for bit. A candidate whose guard fails is left as it is, and so is a file without candidates: neither is an
    error, and the report says so.

    Args:
        path: An ONNX file, its weights inside or beside it, of opset 13 or later. Not changed unless it is also `out`.
        out: The file to write; None adds ".fast" to the name, so "detector.onnx" becomes "detector.fast.onnx". Weights
            of a model with external data, or of more than 2 GB, are written beside it, as `<name>.data`.

    Returns:
        How many poolings were rewritten, why others were left alone, and the nodes before and after.

    Raises:
        InputError: The file's opset is older than 13.
        SourceError: The file is missing or not an ONNX model, or its weights are missing.
        OutputError: `out` can't be written; an existing file is kept.
        MissingDependencyError: onnx-ir is not installed.
    """
    require("onnx_ir", extra="onnx", purpose="optimize_onnx()")
    from maskjet.export.onnx_rewrites import application

    path = Path(path)
    return application.apply_to_file(path, path.with_suffix(f".fast{path.suffix}") if out is None else Path(out))
