"""Scenes as data sets ship them: folders of PNGs, MATLAB files, TIFF stacks."""

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
from cassi.data import door
from cassi.data.formats import planes
from cassi.data.formats.listing import list_folder, say_left_out
from cassi.data.formats.tiff import is_ome
from cassi.data.io import READ_SUFFIXES, Loaded, check_finite, load_cube
from cassi.data.wavelengths import checked_wavelengths, resample

Scale = Literal["auto", "maximum"] | float

_PAGE = re.compile(r"(?P<stem>.*?)[_-]?(?P<number>\d+)\.png", re.IGNORECASE)
# CAVE (Yasuma et al., "Generalized assorted pixel camera", 2008): 400 nm to 700 nm by 10 nm.
_CAVE_NM = tuple(400.0 + 10.0 * band for band in range(31))
# A raw ENVI file is found by its header, and the suffixes it may have mean other things elsewhere.
_SUFFIXES = {".tif", ".tiff", ".mat", ".npz", ".npy", ".h5", ".hdf5", ".hdr", ".nc", ".hspy"}
_STORE = ".zarr"
"""The suffix of scenes that are folders."""

FULL_SCALE = 65535
"""What stands for 1 in a compact cube."""
HIGHLIGHTS = 0.01
"""Share of the values that may exceed 1 where 1 is white; of more, 1 is no level of the scene."""


