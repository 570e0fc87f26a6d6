"""Query selection and the decoder: from the feature map to a hidden vector and a reference box per query.

Boxes are cxcywh on the 0..1 scale. Boxes, anchors and all values derived from them are float32 at any precision
(`RFDETR.cast`): half a pixel at 1080p is 2.6e-4, and float16 near 1 has steps of 4.9e-4.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskjet.ops.refine_boxes.reference import move_boxes
from maskjet.spec import ModelSpec


class MLP(nn.Module):
    """Linear layers with ReLU between them; the last one computes in the precision of its weights."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers along the last dimension."""
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return exact_linear(self.layers[-1], x)


def exact_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """A linear layer that computes in the precision of its weights, which may be higher than the input's."""
    output: Tensor = layer(x.to(layer.weight.dtype))  # type: ignore[arg-type]
    return output


class _SelfAttention(nn.Module):
    """Attention among queries; the parameters of `nn.MultiheadAttention`, which the checkpoints hold."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.zeros(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, content: Tensor, position: Tensor) -> Tensor:
        _, length, width = content.shape
        weight, bias = self.in_proj_weight, self.in_proj_bias
        query_key = F.linear(content + position, weight[: 2 * width], bias[: 2 * width])
        value = F.linear(content, weight[2 * width :], bias[2 * width :])
        query, key, value = (
            part.view(-1, length, self.heads, width // self.heads).transpose(1, 2)
            for part in (*query_key.chunk(2, dim=-1), value)
        )
        context = F.scaled_dot_product_attention(query, key, value)
        output: Tensor = self.out_proj(context.transpose(1, 2).reshape(-1, length, width))
        return output


class _DeformableAttention(nn.Module):
    """Each head samples a few points around the query's box (Deformable DETR, one level)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        width, heads, points = spec.hidden_dim, spec.cross_attention_heads, spec.sampling_points
        self.heads, self.points, self.grid_hw = heads, points, spec.grid_hw
        self.sampling_offsets = nn.Linear(width, heads * points * 2)
        self.attention_weights = nn.Linear(width, heads * points)
        self.value_proj = nn.Linear(width, width)
        self.output_proj = nn.Linear(width, width)

    def forward(self, query: Tensor, boxes: Tensor, memory: Tensor) -> Tensor:
        batch, length, width = query.shape
        value = self.value_proj(memory).transpose(1, 2).reshape(batch * self.heads, -1, *self.grid_hw)
        offsets = self.sampling_offsets(query).float().view(batch, length, self.heads, self.points, 2)
        reach = boxes[:, :, None, None, 2:] * (0.5 / self.points)  # an offset of `points` reaches the box's edge
        where = boxes[:, :, None, None, :2] + offsets * reach
        where = (2 * where - 1).transpose(1, 2).flatten(0, 1)  # [B × heads, Q, points, 2] in -1..1
        sampled = F.grid_sample(value.float(), where, mode="bilinear", padding_mode="zeros", align_corners=False)
        weights = self.attention_weights(query).float().view(batch, length, self.heads, self.points).softmax(dim=-1)
        weights = weights.transpose(1, 2).flatten(0, 1)[:, None]  # [B × heads, 1, Q, points]
        context = (sampled * weights).sum(dim=-1).view(batch, width, length).transpose(1, 2)
        output: Tensor = self.output_proj(context.to(query.dtype))
        return output


