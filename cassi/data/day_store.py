"""One Zarr store for the cubes of many snapshots, which many processes write at the same time."""

import fcntl
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from cassi.data.formats.labelled import CONVENTIONS, DIMENSIONS, WAVELENGTH

_TIME_ATTRIBUTES = {
    "standard_name": "time",
    "units": "seconds since 1970-01-01",
    "calendar": "standard",
}
MAX_PREVIEW_PIXELS = 128
"""Largest side of a preview, pixels."""


class DayStore:
    """The cubes of many snapshots: a Zarr 3 group that `xarray.open_zarr(path)` opens lazily.

    `cube(time, wavelength, y, x)` is float32, with one shard (a file) for each snapshot and one
    compressed chunk for each band in it. Cubes that are not written yet are NaN. `uncertainty` is
    optional and has the same shape: the standard deviation of every value. `preview(time, row,
    column, channel)` is an sRGB picture, uint8, of at most 128 pixels a side. `frame(time, shot,
    sensor_row, sensor_column)` is optional: the snapshots as they were read. Coordinates are `time`
    (when the file of the snapshot changed), `name` and `wavelength` (nm).

    Raises:
        ValueError: the package zarr is missing.
    """

    def __init__(self, path: Path) -> None:
        with _import_zarr() as zarr:
            self.path, self.group = path, zarr.open_group(path, mode="r+", zarr_format=3)
            self.indices = {str(name): i for i, name in enumerate(self.group["name"][:])}

    def file(self, name: str) -> Path:
        """Return the shard of a snapshot's cube."""
        return self._find_shard("cube", self.indices[name])

    def write(
        self,
        name: str,
        cube: np.ndarray,
        std: np.ndarray | None,
        preview: np.ndarray,
        frame: np.ndarray | None = None,
    ) -> None:
        """Write the arrays of a snapshot, and flush each of them to the disk.

        Args:
            name: name of the snapshot.
            cube: `(C, H, W)`.
            std: standard deviation of every value, shaped like the cube; None if the store has
                none.
            preview: `(H', W', 3)`, uint8.
            frame: `(K, H', W')`; None if the store has no frames.

        Raises:
            ValueError: the cube has another shape than the cubes of the store.
        """
        expected, index = tuple(self.group["cube"].shape[1:]), self.indices[name]
        if cube.shape != expected:
            raise ValueError(f"{self.path}: expected a cube of {expected}, got {cube.shape}")
        # The cube is written last, so a snapshot whose cube exists is complete.
        values = {"preview": preview, "frame": frame, "uncertainty": std, "cube": cube}
        for key, value in values.items():
            if value is not None:
                with _import_zarr():
                    self.group[key][index] = value
                with self._find_shard(key, index).open("rb") as file:
                    os.fsync(file.fileno())

    def _find_shard(self, key: str, index: int) -> Path:
        return self.path.joinpath(key, "c", str(index), "0", "0", "0")


def prepare_store(
    path: Path,
    names: Sequence[str],
    times: Sequence[float],
    shape: tuple[int, int, int],
    wavelengths: Sequence[float] | None,
    uncertainty: bool = False,
    attributes: Mapping[str, object] | None = None,
    frame: tuple[int, ...] | None = None,
) -> DayStore:
    """Create a store for snapshots, or append the snapshots that an existing store does not have.

    Several commands that share the snapshots may call this at the same time, because a lock
    protects the store.

    Args:
        path: path of the store, which ends in `.zarr`.
        names: names of the snapshots, in order.
        times: times of the snapshots, seconds since 1970.
        shape: (C, H, W) of every cube.
        wavelengths: nm, one per band, or None.
        uncertainty: whether the store has standard deviations.
        attributes: attributes of a new store.
        frame: (K, H', W') of every frame; None if the store keeps no frames.

    Raises:
        ValueError: the existing store has cubes of another shape or with other wavelengths, or the
            package zarr is missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock, _import_zarr() as zarr:
        fcntl.flock(lock, fcntl.LOCK_EX)
        nm = None if wavelengths is None else list(map(float, wavelengths))
        layout = {"cube_shape": list(shape), "wavelengths": nm, "uncertainty": uncertainty}
        layout |= {} if frame is None else {"frame_shape": list(frame)}
        if not path.exists():
            # The store gets its final name once it is complete, so a killed process never leaves a
            # store without arrays.
            stage = path.with_name(f".{path.name}.new")
            group = zarr.create_group(stage, zarr_format=3, overwrite=True)
            group.attrs.update(
                {"Conventions": CONVENTIONS, **dict(attributes or {}), "cassi": layout}
            )
            _create_arrays(group, shape, nm, uncertainty, frame)
            stage.rename(path)
        group = zarr.open_group(path, mode="r+", zarr_format=3)

        if json.loads(json.dumps(group.attrs.get("cassi"))) != layout:
            raise ValueError(
                f"{path} is for other cubes, {group.attrs.get('cassi')}; remove it, "
                "or choose another name"
            )
        stored_names = set(map(str, group["name"][:]))
        new_indices = [i for i, name in enumerate(names) if name not in stored_names]
        if new_indices:
            _append_snapshots(
                group, [names[i] for i in new_indices], [times[i] for i in new_indices]
            )
    return DayStore(path)


class FrameRecorder:
    """Appends frames and cubes to a day store, under a lock that one process at a time can hold.

    Frames are numbered in the order of the store.

    Raises:
        ValueError: the package zarr is missing, the store has no frames, or another process
            records into it.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._n_frames = path.resolve(), -1
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _import_zarr():  # raises here, before a camera runs, if the package is missing
            if path.exists() and "frame" not in DayStore(path).group:
                raise ValueError(f"{path} keeps no frames; choose another name")
        self._lock = self.path.with_name(f".{self.path.name}.recording").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise ValueError(
                f"another command records into {path}; wait for its end, or choose another name"
            ) from None
        except OSError:  # a file system without locks
            pass

    def append(
        self,
        name: str,
        time: float,
        cube: np.ndarray,
        picture: np.ndarray,
        frame: np.ndarray,
        wavelengths: Sequence[float] | None,
    ) -> None:
        """Append a frame and its cube.

        Args:
            name: name of the frame; the number of the frame is put before it.
            time: seconds since 1970.
            cube: `(C, H, W)`.
            picture: the cube in colour, `(H, W, 3)`, uint8.
            frame: `(K, H', W')`.
            wavelengths: nm, one per band, or None.
        """
        bands, height, width = cube.shape
        attributes = {"title": "frames and cubes, by cassi-live"}
        prepare = partial(prepare_store, self.path, wavelengths=wavelengths)
        prepare = partial(
            prepare, shape=(bands, height, width), attributes=attributes, frame=frame.shape
        )
        if self._n_frames < 0:
            self._n_frames = prepare([], []).group["name"].shape[0]
        self._n_frames += 1
        name = f"{self._n_frames:06d} {name}"
        store = prepare([name], [time])
        pixels = torch.from_numpy(picture).permute(2, 0, 1).float()
        pixels = torch.nn.functional.adaptive_avg_pool2d(pixels, preview_size(height, width))
        preview = pixels.round().byte().permute(1, 2, 0).numpy()
        store.write(name, cube, None, preview, frame)

    def close(self) -> None:
        """Release the lock, so that another process can record."""
        self._lock.close()


