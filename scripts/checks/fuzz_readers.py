"""Damage valid files at random and read them: a result, or one line of a documented error.

Every reader of cassi is tried: cubes in all formats, PNG pages, manifests, weights, checkpoints,
options and records of earlier runs, curves, config nodes. A crash, another error, one of several
lines, more than 5 s, or more memory than the budget is a finding; its damaged files are kept under
`--out`. A tenth of the trials puts links, pipes and devices into stores and folders, or gives files
names that could steer a terminal or a spreadsheet. Prints a table, one row a kind of file, and
exits with status 1 where there are findings.

    python -m scripts.checks.fuzz_readers --files 10000 --seed 0
    python -m scripts.checks.fuzz_readers --only 4711
"""

import argparse
import contextlib
import csv
import json
import os
import shutil
import struct
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tifffile
import torch
import xarray
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from PIL import Image
from scipy.io import savemat
from yaml import YAMLError

import cassi
from cassi.apps.errors import describe
from cassi.apps.train.files import add_earlier_options, read_checkpoint, save_options
from cassi.config import build
from cassi.data import io
from cassi.data.formats.cells import csv_text
from cassi.data.manifest import read_manifest
from cassi.data.scenes import load_scene
from cassi.evaluation.records import Record, RecordFolder
from cassi.models.load import Card, load_model, save_model
from cassi.priors.weights import read_file
from cassi.systems import Curve
from scripts.checks import fuzz_batches
from scripts.checks.fuzz_batches import Report

NM = (453.5, 457.5, 462.0, 466.125, 471.5)
_GENERATOR = torch.Generator().manual_seed(0)
CUBE = torch.rand(5, 16, 17, generator=_GENERATOR).numpy()


@dataclass(frozen=True)
class Kind:
    """Something that cassi reads.

    Attributes:
        make: writes valid files into an empty folder.
        read: reads them.
    """

    make: Callable[[Path], object]
    read: Callable[[Path], object]


def _in(name: str, make: Callable[[Path], object], read: Callable[[Path], object]) -> Kind:
    """Make and read one file, or folder, of this name."""
    return Kind(lambda folder: make(folder / name), lambda folder: read(folder / name))


def _array(make: Callable[[Path], object], name: str) -> Kind:
    return _in(name, make, io.load_cube)  # they share all but what the axes mean


def _tiff(path: Path, **options: Any) -> None:
    counts = (CUBE * 65535).astype(np.uint16)
    tifffile.imwrite(path, counts, photometric="minisblack", **options)


def _packbits(path: Path) -> None:
    pages = [Image.fromarray((plane * 255).astype(np.uint8)) for plane in CUBE]
    pages[0].save(path, save_all=True, append_images=pages[1:], compression="packbits")


def _mat(path: Path) -> None:
    content = {"cube": CUBE.transpose(1, 2, 0).astype(np.float64), "note": "text"}
    content |= {"wavelengths": np.asarray(NM), "s": {"x": np.ones(3)}}
    savemat(str(path), content, appendmat=False)


def _mat73(path: Path) -> None:
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, values in (("cube", CUBE.transpose(1, 2, 0)), ("wavelengths", np.array([NM]))):
            file.create_dataset(name, data=values.T, compression="gzip")
            file[name].attrs["MATLAB_class"] = np.bytes_("double")
        file["text"] = np.frombuffer("CHW".encode("utf-16-le"), np.uint16)
        file["text"].attrs["MATLAB_class"] = np.bytes_("char")
    with path.open("r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\2IM")


def _labelled() -> Any:
    array = xarray.DataArray(CUBE, dims=("wavelength", "y", "x"), name="cube")
    return array.assign_coords(wavelength=list(NM)).to_dataset()


def _hdf5(path: Path, **options: Any) -> None:
    with h5py.File(path, "w") as file:
        item = file.create_dataset("a/cube", data=CUBE, **options)
        item.attrs["axes"] = "CHW"
        item.attrs["wavelengths"] = NM
        file["elsewhere"] = h5py.ExternalLink("/etc/hostname", "/x")
        file["soft"] = h5py.SoftLink("/a/cube")


