"""Read the files that settings name, and make a snapshot of them: measurement, camera, truth."""

import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cassi.apps.camera.system import make_camera
from cassi.apps.printing import color_label
from cassi.apps.settings import Snapshots
from cassi.checks import printable, raised_here
from cassi.config import build
from cassi.data import io
from cassi.data.bundled import bundled_path
from cassi.data.formats.cells import Json
from cassi.data.frames import STEPS, Preprocessing, describe_corrections
from cassi.data.scenes import scene_name, score_level
from cassi.data.simulation import scene_generator
from cassi.pipeline.snapshot import Camera, Snapshot, is_raw
from cassi.systems import SDCassi, System
from cassi.systems.dispersion import deviation_from_prism, offsets_of
from cassi.systems.mask_kind import has_two_levels, is_design

# The note on the scale of the cube is given only if the brightest pixel reaches this fraction of
# full scale. A darker frame does not show how much light fills a pixel, so the note would mislead.
_MIN_EXPOSURE = 0.25


def load_snapshot(
    settings: Snapshots,
    device: torch.device,
    bands: int | None = None,
    files_by_role: Mapping[str, io.LoadedArray] | None = None,
) -> Snapshot:
    """Read and check the files that settings name, and make a snapshot of them.

    `bands` is the number of bands of a network, used if the settings state none. `files_by_role`
    has files that were read already. If there are bad pixels, the camera is a `systems.Weighted`.

    Raises:
        OSError: a file cannot be read.
        ValueError: the files do not fit each other or the settings.
    """
    files = _Files(settings, files_by_role)
    # The truth is read first, because its number of bands may decide how the mask is read.
    user_wavelengths, bands = settings.given_wavelengths, settings.bands or bands
    truth = files.load("truth", io.load_cube, bands=bands)
    cube = None if truth is None else truth.data
    bands = bands or (None if cube is None else cube.shape[1])
    chain = make_preprocessing(vars(settings), settings.system)
    measurement_file, frame = _read_measurement(settings, files, chain)
    sources = (file for file in (truth, measurement_file) if file is not None)
    wavelengths = user_wavelengths or next((file.wavelengths for file in sources), None)
    mask = files.load("mask", io.load_mask, bands=bands)
    camera = make_camera(
        settings.system,
        settings.mask if mask is None else mask.data,
        truth=None if cube is None else cube[0],
        measurement=None if frame is None else frame.y[0],
        bands=bands,
        wavelengths=wavelengths,
        user_wavelengths=user_wavelengths,
    )
    system, notes = camera.system, [*files.notes, *camera.notes]
    if frame is not None and measurement_file is not None:
        system = adapt_camera_to_frame(
            system, camera.mask, frame.corrections, settings.light, settings.measured_mask
        )
        full_scale = measurement_file.full_scale
        notes += _describe_frame(settings, chain, frame, full_scale, system, camera.mask)
    if cube is not None:
        _check_shape("truth", files.paths, "(C, H, W)", cube, system.cube_shape)
    if frame is None:
        assert cube is not None  # `_choose_files` asks for a measurement or a truth
        frame = simulate(settings, chain, system, cube, scene_name(files.paths["truth"][0]))
        notes += frame.notes
        corrections = frame.corrections
        system = adapt_camera_to_frame(system, camera.mask, corrections, settings.light, False)
    _check_shape("measurement", files.paths, "(K, H', W')", frame.y, system.measurement_shape)
    system, y = system.to(device), frame.y.to(device)
    if frame.bad_pixels is not None:
        system = system.weighted(bad_pixels=frame.bad_pixels.to(device))
        y = system.without_bad_pixels(y)
    level = 1.0 if truth is None else score_level(truth.data.max().item(), truth.counts)
    if level != 1:
        notes.append(f"truth: scores are those of truth and cube over its maximum, {level:.6g}")
    named_camera = Camera(system, wavelengths, _find_nm_errors(settings, system, wavelengths))
    return Snapshot(y, named_camera, cube, level, frame.corrections, tuple(notes))


