"""The settings of a command: one typed, frozen object, made once from Hydra's config.

The files in `conf` have every setting and its default. `commands` and `parts` have the types.
`read` fills them, and refuses a key that no class has, or a value of another type. `unknown` writes
the message on such a key. No other code reads a config. Nodes that describe an object (`system`,
`solver`, …) are plain dicts until `cassi.config.build` makes the object.
"""

from cassi.apps.settings.commands import (
    KNOWLEDGE,
    UNCERTAINTY,
    Calibrate,
    Camera,
    Evaluate,
    Export,
    Reconstruct,
    Sharing,
    Snapshots,
    Train,
    check_nodes,
)
from cassi.apps.settings.parts import (
    Cluster,
    Data,
    Figure,
    GuidePicture,
    Output,
    Protocol,
    Validation,
)
from cassi.apps.settings.read import influence, read_settings, to_dict, to_yaml
from cassi.apps.settings.unknown import MOVED_SETTINGS, unknown_key

__all__ = [
    "KNOWLEDGE",
    "MOVED_SETTINGS",
    "UNCERTAINTY",
    "Calibrate",
    "Camera",
    "Cluster",
    "Data",
    "Evaluate",
    "Export",
    "Figure",
    "GuidePicture",
    "Output",
    "Protocol",
    "Reconstruct",
    "Sharing",
    "Snapshots",
    "Train",
    "Validation",
    "check_nodes",
    "influence",
    "read_settings",
    "to_dict",
    "to_yaml",
    "unknown_key",
]