def _image(top: int, dtype: Any) -> Kind:
    picture = Image.fromarray((CUBE[0] * top).astype(dtype))
    return _in("a.png", picture.save, io.load_mask)


def _make_pages(folder: Path) -> None:
    counts = (CUBE[0] * 65535).astype(np.uint16)
    for page in range(31):
        Image.fromarray(np.roll(counts, page, 0)).save(folder / f"scene_{page + 1:02}.png")


def _make_manifest(path: Path) -> None:
    names = {f"train/scene{i:02}.mat": f"{i:064x}" for i in range(4)}
    splits = {"train": names, "test": {"test/a.mat": "0" * 64}, "aliases": {"test/a.mat": "b"}}
    path.write_text(json.dumps({"wavelengths": list(NM), **splits}), encoding="utf-8")


def _make_model(path: Path) -> None:
    network = cassi.create_model("gap_net", bands=2, stages=1)
    card = Card("gap_net", 2, {"stages": 1}, NM[:2], {"epochs": 3})
    save_model(path, network.state_dict(), card)


def _save(path: Path, **options: Any) -> None:
    state = {f"net.{name}": torch.rand(4, 3) for name in "abc"}
    torch.save({"state_dict": state, "global_step": 7, "epoch": 1}, path, **options)


def _make_records(folder: Path) -> None:
    record = Record("", "scene", "gap", "key", {"psnr": 30.5}, {"seconds": 1.0}, curve=[(0.1, 20)])
    RecordFolder(folder).write(record, torch.from_numpy(CUBE))


def _read_records(folder: Path) -> object:
    records = RecordFolder(folder)
    return [(record, records.read_cube(record.job)) for record in records.all()]


def _make_curve(path: Path) -> None:
    rows = "".join(f"{nm},{2.5 * band}\n" for band, nm in enumerate(NM))
    path.write_text(f"wavelength,pixel\n{rows}", encoding="utf-8")


_CONFIG = """
last: 0.01
node:
  _target_: cassi.solvers.Geometric
  start: 1.0
  end: ${last}
"""


def _read_config(path: Path) -> object:
    try:
        return build(OmegaConf.select(OmegaConf.load(path), "node"))
    except (OmegaConfBaseException, YAMLError) as error:
        raise ValueError(" ".join(str(error).split())) from error  # as the commands put it


def kinds() -> dict[str, Kind]:
    """Everything that cassi reads, by name."""
    given = ["model=gap_net", "trainer.max_steps=300", "data.root=/data/cave"]
    filters: dict[str, Any] = {
        "chunks": (2, 8, 8),
        "compression": "gzip",
        "shuffle": True,
        "fletcher32": True,
    }
    tiles: dict[str, Any] = {"tile": (16, 16), "bigtiff": True, "byteorder": ">"}
    deflate: dict[str, Any] = {"compression": "zlib", "predictor": True, "rowsperstrip": 4}
    return {
        **{
            suffix.removeprefix("."): _array(
                partial(io.write_cube, cube=CUBE, wavelengths=None if suffix == ".npy" else NM),
                f"a{suffix}",
            )
            for suffix in io.WRITE_SUFFIXES
        },
        "nc classic": _array(lambda path: _labelled().to_netcdf(path, engine="scipy"), "a.nc"),
        "nc of xarray": _array(lambda path: _labelled().to_netcdf(path, engine="h5netcdf"), "a.nc"),
        "zarr compressed": _array(lambda path: _labelled().to_zarr(path), "a.zarr"),
        "tif deflate": _array(partial(_tiff, **deflate), "a.tif"),
        "tif packbits": _array(_packbits, "a.tif"),
        "tif tiles, big": _array(partial(_tiff, **tiles), "a.tif"),
        "mat v5 plain": _array(_mat, "a.mat"),
        "mat v7.3": _array(_mat73, "a.mat"),
        "h5 contiguous": _array(_hdf5, "a.h5"),
        "h5 filters": _array(partial(_hdf5, **filters), "a.h5"),
        "h5 lzf": _array(partial(_hdf5, chunks=True, compression="lzf"), "a.h5"),
        "npz stored": _array(lambda path: np.savez(path, cube=CUBE, wavelengths=NM), "a.npz"),
        "png 8 bits": _image(255, np.uint8),
        "png 16 bits": _image(65535, np.uint16),
        "png pages": Kind(_make_pages, lambda folder: load_scene(folder, NM)),
        "manifest": _in("manifest.json", _make_manifest, read_manifest),
        "safetensors": _in("model.safetensors", _make_model, load_model),
        "checkpoint": _in("last.ckpt", _save, read_checkpoint),
        "pth": _in("w.pth", _save, read_file),
        "pth legacy": _in("w.pth", partial(_save, _use_new_zipfile_serialization=False), read_file),
        "options": Kind(
            lambda folder: save_options(folder, given),
            lambda folder: add_earlier_options([f"hydra.run.dir={folder}", "ckpt=last"]),
        ),
        "records": Kind(_make_records, _read_records),
        "csv curve": _in(
            "curve.csv", _make_curve, lambda path: Curve(file=str(path)).positions(NM)
        ),
        "yaml node": _in("node.yaml", lambda path: path.write_text(_CONFIG), _read_config),
    }


