"""Files that are damaged, or made to harm: each is refused in one line, and nothing is run."""

import pickle

import numpy as np
import pytest
import scipy.io as scipy_io
import tifffile
import torch

from cassi.apps.errors import describe
from cassi.data import io
from cassi.data.formats.cells import csv_text

NM = (453.5, 457.5, 462.0, 466.125, 471.5)


def test_no_such_file(tmp_path, cube):
    io.write_cube(tmp_path / "scene01.tif", cube)
    for name in ("a.jpg", "a.bmp"):
        (tmp_path / name).write_bytes(b"x")
    for name, kind, message in (
        ("scene1.tif", FileNotFoundError, r"did you mean scene01\.tif\?"),
        ("nowhere/a.tif", FileNotFoundError, "no file"),
        ("", IsADirectoryError, "is a folder"),
        ("a.jpg", ValueError, r"JPEG changes them; save frames as \.png or \.tif"),
        ("a.bmp", ValueError, r"unknown suffix '\.bmp'; expected \.tif"),
    ):
        with pytest.raises(kind, match=message):
            io.read_cube(tmp_path / name)
    with pytest.raises(ValueError, match=r"unknown suffix '\.jpg'; use \.tif"):
        io.write_cube(tmp_path / "a.jpg", cube)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((6, 7, 3), complex), "complex numbers"),
        (np.full((6, 7, 3), "a"), "expected numbers"),
        (np.full((6, 7, 3), None), "never unpickled"),
        (np.zeros((6, 7, 3), [("a", "f4")]), "expected numbers"),
        (np.zeros((6, 0, 3)), "is empty"),
        (np.zeros((6, 7)), "a cube has 3 axes"),
        (np.zeros((2, 6, 7, 3)), "a cube has 3 axes"),
        (np.full((6, 7, 3), np.inf), "126 values that are NaN or infinite, the first at"),
        (np.full((6, 7, 3), 1e300), r"its largest value 1e\+300 is beyond float32"),
    ],
)
def test_unsuitable_arrays(tmp_path, array, message):
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(ValueError, match=message):
        io.read_cube(tmp_path / "a.npy")


def test_nothing_is_unpickled(tmp_path):
    marker = tmp_path / "run"

    class Bomb:
        def __reduce__(self):
            return marker.touch, ()

    np.savez(tmp_path / "a.npz", cube=np.array([Bomb()], dtype=object))
    (tmp_path / "a.npy").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="'cube' is Python objects"):
        io.read_cube(tmp_path / "a.npz", key="cube")
    with pytest.raises(ValueError, match=r"cannot read .* as \.npy"):
        io.read_cube(tmp_path / "a.npy")
    assert not marker.exists()


def test_matlab_things_that_are_not_arrays(tmp_path):
    things = {
        "c": np.array([1, "a"], object),
        "s": {"x": 1},
        "t": "text",
        "z": np.ones((6, 7)) * 1j,
    }
    scipy_io.savemat(tmp_path / "a.mat", things)
    descriptions = {"c": "a cell array", "s": "a struct array", "t": "a char array"}
    for key, words in descriptions.items():
        with pytest.raises(ValueError, match=f"'{key}' is {words}, not an array of numbers"):
            io.read_mask(tmp_path / "a.mat", key=key)
    with pytest.raises(ValueError, match="complex"):
        io.read_mask(tmp_path / "a.mat", key="z")


@pytest.fixture
def files(tmp_path, save_hdf5_as_matlab):
    """The same cube in every format."""
    cube = torch.rand(5, 16, 17, generator=torch.Generator().manual_seed(0))
    suffixes = [suffix for suffix in io.WRITE_SUFFIXES if suffix != ".zarr"]
    for suffix in suffixes:
        io.write_cube(tmp_path / f"a{suffix}", cube, None if suffix == ".npy" else NM)
    save_hdf5_as_matlab(tmp_path / "v73.mat", cube=cube.numpy().transpose(1, 2, 0))
    with tifffile.TiffWriter(tmp_path / "deflate.tif") as tiff:
        tiff.write(cube.numpy(), photometric="minisblack", compression="zlib")
    names = [f"a{s}" for s in suffixes] + ["a.img", "v73.mat", "deflate.tif"]
    return [(tmp_path / name, cube[None]) for name in names]


def _attempt(path):
    try:
        return io.read_cube(path), ""
    except ValueError as error:
        return None, str(error)


def test_truncated_files(files, capfd):
    """Whatever is missing, the answer is one line or the whole cube, never a part of it."""
    for path, cube in files:
        content = path.read_bytes()
        cuts = {0, 1, 7, 100, 130, 400, 600, *(len(content) * k // 8 for k in range(1, 8))}
        for cut in sorted(
            c for c in {*cuts, len(content) - 40, len(content) - 1} if c < len(content)
        ):
            path.write_bytes(content[:cut])
            read, message = _attempt(path)
            if read is None:
                assert str(path) in message, (path.name, cut)
                assert "\n" not in message, (path.name, cut)
            else:
                assert torch.equal(read, cube), (path.name, cut)
        path.write_bytes(content)
        assert torch.equal(io.read_cube(path), cube)
    assert capfd.readouterr() == ("", "")


def test_random_bytes(files):
    generator = np.random.default_rng(0)
    for path, _ in files:
        content = np.frombuffer(path.read_bytes(), np.uint8)
        damaged_content = content.copy()
        damaged_content[: len(content) // 2] = generator.integers(
            0, 256, len(content) // 2, np.uint8
        )
        noise = generator.integers(0, 256, len(content) + 1, np.uint8)
        for wrong_content in (noise, damaged_content):
            path.write_bytes(wrong_content.tobytes())
            if path.suffix == ".img" and wrong_content is damaged_content:
                continue  # a raw file has no redundancy
            message = r"cannot read|NaN or infinite|beyond float32"
            with pytest.raises(ValueError, match=message) as error_info:
                io.read_cube(path)
            assert "\n" not in str(error_info.value), path.name
        path.write_bytes(content.tobytes())


@pytest.mark.parametrize(
    "name", ["=cmd|' !A1.npy", "+1+1.npy", "-a.npy", "@SUM(A1).npy", "\x1b[2J.npy"]
)
def test_names_of_files_are_text(name, tmp_path):
    """Neither a spreadsheet nor a terminal takes them for what they could do."""
    np.save(tmp_path / name, np.ones((3, 4, 5), "f4"))
    assert io.load_cube(tmp_path / name).note.isprintable()
    (tmp_path / name).write_bytes(b"damaged")
    with pytest.raises(ValueError, match="cannot read") as error_info:
        io.load_cube(tmp_path / name)
    assert describe(error_info.value).isprintable()
    cell = csv_text([{"name": name, "psnr": -1.5}]).splitlines()[1]
    assert cell.lstrip('"').startswith(("'", r"\x1b[2J"))
    assert cell.endswith(",-1.5")
