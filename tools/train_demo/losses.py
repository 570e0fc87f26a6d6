"""What the network is trained to: matching, classification aware of overlap, boxes, masks."""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment

from maskjet.ops.refine_boxes.reference import move_boxes

SIDE = 40  # points across an instance at which its mask is compared


def training_outputs(network, images, groups):
    """Every decoder layer's (logits, boxes, masks), and the encoder's; the queries of all groups side by side.

    Groups of queries see the image but not each other (Group DETR); inference keeps the first.
    """
    backbone, transformer, head = network.backbone[0], network.transformer, network.segmentation_head
    features = backbone["projector"](backbone["encoder"](images))
    memory = features.flatten(2).transpose(1, 2)
    batch = len(images)
    picked = [_pick(network, groups, memory, group) for group in range(groups.count)]
    encoder_logits, encoder_boxes, chosen = (torch.cat(parts, dim=1) for parts in zip(*picked, strict=True))
    references = move_boxes(encoder_boxes.detach(), groups.box_offsets(network).float())
    content = groups.content(network).expand(batch, -1, -1)
    decoder = transformer.decoder
    position = decoder.ref_point_head(decoder._sine_embedding(references).to(content.dtype))
    spatial = F.interpolate(features, size=head.mask_hw, mode="bilinear", align_corners=False)
    outputs = [(encoder_logits, encoder_boxes, _masks(head, spatial, chosen))]
    for layer, block in zip(decoder.layers, head.blocks, strict=True):
        content = _decode(layer, content, position, references, memory, groups.count)
        hidden = decoder.norm(content)
        spatial = block(spatial)
        boxes = move_boxes(references, network.bbox_embed(hidden))
        outputs.append((network.class_embed(hidden), boxes, _masks(head, spatial, hidden)))
    return outputs


class Groups(torch.nn.Module):
    """The queries and encoder heads of the groups that only training has."""

    def __init__(self, network, count):
        super().__init__()
        self.count = count
        extra = count - 1
        transformer = network.transformer
        self.heads = torch.nn.ModuleList(
            torch.nn.ModuleList(
                copy.deepcopy(getattr(transformer, name)[0])
                for name in ("enc_output", "enc_output_norm", "enc_out_class_embed", "enc_out_bbox_embed")
            )
            for _ in range(extra)
        )
        content = network.query_feat.weight.detach()
        noise = content.std() * torch.randn(extra * len(content), content.shape[1])
        self.query_feat = torch.nn.Parameter(content.repeat(extra, 1) + noise)
        self.refpoint_embed = torch.nn.Parameter(network.refpoint_embed.weight.detach().repeat(extra, 1))

    def head(self, network, group):
        """(output, norm, class, box) of one group."""
        if group:
            return tuple(self.heads[group - 1])
        t = network.transformer
        return t.enc_output[0], t.enc_output_norm[0], t.enc_out_class_embed[0], t.enc_out_bbox_embed[0]

    def content(self, network):
        """[groups × queries, hidden_dim]."""
        return torch.cat([network.query_feat.weight, self.query_feat])

    def box_offsets(self, network):
        """[groups × queries, 4]."""
        return torch.cat([network.refpoint_embed.weight, self.refpoint_embed])


def _pick(network, groups, memory, group):
    output, norm, classify, box = groups.head(network, group)
    transformer = network.transformer
    tokens = norm(output(memory * transformer.is_inside))
    logits = classify(tokens)
    picked = logits.detach().max(-1).values.topk(network.spec.queries, dim=1).indices[..., None]
    chosen = tokens.gather(1, picked.expand(-1, -1, tokens.shape[-1]))
    anchors = transformer.anchors.expand(len(memory), -1, -1).gather(1, picked.expand(-1, -1, 4))
    return logits.gather(1, picked.expand(-1, -1, logits.shape[-1])), move_boxes(anchors, box(chosen)), chosen


def _decode(layer, content, position, boxes, memory, groups):
    batch, _, width = content.shape
    apart = (batch * groups, -1, width)
    attended = layer.self_attn(content.reshape(apart), position.reshape(apart)).view(content.shape)
    content = layer.norm1(content + attended)
    content = layer.norm2(content + layer.cross_attn(content + position, boxes, memory))
    return layer.norm3(content + layer.linear2(F.relu(layer.linear1(content))))


def _masks(head, spatial, queries):
    image = head.spatial_features_proj(spatial).flatten(2)
    queries = head.query_features_proj(head.query_features_block(queries))
    return (queries @ image + head.bias).unflatten(-1, head.mask_hw)


def loss(outputs, batch, groups):
    """The sum over layers of weighted losses; each group of queries is matched to all instances.

    The encoder's proposals are matched on their own, all decoder layers by what the last one says.
    """
    outputs = [tuple(part.float() for part in output) for output in outputs]
    points, is_inside = _sample_truth(batch)
    encoder_match, decoder_match = _match(*outputs[0], batch, groups), _match(*outputs[-1], batch, groups)
    count = max(len(batch.classes), 1) * groups
    total = 0.0
    for number, (logits, boxes, masks) in enumerate(outputs):
        query, target, image = decoder_match if number else encoder_match
        mine, theirs = boxes[image, query], batch.boxes[target]
        overlap = _overlap(mine, theirs, giou=False)
        total = total + _classification(logits, query, image, batch.classes[target], overlap.detach())
        total = total + 5 * (mine - theirs).abs().sum() + 2 * (1 - _overlap(mine, theirs, giou=True)).sum()
        drawn = F.grid_sample(
            masks[image, query][:, None], 2 * points[target] - 1, padding_mode="border", align_corners=False
        )
        total = total + 5 * _mask_loss(drawn[:, 0], is_inside[target]).sum()
    return total / count