Random = np.random.Generator

# What a count, a size or an offset is replaced by.
_NUMBERS = (0, 1, 2, 255, 256, 65535, 1 << 20, 1 << 24, *((1 << bits) for bits in (30, 40, 62)))
_NUMBERS += (*(n - 1 for n in (1 << 31, 1 << 32, 1 << 63)), -1, -2, -(1 << 31), -(1 << 63))
_TEXTS = (*(str(n).encode() for n in _NUMBERS), b"9" * 400, b"1e400", b"nan", b"", b"[[", b"{")
_OTHER = 0.1
"""Share of the trials that try links and names in place of damaged content."""
_HEAD = 2048  # headers lie here, or at the end


def _place(random: Random, size: int) -> int:
    """Somewhere in a file, mostly near its beginning or its end."""
    where = random.random()
    if where < 0.5:
        return int(random.integers(min(size, _HEAD)))
    if where < 0.7:
        return size - 1 - int(random.integers(min(size, _HEAD)))
    return int(random.integers(size))


def flip_bits(random: Random, content: bytearray) -> None:
    """Turn over up to 16 bits."""
    for _ in range(int(random.integers(1, 17))):
        content[_place(random, len(content))] ^= 1 << int(random.integers(8))


def cut(random: Random, content: bytearray) -> None:
    """Cut the end off."""
    del content[_place(random, len(content)) :]


def splice(random: Random, content: bytearray) -> None:
    """Copy a stretch over another, or insert it, or take it out."""
    start, to = _place(random, len(content)), _place(random, len(content))
    stretch = content[start : start + int(random.integers(1, 200))]
    how = random.integers(3)
    if how == 0:
        content[to : to + len(stretch)] = stretch
    elif how == 1:
        content[to:to] = stretch * int(random.integers(1, 20))
    else:
        del content[to : to + len(stretch)]


def change_number(random: Random, content: bytearray) -> None:
    """Replace an integer of 1 to 8 bytes by a huge, a negative or another telling one."""
    size = int(random.choice([1, 2, 4, 4, 8]))
    order = "<" if random.random() < 0.7 else ">"
    value = int(random.choice(np.array(_NUMBERS, object))) % (1 << 8 * size)
    code = {1: "B", 2: "H", 4: "I", 8: "Q"}[size]
    at = _place(random, len(content))
    at -= at % size if random.random() < 0.7 else 0
    content[at : at + size] = struct.pack(order + code, value)