class CorrectedFrame(NamedTuple):
    """A measurement that was made of a frame, or simulated.

    Attributes:
        y: the measurement `(1, K, H', W')`.
        bad_pixels: true for pixels to leave out, shaped like y; None if there are none.
        corrections: corrections of the frame, by step; None if the frame was a measurement already.
        notes: notes for the user.
    """

    y: Tensor
    bad_pixels: Tensor | None
    corrections: Json | None
    notes: list[str]


class _Files:
    """The files that settings name, by role, and a note on each that was read."""

    def __init__(
        self, settings: Snapshots, files_by_role: Mapping[str, io.LoadedArray] | None
    ) -> None:
        self.settings, self.files_by_role = settings, files_by_role or {}
        self.paths, self.notes = _choose_files(settings), list[str]()

    def load(
        self, role: str, reader: Callable[..., io.LoadedArray], **hints: Any
    ) -> io.LoadedArray | None:
        """Read the file of a role, if there is one."""
        if role not in self.paths:
            return None
        file = self.files_by_role.get(role) or self._read(role, reader, hints)
        self.notes.append(file.note)
        return file

    def _read(self, role: str, reader: Callable[..., io.LoadedArray], hints: Any) -> io.LoadedArray:
        keys, axes = self.settings.keys, self.settings.axes
        array_hints = {"key": getattr(keys, role), "axes": getattr(axes, role)}
        try:
            return load_shots(role, reader, self.paths[role], **array_hints, **hints)
        except ValueError as error:
            if not raised_here(error):
                raise
            # The messages of readers name their arguments, `key=` and `axes=`. The user knows the
            # settings instead, such as `keys.mask=` and `axes.mask=`.
            message = re.sub(r"\b(key|axes)=", rf"\1.{role}=", str(error))
            raise ValueError(message.replace(f"key.{role}=", f"keys.{role}=")) from error


def _read_measurement(
    settings: Snapshots, files: _Files, chain: Preprocessing
) -> tuple[io.LoadedArray | None, CorrectedFrame | None]:
    """Return the file of the measurement and its corrected frame; None, None without a file."""
    # Values that are not finite may be bad pixels, which the corrections leave out.
    hints = {"finite": False, "counts": chain.bits is not None}
    file = files.load("measurement", io.load_measurement, **hints)
    if file is None:
        return None, None
    if settings.noise is not None:
        raise ValueError("noise: expected none, the measurement is not simulated; give noise=null")
    return file, preprocess(chain, file.data, file.full_scale)


def adapt_camera_to_frame(
    system: System,
    mask: Tensor,
    corrections: Json | None,
    light: str = "auto",
    mask_setting: bool | str = "auto",
) -> System:
    """Return the camera of a frame, with the light of the scene and the kind of its mask.

    Args:
        system: the system of the camera.
        mask: the mask as it was read.
        corrections: corrections of the frame, by step.
        light: "all" (broadband), "lines" (narrow-band) or "auto": broadband for a raw frame.
        mask_setting: the setting `measured_mask`; see `is_measured_mask`.
    """
    is_measured = is_measured_mask(mask_setting, corrections, mask)
    if type(system) is SDCassi and (is_measured or is_raw(corrections)):
        system = system.replace(measured_mask=is_measured)
    system.is_broadband = light == "all" or (light == "auto" and is_raw(corrections))
    return system


