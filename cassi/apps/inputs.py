"""From settings to the camera, the measurement and, where known, the truth."""

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
from cassi.apps.printing import marked
from cassi.apps.settings import Snapshots
from cassi.checks import printable, raised_here
from cassi.config import build
from cassi.data import io
from cassi.data.bundled import bundled_path
from cassi.data.formats.cells import Json
from cassi.data.frames import STEPS, Preprocessing, describe
from cassi.data.scenes import scene_name, scored_level
from cassi.data.simulation import scene_generator
from cassi.pipeline.snapshot import Camera, Snapshot, is_raw
from cassi.systems import SDCassi, System
from cassi.systems.dispersion import off_a_prism, offsets_of
from cassi.systems.photographed import has_two_levels, is_design

_EXPOSED = 0.25
"""Of full scale: a frame that stays below says nothing of what fills a pixel."""


def load_snapshot(
    settings: Snapshots,
    device: torch.device,
    bands: int | None = None,
    loaded: Mapping[str, io.Loaded] | None = None,
) -> Snapshot:
    """Read and check the files that settings name.

    `bands` is that of a network, where settings say none. `loaded` are files that have been read.
    Where pixels are left out, the camera is a `Weighted` one.
    """
    files = _Files(settings, loaded)
    given, bands = settings.given_wavelengths, settings.bands or bands
    truth = files.load("truth", io.load_cube, bands=bands)
    cube = None if truth is None else truth.data
    bands = bands or (None if cube is None else cube.shape[1])
    chain = make_preprocessing(vars(settings), settings.system)
    hints = {"finite": False, "counts": chain.bits is not None}  # the chain knows which count
    taken = files.load("measurement", io.load_measurement, **hints)
    if taken is not None and settings.noise is not None:
        raise ValueError("noise: expected none, the measurement is not simulated; give noise=null")
    frame = None if taken is None else preprocess(chain, taken.data, taken.full_scale)
    sources = (each for each in (truth, taken) if each is not None)
    wavelengths = given or next((each.wavelengths for each in sources), None)
    mask = files.load("mask", io.load_mask, bands=bands)
    camera = make_camera(
        settings.system,
        settings.mask if mask is None else mask.data,
        truth=None if cube is None else cube[0],
        measurement=None if frame is None else frame.y[0],
        bands=bands,
        wavelengths=wavelengths,
        stated=given,
    )
    system, notes = camera.system, [*files.notes, *camera.notes]
    if frame is not None and taken is not None:
        system = as_taken(system, camera.mask, frame.done, settings.light, settings.photographed)
        notes += frame.notes
        notes += describe_white(chain, frame.y, system, camera.mask, taken.full_scale)
        notes += _describe_mask(settings, system, camera.mask, frame.done)
    if cube is not None:
        _check_shape("truth", files.paths, "(C, H, W)", cube, system.cube_shape)
    if frame is None:
        assert cube is not None  # `_choose_files` wants one of both
        scene = scene_name(files.paths["truth"][0])
        frame = simulate(settings, chain, system, cube, scene)
        notes += frame.notes
        system = as_taken(system, camera.mask, frame.done, settings.light, False)
    _check_shape("measurement", files.paths, "(K, H', W')", frame.y, system.measurement_shape)
    system, y = system.to(device), frame.y.to(device)
    if frame.bad is not None:
        system = system.weighted(bad_pixels=frame.bad.to(device))
        y = system.without_bad_pixels(y)
    level = 1.0 if truth is None else scored_level(truth.data.max().item(), truth.counts)
    if level != 1:
        notes.append(f"truth: scores are those of truth and cube over its maximum, {level:.6g}")
    known = Camera(system, wavelengths, _names_error(settings, system, wavelengths))
    return Snapshot(y, known, cube, level, frame.done, tuple(notes))


class Corrected(NamedTuple):
    """A frame as a measurement: of a file, or simulated.

    Attributes:
        y: `(1, K, H', W')`.
        bad: pixels to leave out, shaped like y, if there are some.
        done: what was done to the frame, by step.
        notes: on that.
    """

    y: Tensor
    bad: Tensor | None
    done: Json | None
    notes: list[str]