def change_text(random: Random, content: bytearray) -> None:
    """Replace a number that is written in digits."""
    at = _place(random, len(content))
    digits = b"0123456789."
    start = next((i for i in range(at, len(content)) if content[i] in digits), None)
    if start is None:
        return
    end = start
    while end < len(content) and content[end] in digits:
        end += 1
    content[start:end] = _TEXTS[int(random.integers(len(_TEXTS)))]


def blank(random: Random, content: bytearray) -> None:
    """Fill a stretch with one value."""
    at, size = _place(random, len(content)), int(random.integers(1, 64))
    content[at : at + size] = bytes([int(random.choice([0, 255, 32]))]) * size


def share_bytes(random: Random, content: bytearray) -> None:
    """Copy a table of offsets over the one behind it: strips, chunks or variables overlap."""
    width = int(random.choice([4, 8])) * int(random.integers(1, 65))
    at = _place(random, max(1, len(content) - 2 * width))
    at -= at % 4
    content[at + width : at + 2 * width] = content[at : at + width]


def repeat_number(random: Random, content: bytearray) -> None:
    """Fill a stretch with one of its own integers, as a table of equal offsets has it."""
    size = int(random.choice([4, 8]))
    at = _place(random, len(content))
    at -= at % size
    number, times = content[at : at + size], int(random.integers(2, 65))
    content[at : at + size * times] = (number * times)[: max(0, len(content) - at)]


MUTATIONS: tuple[Callable[[Random, bytearray], None], ...] = (
    *(flip_bits, cut, splice, change_number, change_number, change_text, blank),
    *(share_bytes, repeat_number),
)


def mutate(random: Random, content: bytes) -> bytes:
    """Damage the content of a file in one to four ways."""
    damaged = bytearray(content)
    for _ in range(int(random.choice([1, 1, 2, 3, 4]))):
        if not damaged:
            break
        MUTATIONS[int(random.integers(len(MUTATIONS)))](random, damaged)
    return bytes(damaged)


def mutate_inside(random: Random, content: bytes) -> bytes:
    """Damage what a check sum protects, and make the sum right again."""
    if content.startswith(b"PK"):
        return _mutate_zip(random, content)
    if content.startswith(b"\x89PNG"):
        return _mutate_png(random, content)
    return mutate(random, content)


def _mutate_zip(random: Random, content: bytes) -> bytes:
    result = BytesIO()
    with zipfile.ZipFile(BytesIO(content)) as old, zipfile.ZipFile(result, "w") as new:
        chosen = int(random.integers(len(old.infolist())))
        method = zipfile.ZIP_DEFLATED if random.random() < 0.5 else None
        for number, info in enumerate(old.infolist()):
            member = old.read(info)
            member = mutate(random, member) if number == chosen else member
            new.writestr(info, member, compress_type=method)
    return result.getvalue()


def _mutate_png(random: Random, content: bytes) -> bytes:
    parts, at = [content[:8]], 8
    while at < len(content):
        size = struct.unpack(">I", content[at : at + 4])[0]
        kind, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + size]
        if random.random() < 0.5:
            data = mutate(random, data)
        parts += [struct.pack(">I", len(data)), kind, data]
        parts.append(struct.pack(">I", zlib.crc32(kind + data)))
        at += size + 12
    return b"".join(parts)


LINKED = {
    **dict.fromkeys(("zarr", "zarr compressed"), "*"),
    "hdr": "*.img",
    "png pages": "*",
}
"""Kinds of several files, and which of these may be no links: all but the one that is named."""


def lead_away(random: Random, folder: Path, pattern: str, elsewhere: Path) -> None:
    """Replace a file or a folder by a link to where it lies elsewhere, or a pipe, or a device."""
    named = {folder / "a.zarr"}  # which may be a link
    inside = [path for path in sorted(folder.rglob(pattern)) if path not in named]
    chosen = inside[int(random.integers(len(inside)))]
    target = elsewhere / chosen.name
    shutil.move(chosen, target)
    how = int(random.integers(4))
    if how == 0 and target.is_file():
        os.mkfifo(chosen)
    elif how == 1 and target.is_file():
        chosen.symlink_to("/dev/zero")
    else:
        chosen.symlink_to(target if how == 2 else os.path.relpath(target, chosen.parent))


