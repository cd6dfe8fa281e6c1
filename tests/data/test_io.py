"""Cubes go round through every format; published files are read."""

import errno
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import scipy.io as scipy_io
import scipy.sparse
import torch

from cassi.data import io
from cassi.data.formats.curves import read_table

NM = (453.5, 457.5, 462.0, 466.125, 471.5)
DATA = Path(os.environ.get("CASSI_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.mark.parametrize("suffix", io.WRITE_SUFFIXES)
@pytest.mark.parametrize("has_wavelengths", [NM, None])
def test_round_trip(tmp_path, cube, suffix, has_wavelengths):
    path = tmp_path / f"my.cube{suffix}"
    if suffix == ".npy" and has_wavelengths:
        with pytest.raises(ValueError, match="cannot hold wavelengths"):
            io.write_cube(path, cube, has_wavelengths)
        assert not list(tmp_path.iterdir())
        return
    io.write_cube(path, cube[None].requires_grad_(), has_wavelengths)
    axes = "CHW" if suffix == ".npy" else None
    loaded_cube = io.load_cube(path, axes=axes)
    assert loaded_cube.data.dtype == torch.float32
    assert loaded_cube.data.is_contiguous()
    assert torch.equal(loaded_cube.data, cube[None])
    assert loaded_cube.wavelengths == has_wavelengths
    assert loaded_cube.path == path
    assert loaded_cube.note.startswith(f"{path.name}: ")
    assert "\n" not in loaded_cube.note
    names = {path.name} | ({"my.cube.img"} if suffix == ".hdr" else set())
    assert {p.name for p in tmp_path.iterdir()} == names
    io.write_cube(tmp_path / f"A{suffix.upper()}", cube)
    assert torch.equal(io.read_cube(tmp_path / f"A{suffix.upper()}", axes=axes), cube[None])


@pytest.mark.parametrize("suffix", [s for s in io.WRITE_SUFFIXES if s != ".npy"])
def test_round_trip_of_awkward_shapes(tmp_path, suffix):
    for shape in ((1, 4, 5), (3, 4, 3), (4, 4, 4), (6, 1, 5), (6, 5, 1)):
        cube = torch.rand(shape)
        io.write_cube(tmp_path / f"a{suffix}", cube.numpy().astype(np.float64))
        assert torch.equal(io.read_cube(tmp_path / f"a{suffix}"), cube[None])


@pytest.mark.parametrize(
    ("cube", "wavelengths", "message"),
    [
        (torch.zeros(2, 3, 4, 5), None, "got float32 .2, 3, 4, 5."),
        (torch.zeros(4, 5), None, "expected a cube"),
        (torch.zeros(0, 4, 5), None, "expected a cube"),
        (torch.zeros(2, 4, 5, dtype=torch.complex64), None, "real numbers"),
        (torch.full((2, 4, 5), torch.nan), None, r"40 values .* first at index \(0, 0, 0\)"),
        (torch.zeros(2, 4, 5), [500.0], "expected 2 wavelengths, one a band, got 1"),
        (torch.zeros(2, 4, 5), [510.0, 500.0], "rising wavelengths"),
        (torch.zeros(2, 4, 5), [0.5, 0.6], "in nm"),
    ],
)
def test_write_refuses(tmp_path, cube, wavelengths, message):
    with pytest.raises(ValueError, match=message):
        io.write_cube(tmp_path / "a.tif", cube, wavelengths)
    assert not list(tmp_path.iterdir())


def _contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in files}


@pytest.mark.parametrize("suffix", io.WRITE_SUFFIXES)
@pytest.mark.parametrize("failing", ["fsync", "replace", "half"])
def test_a_failed_write_leaves_what_was_there(tmp_path, cube, suffix, failing, monkeypatch):
    path, axes = tmp_path / f"a{suffix}", "CHW" if suffix == ".npy" else None

    def fail(*args):
        for target in (a for a in args if isinstance(a, Path) and failing == "half"):
            target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for is_replaced in (False, True):
        contents = _contents(tmp_path)
        assert bool(contents) == is_replaced
        with monkeypatch.context() as patch:
            if failing == "half":
                patch.setattr(io.envi, "write_envi", fail)
                for known_suffix in io._WRITERS:
                    patch.setitem(io._WRITERS, known_suffix, fail)
            else:
                patch.setattr(os, failing, fail)
            with pytest.raises(OSError, match="No space left"):
                io.write_cube(path, cube + 1)
        assert _contents(tmp_path) == contents
        io.write_cube(path, cube)
    assert torch.equal(io.load_cube(path, axes=axes).data[0], cube)


@pytest.mark.parametrize(
    ("load", "name", "key", "shape"),
    [
        (io.load_mask, "tsa/mask.mat", "mask", (1, 1, 256, 256)),
        (io.load_measurement, "tsa_real/scene1.mat", "meas_real", (1, 1, 660, 714)),
        (io.load_measurement, "kaist_meas/scene01.npz", "y", (1, 1, 256, 310)),
        (io.load_mask, "kaist_meas/scene01.npz", "mask", (1, 1, 256, 256)),
        (io.load_cube, "cave_test/scene01.mat", "img", (1, 28, 256, 256)),
        (io.load_cube, "cave_train/cd.tif", None, (1, 28, 512, 512)),
    ],
)
def test_published_data(load, name, key, shape):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"no {path}; set CASSI_DATA to the folder that holds {name}")
    loaded_cube = load(path)
    assert loaded_cube.key == key
    assert loaded_cube.data.shape == shape
    if load is not io.load_measurement:
        assert 0 <= float(loaded_cube.data.min()) <= float(loaded_cube.data.max()) <= 1
    if path.suffix == ".tif":
        assert (loaded_cube.wavelengths[0], loaded_cube.wavelengths[-1]) == (453.5, 648.0)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n"


