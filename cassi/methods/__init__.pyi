from .automatic import auto
from .blended import Blended
from .deadline import Choice, choose_within
from .frames import video
from .noise_threshold import NoiseThreshold
from .refinement import nonlocal_refining, refining
from .restarts import Restarts
from .self_supervision import self_supervised
from .sequence import Sequence
from .started import Started
from .stops import TimeLimit
from .untrained_network import untrained

__all__ = [
    "Blended",
    "Choice",
    "NoiseThreshold",
    "Restarts",
    "Sequence",
    "Started",
    "TimeLimit",
    "auto",
    "choose_within",
    "nonlocal_refining",
    "refining",
    "self_supervised",
    "untrained",
    "video",
]
