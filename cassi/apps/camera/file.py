"""Read a camera's file, and set its values in the settings of a command.

The file describes the camera: mask, system, wavelengths, the corrections of its raw frames and the
noise of its sensor. A command that reads frames gets all values except the noise. A command that
simulates frames gets mask, system, wavelengths and noise.
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
from cassi.apps.camera.text import MAX_BYTES, parse
from cassi.apps.camera.yaml_slips import find_slip
from cassi.checks import did_you_mean, read_regular
from cassi.config import Node, verbatim

FRAME_CORRECTIONS = ("dark", "flat", "bits", "saturation", "bad_pixels", "window", "scale")
"""Settings that correct raw frames."""
ESTIMATED_STEPS = ("saturation", "bad_pixels")
"""Corrections that are estimated from each frame, unless a file sets them to null."""
CORRECTION_DEFAULTS = {"dark": 0.0, "scale": 1.0, **dict.fromkeys(ESTIMATED_STEPS, "auto")}
"""Defaults of `FRAME_CORRECTIONS`. A correction that is not listed here has the default None."""
FRAMES = ("measurement", "white", "monochromatic")
"""Settings that name raw frames."""
SHARED_NAMES = ("mask", "measured_mask", "light", "wavelengths", "wavelengths_error")
"""Values whose names are also names of settings, in commands that read snapshots."""
GEOMETRY = {"bands": None, "step": 2, "axis": -1, "offsets": None}
"""Values that every system has, with their defaults."""
SD_CASSI = "cassi.systems.SDCassi"
DEFAULT_CLASSES = {"system": SD_CASSI, "noise": "cassi.data.sensor.Sensor"}
"""Class of a system or noise for which a file names none."""
ROLES = ("mask", "measurement")
"""Files for which `keys` may name the array, and `axes` the order of its axes."""
NAMES = (*SHARED_NAMES, "keys", "axes", "system", "noise", *FRAME_CORRECTIONS, "response", "vars")
"""All values of a camera's file; docs/reference/camera-file.md explains them."""

Values = Node


def check_camera(values: Any, path: Path, folder: Path) -> Values:
    """Check the values of a camera's file, and return them with resolved paths, without `vars`.

    Paths are relative to `folder`. If there is no such file in `folder`, they are relative to the
    current folder.

    Raises:
        ValueError: there are no values, or a value has an unknown name or an unexpected form.
    """
    if not isinstance(values, dict) or all(value is None for value in values.values()):
        value_text = repr(values)[:80] if values and not isinstance(values, dict) else "nothing"
        raise ValueError(
            "camera: expected a file with mask: FILE, system: {…} and so on, "
            f"got {value_text} in {path}"
        )
    if "defaults" in values:
        raise ValueError(
            f"camera: {path} is a config of a command, its first lines say so; give it by "
            "--config-dir DIR --config-name NAME, or leave out its defaults"
        )
    _check_names(values, NAMES, path)
    camera = {
        key: value
        for key, value in values.items()
        if key != "vars" and (value is not None or key in ESTIMATED_STEPS)
    }
    camera = {name: _check_value(name, value, path) for name, value in camera.items()}
    for name in ("mask", "dark", "flat", "bad_pixels", "response"):
        if name in camera:
            camera[name] = map_paths(camera[name], lambda file: _resolve(file, folder))
    system = camera.get("system", {})
    for name in ("response", "kernels"):
        if isinstance(system.get(name), str):
            camera["system"] = camera["system"] | {name: _resolve(system[name], folder)}
    offsets = system.get("offsets")
    if isinstance(offsets, dict) and isinstance(offsets.get("file"), str):
        resolved_offsets = offsets | {"file": _resolve(offsets["file"], folder)}
        camera["system"] = camera["system"] | {"offsets": resolved_offsets}
    return camera