@dataclass(frozen=True)
class Scene:
    """A cube with a name.

    Attributes:
        name: what the file or folder is called, without suffix and without CAVE's `_ms`. What is
            not printable, such as bytes that are no UTF-8, is written out.
        cube: `(C, H, W)` in [0, 1], float32; or uint16 that counts parts of `full_scale`.
        wavelengths: one a band, nm, rising.
        note: how the file was understood, for the user.
        scale: values of the file for 1 of the cube, where it was divided for the sake of highlights
            beyond 1; else 1.
        full_scale: what stands for 1 in a cube of uint16.
    """

    name: str
    cube: Tensor
    wavelengths: tuple[float, ...]
    note: str = ""
    scale: float = 1.0
    full_scale: int = FULL_SCALE

    def __post_init__(self) -> None:
        """Make the name fit for every table."""
        object.__setattr__(self, "name", printable(self.name))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        bands, height, width = self.cube.shape
        return bands, height, width

    def values(
        self, top: int = 0, left: int = 0, height: int | None = None, width: int | None = None
    ) -> Tensor:
        """Read a window of the cube, by default all of it up to the last row and column.

        Returns float32 `(C, height, width)`, contiguous; the caller may write to it.
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
        """Halve the memory: uint16 has steps of 1.5e-5, float16 of 4.9e-4 near 1.

        The sources have 8, 10, 12 or 16 bits, so nothing that was measured is lost.
        """
        if self.cube.dtype == torch.uint16:
            return self
        levels = self.cube.mul(FULL_SCALE).round_().clamp_(0, FULL_SCALE)
        return replace(self, cube=levels.to(torch.uint16))


def scored_level(top: float, counts: bool = False) -> float:
    """Return what scores take for 1 of a truth: its maximum, if that is beyond 1 or in counts."""
    return top if top > 0 and (counts or top > 1) else 1.0


def as_scenes(cubes: Any, wavelengths: Sequence[float]) -> list[Scene]:
    """Check the cubes of a data set that a user's function made.

    They are arrays or tensors `(C, H, W)` in [0, 1], by name or by number.
    """
    count = len(cubes) if hasattr(cubes, "__getitem__") and isinstance(cubes, Sized) else 0
    if not count:
        raise ValueError(
            "data.source: expected cubes by name or number, as a dict or list, got "
            f"{type(cubes).__name__} without any"
        )
    found = []
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
        found.append(Scene(str(name), cube, tuple(map(float, wavelengths)), f"{name}: made"))
    return found


def find_scenes(
    root: str | os.PathLike[str],
    *,
    frames: bool = False,
    within: str | os.PathLike[str] | None = None,
) -> list[Path]:
    """List the scenes in a folder and all folders below it, sorted.

    A scene is a file that `cassi.data.io` reads, or a folder of PNGs whose names end in a number or
    in a wavelength (nm), one a band; of `frames` each PNG is one. Hidden files are passed over. A
    warning names whatever else is no scene, and links that lead out of `within`, the folder that
    the user named, or the root. The root may be a scene, and a link.
    """
    root = Path(root).expanduser()
    if root.is_file() or (root.is_dir() and _is_store(root.name)):
        return [root]
    if not root.is_dir():
        raise FileNotFoundError(f"no file or folder {root}; expected scenes there")
    within = root if within is None else Path(within).expanduser()
    suffixes = _SUFFIXES | {".png"} if frames else _SUFFIXES
    scenes: dict[str, Path] = {}  # by where they lie, since links may lead to one twice
    left_out: dict[Path, str] = {}
    visited: set[str] = set()
    pending = [root]
    while pending:
        folder = pending.pop(0)
        place = os.path.realpath(folder)
        if place in visited:
            continue
        visited.add(place)
        entries, left_out_here = list_folder(folder, within)
        left_out |= left_out_here
        pages = [] if frames else planes.numbered_pages(entries)
        if len(pages) > 1:
            scenes[place] = folder
        else:
            pages = []
        headers = {path.with_suffix("") for path in entries if path.suffix.lower() == ".hdr"}
        for path in entries:
            if _is_store(path.name) or (path.is_file() and path.suffix.lower() in suffixes):
                scenes.setdefault(os.path.realpath(path), path)
            elif path.is_dir():
                # Links come last, so that a folder is known by its own name.
                pending = [*pending, path] if path.is_symlink() else [path, *pending]
            elif not pages and not headers & {path, path.with_suffix("")}:
                left_out[path] = _why_no_scene(path)
    if left_out:
        # Not by logging, which Hydra switches off in the commands.
        warnings.warn(f"{root}: {say_left_out(left_out)}", stacklevel=2)
    return sorted(scenes.values())


def _why_no_scene(path: Path) -> str:
    if path.suffix.lower() == ".png":
        return "pages of a scene are several PNGs that end in a number or in nm"
    return f"unknown suffix {path.suffix!r}"


def _is_store(name: str) -> bool:
    return name.lower().endswith(_STORE) and not name.startswith(".")


def scene_name(path: str | os.PathLike[str]) -> str:
    """What a scene is called, however it is stored: no suffix, no `_ms`, lower case, printable.

    >>> scene_name("CAVE/flowers_ms/Flowers_ms"), scene_name("cave_train/flowers.tif")
    ('flowers', 'flowers')
    """
    path = Path(path)
    stem = _stem(path) if path.suffix.lower() in READ_SUFFIXES else path.name
    return printable(stem.lower().removesuffix("_ms"))


def _stem(path: Path) -> str:
    return path.stem[: -len(".ome")] if is_ome(path) else path.stem


def load_scene(
    path: str | os.PathLike[str],
    wavelengths: Sequence[float] | None,
    *,
    scale: Scale = "auto",
    key: str | None = None,
    axes: str | None = None,
) -> Scene:
    """Read a scene and bring it to the wanted bands and to [0, 1], float32.

    Bands are interpolated first, then scaled. A file that states no wavelengths but has the wanted
    number of bands is taken as it is, which the note says. Negative values become 0.

    Args:
        path: a file, or a folder of PNGs as CAVE ships them: 31 pages, 400 nm to 700 nm, 8 or 16
            bits, grey or with equal colour channels.
        wavelengths: wanted bands, nm, rising; None takes those of the file.
        scale: what is divided by. "maximum": the largest value of the scene. "auto": the same for
            digital counts (PNG folders, integer images that state no full scale, and whatever
            exceeds 1); other files in [0, 1] have been scaled already, and test scenes must keep
            their truth. A number: a full scale, such as the 65536 that MST's public training code
            divides `cave_1024_28` by; larger values are clipped to 1.
        key: name of the array in the file, where it has an unusual one.
        axes: order of its axes, such as "HWC", where the file leaves it open.
    """
    path = Path(path).expanduser()
    wanted = None if wavelengths is None else checked_wavelengths(wavelengths, len(wavelengths))
    pages = path.is_dir() and not _is_store(path.name) and not _is_stack(path, wanted)
    raw = _read_pages(path) if pages else _read_file(path, wanted, key, axes)
    cube, resampled, divided = raw.data[0], "", ""
    if wanted is None:
        wanted = raw.wavelengths or ()
    else:
        try:
            cube, resampled = _to_bands(cube, raw.wavelengths, wanted)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    cube = cube.clamp_(min=0)
    top = cube.max().item()
    if top == 0:
        raise ValueError(f"{path}: expected a scene with light in it, all values are 0 or less")
    level = 1.0
    if scale == "maximum" or (scale == "auto" and scored_level(top, raw.counts) != 1):
        if not raw.counts and top > 1 and (cube > 1).double().mean() <= HIGHLIGHTS:
            level = top
        cube, divided = cube.div_(top).clamp_(max=1), f", divided by its maximum {top:.6g}"
    elif scale != "auto":
        if not float(scale) > 0:
            raise ValueError(f"scale: expected 'auto', 'maximum' or a number > 0, got {scale!r}")
        cube, divided = cube.div_(float(scale)).clamp_(max=1), f", divided by {scale:g}"
    note = raw.note + resampled + divided
    return Scene(_stem(path).removesuffix("_ms"), cube, wanted, note, level)


def _read_file(
    path: Path, wanted: Sequence[float] | None, key: str | None, axes: str | None
) -> Loaded:
    try:
        return load_cube(path, key=key, axes=axes, bands=None if wanted is None else len(wanted))
    except ValueError as error:
        said = str(error).replace("pass key=", "pass data.key=")
        raise ValueError(said.replace("pass axes=", "pass data.axes=")) from error


def _to_bands(
    cube: Tensor, source: Sequence[float] | None, wanted: Sequence[float]
) -> tuple[Tensor, str]:
    """Return a cube with the wanted bands, and what was done to its own, for the note."""
    bands = len(cube)
    if source is None and bands != len(wanted):
        few = "too few bands" if bands < len(wanted) else "unknown bands"
        what = f"expected {len(wanted)}, or a file that states its wavelengths"
        hint = "give its own in nm, data.wavelengths=[…]"
        raise ValueError(f"{few}: {what}, got {bands} without wavelengths; {hint}")
    if source is None:
        return cube, f", no wavelengths stated, its {bands} bands taken as the wanted ones"
    cube = resample(cube, source, wanted)
    same = bands == len(wanted) and np.allclose(source, wanted)
    return cube, "" if same else f", {bands} bands interpolated to {len(wanted)}"


def _is_stack(folder: Path, wanted: Sequence[float] | None) -> bool:
    """Tell whether pages are not CAVE's: their names say the bands, or there is one for each."""
    pages = planes.numbered_pages(list_folder(folder)[0])
    stated = bool(pages) and planes.wavelengths_of(pages) is not None
    return stated or (wanted is not None and len(pages) == len(wanted) != len(_CAVE_NM))


