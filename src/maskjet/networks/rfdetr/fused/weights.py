"""RF-DETR's weights for the fused kernels, folded from the PyTorch module, which is the reference.

Folded are: a norm's affine into the linear layer behind it; layer scales into the layer in front; the scale of
attention, with log₂ e, into the queries; the positions' last layer into all projections that positions are added to;
the value projections of all decoder layers into one; the mask head's last convolution, and its queries' last layers,
into one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from maskjet.networks.rfdetr.backbone import split_windows
from maskjet.networks.rfdetr.network import RFDETR
from maskjet.ops.linear.reference import Activation, Norm
from maskjet.spec import ModelSpec

_MULTIPLE = 16  # a layer's outputs are padded to a multiple of this
_TILE = 64  # outputs of the mask queries' last layer are padded to a multiple of this: whole tiles


class Layer(NamedTuple):
    """A linear layer with its norms and activation: arguments of `ops.linear.reference.linear`."""

    weight: Tensor
    bias: Tensor
    activation: Activation = "none"
    residual_norm: Norm | None = None
    norm: Norm | None = None
    last_norm: Norm | None = None
    eps: float = 1e-6
    """Epsilon of the LayerNorm folded into these weights."""

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `linear`: the activation and the norms."""
        return {name: getattr(self, name) for name in ("activation", "residual_norm", "norm", "last_norm", "eps")}


class Block(NamedTuple):
    """A block of the vision transformer."""

    projections: Layer
    output: Layer
    expand: Layer
    contract: Layer


class DecoderLayer(NamedTuple):
    """A layer of the decoder."""

    projections: Layer
    output: Layer
    sampling: Layer
    """Sampling layer; outputs [points, 3, heads]: offset x, y and logit of each point."""
    sampled: Layer
    expand: Layer
    contract: Layer


class BoxHead(NamedTuple):
    """A box head: two hidden layers, and one with four outputs."""

    hidden: tuple[Layer, Layer]
    last: Layer
    """Output layer, in float32: four box deltas."""


class MaskBlock(NamedTuple):
    """A block of the mask head's image side."""

    depthwise_weight: Tensor
    """float32 [9, C]: depthwise 3 × 3 kernel, row by row."""
    depthwise_bias: Tensor
    eps: float
    pointwise: Layer


class MaskQueryHead(NamedTuple):
    """The mask head's query side."""

    expand: Layer
    project: Layer
    """Maps expanded query and query, concatenated, to hidden_dim channels, a constant and padding."""


@dataclass(frozen=True)
class Weights:
    """All weights of the fused network, in order of execution."""

    spec: ModelSpec
    patches: Tensor
    positions: Tensor
    """float32 [tokens per image, width]: position embeddings plus patch bias; class tokens included."""
    blocks: tuple[Block, ...]
    join: tuple[Layer, ...]
    """The projector's first convolution, split by feature map."""
    bottlenecks: tuple[Layer, ...]
    """The projector's bottlenecks, flattened: two convolutions per bottleneck."""
    fuse: Layer
    tokens: Layer
    token_classes: Layer
    token_boxes: BoxHead
    anchors: Tensor
    """float32 [tokens, 4]: cxcywh anchor box of each token, 0..1."""
    is_inside: Tensor
    """bool [tokens]: whether the token's anchor lies inside the image; other tokens are masked."""
    box_offsets: Tensor
    """float32 [queries, 4]: learned deltas (dx, dy, log dw, log dh) applied to the reference boxes."""
    frequencies: Tensor
    """float32 [hidden_dim / 2]: angular frequencies of the sine embedding of boxes."""
    sines: Layer
    """Maps the sine embedding of boxes to the hidden layer of the position MLP."""
    positions_of_layers: Layer
    """Maps that hidden layer to the position terms of each decoder layer's projections and sampling."""
    queries: Tensor
    """[queries, hidden_dim]: learned query embeddings, half precision."""
    values: Layer
    decoder: tuple[DecoderLayer, ...]
    classes: Layer
    boxes: BoxHead
    mask_blocks: tuple[MaskBlock, ...]
    mask_queries: MaskQueryHead | None


