"""Tracks: counts of what crosses lines and stays in zones."""

from maskjet.media.counts import Count, Event
from maskjet.tracking.counting import Counting, Line, Zone, parse_counter

__all__ = ["Count", "Counting", "Event", "Line", "Zone", "parse_counter"]