def _create_arrays(
    group: Any,
    shape: tuple[int, int, int],
    nm: Sequence[float] | None,
    uncertainty: bool,
    frame: tuple[int, ...] | None,
) -> None:
    """Create the empty arrays of a store in a Zarr group."""
    bands, height, width = shape
    titles = {"cube": "hyperspectral cube"}
    titles |= {"uncertainty": "standard deviation of the cube"} if uncertainty else {}
    for key, title in titles.items():
        group.create_array(
            key,
            shape=(0, *shape),
            chunks=(1, 1, height, width),
            shards=(1, *shape),
            dtype="float32",
            fill_value=float("nan"),
            dimension_names=("time", *DIMENSIONS),
            attributes={"long_name": title, "coordinates": "name"},
        )
    group.create_array(
        "preview",
        shape=(0, *preview_size(height, width), 3),
        chunks=(1, *preview_size(height, width), 3),
        dtype="uint8",
        dimension_names=("time", "row", "column", "channel"),
        attributes={"long_name": "sRGB picture"},
    )
    if frame is not None:
        group.create_array(
            "frame",
            shape=(0, *frame),
            chunks=(1, *frame),
            dtype="float32",
            fill_value=float("nan"),
            dimension_names=("time", "shot", "sensor_row", "sensor_column"),
            attributes={"long_name": "snapshot as it was read", "coordinates": "name"},
        )
    common = {"shape": (0,), "chunks": (1 << 16,), "dimension_names": ("time",)}
    group.create_array("time", dtype="float64", attributes=_TIME_ATTRIBUTES, **common)
    group.create_array(
        "name", dtype=str, attributes={"long_name": "name of the snapshot"}, **common
    )
    if nm is not None:
        axis = group.create_array(
            "wavelength",
            shape=(bands,),
            chunks=(bands,),
            dtype="float64",
            dimension_names=DIMENSIONS[:1],
            attributes=dict(WAVELENGTH),
        )
        axis[:] = np.asarray(nm)


def _append_snapshots(group: Any, names: Sequence[str], times: Sequence[float]) -> None:
    """Lengthen all arrays of a store by some snapshots, and write their times and names."""
    n_stored = group["name"].shape[0]
    for key in ("cube", "uncertainty", "preview", "frame", "time"):
        if key in group:
            array = group[key]
            array.resize((n_stored + len(names), *array.shape[1:]))
    group["time"][n_stored:] = np.asarray(times, float)
    group["name"].resize((n_stored + len(names),))
    group["name"][n_stored:] = np.asarray(names, dtype=object)


def preview_size(height: int, width: int) -> tuple[int, int]:
    """Return (H', W') of a preview: the sides of a cube divided by one whole number, rounded up."""
    divisor = -(-max(height, width) // MAX_PREVIEW_PIXELS)
    return -(-height // divisor), -(-width // divisor)


@contextmanager
def _import_zarr() -> Iterator[ModuleType]:
    """Import zarr and hide its warnings of draft features; ValueError if it is not installed."""
    try:
        import zarr
    except ImportError:
        raise ValueError(
            "output.cube: a store of many snapshots needs the package zarr; "
            "pip install 'cassi[xarray]'"
        ) from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield zarr