def _check_names(
    values: Values, allowed_names: Sequence[str], path: Path, prefix: str = ""
) -> None:
    for key in values:
        if key not in allowed_names:
            name = f"{prefix}{key[:80]}"
            hint = (
                did_you_mean(key[:80], allowed_names, place=prefix)
                or f"; there is {', '.join(allowed_names)}"
            )
            raise ValueError(f"camera: no value {name!r} in {path}{hint}")


def _check_value(name: str, value: Any, path: Path) -> Any:
    """Check one value of the file and return it; a system without a class gets the default one."""
    if name in ("system", "noise", "keys", "axes") and not isinstance(value, dict):
        value_text = str(value)[:80]
        raise ValueError(f"camera: {name}: expected values by name, got {value_text} in {path}")
    if name in ("keys", "axes"):
        _check_names(value, ROLES, path, f"{name}.")
        for role, text in value.items():
            if isinstance(text, dict | list):
                value_text = str(text)[:80]
                raise ValueError(
                    f"camera: {name}.{role}: expected a name, got {value_text} in {path}"
                )
        return dict.fromkeys(ROLES) | value
    try:
        if name in KINDS and isinstance(value, dict):
            node = {"_target_": DEFAULT_CLASSES.get(name)} | value
            check_described(name, node)
            return node if name == "system" else value
        for item in value.values() if name == "response" and isinstance(value, dict) else [value]:
            check_plain(item, name)
    except ValueError as error:
        raise ValueError(f"camera: {path}: {error}") from None
    return value


def map_paths(value: Any, resolve: Callable[[str], str]) -> Any:
    """Apply `resolve` to every path in a value: a file, a list with files, or values by name.

    A mask that is drawn has a node whose texts are no paths. Such a node is returned unchanged.
    """
    if isinstance(value, list):
        return [map_paths(item, resolve) for item in value]
    if isinstance(value, dict) and "_target_" not in value:
        return {key: map_paths(item, resolve) for key, item in value.items()}
    return resolve(value) if isinstance(value, str) and value != "auto" else value


def _resolve(value: str, folder: Path) -> str:
    if value.startswith("bundled:"):
        return value
    path = Path(value).expanduser()
    from_folder = folder / path  # an absolute path stays absolute
    return str(path if path.exists() and not from_folder.exists() else from_folder)


def find_settings(
    camera: Values, command: str, config: Values, option_names: Iterable[str]
) -> Values:
    """Return the values of a camera, by the dotted name that each has in a command's settings.

    Args:
        camera: values of the camera, from `check_camera`.
        command: "reconstruct", "calibrate", "evaluate" or "train".
        config: config of the command, as dicts, lists and scalars.
        option_names: dotted names that the command line sets. The command line wins over the file.

    Returns:
        Values by dotted name. Each value replaces the whole value in the config.

    Raises:
        ValueError: a training cannot use this camera.
    """
    option_names = set(option_names)
    if command == "evaluate":
        settings = _find_evaluation_settings(camera, config, option_names)
    elif command == "train":
        settings = _find_training_settings(camera, config, option_names)
    else:
        settings = _find_snapshot_settings(camera, config, option_names)
    return {
        key: value
        for key, value in settings
        if not any(f"{key}.".startswith(f"{name}.") for name in option_names)
    }


def _find_snapshot_settings(
    camera: Values, config: Values, option_names: set[str]
) -> Iterator[tuple[str, Any]]:
    is_simulated = config.get("measurement") is None and config.get("truth") is not None
    has_frames = not is_simulated and any(config.get(name) is not None for name in FRAMES)
    for name in SHARED_NAMES:
        if name in camera:
            yield name, camera[name]
    if "system" in camera:
        yield "system", _merge_system(camera["system"], config.get("system"), option_names)
    for group in ("keys", "axes"):
        hints = camera.get(group) or {}
        if "mask" in camera and "mask" not in option_names:
            yield f"{group}.mask", hints.get("mask")
        if hints.get("measurement") is not None:
            yield f"{group}.measurement", hints["measurement"]
    for name in FRAME_CORRECTIONS if has_frames else ("noise",):
        if name in camera:
            yield name, camera[name]
    if "response" in camera and "response" in config:
        yield "response", camera["response"]


