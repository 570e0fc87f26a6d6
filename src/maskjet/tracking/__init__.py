"""Tracks, and counts of what crosses lines and stays in zones.

Examples:
    >>> from maskjet.tracking import Counting, parse_counters
    >>> counting = Counting(parse_counters(["gate=line:0,400,1280,400", "yard=zone:0,0,400,0,400,300:share=0.5"]))
"""

from maskjet.media.counts import Count, Event
from maskjet.tracking.counting import Counting, Line, Zone, parse_counters

__all__ = ["Count", "Counting", "Event", "Line", "Zone", "parse_counters"]
