"""Data sets for evaluations: cubes that are measured in simulation, or measurements of a camera."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from cassi.checks import did_you_mean
from cassi.data.datasets import WholeScenes
from cassi.data.frames import PreparedFrame, Preprocessing, describe_corrections
from cassi.data.io import load_cube, load_mask, load_measurement
from cassi.data.manifest import checksum, first_names
from cassi.data.scenes import Scene, find_scenes, load_scene, scene_name
from cassi.systems import check_mask

PathLike = str | os.PathLike[str]

# Values of a cube may lie this far outside [0, 1]. Published cubes were interpolated over
# wavelength, so some values lie a little below 0. (The code of TSA-Net, from which KAIST's test
# scenes come, clips its validation scenes at 0.) Cubes of counts lie farther outside: refuse them.
_MAX_OUTSIDE_UNIT_RANGE = 0.1


@dataclass(frozen=True)
class BenchmarkScene:
    """One scene of a data set.

    Attributes:
        name: unique in the data set.
        truth: `(C, H, W)` in [0, 1], or None if there is none.
        measurement: `(K, H', W')`, after preprocessing; None if it has to be simulated.
        mask: `(K, 1|C, H, W)`, transmission in [0, 1].
        wavelengths: nm, one per band, or None if neither the user nor the file states them.
        note: one line for the user that says how the files were read.
        preprocessing: the corrections of the measurement by step, or None.
        bad_pixels: pixels of the measurement to leave out, bool, shaped like it; None if there are
            none.
    """

    name: str
    truth: Tensor | None
    measurement: Tensor | None
    mask: Tensor
    wavelengths: tuple[float, ...] | None
    note: str
    preprocessing: dict[str, Any] | None = None
    bad_pixels: Tensor | None = None


@dataclass(frozen=True)
class Benchmark:
    """The scenes of a data set: files that are read one by one, or cubes in memory.

    Files are listed when the object is made. The name of a scene is that of its file, see
    `scene_name`. A cube and a measurement with the same name belong to the same scene.

    Args:
        cubes: a folder, a list of files, or scenes by name; None if there are only measurements.
        measurements: a folder or a list of files; None if measurements are simulated.
        mask: one file for all scenes; a folder with a file for each scene, named like the scene; or
            None if the files of the measurements contain the mask.
        wavelengths: bands to which cubes are interpolated, nm; None takes the bands of the files.
        names: scenes to take, in this order; None takes all.
        expected: names of all scenes of a published data set. `names` may only contain these, and
            their files must exist. None allows any names.
        shape: (C, H, W) of every cube; None for any.
        measurement_shape: (H', W') of every measurement; None for any.
        key: name of the array in the files of the cubes (or, without cubes, of the measurements).
        axes: order of the axes of the cubes, such as "HWC", if the files do not state it.
        unit_range: True takes cubes as they are, and refuses cubes with values more than 0.1
            outside [0, 1]. False scales cubes, see `load_scene`.
        checksums: expected SHA-256 of the file of each scene, by name of the scene. A file with
            another checksum is refused.
        mask_checksum: expected SHA-256 of the file of the mask.
        mask_key: name of the array in the file of the mask, if the name is not a usual one.
        mask_axes: order of the axes of the mask, such as "HWC".
        crop: size of the central part of cubes and mask that is kept, pixels.
        downsample: side of the blocks of pixels that are averaged after the crop, only in cubes.
        preprocessing: correction of the measurements.

    Raises:
        OSError: a file or folder is missing.
        ValueError: no scenes, unknown or equal names, or settings that exclude each other.
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
        """List the scenes, and check that those in `names` are there."""
        if self.cubes is None and self.measurements is None:
            raise ValueError("data: expected cubes or measurements, got neither; give a folder")
        if self.mask is None and self.measurements is None:
            raise ValueError("mask: expected a file, got none; give mask=FILE")
        if self.mask is not None and not Path(self.mask).expanduser().exists():
            raise FileNotFoundError(f"mask: no file or folder {self.mask}")
        if self.measurements is not None and (self.crop is not None or self.downsample != 1):
            raise ValueError("crop, downsample: expected none, a measurement is taken whole")
        cubes: Mapping[str, Path | Scene]
        cubes = self.cubes if isinstance(self.cubes, Mapping) else _find_files(self.cubes)
        measurement_files = _find_files(self.measurements, frames=True)
        available_names = sorted(cubes if self.measurements is None else measurement_files)
        allowed_names = list(self.expected or available_names)
        names = list(self.names if self.names is not None else allowed_names)
        expected_names = [name for name in names if name in allowed_names]
        if missing_names := [name for name in expected_names if name not in available_names]:
            source = self.cubes if self.measurements is None else self.measurements
            raise FileNotFoundError(
                f"data: {len(missing_names)} of {len(names)} scenes are missing in {source}: "
                f"expected {first_names(missing_names)}, there is {first_names(available_names)}"
            )
        for name in names:
            if name not in allowed_names:
                hint = did_you_mean(name, allowed_names)
                hint = hint or f"; there is {first_names(allowed_names)}"
                raise ValueError(f"scenes: {name!r} is not there{hint}")
            if names.count(name) > 1:
                raise ValueError(f"scenes: {name!r} is given twice")
        if not names:
            raise ValueError("scenes: expected at least one, got none")
        files = {name: (cubes.get(name), measurement_files.get(name)) for name in names}
        object.__setattr__(self, "files", files)

    files: dict[str, tuple[Path | Scene | None, Path | None]] = field(init=False, repr=False)
    """Cube and measurement of each scene, in order."""

    @property
    def scenes(self) -> list[str]:
        """Names of the scenes, in order."""
        return list(self.files)

    def load(self, name: str) -> BenchmarkScene:
        """Read the scene of this name.

        Raises:
            OSError: a file is missing.
            ValueError: a file is damaged, changed, or of another size.
        """
        cube, measurement_file = self.files[name]
        checked_file = cube or measurement_file
        expected_checksum = self.checksums.get(name)
        if isinstance(checked_file, Path) and expected_checksum is not None:
            _check_digest(checked_file, expected_checksum)
        scene = self._load_cube(cube) if isinstance(cube, Path) else cube
        notes = [] if scene is None else [scene.note]
        measurement = corrections = bad_pixels = None
        if measurement_file is not None:
            frame, measurement_note = self._load_measurement(measurement_file)
            measurement, corrections = frame.y[0], frame.corrections
            bad_pixels = None if frame.bad_pixels is None else frame.bad_pixels[0]
            notes.append(measurement_note)
        mask, mask_note = self._load_mask(name, measurement_file)
        notes.append(mask_note)
        truth = None
        if scene is not None:
            truth = WholeScenes([scene], crop=self.crop, downsample=self.downsample)[0]
            # A cube in memory, or a cropped cube, may be smaller than the mask. Then the middle of
            # the mask is used. A cube that is read whole from a file must have the size of the
            # mask.
            keeps_mask_size = self.crop is None and not isinstance(cube, Scene)
            mask = mask if keeps_mask_size else _crop_middle(mask, truth.shape[-2:])
            if truth.shape[-2:] != mask.shape[-2:]:
                origin = name if isinstance(cube, Scene) else cube
                mask_size, cube_size = tuple(mask.shape[-2:]), tuple(truth.shape[-2:])
                sizes = zip(mask_size, cube_size, strict=True)
                smaller_size = ",".join(str(min(pair)) for pair in sizes)
                raise ValueError(
                    f"{origin}: expected a cube of the mask's size {mask_size}, got {cube_size}; "
                    f"give another mask, data.evaluation.crop=[{smaller_size}] for the middle of "
                    "both, or data.evaluation.downsample=2 for cubes of twice the size"
                )
        wavelengths = self.wavelengths
        if wavelengths is None and scene is not None:
            wavelengths = scene.wavelengths or None
        note = "; ".join(notes)
        return BenchmarkScene(
            name, truth, measurement, mask, wavelengths, note, corrections, bad_pixels
        )

    def _load_cube(self, path: Path) -> Scene:
        if not self.unit_range:
            scene = load_scene(path, self.wavelengths, key=self.key, axes=self.axes)
        else:
            bands = None if self.wavelengths is None else len(self.wavelengths)
            if path.is_dir():
                raise ValueError(f"{path}: expected a file, got a folder")
            loaded_cube = load_cube(path, key=self.key, axes=self.axes, bands=bands)
            nm = loaded_cube.wavelengths or self.wavelengths or ()
            scene = Scene(scene_name(path), loaded_cube.data[0], nm, loaded_cube.note)
        if self.shape is not None and scene.shape != tuple(self.shape):
            raise ValueError(
                f"{path}: expected a cube (C, H, W) of {tuple(self.shape)}, got {scene.shape}"
            )
        low, high = scene.cube.min().item(), scene.cube.max().item()
        is_in_range = low >= -_MAX_OUTSIDE_UNIT_RANGE and 0 < high <= 1 + _MAX_OUTSIDE_UNIT_RANGE
        if self.unit_range and not is_in_range:
            raise ValueError(
                f"{path}: expected values in [0, 1], got {low:.4g} to {high:.4g}; "
                "get the original file"
            )
        return scene

    def _load_measurement(self, path: Path) -> tuple[PreparedFrame, str]:
        # If there are cubes, `key` names the array in their files and not in the files of the
        # measurements.
        key = self.key if self.cubes is None else None
        counts = self.preprocessing.bits is not None
        # Bad pixels may be NaN, so the check of finite values is left to `Preprocessing`.
        loaded_frame = load_measurement(path, key=key, finite=False, counts=counts)
        y = loaded_frame.data[0]
        expected_size, size = self.measurement_shape, tuple(y.shape[-2:])
        if expected_size is not None and size != tuple(expected_size):
            raise ValueError(
                f"{path}: expected a measurement (H', W') of {tuple(expected_size)}, got {size}"
            )
        try:
            frame = self.preprocessing.prepare(
                loaded_frame.data, loaded_frame.full_scale, path.name
            )
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        return frame, ", ".join(
            filter(None, (loaded_frame.note, describe_corrections(frame.corrections)))
        )

    def _load_mask(self, name: str, measurement_file: Path | None) -> tuple[Tensor, str]:
        path = measurement_file if self.mask is None else Path(self.mask).expanduser()
        if path is not None and path.is_dir() and self.mask is not None:
            path = _find_files(path, frames=True).get(name)
        if path is None:
            raise FileNotFoundError(f"mask: no file for the scene {name} in {self.mask}")
        if self.mask_checksum is not None:
            _check_digest(path, self.mask_checksum)
        bands = None if self.wavelengths is None else len(self.wavelengths)
        loaded_mask = load_mask(path, bands=bands, key=self.mask_key, axes=self.mask_axes)
        check_mask(loaded_mask.data)
        return loaded_mask.data, loaded_mask.note


