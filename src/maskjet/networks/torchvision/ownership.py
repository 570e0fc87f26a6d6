"""Check that the modules to rewrite are torchvision's own.

A rewrite reads the attributes of torchvision's classes and replaces their methods. A subclass's method, a function set
on an instance or a hook would silently not run, so each is refused by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from torch import nn

from maskjet.errors import UnsupportedError

_DETECTION = "torchvision.models.detection."
_OWN = {
    "": ("faster_rcnn.FasterRCNN", "mask_rcnn.MaskRCNN", "generalized_rcnn.GeneralizedRCNN"),
    "transform": ("transform.GeneralizedRCNNTransform",),
    "rpn": ("rpn.RegionProposalNetwork",),
    "rpn.anchor_generator": ("anchor_utils.AnchorGenerator",),
    "rpn.box_coder": ("_utils.BoxCoder",),
    "roi_heads": ("roi_heads.RoIHeads",),
    "roi_heads.box_coder": ("_utils.BoxCoder",),
    "roi_heads.box_roi_pool": ("torchvision.ops.poolers.MultiScaleRoIAlign",),
    "roi_heads.mask_roi_pool": ("torchvision.ops.poolers.MultiScaleRoIAlign",),
    "roi_heads.mask_predictor": ("mask_rcnn.MaskRCNNPredictor", "torch.nn.modules.container.Sequential"),
}
PARTS = tuple(path for path in _OWN if not path.startswith("roi_heads.mask"))
"""Paths of all rewritten parts, except those for masks."""
MASK_PARTS = tuple(path for path in _OWN if path.startswith("roi_heads.mask"))
"""Paths of the rewritten parts for masks."""
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def check_parts(model: Any, paths: Iterable[str]) -> None:
    """Check that parts of a detector are of torchvision's own classes, and that none of their methods is replaced.

    Paths are of `PARTS` and `MASK_PARTS`; "" is the model itself.

    Raises:
        UnsupportedError: A part is not; the message names it.
    """
    for path in paths:
        name = f"model.{path}".rstrip(".")
        try:
            part = attrgetter(path)(model) if path else model
        except AttributeError as error:
            raise UnsupportedError(f"{name} must be torchvision's, got none.") from error
        known = _OWN[path]
        found = f"{type(part).__module__}.{type(part).__qualname__}"
        if found.removeprefix(_DETECTION) not in known:
            expected = " or ".join(each.rpartition(".")[2] for each in known)
            raise UnsupportedError(f"{name} must be torchvision's {expected}, got {found}, whose code would not run.")
        _check_code(name, part)


def check_layers(model: nn.Module) -> None:
    """Check that no module of a detector has hooks or a replaced method, which joined layers would lose.

    Raises:
        UnsupportedError: A module has; the message names it.
    """
    for path, module in model.named_modules():
        _check_code(f"model.{path}".rstrip("."), module)


def is_torchvisions(module: object, name: str) -> bool:
    """Whether a module is exactly of this class of torchvision's detectors, such as "rpn.RPNHead"."""
    return f"{type(module).__module__}.{type(module).__qualname__}" == _DETECTION + name


def _check_code(name: str, part: Any) -> None:
    """Check that a module has no hooks, and that none of its methods is replaced."""
    for attribute in vars(part):
        if callable(getattr(type(part), attribute, None)):
            raise UnsupportedError(
                f"{name}.{attribute} must be the method of {type(part).__name__}, got one set on the instance, which "
                "would not run."
            )
    for owner in type(part).__mro__:
        if not owner.__module__.startswith("torchvision."):
            continue
        for attribute, value in vars(owner).items():
            if inspect.isfunction(value) and value.__module__ != owner.__module__:
                raise UnsupportedError(
                    f"{name}.{attribute} must be torchvision's, got one of {value.__module__}, which would not run."
                )
    for hooks in _HOOKS:
        if getattr(part, hooks, None):
            kind = hooks.strip("_").replace("_", " ")
            raise UnsupportedError(f"{name} must have no {kind}, which would not run: remove them.")
