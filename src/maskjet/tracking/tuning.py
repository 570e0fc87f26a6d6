"""Constants of the tracker."""

from __future__ import annotations

from typing import NamedTuple


class Tuning(NamedTuple):
    """Tracker constants, tuned in `benchmarks/tracking.md`; a size is the square root of a box's area."""

    low: float = 0.1
    """Least confidence of a detection that continues an existing track."""
    birth: float = 0.7
    """A track is confirmed once one of its detections has this confidence, after the first."""
    evidence: float = 6.0
    """A track is also confirmed once its detections' confidences add up to this."""
    instant: float = 0.85
    """Least confidence of a first detection that confirms its track at once."""
    tentative_s: float = 0.2
    """Lifetime of an unconfirmed track without a detection, in seconds."""
    mask_share: float = 0.5
    """Weight of mask similarity in the similarity of a track and a detection; box IoU has the rest."""
    confidence_share: float = 0.5
    """Weight of confidence in match scores: similarity × (1 - weight + weight × confidence)."""
    other_class: float = 0.6
    """Factor on the similarity if track and detection differ in class."""
    least: float = 0.2
    """Least score, similarity weighted by confidence, to match a confirmed track."""
    least_weak: float = 0.2
    """Least similarity to match a confirmed track with a detection below the threshold."""
    least_new: float = 0.3
    """Least similarity to match an unconfirmed track."""
    weak_s: float = 1.0
    """Time for which a lost track matches detections below the threshold, in seconds."""
    lost_s: float = 1.5
    """Lifetime of a lost track whose predicted place is visible, in seconds."""
    covered_s: float = 4.0
    """Longest lifetime of a lost track that is covered or outside the image, in seconds."""
    covered_share: float = 0.35
    """Share of a track's mask hidden by detections or the image border from which it counts as covered."""
    solid: float = 0.25
    """Least confidence of a detection that can cover tracks."""
    cut_share: float = 0.12
    """Hidden share of a track's mask from which its detection counts as cut by an occluder."""
    cut_depth: float = 0.1
    """Least inward distance of a cut box's edge from the predicted one, in box sides, to count as hidden."""
    shrunk: float = 0.7
    """A cut detection with less than this share of the track's mask pixels does not replace that mask."""
    return_sigmas: float = 3.0
    """Largest distance to re-identify a lost track, in standard deviations of its place."""
    return_sizes: float = 1.5
    """Largest distance to re-identify a lost track, in sizes."""
    return_areas: float = 2.0
    """Largest ratio of mask areas to re-identify a lost track."""
    adopt_s: float = 0.5
    """Age up to which a track may take the id of a lost one, in seconds."""
    acceleration: float = 1.0
    """Process noise: root of the spectral density of acceleration, in sizes per second^1.5."""
    jitter: float = 0.12
    """Measurement noise: standard deviation of a detected box's edges, in sizes."""
    first_speed: float = 3.0
    """Standard deviation of a new track's speed, in sizes per second."""
    still_s: float = 1.0
    """Time constant, in seconds, with which a lost track's speed decays; its growth decays ten times as fast."""
    covered_still_s: float = 10.0
    """Time constant, in seconds, with which the speed of a covered lost track decays."""