def _read_pages(folder: Path) -> Loaded:
    pages = _pages(folder)
    images, about = door.read("array", folder, role="cube", pages=[page.name for page in pages])
    cube = torch.from_numpy(images)
    check_finite(str(folder), cube)
    note = f"{folder.name}: {len(pages)} PNG pages, {', '.join(about['remarks'])}"
    return Loaded(cube[None], _CAVE_NM, folder, None, "CHW", note, counts=True)


def _pages(folder: Path) -> list[Path]:
    """One file a band, in order; what is not numbered is passed over."""
    by_stem: dict[str, dict[int, Path]] = {}
    for file in sorted(folder.iterdir()):
        if (found := _PAGE.fullmatch(file.name)) and not file.name.startswith("."):
            by_stem.setdefault(found["stem"], {})[int(found["number"])] = file
    if not by_stem:
        raise ValueError(f"{folder}: expected PNG pages such as NAME_01.png, got none")
    numbered = max(by_stem.values(), key=len)
    expected = range(1, len(_CAVE_NM) + 1)
    missing = [str(number) for number in expected if number not in numbered]
    surplus = [numbered[number].name for number in sorted(numbered) if number not in expected]
    if missing or surplus:
        wrong = [f"missing {', '.join(missing[:5])}"] * bool(missing)
        wrong += [f"not expected {', '.join(surplus[:5])}"] * bool(surplus)
        raise ValueError(
            f"{folder}: expected {len(_CAVE_NM)} pages numbered 1 to {len(_CAVE_NM)}, one each "
            f"10 nm from 400 nm to 700 nm, got {len(numbered)}; {'; '.join(wrong)}"
        )
    return [numbered[number] for number in expected]