def _find_evaluation_settings(
    camera: Values, config: Values, option_names: set[str]
) -> Iterator[tuple[str, Any]]:
    data = config.get("data") or {}
    evaluation = data.get("evaluation") or {}
    measurements = evaluation.get("measurements")
    if measurements == "${data.measurements}":
        measurements = data.get("measurements")
    has_frames = measurements is not None
    for name in ("mask", "measured_mask", "light"):
        if name in camera:
            yield name, camera[name]
    if "wavelengths" in camera:
        yield "data.wavelengths", camera["wavelengths"]
    if "system" in camera:
        yield "system", _merge_system(camera["system"], config.get("system"), option_names)
    for group, name in (("keys", "mask_key"), ("axes", "mask_axes")):
        hints = camera.get(group) or {}
        if hints.get("mask") is not None and "mask" not in option_names:
            yield f"data.evaluation.{name}", hints["mask"]
    for name in FRAME_CORRECTIONS if has_frames else ("noise",):
        if name in camera:
            yield name if name == "noise" else f"data.evaluation.{name}", camera[name]


def _find_training_settings(
    camera: Values, config: Values, option_names: set[str]
) -> Iterator[tuple[str, Any]]:
    prefix = "data.simulator"
    if (config.get("data") or {}).get("simulator") is None:
        return  # this data set is not for trainings; `cassi-train` prints the error
    if "mask" in camera:
        if not isinstance(camera["mask"], str):
            raise ValueError("camera: expected mask: FILE, because a training cuts crops from it")
        # Crops of a scene are smaller than the mask; `MaskCrops` cuts parts of their size from it.
        crops = {"_target_": "cassi.data.simulation.MaskCrops", "mask": camera["mask"]}
        for group, name in (("keys", "key"), ("axes", "axes")):
            if (value := (camera.get(group) or {}).get("mask")) is not None:
                crops[name] = value
        yield f"{prefix}.masks", crops
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
            # Offsets of the file would win over a step of the command line.
            is_overruled = name == "offsets" and f"{prefix}.step" in option_names
            value = None if is_overruled else system.get(name, GEOMETRY.get(name))
            yield f"{prefix}.{name}", value
    if "noise" in camera:
        yield "noise", camera["noise"]
    # If this is null, the validation uses the simulator of the training, with the file's camera.
    yield "data.validation.simulator", None


def _check_bands(system: Values, wavelengths: Any) -> None:
    offsets = system.get("offsets")
    bands = len(offsets) if isinstance(offsets, list) else system.get("bands")
    if bands is not None and isinstance(wavelengths, list) and len(wavelengths) != bands:
        raise ValueError(
            f"camera: expected {bands} wavelengths, one per band, got {len(wavelengths)}; give "
            "wavelengths: […] in the camera's file, nm"
        )


def _merge_system(file_node: Values, current: Any, option_names: set[str]) -> Values:
    """Return the node of the system: the values of the file, and defaults for the others."""
    current = current if isinstance(current, dict) else {}
    class_source = current if "system._target_" in option_names else file_node
    current_values = {
        key: value for key, value in current.items() if key not in (*GEOMETRY, "detector")
    }
    is_same_class = current_values.get("_target_") == class_source.get("_target_")
    # The values of another class are no arguments of this class.
    node = (current_values if is_same_class else {}) | GEOMETRY | file_node
    node["_target_"] = class_source["_target_"]
    if "system.step" in option_names:
        node["offsets"] = None  # the offsets of the file would win over the option
    return node


