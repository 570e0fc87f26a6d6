"""The parts of the parity study: their variants, and the questions about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.peers import PEERS
from benchmarks.peers.pipeline import PeerVariant
from benchmarks.planted import plant_network
from benchmarks.streets import Streets
from benchmarks.variants import DetectorVariant
from maskjet.config import EngineConfig
from maskjet.model import read_network
from maskjet.networks.rfdetr import RFDETR
from maskjet.spec import SPECS

_CERTAIN = 0.4
CONFIDENCES = (_CERTAIN,)
"""Confidences from which the study counts separately. Nano's records hold only detections above 0.4: 53 per image."""
SIZE_HW = (360, 640)
"""(height, width) of the streets."""
_PLANTED = 25  # detections above 0.5 per image
_SPEC = "rf-detr-seg-nano"
_BATCH = 8


@dataclass(frozen=True)
class Question:
    """A question, and the comparisons that answer it."""

    title: str
    """The question, in words."""
    pairs: Sequence[tuple[str, str]]
    """Names of the expected and the actual variant of each comparison."""


@dataclass(frozen=True)
class StudyPart:
    """Variants of one network on one set of images."""

    name: str
    """Name of the part and of its folder."""
    what: str
    """Network and images, in words."""
    make_network: Callable[[Streets], RFDETR]
    """Builds the network, given the streets."""
    variants: Sequence[DetectorVariant]
    """The variants, in the order in which they run."""
    questions: Sequence[Question]
    """Questions about the variants."""
    has_truth: bool
    """Whether the network is trained, so that average precision is meaningful."""


def _steps(name: str, **choices: Any) -> DetectorVariant:
    """A variant that runs step by step in float32, except for the choices given."""
    config = {"precision": "fp32", "engine": "eager", "runtime": "torch", "compile": False, **choices}
    return DetectorVariant(name, EngineConfig(**config), batch=_BATCH)


def _graph(name: str, precision: str, *, compile: bool = False, depth: int = 4, batch: int = _BATCH) -> DetectorVariant:  # noqa: A002
    config = EngineConfig(precision=precision, engine="graph", runtime="torch", compile=compile)  # type: ignore[arg-type]
    return DetectorVariant(name, config, depth=depth, batch=batch)


def _fused(name: str, precision: str, *, batch: int = _BATCH) -> DetectorVariant:
    config = EngineConfig(precision=precision, engine="graph", runtime="fused")  # type: ignore[arg-type]
    return DetectorVariant(name, config, depth=4, batch=batch)


def _peer(name: str, peer: str) -> DetectorVariant:
    build = PEERS[peer].pipeline
    assert build is not None
    return PeerVariant(name, program=peer, build=build)


_POST_REFERENCE = {"select": "reference", "encode_masks": "reference"}
_POSTPROCESS = Question("postprocess: the reference and the device's own", (("postprocess: reference", "fp32"),))

