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

_TIME = {"standard_name": "time", "units": "seconds since 1970-01-01", "calendar": "standard"}
PREVIEW = 128
"""Largest side of a preview, pixels."""


class DayStore:
    """The cubes of many snapshots: a Zarr 3 group that `xarray.open_zarr(path)` opens lazily.

    `cube(time, wavelength, y, x)` is float32, with one shard (a file) for each snapshot and one
    compressed chunk for each band in it. The cube of a snapshot that is not written yet is NaN.
    `uncertainty` is optional, of the same shape: the standard deviation of every value.
    `preview(time, row, column, channel)` is an sRGB picture, uint8, of at most 128 pixels a side.
    `frame(time, shot, row, column)` is optional: the snapshots as they were read. Coordinates are
    `time` (when the file of the snapshot changed), `name` and `wavelength` (nm).
    """

    def __init__(self, path: Path) -> None:
        with _zarr() as zarr:
            self.path, self.group = path, zarr.open_group(path, mode="r+", zarr_format=3)
            self.indices = {str(name): i for i, name in enumerate(self.group["name"][:])}

    def file(self, name: str) -> Path:
        """Return the shard of a snapshot's cube."""
        return self._shard_path("cube", self.indices[name])

    def write(
        self,
        name: str,
        cube: np.ndarray,
        std: np.ndarray | None,
        preview: np.ndarray,
        frame: np.ndarray | None = None,
    ) -> None:
        """Write the arrays of a snapshot, and flush each to the disk.

        Args:
            name: name of the snapshot.
            cube: `(C, H, W)`.
            std: standard deviations, of the same shape, if the store has them.
            preview: `(H', W', 3)`, uint8.
            frame: `(K, H', W')`, if the store has frames.

        Raises:
            ValueError: the cube has another shape than those of the store.
        """
        expected, index = tuple(self.group["cube"].shape[1:]), self.indices[name]
        if cube.shape != expected:
            raise ValueError(f"{self.path}: expected a cube of {expected}, got {cube.shape}")
        # The cube comes last, so a snapshot with a cube is complete.
        values = {"preview": preview, "frame": frame, "uncertainty": std, "cube": cube}
        for key, value in values.items():
            if value is not None:
                with _zarr():
                    self.group[key][index] = value
                with self._shard_path(key, index).open("rb") as file:
                    os.fsync(file.fileno())

    def _shard_path(self, key: str, index: int) -> Path:
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
    """Make a store for these snapshots, or append those that an existing store does not have.

    A lock lets several commands that share the snapshots call this at the same time.

    Args:
        path: ends in `.zarr`.
        names: names of the snapshots, in order.
        times: times of the snapshots, seconds since 1970.
        shape: (C, H, W) of every cube.
        wavelengths: nm, one per band, or None.
        uncertainty: the store has standard deviations.
        attributes: attributes of a new store.
        frame: (K, H', W') of every snapshot, if the store keeps them.

    Raises:
        ValueError: the existing store is for cubes of another shape or other wavelengths, or the
            package zarr is missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock, _zarr() as zarr:
        fcntl.flock(lock, fcntl.LOCK_EX)
        nm = None if wavelengths is None else list(map(float, wavelengths))
        layout = {"cube_shape": list(shape), "wavelengths": nm, "uncertainty": uncertainty}
        layout |= {} if frame is None else {"frame_shape": list(frame)}
        if not path.exists():
            # The store is renamed once it is complete, so a killed process leaves none without its
            # arrays.
            stage = path.with_name(f".{path.name}.new")
            group = zarr.create_group(stage, zarr_format=3, overwrite=True)
            group.attrs.update(
                {"Conventions": CONVENTIONS, **dict(attributes or {}), "cassi": layout}
            )
            _create(group, shape, nm, uncertainty, frame)
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
            _extend(group, [names[i] for i in new_indices], [times[i] for i in new_indices])
    return DayStore(path)


class FrameRecorder:
    """Appends frames and cubes to a day store, under a lock that one process at a time can hold.

    Frames are numbered in the order of the store.

    Raises:
        ValueError: the package zarr is missing, the store has no frames, or another process
            records into it.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._count = path.resolve(), -1
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _zarr():  # raises here, before a camera runs, if the package is missing
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
        if self._count < 0:
            self._count = prepare([], []).group["name"].shape[0]
        self._count += 1
        name = f"{self._count:06d} {name}"
        store = prepare([name], [time])
        pixels = torch.from_numpy(picture).permute(2, 0, 1).float()
        pixels = torch.nn.functional.adaptive_avg_pool2d(pixels, preview_size(height, width))
        preview = pixels.round().byte().permute(1, 2, 0).numpy()
        store.write(name, cube, None, preview, frame)

    def close(self) -> None:
        """Release the lock, so that another process can record."""
        self._lock.close()


def _create(
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
    group.create_array("time", dtype="float64", attributes=_TIME, **common)
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


def _extend(group: Any, names: Sequence[str], times: Sequence[float]) -> None:
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
    """Return (H', W') of the preview of a cube: both sides divided by one whole number."""
    side = -(-max(height, width) // PREVIEW)
    return -(-height // side), -(-width // side)


@contextmanager
def _zarr() -> Iterator[ModuleType]:
    """Yield the package zarr, or say how to install it; hide its warnings of draft features."""
    try:
        import zarr
    except ImportError:
        raise ValueError(
            "output.cube: it takes the package zarr for a store of many snapshots; "
            "pip install 'cassi[xarray]'"
        ) from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield zarr