# Errors that PyYAML and our own loader raise for a text that they cannot read.
_NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
# Files of `conf/system` for the classes that solve by conjugate gradients.
_SYSTEM_OPTIONS = {
    "cassi.systems.BlurredCassi": "blurred",
    "cassi.systems.PsfCassi": "diffractive",
    "cassi.systems.TiltedCassi": "tilted",
    "cassi.systems.WarpedCassi": "warped",
}
# Values of the camera that an option of a group sets. `system=dd_cassi` chooses the class of the
# system and keeps the other values of the file. `noise=NAME` replaces the noise as a whole.
_CLASS_SETTINGS = {"system": "system._target_", "noise": "noise"}


def load_camera(path: str | os.PathLike[str], data_dir: str | os.PathLike[str] = ".") -> Values:
    """Read a camera's file, or a camera of the package by its name.

    Paths in the result can be opened from the current folder. The files that the package's cameras
    name are in `data_dir`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no valid YAML, or a value cannot be used.
    """
    file = Path(path).expanduser()
    folder, package_cameras = file.parent, options_of("camera")
    if not file.is_file():
        if str(path) not in package_cameras:
            file_names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
            hint = did_you_mean(file.name, [*file_names, *package_cameras])
            raise FileNotFoundError(f"camera: no file {file}{hint}")
        folder = Path(data_dir)
        file = Path(str(resources.files("cassi.conf").joinpath("camera", f"{path}.yaml")))
    content = read_regular(file, MAX_BYTES)
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
        camera["noise"] = _read_option("noise", "sensor") | camera["noise"]
        check_camera({"noise": camera["noise"]}, file, folder)
    option = _SYSTEM_OPTIONS.get(camera.get("system", {}).get("_target_"))
    if option is not None:
        # The accuracy of the conjugate gradients is no property of a camera, so files may omit it.
        defaults = _read_option("system", option)
        solve_accuracy = {name: defaults[name] for name in ("tolerance", "iterations")}
        camera["system"] = solve_accuracy | camera["system"]
    return camera


def with_camera(config: DictConfig, command: str, options: Iterable[str]) -> DictConfig:
    """Return a copy of a config with the values of its camera's file.

    The `options` of the command line win over the file.
    """
    camera_setting = config.get("camera")
    path = camera_setting.get("file") if isinstance(camera_setting, DictConfig) else camera_setting
    if path is None and camera_setting is None:
        return config
    config = copy.deepcopy(config)
    config.camera = None if path is None else verbatim(str(path))
    if path is None:
        return config
    option_names = _find_option_names(options)
    values: Any = OmegaConf.to_container(config, resolve=False)
    data_dir = str(OmegaConf.select(config, "paths.data_dir"))
    settings = find_settings(load_camera(str(path), data_dir), command, values, option_names)
    for key, value in settings.items():
        option_values = {
            name: OmegaConf.select(config, name)
            for name in option_names
            if name.startswith(f"{key}.")
        }
        OmegaConf.update(config, key, verbatim(value), merge=False, force_add=True)
        # The update above has replaced the whole value, also the parts that options had set.
        for name, option_value in option_values.items():
            OmegaConf.update(config, name, verbatim(option_value), merge=False, force_add=True)
    return config


def _read_option(group: str, name: str) -> Values:
    """Return the values of `conf/GROUP/NAME.yaml`."""
    text = resources.files("cassi.conf").joinpath(group, f"{name}.yaml").read_text("utf-8")
    values: Any = OmegaConf.to_container(OmegaConf.create(text))
    return dict(values)


def _find_option_names(options: Iterable[str]) -> set[str]:
    """Return the dotted names of the camera's values that options set."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    names = set()
    for option in OverridesParser.create().parse_overrides(list(options)):
        name, value = option.package or option.key_or_group, option.value()
        is_choice = isinstance(value, str) and option.package is None and "." not in name
        if is_choice and name in _CLASS_SETTINGS:
            names.add(_CLASS_SETTINGS[name])
        # An option of these groups sets no value of a camera.
        elif not (is_choice and name in ("data", "experiment", "method", "recipe")):
            names.add(name)
    return names
