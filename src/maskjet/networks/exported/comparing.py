"""Compare an exported network, in the runtime that runs it, with its PyTorch module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from maskjet import ops, traffic
from maskjet.errors import UnsupportedError
from maskjet.networks.rfdetr.network import RFDETR

BATCHES = (1, 3)
"""Batch sizes of the comparison where the batch is free."""
TOKEN_LOGITS, TOKENS = "token_logits", "tokens"
"""Names of two more outputs for the comparison: the best class logit of each token, and the selected tokens."""
_LIMITS = {TOKEN_LOGITS: 1e-4, "logits": 1e-4, "boxes_cxcywh": 1e-5, "mask_logits": 1e-4}
"""Limits in float32 for values up to `_LARGEST`: the tolerance of our networks against rfdetr. Boxes are 0..1."""
_LARGEST = 16.0
_ROUNDED = {torch.float16: 2.0, torch.bfloat16: 4.0}
"""Limits in other types, as multiples of the module's own mean error against float32 in the first batch; OpenVINO
rounds what PyTorch sums up in float32, such as norms, to bfloat16."""

Run = Callable[[Tensor], Mapping[str, Tensor]]
"""Runs an exported network on images; returns its outputs, `TOKEN_LOGITS` and `TOKENS`, by name."""
Differences = dict[str, tuple[float, float]]
"""Output name to (difference, limit)."""


def compare(
    run: Run, where: str, network: RFDETR, cast: RFDETR, dtype: torch.dtype, batches: Sequence[int] = BATCHES
) -> Differences:
    """Compare an exported network with its module on drawn streets; returns the largest difference of each output.

    Tokens that rank within rounding may change places, which changes all that is decoded. So the module decodes the
    tokens that the exported network chose; the logits that they are chosen by are compared, too. `network` is the
    module in float32, `cast` the one in the exported precision, `dtype`; the same in float32. `where` is the runtime,
    `batches` the numbers of images at a time.

    Raises:
        UnsupportedError: An output differs by more than its limit.
    """
    worst: Differences = {}
    for batch in batches:
        images = _images(network, batch).to(dtype)
        for name, (difference, limit) in _compare_network(run(images), network, cast, images, worst).items():
            if not difference <= limit:  # also true for NaN
                raise UnsupportedError(
                    f"out must equal the network, its {name} differ by {difference:.2g} in {where} with "
                    f"{batch} image{'s' * (batch > 1)}, the limit is {limit:.2g}: no file is written."
                )
            worst[name] = max(worst.get(name, (0.0, limit)), (difference, limit))
    return worst


class _FixedTokens(TorchFunctionMode):
    """Makes RF-DETR decode given tokens, int64 [B, queries], instead of its own top-k."""

    def __init__(self, tokens: Tensor) -> None:
        super().__init__()
        self._tokens = tokens
        self.token_logits = torch.empty(0, dtype=torch.float32, device="cpu")
        """float32 [B, tokens]: the scores by which the network ranks tokens."""

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is not torch.Tensor.topk:
            return function(*args, **(kwargs or {}))
        self.token_logits = args[0]
        return torch.return_types.topk((args[0].gather(1, self._tokens), self._tokens))


def _images(network: RFDETR, batch: int) -> Tensor:
    """Draw streets and preprocess them: float32 [B, 3, *spec.input_hw]."""
    spec = network.spec
    streets = [torch.from_numpy(traffic.sample(seed=seed).image) for seed in range(batch)]
    return ops.preprocess(torch.stack(streets), size=spec.input_hw, mean=spec.mean, std=spec.std)


def _run(network: RFDETR, images: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """Run a module on given tokens; returns its outputs in float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.inference_mode(), _FixedTokens(tokens) as fixed:
            output = network(images)
    finally:
        torch.set_float32_matmul_precision(before)
    named = {TOKEN_LOGITS: fixed.token_logits, **output._asdict()}
    return {name: tensor.float() for name, tensor in named.items() if tensor is not None}


def _compare_network(
    found: Mapping[str, Tensor], network: RFDETR, cast: RFDETR, images: Tensor, before: Differences
) -> Differences:
    """Compare one batch. Limits of rounded types are reused from earlier batches, as PyTorch is slow on a CPU."""
    tokens, token_logits = found[TOKENS], found[TOKEN_LOGITS]
    ranked = token_logits.gather(1, tokens)
    if not torch.equal(ranked, token_logits.topk(tokens.shape[1], dim=1).values):
        raise UnsupportedError("out must decode the tokens of the highest logits, it decodes others.")
    expected = _run(network, images.float(), tokens)
    if cast is network:
        return {
            name: (
                float((found[name] - tensor).abs().max()),
                _LIMITS[name] * max(1.0, float(tensor.abs().max()) / _LARGEST),
            )
            for name, tensor in expected.items()
        }
    if before:
        limits = {name: limit for name, (_, limit) in before.items()}
    else:
        own = _run(cast, images, tokens)
        limits = {name: _ROUNDED[images.dtype] * _distance(own[name], tensor) for name, tensor in expected.items()}
    return {name: (_distance(found[name], tensor), limits[name]) for name, tensor in expected.items()}


def _distance(first: Tensor, second: Tensor) -> float:
    """Mean absolute difference; single queries may differ many times as much."""
    return float((first.double() - second.double()).abs().mean())
