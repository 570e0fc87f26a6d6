"""Small two-stage detectors of torchvision's, with random weights that find something."""

import torch
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

CLASSES = 7  # the background included


def detector(*, seed=0, has_masks=True, **options):
    """Over a ResNet-18, with narrow heads."""
    torch.manual_seed(seed)
    heads = {"box_head": TwoMLPHead(256 * 49, 64), "box_predictor": FastRCNNPredictor(64, CLASSES)}
    if has_masks:
        heads |= {"mask_head": MaskRCNNHeads(256, (16,), 1), "mask_predictor": MaskRCNNPredictor(16, 16, CLASSES)}
    backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5)
    build = MaskRCNN if has_masks else FasterRCNN
    model = build(
        backbone, **{"min_size": 96, "max_size": 160, "box_detections_per_img": 40, **heads, **options}
    ).eval()
    model.requires_grad_(requires_grad=False)
    model.roi_heads.box_predictor.cls_score.weight.mul_(12)  # certain of its classes
    model.rpn.head.cls_logits.weight.mul_(8)
    model.rpn.head.bbox_pred.weight.mul_(20)  # boxes of all kinds
    return model


def images(*sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(3, *size, generator=generator) for size in sizes]
