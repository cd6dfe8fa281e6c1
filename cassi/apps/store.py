"""Under which fingerprint results are kept: all that they depend on."""

from __future__ import annotations

from typing import Any

from cassi.apps.reconstructors import name_weights
from cassi.apps.settings import influence
from cassi.data.store import fingerprint


def fingerprint_settings(settings: Any, on: str = "files") -> str:
    """Return a hash of all in settings that the results of every snapshot depend on.

    A file stands for its name, size and time of change.

    Args:
        settings: of a command.
        on: "files" for all that is written, "cube" for the cube alone.
    """
    return fingerprint(name_weights(influence(settings, on)))