@torch.no_grad()
def fold(network: RFDETR, dtype: torch.dtype) -> Weights:
    """Fold a network's weights, on its device; best in float32, since weights of lower precision are rounded twice."""
    return _Folding(network, dtype).weights()


class _Folding:
    def __init__(self, network: RFDETR, dtype: torch.dtype) -> None:
        self._network: Any = network
        self._spec, self._dtype = network.spec, dtype

    def weights(self) -> Weights:
        network, spec, transformer = self._network, self._spec, self._network.transformer
        decoder, embeddings = transformer.decoder, network.backbone[0]["encoder"].encoder.embeddings
        head, values = network.segmentation_head, [layer.cross_attn.value_proj for layer in decoder.layers]
        return Weights(
            spec=spec,
            patches=self._half(embeddings.patch_embeddings["projection"].weight.flatten(1)),
            positions=self._positions(embeddings),
            blocks=tuple(map(self._block, network.backbone[0]["encoder"].encoder.encoder["layer"])),
            **self._projector(network.backbone[0]["projector"].stages[0]),
            tokens=self._layer(transformer.enc_output[0]),
            token_classes=self._classes(transformer.enc_out_class_embed[0], transformer.enc_output_norm[0]),
            token_boxes=self._box_head(transformer.enc_out_bbox_embed[0], transformer.enc_output_norm[0]),
            anchors=_float(transformer.anchors[0]),
            is_inside=transformer.is_inside.flatten(),
            box_offsets=_float(network.refpoint_embed.weight),
            frequencies=2 * math.pi / decoder.wavelengths,
            sines=self._layer(decoder.ref_point_head.layers[0], activation="relu"),
            positions_of_layers=self._positions_of_layers(decoder),
            queries=self._half(network.query_feat.weight),
            values=self._make(torch.cat([each.weight for each in values]), torch.cat([each.bias for each in values])),
            decoder=self._decoder(decoder),
            classes=self._classes(network.class_embed),
            boxes=self._box_head(network.bbox_embed),
            mask_blocks=() if head is None else tuple(map(self._mask_block, head.blocks)),
            mask_queries=None if head is None else self._mask_queries(head),
        )

    def _half(self, weight: Tensor) -> Tensor:
        return weight.detach().to(self._dtype).contiguous()

    def _make(self, weight: Tensor, bias: Tensor, *, before: Any = None, **options: Any) -> Layer:
        """Make a layer; the layer norm `before` it, if any, is folded into its weights."""
        if before is not None:
            weight, bias = fold_norm(weight, bias, before.weight, before.bias)
            options["eps"] = float(before.eps)
        return Layer(self._half(weight), _float(bias), **options)

    def _layer(
        self,
        linear: Any,
        *,
        before: Any = None,
        scale: Tensor | None = None,
        activation: Activation = "none",
        **norms: Any,
    ) -> Layer:
        """Convert a linear layer with its neighbouring norms; `scale` multiplies its outputs."""
        given: dict[str, Any] = {name: _norm(norm) for name, norm in norms.items() if norm is not None}
        return self._make(*_scaled(linear, scale), before=before, activation=activation, **given)

    def _positions(self, embeddings: Any) -> Tensor:
        spec = self._spec
        positions = embeddings.position_embeddings.float()
        patches = positions[:, 1:] + embeddings.patch_embeddings["projection"].bias.float()
        patches = split_windows(patches, spec.grid_hw, spec.windows)
        first = (embeddings.cls_token.float() + positions[:, :1]).expand(len(patches), -1, -1)
        return torch.cat((first, patches), dim=1).flatten(0, 1).contiguous()

    def _block(self, block: Any) -> Block:
        projections = block.attention.projections
        scale = _scale_queries(projections, block.attention.heads)
        return Block(
            self._layer(projections, before=block.norm1, scale=scale),
            self._layer(block.attention.output["dense"], scale=block.layer_scale1.lambda1),
            self._layer(block.mlp.fc1, before=block.norm2, activation="gelu"),
            self._layer(block.mlp.fc2, scale=block.layer_scale2.lambda1),
        )

    def _projector(self, stage: Any) -> dict[str, Any]:
        """Convert a C2f block: 1 × 1 convolution, bottlenecks, 1 × 1 convolution, norm."""
        c2f, last_norm = stage
        norm = self._network.backbone[0]["encoder"].encoder.layernorm
        first = c2f.cv1.conv.weight.float().flatten(1)
        none = norm.weight.new_zeros(len(first))
        join = [self._make(share, none, before=norm) for share in first.split(len(norm.weight), dim=1)]
        join[-1] = join[-1]._replace(activation="silu", norm=_norm(c2f.cv1.bn))
        return {
            "join": tuple(join),
            "bottlenecks": tuple(self._convolution(conv) for block in c2f.m for conv in (block.cv1, block.cv2)),
            "fuse": self._convolution(c2f.cv2)._replace(last_norm=_norm(last_norm)),
        }

    def _convolution(self, module: Any) -> Layer:
        """Convert a convolution with its norm and SiLU; the kernel's pixels lie row by row in its weight."""
        weight = module.conv.weight.float().permute(0, 2, 3, 1).flatten(1)
        return self._make(weight, weight.new_zeros(len(weight)), activation="silu", norm=_norm(module.bn))

    def _classes(self, linear: Any, before: Any = None) -> Layer:
        """Convert a class head to two half-precision terms, as exact as float32; padding classes have logit -inf."""
        weight, bias, options = linear.weight.float(), linear.bias.float(), {}
        if before is not None:
            weight, bias = fold_norm(weight, bias, before.weight, before.bias)
            options = {"eps": float(before.eps)}
        more = -len(weight) % _MULTIPLE
        weight = nn.functional.pad(weight, (0, 0, 0, more))
        bias = nn.functional.pad(bias, (0, more), value=-math.inf)
        return self._make(_split_terms(weight, self._dtype), bias, **options)

    def _box_head(self, head: Any, before: Any = None) -> BoxHead:
        """Convert a box head; the layer norm before it, if any, is folded in."""
        first, second, last = head.layers
        hidden = self._layer(first, before=before, activation="relu"), self._layer(second, activation="relu")
        return BoxHead(hidden, Layer(_float(last.weight), _float(last.bias)))

    def _positions_of_layers(self, decoder: Any) -> Layer:
        """Stack the layers that add position embeddings, and fold the position MLP's last layer into them."""
        parts = []
        for layer in decoder.layers:
            attention, width = layer.self_attn, self._spec.hidden_dim
            weight = attention.in_proj_weight.float() * _scale_queries(attention.out_proj, attention.heads)[:, None]
            weight[2 * width :] = 0  # values have no position
            sampling, _ = self._sampling(layer.cross_attn)
            parts += [weight, sampling]
        last, weight = decoder.ref_point_head.layers[-1], torch.cat(parts)
        return self._make(weight @ last.weight.float(), weight @ last.bias.float())

    def _sampling(self, attention: Any) -> tuple[Tensor, Tensor]:
        """Weight and bias of sampling, outputs in the order [points, 3, heads]: offsets and logit; zero-padded."""
        heads, points = attention.heads, attention.points
        parts = []
        for name in ("weight", "bias"):
            offsets = getattr(attention.sampling_offsets, name).float().unflatten(0, (heads, points, 2))
            logits = getattr(attention.attention_weights, name).float().unflatten(0, (heads, points, 1))
            part = torch.cat((offsets, logits), dim=2).movedim(0, 2).flatten(0, 2)
            parts.append(torch.cat((part, part.new_zeros(-len(part) % _MULTIPLE, *part.shape[1:]))))
        return parts[0], parts[1]

    def _decoder(self, decoder: Any) -> tuple[DecoderLayer, ...]:
        layers, before = [], None
        for layer in decoder.layers:
            is_last = layer is decoder.layers[-1]
            layers.append(self._decoder_layer(layer, before, decoder.norm if is_last else None))
            before = layer.norm3
        return tuple(layers)

    def _decoder_layer(self, layer: Any, before: Any, last_norm: Any) -> DecoderLayer:
        """Convert a decoder layer; its norms are folded into the layers behind them, but for the last layer's.

        `before` is the last norm of the layer in front, to fold into this one; `last_norm` that behind the decoder.
        """
        attention = layer.self_attn
        scale = _scale_queries(attention.out_proj, attention.heads)
        weight, bias = attention.in_proj_weight.float() * scale[:, None], attention.in_proj_bias * scale
        whole_norm = None if last_norm is None else layer.norm3
        return DecoderLayer(
            self._make(weight, bias, before=before),
            self._layer(attention.out_proj, residual_norm=before),
            self._make(*self._sampling(layer.cross_attn), before=layer.norm1),
            self._layer(layer.cross_attn.output_proj, residual_norm=layer.norm1),
            self._layer(layer.linear1, before=layer.norm2, activation="relu"),
            self._layer(layer.linear2, residual_norm=layer.norm2, norm=whole_norm, last_norm=last_norm),
        )

    def _mask_block(self, block: Any) -> MaskBlock:
        linear, norm = block.pwconv1, block.norm
        weight = linear.weight.float()
        pointwise = self._make(
            weight * norm.weight.float(), linear.bias.float() + weight @ norm.bias.float(), activation="gelu"
        )
        depthwise = block.dwconv.weight.float().flatten(1).T.contiguous()
        return MaskBlock(depthwise, _float(block.dwconv.bias), float(norm.eps), pointwise)

    def _mask_queries(self, head: Any) -> MaskQueryHead:
        block, image, query = head.query_features_block, head.spatial_features_proj, head.query_features_proj
        contract = block.layers[2]
        pixels, constant = image.weight.float().flatten(1), image.bias.float()
        weight = torch.cat((pixels.T @ query.weight.float(), (constant @ query.weight.float())[None]))
        bias = torch.cat((pixels.T @ query.bias.float(), constant @ query.bias.float()[:, None] + head.bias.float()))
        bias = bias + weight @ contract.bias.float()
        weight = torch.cat((weight @ contract.weight.float(), weight), dim=1)
        more = -len(weight) % _TILE
        return MaskQueryHead(
            self._layer(block.layers[0], before=block.norm_in, activation="gelu"),
            self._make(nn.functional.pad(weight, (0, 0, 0, more)), nn.functional.pad(bias, (0, more))),
        )


