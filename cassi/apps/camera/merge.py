"""Reading the file of a camera, and setting what it says in a command's config."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cassi.apps.camera.file import check_camera, place
from cassi.checks import did_you_mean

_LARGEST = 2**20  # bytes of the file of a camera
_NOT_YAML = (
    *(OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError, RecursionError),
    OSError,  # of OmegaConf for what is a lone number; the file itself has been read by then
)
_COUPLED = {
    "cassi.systems.BlurredCassi": "blurred",
    "cassi.systems.TiltedCassi": "tilted",
    "cassi.systems.WarpedCassi": "warped",
}
_CHOSEN = {"system": "system._target_", "noise": "noise"}
"""What an option of a group says of the camera, by group."""


def load_camera(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the file of a camera.

    Returns:
        Its values, see `file.py`, with paths that can be opened from here.

    Raises:
        OSError: there is no such file.
        ValueError: it is no camera.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        there = [entry.name for entry in file.parent.iterdir()] if file.parent.is_dir() else []
        raise FileNotFoundError(f"camera: no file {file}{did_you_mean(file.name, there)}")
    if file.stat().st_size > _LARGEST:
        raise ValueError(f"camera: expected a short YAML file, got {file}")
    content = file.read_bytes()
    try:
        text = content.decode()
        # An alias of an alias of an alias could expand to any size.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            raise ValueError(f"camera: {file} has an alias, *NAME; use ${{vars.NAME}} instead")
        values = OmegaConf.to_container(OmegaConf.load(file), resolve=True)
    except _NOT_YAML as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"camera: {file} is not valid YAML: {reason}") from None
    camera = check_camera(values, file)
    if "noise" in camera and "_target_" not in camera["noise"]:
        camera["noise"] = _option("noise", "sensor") | camera["noise"]
        check_camera({"noise": camera["noise"]}, file)
    coupled = _COUPLED.get(camera.get("system", {}).get("_target_"))
    if coupled is not None:  # how exact its conjugate gradients are is no property of the camera
        usual = _option("system", coupled)
        kept = {name: usual[name] for name in ("tolerance", "iterations")}
        camera["system"] = kept | camera["system"]
    return camera


def with_camera(config: DictConfig, command: str, options: Iterable[str]) -> DictConfig:
    """Set what the file of a camera says, and the command line does not.

    Args:
        config: of Hydra; `camera` in it is the file, or None.
        command: "reconstruct", "calibrate", "evaluate" or "train".
        options: of the command line, which win over the file.

    Returns:
        The config, or a copy of it with the values of the camera.

    Raises:
        OSError: there is no such file.
        ValueError: it is no camera, or not for this command.
    """
    path = config.get("camera")
    if path is None:
        return config
    told = _told(options)
    values: Any = OmegaConf.to_container(config, resolve=False)
    placed = place(load_camera(str(path)), command, values, told)
    config = copy.deepcopy(config)
    for key, value in placed.items():
        kept = {name: OmegaConf.select(config, name) for name in told if name.startswith(f"{key}.")}
        OmegaConf.update(config, key, value, merge=False, force_add=True)
        for name, own in kept.items():
            OmegaConf.update(config, name, own, merge=False, force_add=True)
    return config


def _option(group: str, name: str) -> dict[str, Any]:
    text = resources.files("cassi.conf").joinpath(group, f"{name}.yaml").read_text("utf-8")
    values: Any = OmegaConf.to_container(OmegaConf.create(text))
    return dict(values)


def _told(options: Iterable[str]) -> set[str]:
    """Return the dotted names of what options set; a chosen system is its class alone."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    told = set()
    for option in OverridesParser.create().parse_overrides(list(options)):
        name, value = option.package or option.key_or_group, option.value()
        chosen = isinstance(value, str) and option.package is None and "." not in name
        if chosen and name in _CHOSEN:
            told.add(_CHOSEN[name])
        elif not (chosen and name in ("data", "experiment")):
            told.add(name)
    return told
