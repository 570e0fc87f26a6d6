"""Multi-object tracking: one id per instance across the frames of a video; counting by lines and zones.

Examples:
    >>> from maskjet.tracking import Counting, parse_counters
    >>> counting = Counting(parse_counters(["gate=line:0,400,1280,400", "yard=zone:0,0,400,0,400,300:share=0.5"]))
"""

from maskjet.sources.counts import Count, Event
from maskjet.tracking.counting import Counting, Line, Zone, parse_counters
from maskjet.tracking.smoothing import smooth
from maskjet.tracking.streams import TrackerLike, track
from maskjet.tracking.tracker import Tracker
from maskjet.tracking.tuning import Tuning
from maskjet.tracking.two_passes import second_pass

__all__ = [
    "Count",
    "Counting",
    "Event",
    "Line",
    "Tracker",
    "TrackerLike",
    "Tuning",
    "Zone",
    "parse_counters",
    "second_pass",
    "smooth",
    "track",
]
