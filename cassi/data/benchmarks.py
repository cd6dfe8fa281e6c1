"""Data sets to evaluate on: cubes to be measured, or measurements that a camera took."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from cassi.checks import did_you_mean
from cassi.data.datasets import WholeScenes
from cassi.data.frames import Prepared, Preprocessing, describe
from cassi.data.io import load_cube, load_mask, load_measurement
from cassi.data.manifest import checksum, some
from cassi.data.scenes import Scene, find_scenes, load_scene, scene_name
from cassi.systems import check_mask

PathLike = str | os.PathLike[str]

# Published cubes were interpolated and go a little below 0: the code of TSA-Net, which KAIST's test
# scenes come from, clips its validation scenes there. What is to be refused are counts.
_BEYOND = 0.1


@dataclass(frozen=True)
class Item:
    """One scene of a data set.

    Attributes:
        name: unique in the data set.
        truth: `(C, H, W)` in [0, 1], or None where it is not known.
        measurement: `(K, H', W')`, after preprocessing, or None: to be simulated.
        mask: `(K, 1|C, H, W)`, transmission in [0, 1].
        wavelengths: nm, one per band, or None where neither user nor file states them.
        note: how the files were understood, for the user.
        preprocessing: what was done to the measurement, by step, or None.
        bad: pixels of the measurement to leave out, bool, shaped like it; None where there are
            none.
    """

    name: str
    truth: Tensor | None
    measurement: Tensor | None
    mask: Tensor
    wavelengths: tuple[float, ...] | None
    note: str
    preprocessing: dict[str, Any] | None = None
    bad: Tensor | None = None


@dataclass(frozen=True)
class Benchmark:
    """Scenes in files, listed at once and read one by one; or cubes that are in memory.

    Cubes and measurements that have the same name belong to the same scene. Names are those of the
    files, as `scene_name` gives them.

    Args:
        cubes: a folder, or files, or None; or scenes by name.
        measurements: a folder, or files, or None.
        mask: one file for all; a folder of files named like the scenes; None where the files of the
            measurements hold the mask too.
        wavelengths: bands that cubes are brought to, nm; None takes the bands of the files.
        names: choose among the scenes, in this order; None takes all.
        expected: names of a published data set; those that are chosen must be there. None for any.
        shape: (C, H, W) of every cube, else any.
        measurement_shape: (H', W') of every measurement, else any.
        key: name of the array in the files of the cubes (or, without cubes, of the measurements).
        axes: order of the axes of the cubes, such as "HWC", where the files leave it open.
        unit_range: take cubes as they are, and refuse those whose values lie more than 0.1 outside
            [0, 1]; otherwise see `load_scene`.
        checksums: SHA-256 by name of the scene; a file that has another is refused.
        mask_checksum: the same for a mask that serves all.
        mask_key: name of the array in the file of the mask, where it does not say so itself.
        mask_axes: order of its axes, such as "HWC".
        crop: middle part of the cubes (and of the mask) that is kept, pixels.
        downsample: side of the blocks that are then averaged, cubes only.
        preprocessing: of the measurements.
    """

    cubes: PathLike | Sequence[PathLike] | Mapping[str, Scene] | None = None
    measurements: PathLike | Sequence[PathLike] | None = None
    mask: PathLike | None = None
    wavelengths: tuple[float, ...] | None = None
    names: Sequence[str] | None = None
    expected: Sequence[str] | None = None
    shape: Sequence[int] | None = None
    measurement_shape: Sequence[int] | None = None
    key: str | None = None
    axes: str | None = None
    unit_range: bool = False
    checksums: Mapping[str, str] = field(default_factory=dict)
    mask_checksum: str | None = None
    mask_key: str | None = None
    mask_axes: str | None = None
    crop: int | Sequence[int] | None = None
    downsample: int = 1
    preprocessing: Preprocessing = field(default_factory=Preprocessing)

    def __post_init__(self) -> None:
        """List the scenes and check that what is asked for is there."""
        if self.cubes is None and self.measurements is None:
            raise ValueError("data: expected cubes or measurements, got neither; give a folder")
        if self.mask is None and self.measurements is None:
            raise ValueError("mask: expected a file, got none; give mask=FILE")
        if self.mask is not None and not Path(self.mask).expanduser().exists():
            raise FileNotFoundError(f"mask: no file or folder {self.mask}")
        if self.measurements is not None and (self.crop is not None or self.downsample != 1):
            raise ValueError("crop, downsample: expected none, a measurement is taken whole")
        cubes: Mapping[str, Path | Scene]
        cubes = self.cubes if isinstance(self.cubes, Mapping) else _listed(self.cubes)
        measured = _listed(self.measurements, frames=True)
        there = sorted(cubes if self.measurements is None else measured)
        known = list(self.expected or there)
        chosen = list(self.names if self.names is not None else known)
        if missing := [name for name in chosen if name in known and name not in there]:
            where = self.cubes if self.measurements is None else self.measurements
            raise FileNotFoundError(
                f"data: {len(missing)} of {len(chosen)} scenes are missing in {where}: expected "
                f"{some(missing)}, there is {some(there)}"
            )
        for name in chosen:
            if name not in known:
                hint = did_you_mean(name, known) or f"; there is {some(known)}"
                raise ValueError(f"scenes: {name!r} is not there{hint}")
            if chosen.count(name) > 1:
                raise ValueError(f"scenes: {name!r} is given twice")
        if not chosen:
            raise ValueError("scenes: expected at least one, got none")
        files = {name: (cubes.get(name), measured.get(name)) for name in chosen}
        object.__setattr__(self, "files", files)

    files: dict[str, tuple[Path | Scene | None, Path | None]] = field(init=False, repr=False)
    """Cube and measurement of each scene, in order."""

    @property
    def scenes(self) -> list[str]:
        """Names of the scenes, in order."""
        return list(self.files)

    def load(self, name: str) -> Item:
        """Read a scene; an error says what was expected of which file."""
        cube, measured = self.files[name]
        first = cube or measured
        if isinstance(first, Path) and (wanted := self.checksums.get(name)) is not None:
            _check_digest(first, wanted)
        scene = self._load_cube(cube) if isinstance(cube, Path) else cube
        notes = [] if scene is None else [scene.note]
        measurement = done = bad = None
        if measured is not None:
            made, note = self._load_measurement(measured)
            measurement, done = made.y[0], made.done
            bad = None if made.bad is None else made.bad[0]
            notes.append(note)
        mask, note = self._load_mask(name, measured)
        truth = None
        if scene is not None:
            truth = WholeScenes([scene], crop=self.crop, downsample=self.downsample)[0]
            # What is made in memory has no mask of its own: the middle of one measures it.
            whole = self.crop is None and not isinstance(cube, Scene)
            mask = mask if whole else _middle(mask, truth.shape[-2:])
            if truth.shape[-2:] != mask.shape[-2:]:
                place = name if isinstance(cube, Scene) else cube
                size, got = tuple(mask.shape[-2:]), tuple(truth.shape[-2:])
                both = ",".join(str(min(pair)) for pair in zip(size, got, strict=True))
                raise ValueError(
                    f"{place}: expected a cube of the mask's size {size}, got {got}; give "
                    f"another mask, data.evaluation.crop=[{both}] for the middle of both, or "
                    "data.evaluation.downsample=2 for cubes of twice the size"
                )
        wavelengths = self.wavelengths
        if wavelengths is None and scene is not None:
            wavelengths = scene.wavelengths or None
        told = "; ".join([*notes, note])
        return Item(name, truth, measurement, mask, wavelengths, told, done, bad)

    def _load_cube(self, path: Path) -> Scene:
        if not self.unit_range:
            scene = load_scene(path, self.wavelengths, key=self.key, axes=self.axes)
        else:
            bands = None if self.wavelengths is None else len(self.wavelengths)
            if path.is_dir():
                raise ValueError(f"{path}: expected a file, got a folder")
            loaded = load_cube(path, key=self.key, axes=self.axes, bands=bands)
            nm = loaded.wavelengths or self.wavelengths or ()
            scene = Scene(scene_name(path), loaded.data[0], nm, loaded.note)
        if self.shape is not None and scene.shape != tuple(self.shape):
            raise ValueError(
                f"{path}: expected a cube (C, H, W) of {tuple(self.shape)}, got {scene.shape}"
            )
        low, high = scene.cube.min().item(), scene.cube.max().item()
        if self.unit_range and not (low >= -_BEYOND and 0 < high <= 1 + _BEYOND):
            raise ValueError(
                f"{path}: expected values in [0, 1], got {low:.4g} to {high:.4g}; "
                "get the original file"
            )
        return scene

    def _load_measurement(self, path: Path) -> tuple[Prepared, str]:
        key, counts = self.key if self.cubes is None else None, self.preprocessing.bits is not None
        loaded = load_measurement(path, key=key, finite=False, counts=counts)
        y = loaded.data[0]
        wanted, found = self.measurement_shape, tuple(y.shape[-2:])
        if wanted is not None and found != tuple(wanted):
            raise ValueError(
                f"{path}: expected a measurement (H', W') of {tuple(wanted)}, got {found}"
            )
        try:
            made = self.preprocessing.prepare(loaded.data, loaded.full_scale, path.name)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        return made, ", ".join(filter(None, (loaded.note, describe(made.done))))

    def _load_mask(self, name: str, measured: Path | None) -> tuple[Tensor, str]:
        path = measured if self.mask is None else Path(self.mask).expanduser()
        if path is not None and path.is_dir() and self.mask is not None:
            path = _listed(path, frames=True).get(name)
        if path is None:
            raise FileNotFoundError(f"mask: no file for the scene {name} in {self.mask}")
        if self.mask_checksum is not None:
            _check_digest(path, self.mask_checksum)
        bands = None if self.wavelengths is None else len(self.wavelengths)
        loaded = load_mask(path, bands=bands, key=self.mask_key, axes=self.mask_axes)
        check_mask(loaded.data)
        return loaded.data, loaded.note


def _listed(source: PathLike | Sequence[PathLike] | None, frames: bool = False) -> dict[str, Path]:
    """Scenes by name; two files of one name cannot be told apart."""
    if source is None:
        return {}
    roots = [source] if isinstance(source, str | os.PathLike) else list(source)
    paths = [path for root in roots for path in find_scenes(root, frames=frames)]
    if not paths:
        raise ValueError(f"data: expected scenes, found none in {', '.join(map(str, roots))}")
    found: dict[str, Path] = {}
    for path in paths:
        name = scene_name(path)
        if name in found:
            raise ValueError(f"data: two scenes are called {name}: {found[name]} and {path}")
        # A mask that lies beside the scenes it belongs to is none of them.
        if name != "mask":
            found[name] = path
    return found


def _check_digest(path: Path, expected: str) -> None:
    digest = checksum(path)
    if digest != expected:
        wanted = f"the published file, with checksum {expected[:12]}…"
        raise ValueError(f"{path}: expected {wanted}, got {digest[:12]}…; get the original")


def _middle(mask: Tensor, size: Sequence[int]) -> Tensor:
    """The middle `(…, h, w)` of a mask `(…, H, W)`; a smaller mask is left as it is."""
    rows, columns = mask.shape[-2] - size[0], mask.shape[-1] - size[1]
    if min(rows, columns) < 0:
        return mask
    top, left = rows // 2, columns // 2
    return mask[..., top : top + size[0], left : left + size[1]].contiguous()
