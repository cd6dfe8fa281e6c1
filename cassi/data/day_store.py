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
"""Pixels of the longer side of a preview, at most."""


class DayStore:
    """A Zarr 3 group that xarray opens lazily, `xarray.open_zarr(path)`.

    `cube(time, wavelength, y, x)` is float32, with one shard (a file) for each snapshot and one
    compressed chunk for each band in it; what is not there yet is NaN. `uncertainty`, if asked for,
    is alike: the standard deviation of every value. `preview(time, row, column, channel)` is an
    sRGB picture of at most 128 pixels, uint8. Coordinates are `time` (of change of the file of the
    snapshot), `name` and `wavelength` (nm). `frame(time, shot, row, column)`, if asked for, has the
    snapshots as they were read.
    """

    def __init__(self, path: Path) -> None:
        with _zarr() as zarr:
            self.path, self.group = path, zarr.open_group(path, mode="r+", zarr_format=3)
            self.places = {str(name): i for i, name in enumerate(self.group["name"][:])}

    def file(self, name: str) -> Path:
        """Return the shard of a snapshot's cube."""
        return self._shard("cube", self.places[name])

    def write(
        self,
        name: str,
        cube: np.ndarray,
        std: np.ndarray | None,
        preview: np.ndarray,
        frame: np.ndarray | None = None,
    ) -> None:
        """Write what belongs to a snapshot, its cube last.

        Args:
            name: of the snapshot.
            cube: `(C, H, W)`.
            std: the same shape, where the store has standard deviations.
            preview: `(H', W', 3)`, uint8.
            frame: `(K, H', W')`, where the store has frames.
        """
        expected, place = tuple(self.group["cube"].shape[1:]), self.places[name]
        if cube.shape != expected:
            raise ValueError(f"{self.path}: expected a cube of {expected}, got {cube.shape}")
        values = {"preview": preview, "frame": frame, "uncertainty": std, "cube": cube}
        for key, value in values.items():
            if value is not None:
                with _zarr():
                    self.group[key][place] = value
                with self._shard(key, place).open("rb") as file:
                    os.fsync(file.fileno())

    def _shard(self, key: str, place: int) -> Path:
        return self.path.joinpath(key, "c", str(place), "0", "0", "0")


def prepare_store(
    path: Path,
    names: Sequence[str],
    times: Sequence[float],
    shape: tuple[int, int, int],
    wavelengths: Sequence[float] | None,
    uncertainty: bool = False,
    about: Mapping[str, object] | None = None,
    frame: tuple[int, ...] | None = None,
) -> DayStore:
    """Make a store for these snapshots, or give them a place in the one that is there.

    Commands that share the snapshots may do so at the same time. New snapshots come after those
    that are there.

    Args:
        path: ends in `.zarr`.
        names: of the snapshots, in order.
        times: of the snapshots, seconds since 1970.
        shape: (C, H, W) of every cube.
        wavelengths: nm, one per band, if known.
        uncertainty: the store has standard deviations.
        about: attributes of a new store.
        frame: (K, H', W') of every snapshot, where the store keeps them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock, _zarr() as zarr:
        fcntl.flock(lock, fcntl.LOCK_EX)
        nm = None if wavelengths is None else list(map(float, wavelengths))
        known = {"cube_shape": list(shape), "wavelengths": nm, "uncertainty": uncertainty}
        known |= {} if frame is None else {"frame_shape": list(frame)}
        if not path.exists():
            stage = path.with_name(f".{path.name}.new")
            group = zarr.create_group(stage, zarr_format=3, overwrite=True)
            group.attrs.update({"Conventions": CONVENTIONS, **dict(about or {}), "cassi": known})
            _create(group, shape, nm, uncertainty, frame)
            stage.rename(path)
        group = zarr.open_group(path, mode="r+", zarr_format=3)
        if json.loads(json.dumps(group.attrs.get("cassi"))) != known:
            raise ValueError(
                f"{path} is for other cubes, {group.attrs.get('cassi')}; remove it, "
                "or choose another name"
            )
        there = set(map(str, group["name"][:]))
        added = [i for i, name in enumerate(names) if name not in there]
        if added:
            _extend(group, [names[i] for i in added], [times[i] for i in added])
    return DayStore(path)


class Recording:
    """Appends frames and cubes to a day store. One process at a time does so.

    Every frame gets a number: the next after those that the store has.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._count = path.resolve(), -1
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _zarr():  # without the package nothing begins
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
        except OSError:  # there are no locks
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
        """Write a frame `(K, H', W')` and its cube `(C, H, W)` after the others.

        `picture` is that of the cube, `(H, W, 3)`, uint8; `time` is in seconds since 1970.
        """
        bands, height, width = cube.shape
        about = {"title": "frames and cubes, by cassi-live"}
        prepare = partial(prepare_store, self.path, wavelengths=wavelengths)
        prepare = partial(prepare, shape=(bands, height, width), about=about, frame=frame.shape)
        if self._count < 0:
            self._count = prepare([], []).group["name"].shape[0]
        self._count += 1
        name = f"{self._count:06d} {name}"
        store = prepare([name], [time])
        small = torch.from_numpy(picture).permute(2, 0, 1).float()
        small = torch.nn.functional.adaptive_avg_pool2d(small, preview_size(height, width))
        preview = small.round().byte().permute(1, 2, 0).numpy()
        store.write(name, cube, None, preview, frame)

    def close(self) -> None:
        """Let others record."""
        self._lock.close()


def _create(
    group: Any,
    shape: tuple[int, int, int],
    nm: Sequence[float] | None,
    uncertainty: bool,
    frame: tuple[int, ...] | None,
) -> None:
    bands, height, width = shape
    named = {"cube": "hyperspectral cube"}
    named |= {"uncertainty": "standard deviation of the cube"} if uncertainty else {}
    for key, title in named.items():
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
    line = {"shape": (0,), "chunks": (1 << 16,), "dimension_names": ("time",)}
    group.create_array("time", dtype="float64", attributes=_TIME, **line)
    group.create_array("name", dtype=str, attributes={"long_name": "name of the snapshot"}, **line)
    if nm is not None:
        made = group.create_array(
            "wavelength",
            shape=(bands,),
            chunks=(bands,),
            dtype="float64",
            dimension_names=DIMENSIONS[:1],
            attributes=dict(WAVELENGTH),
        )
        made[:] = np.asarray(nm)


def _extend(group: Any, names: Sequence[str], times: Sequence[float]) -> None:
    before = group["name"].shape[0]
    for key in ("cube", "uncertainty", "preview", "frame", "time"):
        if key in group:
            array = group[key]
            array.resize((before + len(names), *array.shape[1:]))
    group["time"][before:] = np.asarray(times, float)
    group["name"].resize((before + len(names),))
    group["name"][before:] = np.asarray(names, dtype=object)


def preview_size(height: int, width: int) -> tuple[int, int]:
    """Return (H', W') of the preview of a cube."""
    side = -(-max(height, width) // PREVIEW)
    return -(-height // side), -(-width // side)


@contextmanager
def _zarr() -> Iterator[ModuleType]:
    """Yield the package, without its warnings of what the specification leaves open."""
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
