"""Rewrites that make two-stage detectors faster, with the same detections.

Examples:
    >>> import maskjet, torchvision
    >>> options = {"weights": None, "weights_backbone": None, "min_size": 64, "max_size": 96}
    >>> detector = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_fpn(**options).eval()
    >>> fast = maskjet.rewrites.optimize(detector)
    >>> model = maskjet.load(fast)
"""

from maskjet.export.onnx_rewrites import optimize_onnx
from maskjet.networks.torchvision.detector import StaticDetector
from maskjet.networks.torchvision.optimizing import optimize

__all__ = ["StaticDetector", "optimize", "optimize_onnx"]