def _find_nm_errors(
    settings: Snapshots, system: System, wavelengths: tuple[float, ...] | None
) -> tuple[float, ...] | None:
    """Return the standard errors of the wavelengths, nm, as the user states them, or estimated."""
    user_errors, bands = settings.wavelengths_error, system.cube_shape[0]
    if user_errors is not None:
        errors = user_errors if isinstance(user_errors, list) else [user_errors] * bands
        if len(errors) != bands:
            raise ValueError(
                f"wavelengths_error: expected one number or {bands}, one per band, "
                f"got {user_errors!r}"
            )
        return tuple(map(float, errors))
    # Stated offsets fix the dispersion, and the lines of narrow-band light fix the wavelengths.
    if settings.system.get("offsets") is not None or not system.is_broadband:
        return None
    # If only a step is stated, the dispersion may be that of a grating or of a prism. The error is
    # half the distance between these two.
    prism_distances = deviation_from_prism(offsets_of(system.base_camera), wavelengths)
    return None if prism_distances is None else tuple(distance / 2 for distance in prism_distances)


def is_measured_mask(mask_setting: bool | str, corrections: Json | None, mask: Tensor) -> bool:
    """Tell whether a mask, as it was read, counts as measured by the sensor.

    The setting `measured_mask` decides. If it is "auto", a mask counts as measured if the frame was
    raw and the mask has more than two values. Else it counts as a design.
    """
    if mask_setting != "auto":
        return bool(mask_setting)
    return is_raw(corrections) and not is_design(mask)


def _describe_mask(
    settings: Snapshots, system: System, mask: Tensor, corrections: Json | None
) -> list[str]:
    """Return a note on whether the mask counts as measured, if bands fall between pixels."""
    is_measured = is_measured_mask(settings.measured_mask, corrections, mask)
    if type(system) is not SDCassi or not (is_measured or is_raw(corrections)):
        return []
    if all(offset.is_integer() for offset in system.offsets):
        return []
    if is_measured and not is_design(mask) and has_two_levels(mask):
        text = (
            "grey with two levels, which looks like a design averaged over pixels; taken as "
            "measured by this sensor, which averages likewise: bands between pixels keep its "
            "contrast. measured_mask=false interpolates it linearly; compare both by heldout=0.05"
        )
    elif is_measured:
        text = (
            "taken as measured by this sensor, bands between pixels keep its contrast; if it is a "
            "design that was not averaged over pixels, set measured_mask=false"
        )
    elif is_design(mask):
        text = (
            "taken as a design, as it has two values; if this sensor measured it, set "
            "measured_mask=true"
        )
    else:
        text = "taken as a design, as measured_mask=false says"
    return [f"mask: {text}"]


def make_preprocessing(steps: Json, system: Json) -> Preprocessing:
    """Make the chain of corrections of raw frames.

    Args:
        steps: values of the steps in `cassi.data.frames.STEPS`, by name; a missing step is left
            out.
        system: node of the system, which has the dispersion.
    """
    step, axis = system.get("step", 1), system.get("axis", -1)
    is_number = isinstance(step, int | float) and not isinstance(step, bool)
    return Preprocessing(
        **{name: steps[name] for name in STEPS if name in steps},
        step=step if is_number else 1,
        axis=axis if axis in (-1, -2) else -1,  # the camera raises the error for another axis
    )


def preprocess(
    chain: Preprocessing, frame: Tensor, full_scale: float | None = None, name: str = "measurement"
) -> CorrectedFrame:
    """Make a measurement of a frame `(B, K, H', W')`; see `Preprocessing.prepare`."""
    # Python prints equal warnings only once. Here each snapshot prints its own warnings.
    with warnings.catch_warnings(record=True) as chain_warnings:
        warnings.simplefilter("always")
        result = chain.prepare(frame, full_scale, name)
    for warning in chain_warnings:
        print(f"{color_label('warning')} {warning.message}", file=sys.stderr)
    text = describe_corrections(result.corrections)
    return CorrectedFrame(
        result.y,
        result.bad_pixels,
        result.corrections,
        [f"measurement: {text}"] if text else [],
    )