class _Files:
    """The files that settings name, by role, and how each was understood."""

    def __init__(self, settings: Snapshots, loaded: Mapping[str, io.Loaded] | None) -> None:
        self.settings, self.loaded = settings, loaded or {}
        self.paths, self.notes = _choose_files(settings), list[str]()

    def load(self, role: str, reader: Callable[..., io.Loaded], **hints: Any) -> io.Loaded | None:
        """Read the file of a role, if there is one."""
        if role not in self.paths:
            return None
        found = self.loaded[role] if role in self.loaded else self._read(role, reader, hints)
        self.notes.append(found.note)
        return found

    def _read(self, role: str, reader: Callable[..., io.Loaded], hints: Any) -> io.Loaded:
        keys, axes = self.settings.keys, self.settings.axes
        chosen = {"key": getattr(keys, role), "axes": getattr(axes, role)}
        try:
            return load_shots(role, reader, self.paths[role], **chosen, **hints)
        except ValueError as error:
            if not raised_here(error):
                raise
            # The readers speak of their own arguments, the user of config values.
            message = re.sub(r"\b(key|axes)=", rf"\1.{role}=", str(error))
            raise ValueError(message.replace(f"key.{role}=", f"keys.{role}=")) from error


def as_taken(
    system: System,
    mask: Tensor,
    done: Json | None,
    light: str = "auto",
    photographed: bool | str = "auto",
) -> System:
    """Return the camera of a frame, which knows its light, and whether its mask is a photograph.

    `mask` is as it was read, `done` is what was done to the frame. `light` is "all", "lines", or
    "auto", by the frame. `photographed`: see `is_photograph`.
    """
    by = is_photograph(photographed, done, mask)
    if type(system) is SDCassi and (by or is_raw(done)):
        system = system.like(photographed=by)
    system.all_light = light == "all" or (light == "auto" and is_raw(done))
    return system


def _names_error(
    settings: Snapshots, system: System, wavelengths: tuple[float, ...] | None
) -> tuple[float, ...] | None:
    """Return the standard errors of wavelengths, nm: as given, or those of a line.

    Where nobody gave the places of the bands, a grating or a prism may have made them.
    """
    given, bands = settings.wavelengths_error, system.cube_shape[0]
    if given is not None:
        errors = given if isinstance(given, list) else [given] * bands
        if len(errors) != bands:
            raise ValueError(
                f"wavelengths_error: expected one number or {bands}, one per band, got {given!r}"
            )
        return tuple(map(float, errors))
    if settings.system.get("offsets") is not None or not system.all_light:
        return None  # a curve, or sums of bands, which are what they are called
    apart = off_a_prism(offsets_of(system.plain), wavelengths)
    return None if apart is None else tuple(each / 2 for each in apart)


def is_photograph(photographed: bool | str, done: Json | None, mask: Tensor) -> bool:
    """Tell whether a mask, as it was read, is taken as a photograph.

    A setting says it. If that is "auto", the grey mask of a sensor's frame is one, and one of two
    values is not.
    """
    if photographed != "auto":
        return bool(photographed)
    return is_raw(done) and not is_design(mask)


def _describe_mask(
    settings: Snapshots, system: System, mask: Tensor, done: Json | None
) -> list[str]:
    """Say as what a mask is taken whose bands fall between pixels, and how to take it otherwise."""
    is_photo = is_photograph(settings.photographed, done, mask)
    if type(system) is not SDCassi or not (is_photo or is_raw(done)):
        return []
    if all(offset.is_integer() for offset in system.offsets):
        return []
    if is_photo and not is_design(mask) and has_two_levels(mask):
        said = (
            "grey with two levels, which looks like a design averaged over pixels; taken as a "
            "photograph, which is averaged likewise: bands between pixels keep its contrast. "
            "photographed=false interpolates it linearly; compare both by heldout=0.05"
        )
    elif is_photo:
        said = (
            "taken as a photograph, bands between pixels keep its contrast; if it is a design "
            "that was not averaged over pixels, set photographed=false"
        )
    elif is_design(mask):
        said = (
            "taken as a design, as it has two values; if this sensor photographed it, set "
            "photographed=true"
        )
    else:
        said = "taken as a design, as photographed=false says"
    return [f"mask: {said}"]


