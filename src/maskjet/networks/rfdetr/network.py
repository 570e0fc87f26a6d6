"""RF-DETR and RF-DETR-Seg, inference only: images in; class logits, boxes and mask logits of the last layer out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from maskjet.networks.rfdetr.backbone import Backbone
from maskjet.networks.rfdetr.decoder import MLP, Transformer, exact_linear
from maskjet.networks.rfdetr.mask_head import MaskHead
from maskjet.networks.rfdetr.projector import Projector
from maskjet.ops.refine_boxes.reference import move_boxes
from maskjet.spec import ModelSpec

# Parameters that `RFDETR.cast` keeps in float32: in float16 boxes would shift by fractions of a pixel, and close
# scores would become ties, ordered differently by each kernel.
_EXACT = (
    *("refpoint_embed.", "class_embed.", "bbox_embed.layers.2."),
    *("transformer.enc_out_class_embed.", "transformer.enc_out_bbox_embed.0.layers.2."),
)


class NetworkOutput(NamedTuple):
    """A network's output for a batch of B images, with Q queries and C class logits."""

    logits: Tensor
    """[B, Q, C] class logits, in the precision of the class head's weights."""
    boxes_cxcywh: Tensor
    """float32 [B, Q, 4], 0..1 of the input."""
    mask_logits: Tensor | None
    """[B, Q, *mask_hw], positive inside; None without a mask head."""


class RFDETR(nn.Module):
    """One network for every size; equal to rfdetr 1.11.2's module in eval mode.

    Static shapes, no data-dependent control flow, no host synchronisation: it can be captured in a CUDA graph and
    compiled with `fullgraph=True`. The batch size is free.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        width = spec.hidden_dim
        self.spec = spec
        # A list of one: in rfdetr the second entry is the position encoding, which this decoder never reads.
        self.backbone = nn.ModuleList([nn.ModuleDict({"encoder": Backbone(spec), "projector": Projector(spec)})])
        self.transformer = Transformer(spec)
        self.query_feat = nn.Embedding(spec.queries, width)
        self.refpoint_embed = nn.Embedding(spec.queries, 4)
        self.class_embed = nn.Linear(width, spec.class_logits)
        self.bbox_embed = MLP(width, width, width, 4)
        self.segmentation_head = MaskHead(spec) if spec.has_masks else None

    def forward(self, images: Tensor) -> NetworkOutput:
        """Run the network on [B, 3, *spec.input_hw], in the precision of `cast`: (RGB / 255 - mean) / std."""
        backbone = self.backbone[0]
        features = backbone["projector"](backbone["encoder"](images))  # type: ignore[index]
        hidden, references = self.transformer(features, self.query_feat.weight, self.refpoint_embed.weight.float())
        boxes = move_boxes(references, self.bbox_embed(hidden))
        masks = None if self.segmentation_head is None else self.segmentation_head(features, hidden)
        return NetworkOutput(exact_linear(self.class_embed, hidden), boxes, masks)

    def cast(self, dtype: torch.dtype) -> RFDETR:
        """Convert the weights to a precision, in place, except those of the layers that give scores and boxes.

        Softmax, the norms' statistics and sums over channels are float32 in PyTorch's kernels at any precision, and box
        arithmetic is in this module. Buffers stay as they are. Returns the network itself.
        """
        for name, parameter in self.named_parameters():
            if not name.startswith(_EXACT):
                parameter.data = parameter.data.to(dtype)
        return self