_SIGNS = (
    "=",
    "+",
    "-",
    "@",
    "\t",
    "\x1b[2J",
    "\x1b]0;",
    "\r",
    "\u202e",
    "\x9b",
    "\x07",
    "cmd|'/c'!A1",
)


def check_name(random: Random, folder: Path) -> None:
    """Read a file of a name that could steer a spreadsheet or a terminal.

    Raises:
        AssertionError: it could.
    """
    signs = [_SIGNS[int(i)] for i in random.integers(len(_SIGNS), size=int(random.integers(1, 5)))]
    path = folder / f"{''.join(signs)}.npy".replace("/", "")
    np.save(path, CUBE if random.random() < 0.5 else CUBE[0])
    try:
        said = io.load_cube(path).note
    except ValueError as error:
        said = describe(error)
    assert said.isprintable(), f"not printable: {said!r}"
    cell = next(csv.reader([csv_text([{"name": path.name}]).split("\n", 1)[1]]), [""])[0]
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r")), f"a formula: {cell!r}"


class Trials:
    """Trial number i damages one file of one kind.

    Args:
        seed: of everything random; a trial depends on it and on its number only.
        budget: of memory, bytes.
        out: folder for the files of findings.
        root: an empty folder, for the valid files.
    """

    def __init__(self, seed: int, budget: int, out: Path, root: Path) -> None:
        self.seed, self.budget, self.out, self.root = seed, budget, out, root
        self.kinds = kinds()
        self.names = list(self.kinds)
        for name, kind in self.kinds.items():
            (self.root / "seeds" / name).mkdir(parents=True)
            kind.make(self.root / "seeds" / name)
            kind.read(self.root / "seeds" / name)  # imports what it needs, and must succeed

    def name(self, index: int) -> str:
        """Kind of file that a trial damages."""
        return self.names[index % len(self.names)]

    show = name

    def __call__(self, index: int) -> Report:
        """Run a trial."""
        name = self.name(index)
        random = np.random.default_rng([self.seed, index])
        if random.random() < _OTHER:
            return self._try_place(name, random)
        folder = self.root / "trial"
        shutil.copytree(self.root / "seeds" / name, folder)
        try:
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            file = files[int(random.integers(len(files)))]
            damage = mutate_inside if random.random() < 0.4 else mutate
            file.write_bytes(damage(random, file.read_bytes()))
            kept = self.out / "files" / f"{index}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(folder, kept)  # a crash leaves no time for it
            documented = (ValueError, TypeError, OSError)
            report = fuzz_batches.judge(
                name, lambda: self.kinds[name].read(folder), documented, self.budget
            )
            if report.outcome in ("accepted", "refused"):
                shutil.rmtree(kept)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return report

    def _try_place(self, name: str, random: Random) -> Report:
        """Try a link or a name, which leave the content of the files as it is."""
        folder, elsewhere = self.root / "place", self.root / "elsewhere"
        linked = name in LINKED
        shutil.copytree(self.root / "seeds" / name, folder)
        elsewhere.mkdir()

        def call() -> None:
            if not linked:
                check_name(random, elsewhere)
                return
            with contextlib.suppress(ValueError):
                self.kinds[name].read(folder)
                raise AssertionError("a link was followed")
            raise ValueError("a link was refused")

        try:
            if linked:
                lead_away(random, folder, LINKED[name], elsewhere)
            return fuzz_batches.judge(name, call, (ValueError,), self.budget)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(elsewhere, ignore_errors=True)


@contextmanager
def make(given: argparse.Namespace) -> Iterator[Trials]:
    """Yield the trials; valid files lie in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="cassi-fuzz-") as root:
        yield Trials(given.seed, given.budget_mib * fuzz_batches.MIB, given.out, Path(root))


if __name__ == "__main__":
    sys.exit(fuzz_batches.fuzz(__doc__, "files", make))