@pytest.mark.parametrize("suffix", [s for s in io.READ_SUFFIXES if s != ".zarr"])
def test_pointers_of_git_lfs_are_named(tmp_path, suffix):
    (tmp_path / f"a{suffix}").write_bytes(POINTER)
    with pytest.raises(ValueError, match="got a pointer of Git LFS; run git lfs pull"):
        io.load_mask(tmp_path / f"a{suffix}")


def test_pointers_beside_and_inside_are_named(tmp_path, cube):
    io.write_cube(tmp_path / "a.hdr", cube)
    (tmp_path / "pages").mkdir()
    files = [tmp_path / "a.img", tmp_path / "curve.csv"]
    files += [tmp_path / "pages" / f"{band}.png" for band in range(3)]
    for file in files:
        file.write_bytes(POINTER)
    for name in ("a.hdr", "pages"):
        with pytest.raises(ValueError, match="got a pointer of Git LFS"):
            io.load_cube(tmp_path / name)
    with pytest.raises(ValueError, match="got a pointer of Git LFS"):
        read_table(tmp_path / "curve.csv", "response")


def test_a_link_that_leads_nowhere(tmp_path):
    (tmp_path / "a.npy").symlink_to("b.npy")
    with pytest.raises(FileNotFoundError, match=r"a\.npy: it is a link to b\.npy, not there$"):
        io.load_cube(tmp_path / "a.npy")


def test_envi_names_in_capitals(tmp_path, cube):
    io.write_cube(tmp_path / "a.hdr", cube)
    (tmp_path / "a.hdr").rename(tmp_path / "A.HDR")
    (tmp_path / "a.img").rename(tmp_path / "A.RAW")
    for name in ("A.HDR", "A.RAW"):
        assert torch.equal(io.load_cube(tmp_path / name).data[0], cube.reshape(cube.shape[-3:]))


def test_wavelengths_that_are_no_numbers(tmp_path, cube):
    io.write_cube(tmp_path / "a.hdr", cube)
    bands = cube.shape[-3]
    with (tmp_path / "a.hdr").open("a") as file:
        file.write(f"wavelength = {{ {', '.join(['red'] * bands)} }}\n")
    loaded_cube = io.load_cube(tmp_path / "a.hdr")
    assert loaded_cube.wavelengths is None
    assert "its wavelengths are no numbers of a length, so they are ignored" in loaded_cube.note


def test_matlab_things_beside_the_cube(tmp_path, cube):
    values = cube.reshape(cube.shape[-3:]).numpy().transpose(1, 2, 0)
    scipy_io.savemat(tmp_path / "a.mat", {"cube": values})
    flags, name = struct.pack("<IIII", 6, 8, 17, 0), struct.pack("<I4s", 1 | 3 << 16, b"str\0")
    with (tmp_path / "a.mat").open("ab") as file:  # a string of MATLAB, an opaque object
        file.write(struct.pack("<II", 14, len(flags + name)) + flags + name)
    assert torch.equal(io.load_cube(tmp_path / "a.mat", axes="HWC").data, cube[None])
    with pytest.raises(ValueError, match=r"no array 'str'; it holds cube \(7, 4, 5\)"):
        io.load_cube(tmp_path / "a.mat", key="str")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": {"cube": np.ones((4, 5, 3)), "nm": 5}}, "'data' is a struct array of cube, nm"),
        ({"mask": scipy.sparse.eye(5).tocsc()}, r"'mask' is a sparse array, save full\("),
    ],
)
def test_matlab_things_that_are_not_read_are_named(tmp_path, content, message):
    scipy_io.savemat(tmp_path / "a.mat", content)
    for load in (io.load_cube, io.load_mask):
        with pytest.raises(ValueError, match=message):
            load(tmp_path / "a.mat")