class _DecoderLayer(nn.Module):
    """Queries attend to each other, then to the image, then a feed-forward block; norms come after."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        width = spec.hidden_dim
        self.self_attn = _SelfAttention(width, spec.self_attention_heads)
        self.norm1 = nn.LayerNorm(width)
        self.cross_attn = _DeformableAttention(spec)
        self.norm2 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, spec.feed_forward_dim)
        self.linear2 = nn.Linear(spec.feed_forward_dim, width)
        self.norm3 = nn.LayerNorm(width)

    def forward(self, content: Tensor, position: Tensor, boxes: Tensor, memory: Tensor) -> Tensor:
        content = self.norm1(content + self.self_attn(content, position))
        content = self.norm2(content + self.cross_attn(content + position, boxes, memory))
        output: Tensor = self.norm3(content + self.linear2(F.relu(self.linear1(content))))
        return output


class _Decoder(nn.Module):
    """Decoder layers; all use the same reference boxes (rfdetr's `lite_refpoint_refine`)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        width = spec.hidden_dim
        self.layers = nn.ModuleList(_DecoderLayer(spec) for _ in range(spec.decoder_layers))
        self.norm = nn.LayerNorm(width)
        self.ref_point_head = MLP(2 * width, width, width)
        # On the CPU even if the default device is meta, where buffers would hold no values.
        steps = torch.arange(width // 2, dtype=torch.float32, device="cpu")
        wavelengths = 10000 ** (2 * (steps // 2) / (width // 2))
        self.wavelengths = nn.Buffer(wavelengths, persistent=False)

    def forward(self, content: Tensor, boxes: Tensor, memory: Tensor) -> Tensor:
        position = self.ref_point_head(self._sine_embedding(boxes).to(content.dtype))
        for layer in self.layers:
            content = layer(content, position, boxes, memory)
        output: Tensor = self.norm(content)
        return output

    def _sine_embedding(self, boxes: Tensor) -> Tensor:
        """Sines and cosines of cy, cx, w, h at width/4 wavelengths each: [B, Q, 2 × width] (DAB-DETR)."""
        yxwh = torch.cat((boxes[..., 1:2], boxes[..., :1], boxes[..., 2:]), dim=-1)  # a list index is copied each time
        angles = yxwh[..., None] * (2 * math.pi) / self.wavelengths
        pairs = torch.stack((angles[..., 0::2].sin(), angles[..., 1::2].cos()), dim=-1)
        return pairs.flatten(2)


def _anchors(grid_hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """One box per token, 5 % of the image a side, and whether its centre is within 1..99 % of the image."""
    centres = ((torch.arange(side, dtype=torch.float32, device="cpu") + 0.5) / side for side in grid_hw)
    cy, cx = torch.meshgrid(*centres, indexing="ij")
    boxes = torch.stack((cx, cy, torch.full_like(cx, 0.05), torch.full_like(cx, 0.05)), dim=-1).view(1, -1, 4)
    is_inside = ((boxes > 0.01) & (boxes < 0.99)).all(dim=-1, keepdim=True)
    return boxes * is_inside, is_inside


class Transformer(nn.Module):
    """Pick the most promising tokens as reference boxes, then decode the queries around them."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        width = spec.hidden_dim
        self.queries = spec.queries
        # Lists of one: rfdetr trains several groups of queries and infers with the first.
        self.enc_output = nn.ModuleList([nn.Linear(width, width)])
        self.enc_output_norm = nn.ModuleList([nn.LayerNorm(width)])
        self.enc_out_class_embed = nn.ModuleList([nn.Linear(width, spec.class_logits)])
        self.enc_out_bbox_embed = nn.ModuleList([MLP(width, width, width, 4)])
        self.decoder = _Decoder(spec)
        anchors, is_inside = _anchors(spec.grid_hw)
        self.anchors = nn.Buffer(anchors, persistent=False)
        self.is_inside = nn.Buffer(is_inside, persistent=False)

    def forward(self, features: Tensor, content: Tensor, box_offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Decode the queries.

        Args:
            features: [B, hidden_dim, *grid_hw].
            content: [queries, hidden_dim], learned.
            box_offsets: float32 [queries, 4], learned, applied to the boxes picked.

        Returns:
            Hidden vectors [B, queries, hidden_dim] and the boxes they refer to, float32 [B, queries, 4] cxcywh.
        """
        memory = features.flatten(2).transpose(1, 2)
        boxes = move_boxes(self._pick_boxes(memory), box_offsets)
        # In an exported file what depends on the content alone is a constant, which broadcasts.
        content = content[None] if torch.compiler.is_exporting() else content.expand(memory.shape[0], -1, -1)
        return self.decoder(content, boxes, memory), boxes

    def _pick_boxes(self, memory: Tensor) -> Tensor:
        """The boxes of the tokens with the highest class logit, float32 [B, queries, 4]."""
        tokens = self.enc_output_norm[0](self.enc_output[0](memory * self.is_inside))
        best_logit = exact_linear(self.enc_out_class_embed[0], tokens).max(dim=-1).values
        picked = best_logit.topk(self.queries, dim=1).indices
        chosen = tokens.gather(1, picked[..., None].expand(-1, -1, tokens.shape[-1]))
        return move_boxes(F.embedding(picked, self.anchors[0]), self.enc_out_bbox_embed[0](chosen))
