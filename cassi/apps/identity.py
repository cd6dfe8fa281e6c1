"""What makes two reconstructions the same: a hash of their settings and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from cassi.evaluation.records import hash_key
from cassi.models.registry import weight_files

_WITHOUT_INFLUENCE = {
    "measurement",
    "truth",
    "device",
    "threads",
    "batch",
    "memory_budget",
    "paths",
}


def hash_settings(config: DictConfig) -> str:
    """Return a hash of all in a config that the results of every snapshot depend on."""
    settings: Any = OmegaConf.to_container(config, resolve=True)
    settings = {key: value for key, value in settings.items() if key not in _WITHOUT_INFLUENCE}
    settings["output"] = {k: v for k, v in settings["output"].items() if k != "progress"}
    return hash_files(settings)


def hash_files(value: Any) -> str:
    """Return a hash of dicts, lists, numbers and texts, of which some are files.

    A file stands for its name, size and time of change: to read a thousand of them again would take
    longer than to go on. The name of a shipped network stands for its weights.
    """
    return hash_key({"value": _stamped(value)})


def _stamped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _stamped(item) for key, item in value.items()}
    if files := weight_files(value):
        return [_stamped(str(file)) for file in files]
    if isinstance(value, list):
        return [_stamped(item) for item in value]
    if isinstance(value, str) and (path := Path(value).expanduser()).is_file():
        status = path.stat()
        return [path.name, status.st_size, status.st_mtime_ns]
    return value
