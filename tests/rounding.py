"""How far apart two results may lie that only round differently, and which of their rows belong together."""

import math

import numpy as np
import torch
from torch.overrides import TorchFunctionMode


def rounding(terms, largest, dtype=torch.float32):
    """The most that two sums of the same terms, added in other orders, may lie apart on any processor.

    Each addition rounds a partial sum by at most half an ULP, up or down, so that errors grow like a random walk: with
    the root of the number of terms. An ULP of the largest value in place of the average error (0.41 ULPs of the partial
    sums for the difference of two) leaves room for the largest of millions.

    Args:
        terms: Additions on the longest way from an input to an output; those of layers in a row add up.
        largest: Of the partial sums, about the largest output.
        dtype: What is rounded to.
    """
    return torch.finfo(dtype).eps * math.sqrt(terms) * float(largest)


def additions(module):
    """Of all its layers' sums: at least those on the longest way through it."""
    layers = [each for each in module.modules() if isinstance(each, torch.nn.Linear | torch.nn.Conv2d)]
    return sum(layer.weight[0].numel() for layer in layers)


def pair_rows(xyxy, class_id, other_xyxy, other_class_id):
    """For each detection, the row of the other result with its class and the nearest box.

    Confidences within rounding may have changed places. Each of the others belongs to exactly one.
    """
    rows = _nearest(xyxy, class_id, other_xyxy, other_class_id)[0]
    assert sorted(rows.tolist()) == list(range(len(other_xyxy)))
    return rows


def sure_rows(xyxy, class_id, confidence, other_xyxy, other_class_id, *, box_tolerance, margin):
    """Rows of a detection to compare with the other result: all but the weakest that it lacks.

    Where their number is limited, another one may have taken the last place: only rows no more than `margin` more
    confident than the weakest may have no equal.
    """
    distance = _nearest(xyxy, class_id, other_xyxy, other_class_id)[1]
    is_lacking = ~(distance <= box_tolerance)
    assert (np.asarray(confidence)[is_lacking] <= min(confidence, default=0) + margin).all()
    return np.flatnonzero(~is_lacking)


def _nearest(xyxy, class_id, other_xyxy, other_class_id):
    """For each row, the other one of its class with the nearest box, and how far its furthest side is."""
    if len(other_xyxy) == 0:
        return np.zeros(len(xyxy), int), np.full(len(xyxy), np.inf)
    distance = abs(np.asarray(xyxy)[:, None] - np.asarray(other_xyxy)[None]).max(axis=2)
    distance[np.asarray(class_id)[:, None] != np.asarray(other_class_id)[None]] = np.inf
    return distance.argmin(axis=1), distance.min(axis=1)


class SameTokens(TorchFunctionMode):
    """Has two RF-DETRs decode the same tokens in the same order, where they rank them alike.

    Queries are learned rank by rank: two tokens within rounding that change places change what is found. The choice of
    the first of two calls is recorded. In the second all tokens' scores must be close to the recorded ones, and at each
    rank the recorded token's score must be close to that of the token found there, whose place it then takes.

    Args:
        tokens: Of an image, to know the choice among them from others.
        tolerance: Of their scores.
    """

    def __init__(self, tokens, tolerance):
        super().__init__()
        self.tokens, self.tolerance = tokens, tolerance
        self.recorded = None
        self.compared = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if function not in (torch.topk, torch.Tensor.topk) or args[0].shape[1:] != (self.tokens,):
            return found
        if self.recorded is None:
            self.recorded = args[0], found.indices
            return found
        (scores, chosen), self.recorded = self.recorded, None
        limits = {"atol": self.tolerance, "rtol": 0}
        torch.testing.assert_close(args[0], scores, **limits)
        values = args[0].gather(1, chosen)
        torch.testing.assert_close(values, found.values, **limits)
        self.compared += 1
        return torch.return_types.topk((values, chosen))
