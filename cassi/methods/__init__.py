"""Methods by name, and the reconstructors around reconstructors that they are composed of."""

from cassi.methods.auto import auto
from cassi.methods.blended import Blended
from cassi.methods.noise_threshold import NoiseThreshold
from cassi.methods.refining import nonlocal_refining, refining
from cassi.methods.restarts import Restarts
from cassi.methods.self_supervised import self_supervised
from cassi.methods.sequence import Sequence
from cassi.methods.started import Started
from cassi.methods.stops import TimeLimit
from cassi.methods.untrained import untrained
from cassi.methods.video import video
from cassi.solvers.base import Checkpoint, Pass

__all__ = [
    "Blended",
    "Checkpoint",
    "NoiseThreshold",
    "Pass",
    "Restarts",
    "Sequence",
    "Started",
    "TimeLimit",
    "auto",
    "nonlocal_refining",
    "refining",
    "self_supervised",
    "untrained",
    "video",
]