def _find_files(
    source: PathLike | Sequence[PathLike] | None, frames: bool = False
) -> dict[str, Path]:
    """Return the files of scenes by name; ValueError if two have the same name."""
    if source is None:
        return {}
    roots = [source] if isinstance(source, str | os.PathLike) else list(source)
    paths = [path for root in roots for path in find_scenes(root, frames=frames)]
    if not paths:
        raise ValueError(f"data: expected scenes, found none in {', '.join(map(str, roots))}")
    files: dict[str, Path] = {}
    for path in paths:
        name = scene_name(path)
        if name in files:
            raise ValueError(f"data: two scenes are called {name}: {files[name]} and {path}")
        # A file named mask in the folder of the scenes is their mask and not a scene.
        if name != "mask":
            files[name] = path
    return files


def _check_digest(path: Path, expected: str) -> None:
    actual = checksum(path)
    if actual != expected:
        expectation = f"the published file, with checksum {expected[:12]}…"
        raise ValueError(f"{path}: expected {expectation}, got {actual[:12]}…; get the original")


def _crop_middle(mask: Tensor, size: Sequence[int]) -> Tensor:
    """Return the middle `(…, h, w)` of a mask `(…, H, W)`; a smaller mask is returned unchanged."""
    rows, columns = mask.shape[-2] - size[0], mask.shape[-1] - size[1]
    if min(rows, columns) < 0:
        return mask
    top, left = rows // 2, columns // 2
    return mask[..., top : top + size[0], left : left + size[1]].contiguous()