def _float(value: Tensor) -> Tensor:
    return value.detach().float().contiguous()


def _scaled(linear: Any, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """A layer's float32 weight and bias, with its outputs multiplied by `scale`."""
    weight, bias = linear.weight.float(), linear.bias.float()
    return (weight, bias) if scale is None else (weight * scale.float()[:, None], bias * scale.float())


def fold_norm(weight: Tensor, bias: Tensor, norm_weight: Tensor, norm_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Fold a layer norm into the weights [N, K] and bias of the linear layer behind it.

    The layer then takes the norm's input and its sums. The norm's affine goes into the weights, and each of their rows
    loses its mean, so that the mean of an input drops out.
    """
    weight = weight.float()
    bias = bias.float() + weight @ norm_bias.float()
    weight = weight * norm_weight.float()
    return weight - weight.mean(dim=1, keepdim=True), bias


def _split_terms(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Split a float32 weight [N, K] into two terms of a lower precision, side by side: [N, 2 × K]."""
    first = weight.to(dtype)
    return torch.cat((first, (weight - first.float()).to(dtype)), dim=1)


def _norm(norm: Any) -> Norm:
    return Norm(_float(norm.weight), _float(norm.bias), float(norm.eps))


def _scale_queries(linear: Any, heads: int) -> Tensor:
    """Factors of the outputs of packed projections: log₂ e / √D for queries, 1 for keys and values."""
    width = linear.weight.shape[1]
    scale = torch.ones(3 * width, dtype=torch.float32, device=linear.weight.device)
    scale[:width] = math.log2(math.e) * (width // heads) ** -0.5
    return scale
