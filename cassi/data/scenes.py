"""Find and load scenes in the forms of published data sets: folders of PNGs, files of cubes."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from cassi.checks import printable
from cassi.data import sandboxed_reader
from cassi.data.formats import planes
from cassi.data.formats.listing import describe_left_out, list_folder
from cassi.data.formats.tiff import is_ome
from cassi.data.io import READ_SUFFIXES, LoadedArray, check_finite, load_cube
from cassi.data.wavelengths import checked_wavelengths, resample

Scale = Literal["auto", "maximum"] | float

_PAGE = re.compile(r"(?P<stem>.*?)[_-]?(?P<number>\d+)\.png", re.IGNORECASE)
# CAVE (Yasuma et al., "Generalized assorted pixel camera", 2008): 400 nm to 700 nm by 10 nm.
_CAVE_NM = tuple(400.0 + 10.0 * band for band in range(31))
# An ENVI image is found by its header, because other files also have the suffixes of its data, such
# as .dat.
_SCENE_SUFFIXES = {".tif", ".tiff", ".mat", ".npz", ".npy", ".h5", ".hdf5", ".hdr", ".nc", ".hspy"}
# Suffix of the scenes that are folders.
_STORE_SUFFIX = ".zarr"

FULL_SCALE = 65535
"""The value of a compact cube that stands for 1."""
# If at most this fraction of the values exceeds 1, these values are highlights, and 1 means white
# in the file. Then the maximum, by which the scene is divided, is kept as `Scene.scale`. If more
# values exceed 1, the file has another unit.
MAX_HIGHLIGHT_FRACTION = 0.01


@dataclass(frozen=True)
class Scene:
    """A cube with a name.

    Attributes:
        name: name of the file or folder, without suffix and without CAVE's `_ms`. Characters that
            are not printable are written as escapes.
        cube: `(C, H, W)` in [0, 1], float32; or uint16, in units of 1 / `full_scale`.
        wavelengths: one per band, nm, rising.
        note: one line for the user that says how the file was read.
        scale: the number that the values of the file were divided by because of highlights beyond
            1; 1 if there were none.
        full_scale: the value that stands for 1 in a cube of uint16.
    """

    name: str
    cube: Tensor
    wavelengths: tuple[float, ...]
    note: str = ""
    scale: float = 1.0
    full_scale: int = FULL_SCALE

    def __post_init__(self) -> None:
        """Make the name printable, so that every table can show it."""
        object.__setattr__(self, "name", printable(self.name))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        bands, height, width = self.cube.shape
        return bands, height, width

    def values(
        self, top: int = 0, left: int = 0, height: int | None = None, width: int | None = None
    ) -> Tensor:
        """Return a contiguous copy of a window of the cube, float32 `(C, height, width)`.

        By default the window extends to the end of the cube.

        Raises:
            ValueError: the window is not inside the cube.
        """
        _, rows, columns = self.shape
        height = rows - top if height is None else height
        width = columns - left if width is None else width
        if not (0 <= top <= rows - height < rows and 0 <= left <= columns - width < columns):
            raise ValueError(
                f"{self.name}: expected a window inside {rows} x {columns}, got {height} x {width} "
                f"at ({top}, {left})"
            )
        window = self.cube[:, top : top + height, left : left + width]
        if window.dtype != torch.uint16:
            return window.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        return torch.empty(window.shape).copy_(window).mul_(1 / self.full_scale)

    def compact(self) -> Scene:
        """Return the scene with a cube of uint16, which takes half the memory of float32."""
        # The sources have 8, 10, 12 or 16 bits. uint16 has steps of 1.5e-5, so no measured value is
        # lost. float16 would have steps of 4.9e-4 near 1.
        if self.cube.dtype == torch.uint16:
            return self
        levels = self.cube.mul(FULL_SCALE).round_().clamp_(0, FULL_SCALE)
        return replace(self, cube=levels.to(torch.uint16))


def score_level(maximum: float, counts: bool = False) -> float:
    """Return the value of a truth that scores count as 1.

    It is `maximum` for counts and for values above 1, else 1.
    """
    return maximum if maximum > 0 and (counts or maximum > 1) else 1.0


def as_scenes(cubes: Any, wavelengths: Sequence[float]) -> list[Scene]:
    """Convert the cubes that a user's function has made to scenes.

    Args:
        cubes: arrays or tensors `(C, H, W)` in [0, 1], by name or by number.
        wavelengths: one per band, nm.

    Raises:
        ValueError: there are no cubes, or a cube has another shape or values outside [0, 1].
    """
    count = len(cubes) if hasattr(cubes, "__getitem__") and isinstance(cubes, Sized) else 0
    if not count:
        raise ValueError(
            "data.source: expected cubes by name or number, as a dict or list, got "
            f"{type(cubes).__name__} without any"
        )
    scenes = []
    for name in cubes if isinstance(cubes, Mapping) else range(count):
        values = cubes[name]
        try:
            cube = torch.as_tensor(values).detach().to("cpu", torch.float32).contiguous()
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(
                f"data.source: expected {name} as an array (C, H, W), got {type(values).__name__}"
            ) from None
        if cube.ndim != 3 or len(cube) != len(wavelengths):
            raise ValueError(
                f"data.source: expected {name} as ({len(wavelengths)}, H, W), one band for each of "
                f"data.wavelengths, got {tuple(cube.shape)}"
            )
        check_finite(f"data.source: {name}", cube)
        if not (cube.min() >= 0 and 0 < cube.max() <= 1):
            low, high = cube.min().item(), cube.max().item()
            raise ValueError(
                f"data.source: expected {name} in [0, 1], got {low:.4g} to {high:.4g}; divide it"
            )
        scenes.append(Scene(str(name), cube, tuple(map(float, wavelengths)), f"{name}: made"))
    return scenes


def find_scenes(
    root: str | os.PathLike[str],
    *,
    frames: bool = False,
    tree: str | os.PathLike[str] | None = None,
) -> list[Path]:
    """List the scenes in a folder and all folders below it, sorted.

    A scene is a file that `cassi.data.io` reads, or a folder of PNGs whose names end in a number or
    in a wavelength (nm), one per band. Hidden files are left out. A warning names files that are no
    scenes, and links that lead out of `tree`.

    Args:
        root: the folder, which may be a link; or a single scene.
        frames: each PNG is a scene of its own.
        tree: the folder that links must not lead out of; by default `root`.

    Raises:
        FileNotFoundError: there is no such file or folder.
    """
    root = Path(root).expanduser()
    if root.is_file() or (root.is_dir() and _is_store(root.name)):
        return [root]
    if not root.is_dir():
        raise FileNotFoundError(f"no file or folder {root}; expected scenes there")
    tree = root if tree is None else Path(tree).expanduser()
    suffixes = _SCENE_SUFFIXES | {".png"} if frames else _SCENE_SUFFIXES
    scenes: dict[str, Path] = {}  # keys are real paths: two links may lead to one scene
    left_out: dict[Path, str] = {}
    visited_folders: set[str] = set()
    pending = [root]
    while pending:
        folder = pending.pop(0)
        real_path = os.path.realpath(folder)
        if real_path in visited_folders:
            continue
        visited_folders.add(real_path)
        entries, left_out_here = list_folder(folder, tree)
        left_out |= left_out_here
        pages = [] if frames else planes.find_numbered_pages(entries)
        if len(pages) > 1:
            scenes[real_path] = folder
        else:
            pages = []
        headers = {path.with_suffix("") for path in entries if path.suffix.lower() == ".hdr"}
        for path in entries:
            if _is_store(path.name) or (path.is_file() and path.suffix.lower() in suffixes):
                scenes.setdefault(os.path.realpath(path), path)
            elif path.is_dir():
                # Links come last, so that a folder is listed under its own name.
                pending = [*pending, path] if path.is_symlink() else [path, *pending]
            elif not pages and not headers & {path, path.with_suffix("")}:
                left_out[path] = _explain_no_scene(path)
    if left_out:
        # This is a warning and not a log message, because Hydra switches logging off in the
        # commands.
        warnings.warn(f"{root}: {describe_left_out(left_out)}", stacklevel=2)
    return sorted(scenes.values())


def _explain_no_scene(path: Path) -> str:
    if path.suffix.lower() == ".png":
        return "pages of a scene are several PNGs that end in a number or in nm"
    return f"unknown suffix {path.suffix!r}"


def _is_store(name: str) -> bool:
    return name.lower().endswith(_STORE_SUFFIX) and not name.startswith(".")


def scene_name(path: str | os.PathLike[str]) -> str:
    """Return the name of a scene, the same for every format: no suffix, no `_ms`, lower case.

    >>> scene_name("CAVE/flowers_ms/Flowers_ms"), scene_name("cave_train/flowers.tif")
    ('flowers', 'flowers')
    """
    path = Path(path)
    stem = _remove_suffix(path) if path.suffix.lower() in READ_SUFFIXES else path.name
    return printable(stem.lower().removesuffix("_ms"))


def _remove_suffix(path: Path) -> str:
    return path.stem[: -len(".ome")] if is_ome(path) else path.stem


def load_scene(
    path: str | os.PathLike[str],
    wavelengths: Sequence[float] | None,
    *,
    scale: Scale = "auto",
    key: str | None = None,
    axes: str | None = None,
) -> Scene:
    """Read a scene, interpolate it to the requested bands, and scale it to [0, 1], float32.

    A file without wavelengths but with the requested number of bands is not interpolated; the note
    says so. Negative values become 0.

    Args:
        path: a file, or a folder of PNGs in the form of CAVE: 31 pages, 400 nm to 700 nm, 8 or 16
            bits, grey or with equal colour channels.
        wavelengths: bands of the result, nm, rising; None takes the bands of the file.
        scale: divisor of the values. "maximum": the largest value of the scene. "auto": the largest
            value for digital counts (PNG folders, integer images without a stated full scale,
            values beyond 1); other files have values in [0, 1], which are taken as they are. A
            number: a full scale, such as the 65536 by which MST's public training code divides
            `cave_1024_28`; larger values are clipped to 1.
        key: name of the array in the file, if it is not a usual one.
        axes: order of the axes of the array, such as "HWC", if the file does not state it.

    Raises:
        OSError: there is no such file or folder.
        ValueError: the file is damaged, it has no value above 0, or its bands do not fit.
    """
    path = Path(path).expanduser()
    target_nm = None if wavelengths is None else checked_wavelengths(wavelengths, len(wavelengths))
    is_folder = path.is_dir() and not _is_store(path.name)
    is_cave_folder = is_folder and not _is_image_folder(path, target_nm)
    raw = _read_cave_pages(path) if is_cave_folder else _read_file(path, target_nm, key, axes)
    cube, band_note, scale_note = raw.data[0], "", ""
    if target_nm is None:
        target_nm = raw.wavelengths or ()
    else:
        try:
            cube, band_note = _interpolate_bands(cube, raw.wavelengths, target_nm)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    cube = cube.clamp_(min=0)
    maximum = cube.max().item()
    if maximum == 0:
        raise ValueError(f"{path}: expected a scene with light in it, all values are 0 or less")
    scene_scale = 1.0
    if scale == "maximum" or (scale == "auto" and score_level(maximum, raw.counts) != 1):
        if not raw.counts and maximum > 1 and (cube > 1).double().mean() <= MAX_HIGHLIGHT_FRACTION:
            scene_scale = maximum
        cube = cube.div_(maximum).clamp_(max=1)
        scale_note = f", divided by its maximum {maximum:.6g}"
    elif scale != "auto":
        if not float(scale) > 0:
            raise ValueError(f"scale: expected 'auto', 'maximum' or a number > 0, got {scale!r}")
        cube = cube.div_(float(scale)).clamp_(max=1)
        scale_note = f", divided by {scale:g}"
    note = raw.note + band_note + scale_note
    return Scene(_remove_suffix(path).removesuffix("_ms"), cube, target_nm, note, scene_scale)


def _read_file(
    path: Path, target_nm: Sequence[float] | None, key: str | None, axes: str | None
) -> LoadedArray:
    """Read a file of a cube; its errors name the settings of a data set, such as `data.key`."""
    bands = None if target_nm is None else len(target_nm)
    try:
        return load_cube(path, key=key, axes=axes, bands=bands)
    except ValueError as error:
        message = str(error).replace("pass key=", "pass data.key=")
        raise ValueError(message.replace("pass axes=", "pass data.axes=")) from error


def _interpolate_bands(
    cube: Tensor, source_nm: Sequence[float] | None, target_nm: Sequence[float]
) -> tuple[Tensor, str]:
    """Return a cube with bands at `target_nm`, and a text for the note that says what was done."""
    bands = len(cube)
    if source_nm is None and bands != len(target_nm):
        problem = "too few bands" if bands < len(target_nm) else "unknown bands"
        expectation = f"expected {len(target_nm)}, or a file that states its wavelengths"
        hint = "give its own in nm, data.wavelengths=[…]"
        raise ValueError(f"{problem}: {expectation}, got {bands} without wavelengths; {hint}")
    if source_nm is None:
        return cube, f", no wavelengths stated, its {bands} bands taken as the wanted ones"
    cube = resample(cube, source_nm, target_nm)
    is_same = bands == len(target_nm) and np.allclose(source_nm, target_nm)
    return cube, "" if is_same else f", {bands} bands interpolated to {len(target_nm)}"


def _is_image_folder(folder: Path, target_nm: Sequence[float] | None) -> bool:
    """Tell whether `load_cube` can read a folder: with wavelengths in names, or a page per band.

    Other folders have the form of CAVE, whose 31 pages state no wavelengths.
    """
    pages = planes.find_numbered_pages(list_folder(folder)[0])
    has_wavelengths = bool(pages) and planes.parse_wavelengths(pages) is not None
    return has_wavelengths or (
        target_nm is not None and len(pages) == len(target_nm) != len(_CAVE_NM)
    )


def _read_cave_pages(folder: Path) -> LoadedArray:
    pages = _find_cave_pages(folder)
    images, description = sandboxed_reader.read(
        "array", folder, role="cube", pages=[page.name for page in pages]
    )
    cube = torch.from_numpy(images)
    check_finite(str(folder), cube)
    note = f"{folder.name}: {len(pages)} PNG pages, {', '.join(description['remarks'])}"
    return LoadedArray(cube[None], _CAVE_NM, folder, None, "CHW", note, counts=True)


def _find_cave_pages(folder: Path) -> list[Path]:
    """Return the 31 pages of CAVE in order; ValueError if one is missing or there are others."""
    by_stem: dict[str, dict[int, Path]] = {}
    for file in sorted(folder.iterdir()):
        if (match := _PAGE.fullmatch(file.name)) and not file.name.startswith("."):
            by_stem.setdefault(match["stem"], {})[int(match["number"])] = file
    if not by_stem:
        raise ValueError(f"{folder}: expected PNG pages such as NAME_01.png, got none")
    # A folder may also hold a picture whose name ends in a number. The pages are the largest group
    # of files with the same name before the number.
    pages_by_number = max(by_stem.values(), key=len)
    expected = range(1, len(_CAVE_NM) + 1)
    missing_numbers = [str(number) for number in expected if number not in pages_by_number]
    surplus_names = [
        pages_by_number[number].name for number in sorted(pages_by_number) if number not in expected
    ]
    if missing_numbers or surplus_names:
        problems = []
        if missing_numbers:
            problems.append(f"missing {', '.join(missing_numbers[:5])}")
        if surplus_names:
            problems.append(f"not expected {', '.join(surplus_names[:5])}")
        raise ValueError(
            f"{folder}: expected {len(_CAVE_NM)} pages numbered 1 to {len(_CAVE_NM)}, one each "
            f"10 nm from 400 nm to 700 nm, got {len(pages_by_number)}; {'; '.join(problems)}"
        )
    return [pages_by_number[number] for number in expected]