def read_frame(settings: Snapshots, file: Any) -> tuple[Tensor, Tensor, str]:
    """Read a further frame of the camera, such as a white frame, and correct it.

    Returns:
        The corrected frame `(1, K, H', W')`, its good pixels, and a note.
    """
    chain = make_preprocessing(vars(settings), settings.system)
    hints: Json = {"finite": False, "counts": chain.bits is not None}
    hints |= {"key": settings.keys.measurement, "axes": settings.axes.measurement}
    frame_file = load_shots("measurement", io.load_measurement, file_paths(file), **hints)
    name = ", ".join(path.name for path in file_paths(file))
    y, bad_pixels, _, _ = preprocess(chain, frame_file.data, frame_file.full_scale, name)
    good_pixels = torch.ones_like(y, dtype=torch.bool) if bad_pixels is None else ~bad_pixels
    return y, good_pixels, frame_file.note


def _describe_frame(
    settings: Snapshots,
    chain: Preprocessing,
    frame: CorrectedFrame,
    full_scale: float | None,
    system: System,
    mask: Tensor,
) -> list[str]:
    return [
        *frame.notes,
        *describe_white(chain, frame.y, system, mask, full_scale),
        *_describe_mask(settings, system, mask, frame.corrections),
    ]


def describe_white(
    chain: Preprocessing, y: Tensor, system: System, mask: Tensor, full_scale: float | None
) -> list[str]:
    """Return a note on the brightness of white in the cube, if the user set no scale."""
    # A detector pixel gets the light of all bands. If the scene is 1 in all bands, a pixel gets C
    # times the mean of the mask.
    white = system.cube_shape[0] * float(mask.mean())
    is_full_scale_known = full_scale is not None or chain.bits is not None
    if not is_full_scale_known or chain.scale != 1 or white <= 1 or float(y.max()) < _MIN_EXPOSURE:
        return []
    return [
        f"measurement: full scale is 1, so a white scene that fills the pixels is {1 / white:.2g} "
        f"in the cube; scale={white:.3g} (bands times mean of the mask) makes it 1"
    ]


@torch.no_grad()
def simulate(
    settings: Snapshots, chain: Preprocessing, system: System, truth: Tensor, scene: str
) -> CorrectedFrame:
    """Simulate the measurement of a truth `(1, C, H, W)`, with the noise of settings.

    The noise depends on the seed and the scene's name, as in cassi-evaluate.

    Raises:
        ValueError: all pixels are bad, or `bits` is set, which is for counts.
    """
    y: Tensor = system(truth)
    notes = [f"measurement: simulated from the truth, {tuple(y.shape)}"]
    if settings.noise is None:
        bad_pixels = chain.listed_bad_pixels(y.shape[-2:])
        if not bool(bad_pixels.any()):
            return CorrectedFrame(y, None, None, notes)
        if bool(bad_pixels.all()):
            raise ValueError("bad_pixels: expected some good pixels, all are to be left out")
        n_bad = int(bad_pixels.sum()) * y.shape[1]
        note = f"measurement: {n_bad} pixels left out ({100 * n_bad / y.numel():.3g} %)"
        return CorrectedFrame(y, bad_pixels.expand_as(y), None, [*notes, note])
    if chain.bits is not None:
        raise ValueError(
            f"bits: expected null, a simulated frame is in the unit of the cube, got {chain.bits}; "
            "the bits of the simulated converter are noise.bits"
        )
    node = dict(settings.noise)
    name = node.pop("_target_").rpartition(".")[2]
    note = ", ".join(f"{key} {value}" for key, value in node.items() if value)
    notes.append(f"measurement: {name} with {note}")
    random = scene_generator(settings.seed, scene)
    frame = build(settings.noise)(y, truth.shape[1], random)
    sensor_frame = preprocess(chain, frame)
    return sensor_frame._replace(notes=[*notes, *sensor_frame.notes])


