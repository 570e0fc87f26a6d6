"""Identities over time: the same number for the same thing in all frames of a video."""

from maskjet.tracking.streams import StreamTracking, TrackerLike
from maskjet.tracking.tracker import Tracker
from maskjet.tracking.tuning import Tuning

__all__ = ["StreamTracking", "Tracker", "TrackerLike", "Tuning"]
