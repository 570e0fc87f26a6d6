"""Small two-stage detectors of torchvision's, with random weights that find something."""

import torch
import torchvision
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

from benchmarks.planted import normalise_features

CLASSES = 7  # the background included
NAMED = [
    *("fasterrcnn_resnet50_fpn", "fasterrcnn_resnet50_fpn_v2", "fasterrcnn_mobilenet_v3_large_320_fpn"),
    *("maskrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn_v2"),
]


def detector(*, seed=0, has_masks=True, **options):
    """Over a ResNet-18, with narrow heads."""
    torch.manual_seed(seed)
    heads = {"box_head": TwoMLPHead(256 * 49, 64), "box_predictor": FastRCNNPredictor(64, CLASSES)}
    if has_masks:
        heads |= {"mask_head": MaskRCNNHeads(256, (16,), 1), "mask_predictor": MaskRCNNPredictor(16, 16, CLASSES)}
    backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5)
    build = MaskRCNN if has_masks else FasterRCNN
    limits = {"min_size": 96, "max_size": 160, "rpn_post_nms_top_n_test": 300, "box_detections_per_img": 40}
    model = build(backbone, **limits | heads | options).eval()
    model.requires_grad_(requires_grad=False)
    model.roi_heads.box_predictor.cls_score.weight.mul_(12)  # certain of its classes
    model.rpn.head.cls_logits.weight.mul_(8)
    model.rpn.head.bbox_pred.weight.mul_(5)  # boxes of all kinds; four times as much quintuples rounding
    return model


def named(name):
    """One of torchvision's own, as certain as a trained one."""
    torch.manual_seed(0)
    # Untrained, they tie; torchvision's order of ties is its own to choose above 1,000 pairs of a box and a class.
    options = {"num_classes": 12, "min_size": 128, "max_size": 192, "rpn_post_nms_top_n_test": 80}
    model = getattr(torchvision.models.detection, name)(weights=None, weights_backbone=None, **options).eval()
    model.requires_grad_(requires_grad=False)
    seen = []
    if "mobilenet" in name:  # whose features vanish without training, so that all boxes tie
        with torch.inference_mode():
            normalise_features(model, images((128, 170), seed=1))
    classifier = model.roi_heads.box_predictor.cls_score
    hook = classifier.register_forward_hook(lambda *call: seen.append(call[2].std()))
    with torch.inference_mode():
        model(images((128, 170), seed=1))
    hook.remove()
    classifier.weight.mul_(2 / seen[0])
    return model


def images(*sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(3, *size, generator=generator) for size in sizes]
