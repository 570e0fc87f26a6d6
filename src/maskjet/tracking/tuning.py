"""Constants of the tracker."""

from __future__ import annotations

from typing import NamedTuple


class Tuning(NamedTuple):
    """Tuned on the drawn streets of `benchmarks/tracking.md`. A size is the root of a box's area; times are seconds."""

    low: float = 0.1
    """Least confidence of a detection that continues a track."""
    birth: float = 0.7
    """Least confidence of one of a track's detections before it is confirmed."""
    evidence: float = 6.0
    """Or the sum of its detections' confidences."""
    instant: float = 0.85
    """Confidence with which a new track is confirmed at once, else with its second detection."""
    tentative_s: float = 0.2
    """How long a track that is not confirmed waits for a detection."""
    mask_share: float = 0.5
    """Share of the masks in the similarity of a track and a detection, the rest is the boxes'."""
    confidence_share: float = 0.5
    """Share of the similarity that is in proportion to the confidence."""
    other_class: float = 0.6
    """Factor of the similarity to a detection of another class."""
    least: float = 0.2
    """Least similarity, times confidence, of a track and a detection."""
    least_weak: float = 0.2
    """Least similarity to a detection below the threshold."""
    least_new: float = 0.3
    """Least similarity of a track that is not confirmed."""
    weak_s: float = 1.0
    """How long a track that is lost takes up detections below the threshold."""
    lost_s: float = 1.5
    """How long a lost track is kept where it would be seen."""
    covered_s: float = 4.0
    """How long at most where it is covered or has left the image."""
    covered_share: float = 0.35
    """Share of a mask under other masks, or outside, from which the thing counts as covered."""
    solid: float = 0.25
    """Least confidence of a detection that covers others."""
    cut_share: float = 0.12
    """Share of a mask under other masks from which its hidden edges move with the opposite ones."""
    cut_depth: float = 0.1
    """Depth, as a share of the box's side, that such an edge is missed by."""
    shrunk: float = 0.7
    """Share of its mask's pixels below which a thing that is partly covered keeps the mask from before."""
    return_sigmas: float = 3.0
    """Farthest that a thing is found again, in standard deviations of its place."""
    return_sizes: float = 1.5
    """Farthest that a thing is found again, in sizes."""
    return_areas: float = 2.0
    """Largest ratio of areas at which a thing is found again."""
    adopt_s: float = 0.5
    """Age up to which a track takes the identity of a lost one."""
    acceleration: float = 1.0
    """White noise of the acceleration, in sizes per second to the power of 1.5."""
    jitter: float = 0.12
    """Standard deviation of a detection's edges, in sizes."""
    first_speed: float = 3.0
    """That of a new track's speed, in sizes per second."""
    still_s: float = 1.0
    """Time constant in which a lost track comes to a stand; that of its growth is a tenth."""
    covered_still_s: float = 10.0
    """That of one that is covered."""
