"""Instance masks from frames as fast as the hardware allows, with proof that the answer did not change."""

from maskjet import ops, rewrites, traffic
from maskjet.detections import Detections
from maskjet.frames import Frame
from maskjet.model import Model, Report, load

__version__ = "0.1.0"

__all__ = ["Detections", "Frame", "Model", "Report", "__version__", "load", "ops", "rewrites", "traffic"]
