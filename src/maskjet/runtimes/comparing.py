"""An exported file against the module that it was made of, in ONNX Runtime on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from maskjet import ops, traffic
from maskjet.errors import UnsupportedError, border
from maskjet.networks.rfdetr import RFDETR
from maskjet.ops.select.reference import to_pixels
from maskjet.runtimes.selecting import FIELDS, MASKS, SIZES, Select

BATCHES = (1, 3)
"""Numbers of images that a file is compared with."""
IMAGES = "images"
"""Name of the network's input."""
OUTPUTS = ("logits", "boxes_cxcywh", "mask_logits")
"""Names of the network's outputs, those of `NetworkOutput`."""
_TOKEN_LOGITS, _TOKENS = "transformer/ReduceMax", "transformer/TopK.1"
"""Values of the graph: the best class logit of each token, and the tokens that become queries."""
_LIMITS = {"token_logits": 1e-4, "logits": 1e-4, "boxes_cxcywh": 1e-5, "mask_logits": 1e-4}
"""Of float32, for values of up to `_LARGEST`: as far as our networks may lie from rfdetr's. Boxes are 0..1."""
_LARGEST = 16.0
_HALF = 2.0
"""Of float16: how many times the module's own mean difference from float32 a file's may be."""
_SELECTED = 2.4e-7
"""Of select's confidences, and of its boxes as shares of the longer side: two float32 ULP."""
_SIZES_HW = ((720, 1280), (480, 640), (97, 61))

Differences = dict[str, tuple[float, float]]
"""Name of each output to its difference and the limit of that."""


def runtime_name() -> str:
    """What files are compared in."""
    return f"ONNX Runtime {onnxruntime.__version__}"


def compare(path: Path, network: RFDETR, cast: RFDETR, dtype: torch.dtype, select: Select | None) -> Differences:
    """Compare a file with its module on drawn streets.

    Tokens that rank within rounding may change places, which changes all that is decoded. So the module decodes the
    tokens that the file chose; the logits that they are chosen by are compared, too.

    Args:
        path: The file.
        network: The module in float32.
        cast: The module in the file's precision; the same in float32.
        dtype: That precision.
        select: What chooses detections in the file; None if nothing does.

    Returns:
        Each output's largest difference of all batches.

    Raises:
        UnsupportedError: ONNX Runtime can't run the file, or an output differs by more than its limit.
    """
    file = _File(path)
    worst: Differences = {}
    for batch in BATCHES:
        images = _images(network, batch).to(dtype)
        sizes = torch.tensor(_SIZES_HW[:batch], dtype=torch.int32)
        found = file.run({IMAGES: images} if select is None else {IMAGES: images, SIZES: sizes})
        differences = _compare_network(found, network, cast, images)
        if select is not None:
            differences |= _compare_selection(found, select, sizes)
        for name, (difference, limit) in differences.items():
            if not difference <= limit:  # so that NaN is one
                raise UnsupportedError(
                    f"out must equal the network, its {name} differs by {difference:.2g} in {runtime_name()} with "
                    f"{batch} image{'s' * (batch > 1)}, the limit is {limit:.2g}: no file is written."
                )
            worst[name] = max(worst.get(name, (0.0, limit)), (difference, limit))
    return worst


class _File:
    """A file in ONNX Runtime, which also gives the network's outputs and the tokens."""

    def __init__(self, path: Path) -> None:
        with self._running():
            model = onnx.load(path)
            given = {each.name for each in model.graph.output}
            known = {each.name for each in model.graph.value_info}
            for name in (*OUTPUTS, _TOKEN_LOGITS, _TOKENS):
                if name in known - given:
                    model.graph.output.append(onnx.ValueInfoProto(name=name))
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            providers = ["CPUExecutionProvider"]
            self._session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs by name."""
        names = [each.name for each in self._session.get_outputs()]
        with self._running():
            outputs = self._session.run(names, {name: value.numpy() for name, value in inputs.items()})
        return dict(zip(names, map(torch.from_numpy, outputs), strict=True))

    @contextmanager
    def _running(self) -> Iterator[None]:
        with border(UnsupportedError, f"out must run in {runtime_name()}, it does not"):
            yield


class _FixedTokens(TorchFunctionMode):
    """Has an RF-DETR decode given tokens, instead of those that it ranks first.

    Args:
        tokens: int64 [B, queries].
    """

    def __init__(self, tokens: Tensor) -> None:
        super().__init__()
        self._tokens = tokens
        self.token_logits = torch.empty(0)
        """float32 [B, tokens]: what the network ranks tokens by."""

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is not torch.Tensor.topk:
            return function(*args, **(kwargs or {}))
        self.token_logits = args[0]
        return torch.return_types.topk((args[0].gather(1, self._tokens), self._tokens))


def _images(network: RFDETR, batch: int) -> Tensor:
    """Drawn streets as the network takes them, float32 [B, 3, S, S]."""
    spec = network.spec
    streets = [torch.from_numpy(traffic.sample(seed=seed).image) for seed in range(batch)]
    size = (spec.input_size, spec.input_size)
    return ops.preprocess(torch.stack(streets), size=size, mean=spec.mean, std=spec.std)


def _run(network: RFDETR, images: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """A module's outputs, in float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.inference_mode(), _FixedTokens(tokens) as fixed:
            output = network(images)
    finally:
        torch.set_float32_matmul_precision(before)
    named = {"token_logits": fixed.token_logits, **output._asdict()}
    return {name: tensor.float() for name, tensor in named.items() if tensor is not None}


