"""What a command is told: one typed, frozen object, made once from Hydra's config.

The files in `conf` hold every value and its default. `commands` and `parts` hold the types. `read`
fills them: a key that no class has, or a value of another type, is refused. `unknown` says where a
key that is refused has gone, or which key is near. Nobody beyond these files sees a config: nodes
that describe an object (`system`, `solver`, …) are plain dicts until `cassi.config.build` makes it.
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
from cassi.apps.settings.unknown import RENAMED, unknown_key

__all__ = [
    "KNOWLEDGE",
    "RENAMED",
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