def make_preprocessing(steps: Json, system: Json) -> Preprocessing:
    """Make the chain that frames go through.

    Steps that are missing are left out. The node of the system has the dispersion.
    """
    step, axis = system.get("step", 1), system.get("axis", -1)
    known = isinstance(step, int | float) and not isinstance(step, bool)
    return Preprocessing(
        **{name: steps[name] for name in STEPS if name in steps},
        step=step if known else 1,
        axis=axis if axis in (-1, -2) else -1,  # what else it may be is for the camera to refuse
    )


def preprocess(
    chain: Preprocessing, frame: Tensor, full_scale: float | None = None, name: str = "measurement"
) -> Corrected:
    """Make a measurement of a frame `(B, K, H', W')`; see `Preprocessing.prepare`.

    Its warnings are printed, those of every snapshot of many.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = chain.prepare(frame, full_scale, name)
    for each in caught:
        print(f"{marked('warning')} {each.message}", file=sys.stderr)
    said = describe(made.done)
    return Corrected(made.y, made.bad, made.done, [f"measurement: {said}"] if said else [])


def read_frame(settings: Snapshots, file: Any) -> tuple[Tensor, Tensor, str]:
    """Read one more frame of the camera, such as a white one, as its measurements are read.

    Returns the corrected frame `(1, K, H', W')`, the pixels of it that count, and a note.
    """
    chain = make_preprocessing(vars(settings), settings.system)
    hints: Json = {"finite": False, "counts": chain.bits is not None}
    hints |= {"key": settings.keys.measurement, "axes": settings.axes.measurement}
    loaded = load_shots("measurement", io.load_measurement, file_paths(file), **hints)
    name = ", ".join(path.name for path in file_paths(file))
    y, bad, _, _ = preprocess(chain, loaded.data, loaded.full_scale, name)
    good = torch.ones_like(y, dtype=torch.bool) if bad is None else ~bad
    return y, good, loaded.note


def describe_white(
    chain: Preprocessing, y: Tensor, system: System, mask: Tensor, full_scale: float | None
) -> list[str]:
    """Say what white comes to in the cube, where full scale is known and nobody set a scale.

    What fills a pixel is the light of all bands: of a white scene C times the mean of the mask.
    """
    white = system.cube_shape[0] * float(mask.mean())
    known = full_scale is not None or chain.bits is not None
    if not known or chain.scale != 1 or white <= 1 or float(y.max()) < _EXPOSED:
        return []
    return [
        f"measurement: full scale is 1, so a white scene that fills the pixels is {1 / white:.2g} "
        f"in the cube; scale={white:.3g} (bands times mean of the mask) makes it 1"
    ]


@torch.no_grad()
def simulate(
    settings: Snapshots, chain: Preprocessing, system: System, truth: Tensor, scene: str
) -> Corrected:
    """Measure a truth `(1, C, H, W)` by the camera and, where there is noise, the sensor.

    Noise depends on the seed and the scene's name, as in cassi-evaluate.
    """
    y: Tensor = system(truth)
    notes = [f"measurement: simulated from the truth, {tuple(y.shape)}"]
    if settings.noise is None:
        stuck = chain.bad_in(y.shape[-2:])
        if not bool(stuck.any()):
            return Corrected(y, None, None, notes)
        if bool(stuck.all()):
            raise ValueError("bad_pixels: expected some good pixels, all are to be left out")
        number = int(stuck.sum()) * y.shape[1]
        said = f"measurement: {number} pixels left out ({100 * number / y.numel():.3g} %)"
        return Corrected(y, stuck.expand_as(y), None, [*notes, said])
    if chain.bits is not None:
        raise ValueError(
            f"bits: expected null, a simulated frame is in the unit of the cube, got {chain.bits}; "
            "noise.bits is the converter's"
        )
    node = dict(settings.noise)
    name = node.pop("_target_").rpartition(".")[2]
    said = ", ".join(f"{key} {value}" for key, value in node.items() if value)
    notes.append(f"measurement: {name} with {said}")
    random = scene_generator(settings.seed, scene)
    frame = build(settings.noise)(y, truth.shape[1], random)
    made = preprocess(chain, frame)
    return made._replace(notes=[*notes, *made.notes])


def _choose_files(settings: Snapshots) -> dict[str, list[Path]]:
    drawn = isinstance(settings.mask, dict)
    roles = ("measurement", "truth") if drawn else ("measurement", "mask", "truth")
    given = {role: getattr(settings, role) for role in roles}
    files = {role: file_paths(value) for role, value in given.items() if value is not None}
    if not files:
        mask = {} if drawn else {"mask": [bundled_path("mask.tif")]}
        return mask | {"truth": [bundled_path("scene.tif")]}
    root = Path(settings.paths.data_dir)
    if not root.is_dir() and any(root in file.parents for each in files.values() for file in each):
        raise ValueError(f"paths.data_dir: no folder {root}; set paths.data_dir=DIR or $CASSI_DATA")
    if "mask" not in files and not drawn:
        raise ValueError("mask: expected a file, got none; give mask=FILE")
    if "measurement" not in files and "truth" not in files:
        raise ValueError(
            "measurement: expected a file, got none; give measurement=FILE, or truth=FILE to "
            "simulate one"
        )
    return files


def file_path(value: Any) -> Path:
    """Return the path of a file of a config, `bundled:NAME` for one of the package."""
    name = str(value)
    kind, colon, inner = name.partition(":")
    if (kind, colon) != ("bundled", ":"):
        return Path(name)
    if inner in ("", ".", "..") or Path(inner).name != inner:
        raise ValueError(f"bundled: expected a name such as mask.tif, got {inner!r}")
    return bundled_path(inner)


def file_paths(value: Any) -> list[Path]:
    """Return the paths of a file of a config, or of a list of files, one per shot."""
    several = value if isinstance(value, list) else [value]
    if not several or not all(isinstance(each, str | os.PathLike) for each in several):
        raise ValueError(f"expected a file, or a list of files, one per shot, got {value!r}")
    return [file_path(each) for each in several]


def load_shots(
    role: str, reader: Callable[..., io.Loaded], files: Sequence[Path], **hints: Any
) -> io.Loaded:
    """Read a file, or several of one shape as the shots of one measurement or mask."""
    if role == "truth" and len(files) > 1:
        raise ValueError(f"truth: expected one file, got {len(files)}")
    first, *others = loaded = [reader(file, **hints) for file in files]
    if not others:
        return first
    shapes = {tuple(each.data.shape) for each in loaded}
    if len(shapes) > 1:
        listed = " and ".join(map(str, sorted(shapes)))
        raise ValueError(f"{role}: expected files of one shape, one per shot, got {listed}")
    scales = {each.full_scale for each in loaded}
    return replace(
        first,
        data=torch.cat([each.data for each in loaded], 1 if role == "measurement" else 0),
        note="; ".join(each.note for each in loaded),
        full_scale=first.full_scale if len(scales) == 1 else None,
    )


def name_scene(settings: Snapshots, otherwise: str) -> str:
    """Return what a measurement is called, or what it is simulated from: the file's stem."""
    file = settings.truth or settings.measurement
    return printable(file_paths(file)[0].stem) if file else otherwise


def _check_shape(
    role: str,
    files: dict[str, list[Path]],
    letters: str,
    data: Tensor,
    expected: tuple[int, int, int],
) -> None:
    got = tuple(data.shape[1:])
    if got == expected:
        return
    where = ", ".join(map(str, files.get(role, ["what was simulated"])))
    more = ""
    if role == "measurement" and got[1:] == expected[1:]:
        more = "; give as many masks as shots: 'measurement=[FILE,FILE]' 'mask=[FILE,FILE]'"
        more += "; or a folder, measurement=FOLDER, with a file for each snapshot of one mask"
    if files.get(role) == [bundled_path("scene.tif")]:
        more = ", the scene of this package; give measurement=FILE mask=FILE"
    raise ValueError(
        f"{role}: expected {letters} = {expected} as the mask and the system say, "
        f"got {got} in {where}{more}"
    )
