"""A camera in a file of its own, and where its values stand in the settings of each command.

The file says what the camera is: mask, system, wavelengths, what its raw frames go through, and the
noise of its sensor. Of measurements that are simulated mask, system, wavelengths and noise count;
of measurements that were taken all but the noise.
"""

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from cassi.apps.arguments import options_of
from cassi.apps.camera.nodes import KINDS, check_described, check_plain
from cassi.apps.camera.text import LARGEST, parse
from cassi.apps.camera.yaml_slips import find_slip
from cassi.checks import did_you_mean, read_regular
from cassi.config import Node, verbatim

FRAME = ("dark", "flat", "bits", "saturation", "bad_pixels", "window", "scale")
"""What raw frames go through."""
FOUND = ("saturation", "bad_pixels")
"""What is found in the frame itself, unless it is null."""
NEUTRAL = {"dark": 0.0, "scale": 1.0, **dict.fromkeys(FOUND, "auto")}
"""What need not be said; of the others it is None."""
FRAMES = ("measurement", "white", "monochromatic")
"""Settings that name raw frames."""
OWN = ("mask", "photographed", "light", "wavelengths", "wavelengths_error")
"""What stands under the same name in the settings of a command that reads snapshots."""
GEOMETRY = {"bands": None, "step": 2, "axis": -1, "offsets": None}
"""Of every system; what a file leaves out is this."""
SD_CASSI = "cassi.systems.SDCassi"
USUAL = {"system": SD_CASSI, "noise": "cassi.data.sensor.Sensor"}
"""Classes of what names none."""
ROLES = ("mask", "measurement")
"""Of `keys` and `axes`: the name of an array in a file, and the order of its axes."""
NAMES = (*OWN, "keys", "axes", "system", "noise", *FRAME, "response", "vars")
"""Of the values of a camera file; docs/reference/camera-file.md says what they are."""

Values = Node


def check_camera(values: Any, path: Path, folder: Path) -> Values:
    """Check what a camera file holds, and resolve its paths.

    Paths are relative to `folder`, or else to the current one. `vars` is left out.
    """
    if not isinstance(values, dict) or all(value is None for value in values.values()):
        got = repr(values)[:80] if values and not isinstance(values, dict) else "nothing"
        raise ValueError(
            f"camera: expected a file with mask: FILE, system: {{…}} and so on, got {got} in {path}"
        )
    if "defaults" in values:
        raise ValueError(
            f"camera: {path} is a config of a command, its first lines say so; give it by "
            "--config-dir DIR --config-name NAME, or leave out its defaults"
        )
    _check_names(values, NAMES, path)
    found = {
        key: value
        for key, value in values.items()
        if key != "vars" and (value is not None or key in FOUND)
    }
    found = {name: _check_value(name, value, path) for name, value in found.items()}
    for name in ("mask", "dark", "flat", "bad_pixels", "response"):
        if name in found:
            found[name] = with_files(found[name], lambda file: _resolve(file, folder))
    system = found.get("system", {})
    for name in ("response", "kernels"):
        if isinstance(system.get(name), str):
            found["system"] = found["system"] | {name: _resolve(system[name], folder)}
    offsets = system.get("offsets")
    if isinstance(offsets, dict) and isinstance(offsets.get("file"), str):
        moved = offsets | {"file": _resolve(offsets["file"], folder)}
        found["system"] = found["system"] | {"offsets": moved}
    return found


def _check_names(values: Values, known: Sequence[str], path: Path, place: str = "") -> None:
    for key in values:
        if key not in known:
            name = f"{place}{key[:80]}"
            near = did_you_mean(key[:80], known, place=place) or f"; there is {', '.join(known)}"
            raise ValueError(f"camera: no value {name!r} in {path}{near}")


def _check_value(name: str, value: Any, path: Path) -> Any:
    """Return one value of the file, checked; a system without a name is the usual one."""
    if name in ("system", "noise", "keys", "axes") and not isinstance(value, dict):
        got = str(value)[:80]
        raise ValueError(f"camera: {name}: expected values by name, got {got} in {path}")
    if name in ("keys", "axes"):
        _check_names(value, ROLES, path, f"{name}.")
        for role, text in value.items():
            if isinstance(text, dict | list):
                got = str(text)[:80]
                raise ValueError(f"camera: {name}.{role}: expected a name, got {got} in {path}")
        return dict.fromkeys(ROLES) | value
    try:
        if name in KINDS and isinstance(value, dict):
            described = {"_target_": USUAL.get(name)} | value
            check_described(name, described)
            return described if name == "system" else value
        for inner in value.values() if name == "response" and isinstance(value, dict) else [value]:
            check_plain(inner, name)
    except ValueError as error:
        raise ValueError(f"camera: {path}: {error}") from None
    return value