def _choose_files(settings: Snapshots) -> dict[str, list[Path]]:
    is_mask_drawn = isinstance(settings.mask, dict)
    roles = ("measurement", "truth") if is_mask_drawn else ("measurement", "mask", "truth")
    values = {role: getattr(settings, role) for role in roles}
    files = {role: file_paths(value) for role, value in values.items() if value is not None}
    if not files:
        mask = {} if is_mask_drawn else {"mask": [bundled_path("mask.tif")]}
        return mask | {"truth": [bundled_path("scene.tif")]}
    root = Path(settings.paths.data_dir)
    if not root.is_dir() and any(
        root in file.parents for paths in files.values() for file in paths
    ):
        raise ValueError(f"paths.data_dir: no folder {root}; set paths.data_dir=DIR or $CASSI_DATA")
    if "mask" not in files and not is_mask_drawn:
        raise ValueError("mask: expected a file, got none; give mask=FILE")
    if "measurement" not in files and "truth" not in files:
        raise ValueError(
            "measurement: expected a file, got none; give measurement=FILE, or truth=FILE to "
            "simulate one"
        )
    return files


def file_path(value: Any) -> Path:
    """Return the path of a file in a config; `bundled:NAME` is a file of the package."""
    name = str(value)
    kind, colon, file_name = name.partition(":")
    if (kind, colon) != ("bundled", ":"):
        return Path(name)
    # A stranger may have written the config, so the name must not lead out of the package's folder.
    if file_name in ("", ".", "..") or Path(file_name).name != file_name:
        raise ValueError(f"bundled: expected a name such as mask.tif, got {file_name!r}")
    return bundled_path(file_name)


def file_paths(value: Any) -> list[Path]:
    """Return the paths of a file in a config, or of a list of files, one per shot."""
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(item, str | os.PathLike) for item in values):
        raise ValueError(f"expected a file, or a list of files, one per shot, got {value!r}")
    return [file_path(item) for item in values]


def load_shots(
    role: str, reader: Callable[..., io.LoadedArray], files: Sequence[Path], **hints: Any
) -> io.LoadedArray:
    """Read a file, or several files of equal shape as the shots of one measurement or mask.

    Raises:
        OSError: a file cannot be read.
        ValueError: the shapes differ, or there are several files of a truth.
    """
    if role == "truth" and len(files) > 1:
        raise ValueError(f"truth: expected one file, got {len(files)}")
    first, *further_shots = shots = [reader(file, **hints) for file in files]
    if not further_shots:
        return first
    shapes = {tuple(shot.data.shape) for shot in shots}
    if len(shapes) > 1:
        shape_text = " and ".join(map(str, sorted(shapes)))
        raise ValueError(f"{role}: expected files of one shape, one per shot, got {shape_text}")
    scales = {shot.full_scale for shot in shots}
    return replace(
        first,
        data=torch.cat([shot.data for shot in shots], 1 if role == "measurement" else 0),
        note="; ".join(shot.note for shot in shots),
        full_scale=first.full_scale if len(scales) == 1 else None,
    )


def name_scene(settings: Snapshots, otherwise: str) -> str:
    """Return the file name of the truth or measurement, without suffix; else `otherwise`."""
    file = settings.truth or settings.measurement
    return printable(file_paths(file)[0].stem) if file else otherwise


def _check_shape(
    role: str,
    files: dict[str, list[Path]],
    letters: str,
    data: Tensor,
    expected: tuple[int, int, int],
) -> None:
    shape = tuple(data.shape[1:])
    if shape == expected:
        return
    place = ", ".join(map(str, files.get(role, ["what was simulated"])))
    hint = ""
    if role == "measurement" and shape[1:] == expected[1:]:
        hint = "; give as many masks as shots: 'measurement=[FILE,FILE]' 'mask=[FILE,FILE]'"
        hint += "; or a folder, measurement=FOLDER, with a file for each snapshot of one mask"
    if files.get(role) == [bundled_path("scene.tif")]:
        hint = ", the scene of this package; give measurement=FILE mask=FILE"
    raise ValueError(
        f"{role}: expected {letters} = {expected} as the mask and the system say, "
        f"got {shape} in {place}{hint}"
    )