DEMO = StudyPart(
    name="demo",
    what="the demo model on generated streets",
    make_network=lambda _: read_network("demo"),
    variants=(
        _steps("fp32"),
        _steps("preprocess: reference", implementation={"preprocess": "reference"}),
        _steps("preprocess: cv2-exact", resample="cv2"),
        _steps("preprocess: cv2 itself", resample="cv2", implementation={"preprocess": "reference"}),
        _steps("postprocess: reference", implementation=_POST_REFERENCE),
        _graph("fp32, graph, depth 1", "fp32", depth=1),
        _graph("fp32, graph, depth 4", "fp32"),
        _graph("fp32, compiled, depth 4", "fp32", compile=True),
        _steps("fp16", precision="fp16"),
        _graph("fp16, graph, depth 4", "fp16"),
        _graph("fp16, compiled, depth 4", "fp16", compile=True),
        _graph("fp16, compiled, depth 4, one by one", "fp16", compile=True, batch=1),
        _fused("fp16, fused, depth 4", "fp16"),
        _fused("fp16, fused, depth 4, one by one", "fp16", batch=1),
        _steps("bf16", precision="bf16"),
        _graph("bf16, compiled, depth 4", "bf16", compile=True),
        _fused("bf16, fused, depth 4", "bf16"),
    ),
    questions=(
        Question(
            "preprocess: reference, Triton, cv2-exact and cv2 itself",
            (
                ("preprocess: reference", "fp32"),
                ("preprocess: cv2 itself", "preprocess: cv2-exact"),
                ("preprocess: reference", "preprocess: cv2 itself"),
                ("preprocess: cv2 itself", "fp32"),
            ),
        ),
        _POSTPROCESS,
        Question(
            "engine: graphs at any depth against step by step",
            (
                ("fp32", "fp32, graph, depth 1"),
                ("fp32, graph, depth 1", "fp32, graph, depth 4"),
                ("fp16", "fp16, graph, depth 4"),
            ),
        ),
        Question(
            "precision, compilation and fused kernels, against float32 step by step",
            tuple(
                ("fp32", name)
                for name in (
                    *("fp32, compiled, depth 4", "fp16", "fp16, compiled, depth 4"),
                    *("fp16, compiled, depth 4, one by one", "fp16, fused, depth 4"),
                    *("fp16, fused, depth 4, one by one", "bf16", "bf16, compiled, depth 4", "bf16, fused, depth 4"),
                )
            ),
        ),
    ),
    has_truth=True,
)
"""The demo model's part; its first variant is the baseline of average precision."""

NANO = StudyPart(
    name="nano",
    what="RF-DETR-Seg Nano with calibrated random weights on generated streets",
    make_network=lambda streets: plant_network(
        SPECS[_SPEC], [streets.draw(number) for number in range(8)], survivors=_PLANTED
    ),
    variants=tuple(
        replace(variant, threshold=_CERTAIN)
        for variant in (
            _steps("fp32"),
            _steps("postprocess: reference", implementation=_POST_REFERENCE),
            replace(_steps("fp32, one by one"), batch=1),
            _graph("fp16, compiled, depth 4", "fp16", compile=True, batch=1),
            _fused("fp16, fused, depth 4", "fp16", batch=1),
            _peer("rfdetr predict()", "rfdetr"),
            _peer("rfdetr predict(), no TF32", "rfdetr_ieee"),
            _peer("rfdetr, fp16", "rfdetr_fp16"),
            _peer("inference-models", "inference_models"),
        )
    ),
    questions=(
        _POSTPROCESS,
        Question(
            "the whole pipeline: rfdetr's predict() without TF32 against ours, its other modes and inference-models",
            tuple(
                ("rfdetr predict(), no TF32", name)
                for name in (
                    *("fp32, one by one", "fp32", "fp16, compiled, depth 4", "fp16, fused, depth 4"),
                    *("rfdetr predict()", "rfdetr, fp16", "inference-models"),
                )
            ),
        ),
    ),
    has_truth=False,
)


def _part_of_size(spec: str) -> StudyPart:
    return StudyPart(
        name=spec,
        what=f"{spec} with calibrated random weights on generated streets",
        make_network=lambda streets: plant_network(
            SPECS[spec], [streets.draw(number) for number in range(8)], survivors=_PLANTED
        ),
        variants=tuple(
            replace(variant, threshold=_CERTAIN)
            for variant in (
                _steps("fp32"),
                _graph("fp16, compiled, depth 4", "fp16", compile=True),
                _fused("fp16, fused, depth 4", "fp16"),
            )
        ),
        questions=(
            Question(
                "compilation and fused kernels, against float32 step by step",
                (("fp32", "fp16, compiled, depth 4"), ("fp32", "fp16, fused, depth 4")),
            ),
        ),
        has_truth=False,
    )


SIZES = tuple(map(_part_of_size, SPECS))
"""A part for each size of RF-DETR, which are run when they are named."""
PARTS: Mapping[str, StudyPart] = {part.name: part for part in (DEMO, NANO, *SIZES)}
"""Parts by name."""
