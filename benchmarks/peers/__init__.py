"""Peers: other projects that run RF-DETR-Seg, under their own names, where they are installed.

A peer's masks may differ where a value lies within 1e-3 of zero, because none rounds exactly as the reference does. The
reports state each peer's largest difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from benchmarks.peers import inference_models, rfdetr
from benchmarks.peers.pipeline import BuildPipeline
from benchmarks.rungs import Output, Postprocess, Rung

_TOLERANCE = 100.0


@dataclass(frozen=True)
class Peer:
    """One project in one of its modes."""

    name: str
    """Name in reports and on the command line."""
    what: str
    """One line that describes the peer."""
    pipeline: BuildPipeline | None = None
    """Builds the peer's whole pipeline, from an RGB frame to its own masks, or to COCO RLE on the host."""
    postprocess: Rung | None = None
    """The peer's postprocess, from the network's output to detections, as a rung of the ablation."""
    is_oracle: bool = False
    """Whether the peer is only a reference for correctness, in a mode not used in practice."""


def _rung(peer: str, what: str, build: Callable[[torch.device], Postprocess], *, makes_rle: bool = False) -> Rung:
    output: Output = "rle" if makes_rle else "masks"
    return Rung(peer, what, build, output=output, tolerance=_TOLERANCE, rounds_boxes=makes_rle)


PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer(
            "rfdetr",
            "rfdetr's predict in float32, dense masks encoded as RLE by pycocotools",
            pipeline=rfdetr.build,
            postprocess=_rung("rfdetr", "rfdetr's PostProcess", rfdetr.build_postprocess),
        ),
        Peer(
            "rfdetr_fp16",
            "rfdetr's predict after inference(dtype=torch.float16), traced for batches of 1, masks encoded likewise",
            pipeline=rfdetr.build_fp16,
        ),
        Peer(
            "rfdetr_inductor",
            'rfdetr\'s predict in float16 after inference(compile_backend="inductor"), without the frame, likewise',
            pipeline=rfdetr.build_inductor,
        ),
        Peer(
            "inference_models",
            "inference-models' infer with PyTorch in float32, masks as RLE; resizes antialiased, by Pillow on the host",
            pipeline=inference_models.build,
        ),
        Peer(
            "inference_models_fp16",
            "inference-models' infer with all that goes without TensorRT: traced in float16, RLE by its Triton kernels",
            pipeline=inference_models.build_fp16,
        ),
        Peer(
            "inference_models_onnx",
            "inference-models' infer with ONNX Runtime of rfdetr's own float32 file, RLE by its Triton kernels",
            pipeline=inference_models.build_onnx,
        ),
        Peer(
            "inference_torch",
            "inference-models' postprocess to RLE in PyTorch",
            postprocess=_rung(
                "inference_torch",
                "inference-models' postprocess to RLE in PyTorch",
                inference_models.build_torch_postprocess,
                makes_rle=True,
            ),
        ),
        Peer(
            "inference_triton",
            "inference-models' postprocess to RLE in Triton",
            postprocess=_rung(
                "inference_triton",
                "inference-models' postprocess to RLE in Triton",
                inference_models.build_triton_postprocess,
                makes_rle=True,
            ),
        ),
        Peer(
            "rfdetr_ieee",
            "rfdetr's predict in float32 without TF32, the reference for correctness",
            pipeline=rfdetr.build_exact,
            is_oracle=True,
        ),
    )
}
"""Peers by name."""
PIPELINES: Mapping[str, BuildPipeline] = {
    peer.name: peer.pipeline for peer in PEERS.values() if peer.pipeline is not None and not peer.is_oracle
}
"""Peers that run whole videos, by name."""
POSTPROCESSES: Mapping[str, Rung] = {
    peer.name: peer.postprocess for peer in PEERS.values() if peer.postprocess is not None
}
"""Peers that take part in the ablation, by name."""