def _compare_network(found: Mapping[str, Tensor], network: RFDETR, cast: RFDETR, images: Tensor) -> Differences:
    tokens, token_logits = found[_TOKENS], found[_TOKEN_LOGITS]
    ranked = token_logits.gather(1, tokens)
    if not torch.equal(ranked, token_logits.topk(tokens.shape[1], dim=1).values):
        raise UnsupportedError("out must decode the tokens of the highest logits, it decodes others.")
    expected = _run(network, images.float(), tokens)
    outputs = {**found, "token_logits": token_logits}
    if cast is network:
        return {
            name: (float((outputs[name] - tensor).abs().max()), _limit(name, tensor))
            for name, tensor in expected.items()
        }
    own = _run(cast, images, tokens)
    return {
        name: (_distance(outputs[name], tensor), _HALF * _distance(own[name], tensor))
        for name, tensor in expected.items()
    }


def _limit(name: str, expected: Tensor) -> float:
    return _LIMITS[name] * max(1.0, float(expected.abs().max()) / _LARGEST)


def _distance(first: Tensor, second: Tensor) -> float:
    """The mean difference; single queries' may be many times as large, by chance."""
    return float((first.double() - second.double()).abs().mean())


def _compare_selection(found: Mapping[str, Tensor], select: Select, image_sizes: Tensor) -> Differences:
    """Compare the chosen rows with `ops.select` of the file's own logits and boxes.

    Pairs whose confidences are within rounding may change places, so each row is compared with its own query and class.
    """
    logits, boxes = found["logits"], found["boxes_cxcywh"]
    count, query, class_id, confidence, xyxy = (found[name] for name in FIELDS)
    sizes = [(height, width) for height, width in image_sizes.tolist()]
    scores = logits.sigmoid()
    worst = {"confidence": 0.0, "xyxy": 0.0}
    fewest, most = (_expect(select, logits, boxes, sizes, by) for by in (_SELECTED, -_SELECTED))
    for image, size in enumerate(sizes):
        rows = int(count[image])
        pairs = query[image].long(), class_id[image].long()
        is_known = pairs[1] >= 0
        known = [each[is_known] for each in pairs]
        distinct = {*zip(*(each[:rows].tolist() for each in pairs), strict=True)}
        if not fewest.count[image] <= rows <= most.count[image] or len(distinct) != rows or not is_known[:rows].all():
            raise UnsupportedError(
                f"out must choose what select does, {int(most.count[image])} pairs, it chooses {rows}."
            )
        differences = {
            "confidence": torch.cat(
                (
                    scores[image][known[0], known[1]] - confidence[image][is_known],
                    most.confidence[image, :rows] - confidence[image, :rows],
                )
            ),
            "xyxy": (to_pixels(boxes[image, pairs[0]], *size) - xyxy[image]) / max(size),
        }
        for name, difference in differences.items():
            worst[name] = max(worst[name], float(difference.abs().nan_to_num(nan=torch.inf).max()))
        if MASKS in found and not torch.equal(found[MASKS][image], found["mask_logits"][image, pairs[0]]):
            raise UnsupportedError("out must give the masks of the chosen queries, it gives others.")
    return {name: (difference, _SELECTED) for name, difference in worst.items()}


def _expect(
    select: Select, logits: Tensor, boxes: Tensor, sizes: list[tuple[int, int]], raised_by: float
) -> ops.Selection:
    return ops.select(
        logits,
        boxes,
        sizes,
        threshold=select.thresholds + raised_by,
        class_map=select.class_map,
        max_detections=select.rows,
        num_select=select.pairs,
        implementation="reference",
    )
