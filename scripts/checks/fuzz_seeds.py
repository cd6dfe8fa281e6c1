"""One small valid file for each thing that cassi reads, and what reads it.

The files of a kind lie in a folder of their own, of which `fuzz_readers.py` damages one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

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


def _array(make: Callable[[Path], object], name: str) -> Kind:
    from cassi.data import io

    # They share all but what the axes mean.
    return Kind(lambda folder: make(folder / name), lambda folder: io.load_cube(folder / name))


def _writable(suffix: str) -> Kind:
    from cassi.data import io

    nm = None if suffix == ".npy" else NM
    return _array(lambda path: io.write_cube(path, CUBE, nm), f"a{suffix}")


def _tiff(**options: Any) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        import tifffile

        counts = (CUBE * 65535).astype(np.uint16)
        tifffile.imwrite(path, counts, photometric="minisblack", **options)

    return make


def _packbits(path: Path) -> None:
    from PIL import Image

    pages = [Image.fromarray((plane * 255).astype(np.uint8)) for plane in CUBE]
    pages[0].save(path, save_all=True, append_images=pages[1:], compression="packbits")


def _mat(**options: Any) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        from scipy.io import savemat

        content = {"cube": CUBE.transpose(1, 2, 0).astype(np.float64), "note": "text"}
        content |= {"wavelengths": np.asarray(NM), "s": {"x": np.ones(3)}}
        savemat(str(path), content, appendmat=False, **options)

    return make


def _mat73(path: Path) -> None:
    import h5py

    with h5py.File(path, "w", userblock_size=512) as file:
        for name, values in (("cube", CUBE.transpose(1, 2, 0)), ("wavelengths", np.array([NM]))):
            file.create_dataset(name, data=values.T, compression="gzip")
            file[name].attrs["MATLAB_class"] = np.bytes_("double")
        file["text"] = np.frombuffer("CHW".encode("utf-16-le"), np.uint16)
        file["text"].attrs["MATLAB_class"] = np.bytes_("char")
    with path.open("r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\2IM")


def _hdf5(**options: Any) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        import h5py

        with h5py.File(path, "w") as file:
            item = file.create_dataset("a/cube", data=CUBE, **options)
            item.attrs["axes"] = "CHW"
            item.attrs["wavelengths"] = NM
            file["elsewhere"] = h5py.ExternalLink("/etc/hostname", "/x")
            file["soft"] = h5py.SoftLink("/a/cube")

    return make


def _make_pages(folder: Path) -> None:
    from PIL import Image

    counts = (CUBE[0] * 65535).astype(np.uint16)
    for page in range(31):
        Image.fromarray(np.roll(counts, page, 0)).save(folder / f"scene_{page + 1:02}.png")


def _read_pages(folder: Path) -> object:
    from cassi.data.scenes import load_scene

    return load_scene(folder, NM)


def _make_manifest(folder: Path) -> None:
    names = {f"train/scene{i:02}.mat": f"{i:064x}" for i in range(4)}
    splits = {"train": names, "test": {"test/a.mat": "0" * 64}, "aliases": {"test/a.mat": "b"}}
    text = json.dumps({"wavelengths": list(NM), **splits})
    (folder / "manifest.json").write_text(text, encoding="utf-8")


def _read_manifest(folder: Path) -> object:
    from cassi.data.manifest import read_manifest

    return read_manifest(folder / "manifest.json")


def _make_model(folder: Path) -> None:
    import cassi
    from cassi.models.saved import Card, save_model

    network = cassi.create_model("gap_net", bands=2, stages=1)
    card = Card("gap_net", 2, {"stages": 1}, NM[:2], {"epochs": 3})
    save_model(folder / "model.safetensors", network.state_dict(), card)


def _read_model(folder: Path) -> object:
    from cassi.models.saved import load_model

    return load_model(folder / "model.safetensors")


def _make_checkpoint(folder: Path) -> None:
    torch.save({"state_dict": _state(), "global_step": 7, "epoch": 1}, folder / "last.ckpt")


def _state() -> dict[str, torch.Tensor]:
    return {f"net.{name}": torch.rand(4, 3) for name in "abc"}


def _read_checkpoint(folder: Path) -> object:
    from cassi.apps.training_files import read_checkpoint

    return read_checkpoint(folder / "last.ckpt")


def _make_weights(**options: Any) -> Callable[[Path], object]:
    return lambda folder: torch.save({"state_dict": _state()}, folder / "w.pth", **options)


def _read_weights(folder: Path) -> object:
    from cassi.priors.weights import read_file

    return read_file(folder / "w.pth")


def _make_options(folder: Path) -> None:
    from cassi.apps.training_options import save_options

    save_options(folder, ["model=gap_net", "trainer.max_steps=300", "data.root=/data/cave"])


def _read_options(folder: Path) -> object:
    from cassi.apps.training_options import add_earlier_options

    return add_earlier_options([f"hydra.run.dir={folder}", "ckpt=last"])


def _make_records(folder: Path) -> None:
    from cassi.evaluation.records import Record, RecordFolder

    record = Record("", "scene", "gap", "key", {"psnr": 30.5}, {"seconds": 1.0}, curve=[(0.1, 20)])
    RecordFolder(folder).write(record, torch.from_numpy(CUBE))


def _read_records(folder: Path) -> object:
    from cassi.evaluation.records import RecordFolder

    records = RecordFolder(folder)
    return [(record, records.read_cube(record.job)) for record in records.all()]


def _make_curve(folder: Path) -> None:
    rows = "".join(f"{nm},{2.5 * band}\n" for band, nm in enumerate(NM))
    (folder / "curve.csv").write_text(f"wavelength,pixel\n{rows}", encoding="utf-8")


def _read_curve(folder: Path) -> object:
    from cassi.systems import Curve

    return Curve(file=str(folder / "curve.csv")).positions(NM)


_CONFIG = """
last: 0.01
node:
  _target_: cassi.solvers.Geometric
  start: 1.0
  end: ${last}