def with_files(value: Any, resolve: Callable[[str], str]) -> Any:
    """Return a value of the frames with other paths: a file, a list with some, or none."""
    if isinstance(value, list):
        return [with_files(item, resolve) for item in value]
    if isinstance(value, dict) and "_target_" not in value:
        return {key: with_files(item, resolve) for key, item in value.items()}
    return resolve(value) if isinstance(value, str) and value != "auto" else value


def _resolve(value: str, folder: Path) -> str:
    if value.startswith("bundled:"):
        return value
    path = Path(value).expanduser()
    beside = folder / path  # which an absolute path is itself
    return str(path if path.exists() and not beside.exists() else beside)


def place(camera: Values, command: str, config: Values, told: Iterable[str]) -> Values:
    """Return the values of a camera by where they stand in the settings of a command.

    Args:
        camera: of `check_camera`.
        command: "reconstruct", "calibrate", "evaluate" or "train".
        config: of the command, as dicts, lists and scalars.
        told: dotted names of what the command line says, which wins.

    Returns:
        Values by dotted name, each to be set as a whole.
    """
    told = set(told)
    where = {"evaluate": _in_evaluation, "train": _in_training}.get(command, _in_snapshots)
    return {
        key: value
        for key, value in where(camera, config, told)
        if not any(f"{key}.".startswith(f"{name}.") for name in told)
    }


def _in_snapshots(camera: Values, config: Values, told: set[str]) -> Iterator[tuple[str, Any]]:
    simulated = config.get("measurement") is None and config.get("truth") is not None
    taken = not simulated and any(config.get(name) is not None for name in FRAMES)
    for name in OWN:
        if name in camera:
            yield name, camera[name]
    if "system" in camera:
        yield "system", _system(camera["system"], config.get("system"), told)
    for group in ("keys", "axes"):
        given = camera.get(group) or {}
        if "mask" in camera and "mask" not in told:
            yield f"{group}.mask", given.get("mask")
        if given.get("measurement") is not None:
            yield f"{group}.measurement", given["measurement"]
    for name in FRAME if taken else ("noise",):
        if name in camera:
            yield name, camera[name]
    if "response" in camera and "response" in config:
        yield "response", camera["response"]


def _in_evaluation(camera: Values, config: Values, told: set[str]) -> Iterator[tuple[str, Any]]:
    data = config.get("data") or {}
    about = data.get("evaluation") or {}
    measured = about.get("measurements")
    if measured == "${data.measurements}":
        measured = data.get("measurements")
    taken = measured is not None
    for name in ("mask", "photographed", "light"):
        if name in camera:
            yield name, camera[name]
    if "wavelengths" in camera:
        yield "data.wavelengths", camera["wavelengths"]
    if "system" in camera:
        yield "system", _system(camera["system"], config.get("system"), told)
    for group, name in (("keys", "mask_key"), ("axes", "mask_axes")):
        given = camera.get(group) or {}
        if given.get("mask") is not None and "mask" not in told:
            yield f"data.evaluation.{name}", given["mask"]
    for name in FRAME if taken else ("noise",):
        if name in camera:
            yield name if name == "noise" else f"data.evaluation.{name}", camera[name]


def _in_training(camera: Values, config: Values, told: set[str]) -> Iterator[tuple[str, Any]]:
    place = "data.simulator"
    if (config.get("data") or {}).get("simulator") is None:
        return  # the command says that it is no data set of trainings
    if "mask" in camera:
        if not isinstance(camera["mask"], str):
            raise ValueError("camera: expected the file of a mask, which a training takes crops of")
        crops = {"_target_": "cassi.data.simulation.MaskCrops", "mask": camera["mask"]}
        for group, name in (("keys", "key"), ("axes", "axes")):
            if (value := (camera.get(group) or {}).get("mask")) is not None:
                crops[name] = value
        yield f"{place}.masks", crops
    wavelengths = camera.get("wavelengths", config["data"].get("wavelengths"))
    if "wavelengths" in camera:
        yield "data.wavelengths", wavelengths
    system = camera.get("system")
    if system is not None:
        _check_bands(system, wavelengths)
        if system["_target_"] != SD_CASSI:
            kind = system["_target_"].rpartition(".")[2]
            raise ValueError(f"camera: expected SDCassi, which a training simulates, got {kind}")
        for name in ("step", "axis", "offsets", "detector"):
            by_offsets = name == "offsets" and f"{place}.step" in told
            value = None if by_offsets else system.get(name, GEOMETRY.get(name))
            yield f"{place}.{name}", value
    if "noise" in camera:
        yield "noise", camera["noise"]
    yield "data.validation.simulator", None  # the camera of the training