def _classification(logits, query, image, classes, overlap):
    """Binary cross-entropy whose target for a match mixes score and overlap (IA-BCE, as RF-DETR trains)."""
    probability = logits.sigmoid().detach()
    target = torch.zeros_like(logits)
    weight = probability**2
    quality = (probability[image, query, classes] ** 0.25 * overlap.clamp(min=0) ** 0.75).clamp(min=0.01)
    target[image, query, classes] = quality
    weight[image, query, classes] = 1.0
    return (F.binary_cross_entropy_with_logits(logits, target, reduction="none") * weight).sum()


@torch.no_grad()
def _sample_truth(batch):
    """Points (x, y) [n, SIDE + 16, SIDE, 2] in 0..1 at which masks are compared, and whether they are inside [n, ...].

    A mask is what its upsampled logits draw. Things are narrower than a logit's cell, so the comparison is made at the
    resolution of the input: SIDE × SIDE points over each box and its surroundings, the rest all over the image.
    """
    count, side = len(batch.boxes), batch.maps.shape[1]
    step = (torch.arange(SIDE, device=batch.boxes.device) + 0.5) / SIDE - 0.5
    around = torch.stack(torch.meshgrid(step, step, indexing="xy"), dim=-1)
    reach = batch.boxes[:, 2:] * 1.25 + 10 / side
    near = batch.boxes[:, None, None, :2] + around * reach[:, None, None]
    anywhere = torch.rand(count, 16, SIDE, 2, device=near.device)
    points = torch.cat([near, anywhere], dim=1).clamp(0, 1 - 1e-6)
    x, y = (points * side).long().unbind(-1)
    return points, (batch.maps[batch.image[:, None, None], y, x] == batch.number[:, None, None]).float()


def _mask_loss(logits, target):
    """Per mask: cross-entropy near the instance and elsewhere + 1 - dice near it."""
    entropy = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    entropy = entropy[:, :SIDE].mean((1, 2)) + entropy[:, SIDE:].mean((1, 2))
    near, target = logits[:, :SIDE].sigmoid(), target[:, :SIDE]
    dice = (2 * (near * target).sum((1, 2)) + 1) / (near.sum((1, 2)) + target.sum((1, 2)) + 1)
    return entropy + 1 - dice


@torch.no_grad()
def _match(logits, boxes, masks, batch, groups):
    """Hungarian matching per image and group; (query, target, image) of all matches.

    Targets are padded to the same number per image, so that costs are computed for an image's own pairs alone.
    """
    images, queries = logits.shape[0], logits.shape[1] // groups
    counts = torch.bincount(batch.image, minlength=images)
    starts = counts.cumsum(0) - counts
    slot = torch.arange(len(batch.image), device=logits.device) - starts[batch.image]
    counts, starts = counts.tolist(), starts.tolist()

    def pad(values):
        padded = values.new_zeros(images, max(counts), *values.shape[1:])
        padded[batch.image, slot] = values
        return padded

    cost = _cost(logits, boxes, masks.flatten(2), pad(batch.classes), pad(batch.boxes), pad(batch.masks.flatten(1)))
    per_group = cost.unflatten(1, (groups, queries)).cpu().numpy()
    matches = []
    for image, (start, count) in enumerate(zip(starts, counts, strict=True)):
        for group in range(groups):
            rows, columns = linear_sum_assignment(per_group[image, group, :, :count])
            matches.append(np.stack([rows + group * queries, columns + start, np.full_like(rows, image)]))
    return torch.from_numpy(np.concatenate(matches, axis=1)).to(logits.device).unbind(0)


def _cost(logits, boxes, masks, classes, true_boxes, inside):
    """[images, queries, targets]; the same terms as the loss, with focal classification."""
    score = logits.sigmoid().gather(2, classes[:, None].expand(-1, logits.shape[1], -1)).clamp(1e-4, 1 - 1e-4)
    classification = 2 * (0.25 * (1 - score) ** 2 * -score.log() - 0.75 * score**2 * -(1 - score).log())
    giou = _overlap(boxes[:, :, None], true_boxes[:, None], giou=True)
    inside_t = inside.transpose(1, 2)
    entropy = (F.softplus(masks).sum(2, keepdim=True) - masks @ inside_t) / masks.shape[2]
    shares = masks.sigmoid()
    dice = (2 * shares @ inside_t + 1) / (shares.sum(2, keepdim=True) + inside.sum(2)[:, None] + 1)
    return classification + 5 * torch.cdist(boxes, true_boxes, p=1) + 2 * (1 - giou) + 5 * (entropy + 1 - dice)


def _overlap(first, second, *, giou):
    """IoU or generalised IoU of cxcywh boxes that broadcast against each other."""
    corners = [torch.cat([b[..., :2] - b[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2], dim=-1) for b in (first, second)]
    areas = [(c[..., 2:] - c[..., :2]).clamp(min=0).prod(-1) for c in corners]
    shared = torch.minimum(corners[0][..., 2:], corners[1][..., 2:]) - torch.maximum(
        corners[0][..., :2], corners[1][..., :2]
    )
    shared = shared.clamp(min=0).prod(-1)
    union = (areas[0] + areas[1] - shared).clamp(min=1e-9)
    if not giou:
        return shared / union
    hull = (
        torch.maximum(corners[0][..., 2:], corners[1][..., 2:])
        - torch.minimum(corners[0][..., :2], corners[1][..., :2])
    ).prod(-1)
    return shared / union - (hull - union) / hull.clamp(min=1e-9)