"""


def _make_config(folder: Path) -> None:
    (folder / "node.yaml").write_text(_CONFIG, encoding="utf-8")


def _read_config(folder: Path) -> object:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from cassi.config import build

    try:
        return build(OmegaConf.select(OmegaConf.load(folder / "node.yaml"), "node"))
    except (OmegaConfBaseException, YAMLError) as error:
        raise ValueError(" ".join(str(error).split())) from error  # as the commands put it


def kinds() -> dict[str, Kind]:
    """Everything that cassi reads, by name."""
    from cassi.data import io

    return {
        **{suffix.removeprefix("."): _writable(suffix) for suffix in io.WRITE_SUFFIXES},
        "tif deflate": _array(_tiff(compression="zlib", predictor=True, rowsperstrip=4), "a.tif"),
        "tif packbits": _array(_packbits, "a.tif"),
        "tif tiles, big": _array(_tiff(tile=(16, 16), bigtiff=True, byteorder=">"), "a.tif"),
        "mat v5 plain": _array(_mat(), "a.mat"),
        "mat v7.3": _array(_mat73, "a.mat"),
        "h5 contiguous": _array(_hdf5(), "a.h5"),
        "h5 filters": _array(
            _hdf5(chunks=(2, 8, 8), compression="gzip", shuffle=True, fletcher32=True), "a.h5"
        ),
        "h5 lzf": _array(_hdf5(chunks=True, compression="lzf"), "a.h5"),
        "npz stored": _array(lambda path: np.savez(path, cube=CUBE, wavelengths=NM), "a.npz"),
        "png pages": Kind(_make_pages, _read_pages),
        "manifest": Kind(_make_manifest, _read_manifest),
        "safetensors": Kind(_make_model, _read_model),
        "checkpoint": Kind(_make_checkpoint, _read_checkpoint),
        "pth": Kind(_make_weights(), _read_weights),
        "pth legacy": Kind(_make_weights(_use_new_zipfile_serialization=False), _read_weights),
        "options": Kind(_make_options, _read_options),
        "records": Kind(_make_records, _read_records),
        "csv curve": Kind(_make_curve, _read_curve),
        "yaml node": Kind(_make_config, _read_config),
    }