def _check_bands(system: Values, wavelengths: Any) -> None:
    offsets = system.get("offsets")
    bands = len(offsets) if isinstance(offsets, list) else system.get("bands")
    if bands is not None and isinstance(wavelengths, list) and len(wavelengths) != bands:
        raise ValueError(
            f"camera: {bands} bands, and {len(wavelengths)} wavelengths of the training data; give "
            "wavelengths: […] in the camera's file, nm, one per band"
        )


def _system(given: Values, current: Any, told: set[str]) -> Values:
    """Return the node of the system: what the file says, and defaults for the rest."""
    current = current if isinstance(current, dict) else {}
    chosen = current if "system._target_" in told else given
    own = {key: value for key, value in current.items() if key not in (*GEOMETRY, "detector")}
    same = own.get("_target_") == chosen.get("_target_")
    node = (own if same else {}) | GEOMETRY | given | {"_target_": chosen["_target_"]}
    if "system.step" in told:  # offsets would win over it
        node["offsets"] = None
    return node


_NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
_COUPLED = {
    "cassi.systems.BlurredCassi": "blurred",
    "cassi.systems.PsfCassi": "diffractive",
    "cassi.systems.TiltedCassi": "tilted",
    "cassi.systems.WarpedCassi": "warped",
}
_CHOSEN = {"system": "system._target_", "noise": "noise"}
"""What an option of a group says of the camera, by group."""


def load_camera(path: str | os.PathLike[str], data_dir: str | os.PathLike[str] = ".") -> Values:
    """Read the file of a camera, or one of the package by its name.

    Paths in it can be opened from here; those of the package's cameras lie in `data_dir`.
    """
    file = Path(path).expanduser()
    folder, named = file.parent, options_of("camera")
    if not file.is_file():
        if str(path) not in named:
            there = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
            near = did_you_mean(file.name, [*there, *named])
            raise FileNotFoundError(f"camera: no file {file}{near}")
        folder = Path(data_dir)
        file = Path(str(resources.files("cassi.conf").joinpath("camera", f"{path}.yaml")))
    content = read_regular(file, LARGEST)
    try:
        values = parse(content.decode())
    except _NOT_YAML as error:
        slip = find_slip(content.decode(errors="replace"), error)
        reason = slip or " ".join(str(error).split())
        raise ValueError(f"camera: {file} is not valid YAML: {reason}") from None
    try:
        camera = check_camera(values, file, folder)
    except ValueError as error:
        if (slip := find_slip(content.decode(), error)) is None:
            raise
        raise ValueError(f"camera: {file}, {slip}") from None
    if "noise" in camera and "_target_" not in camera["noise"]:
        camera["noise"] = _option("noise", "sensor") | camera["noise"]
        check_camera({"noise": camera["noise"]}, file, folder)
    coupled = _COUPLED.get(camera.get("system", {}).get("_target_"))
    if coupled is not None:  # how exact its conjugate gradients are is no property of the camera
        usual = _option("system", coupled)
        kept = {name: usual[name] for name in ("tolerance", "iterations")}
        camera["system"] = kept | camera["system"]
    return camera


def with_camera(config: DictConfig, command: str, options: Iterable[str]) -> DictConfig:
    """Set what the file of a camera says, and the command line does not.

    `options` are those of the command line. The config that was given stays as it is.
    """
    given = config.get("camera")
    path = given.get("file") if isinstance(given, DictConfig) else given
    if path is None and given is None:
        return config
    config = copy.deepcopy(config)
    config.camera = None if path is None else verbatim(str(path))
    if path is None:
        return config
    told = _told(options)
    values: Any = OmegaConf.to_container(config, resolve=False)
    data_dir = str(OmegaConf.select(config, "paths.data_dir"))
    placed = place(load_camera(str(path), data_dir), command, values, told)
    for key, value in placed.items():
        kept = {name: OmegaConf.select(config, name) for name in told if name.startswith(f"{key}.")}
        OmegaConf.update(config, key, verbatim(value), merge=False, force_add=True)
        for name, own in kept.items():
            OmegaConf.update(config, name, verbatim(own), merge=False, force_add=True)
    return config


def _option(group: str, name: str) -> Values:
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
        elif not (chosen and name in ("data", "experiment", "method", "recipe")):
            told.add(name)
    return told
