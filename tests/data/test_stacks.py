"""Cubes in files, written and read in parts."""

import numpy as np
import pytest
import xarray

from cassi.data import io
from cassi.data.formats.stacks import create_stack, open_stack

NM = (400.0, 500.0, 600.0)


@pytest.mark.parametrize("name", ["cube.tif", "cube.npy", "cube.ome.tif", "cube.zarr"])
def test_parts_make_the_cube_that_readers_read(tmp_path, name):
    x = np.random.default_rng(0).random((3, 30, 20), dtype=np.float32)
    nm = None if name == "cube.npy" else NM
    stack = create_stack(tmp_path / name, x.shape, nm)
    stack.write(x[:, :17], slice(0, 17), slice(None))
    stack.write(x[:, 17:, :9], slice(17, 30), slice(0, 9))
    stack.write(x[:, 17:, 9:], slice(17, 30), slice(9, 20))
    loaded_cube = io.load_cube(tmp_path / name, axes="CHW")
    assert np.array_equal(loaded_cube.data[0].numpy(), x)
    assert loaded_cube.wavelengths == nm
    reopened_stack, wavelengths = open_stack(tmp_path / name)
    assert wavelengths == nm
    part = reopened_stack.read(slice(1, 3), slice(4, 20), slice(2, 5))
    assert np.array_equal(part, x[1:3, 4:20, 2:5])


def test_a_store_of_many_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("cassi.data.formats.zarr._CHUNK_BYTES", 4 * 20 * 4)  # of four rows
    x = np.random.default_rng(0).random((3, 30, 20), dtype=np.float32)
    stack = create_stack(tmp_path / "cube.zarr", x.shape, NM)
    stack.write(x[:, :9], slice(0, 9), slice(None))
    stack.write(x[:, 9:, :7], slice(9, 30), slice(0, 7))
    stack.write(x[:, 9:, 7:], slice(9, 30), slice(7, 20))
    assert np.array_equal(io.load_cube(tmp_path / "cube.zarr").data[0].numpy(), x)
    reopened_stack, _ = open_stack(tmp_path / "cube.zarr")
    part = reopened_stack.read(slice(1, 3), slice(7, 22), slice(3, 9))
    assert np.array_equal(part, x[1:3, 7:22, 3:9])
    opened_array = xarray.open_zarr(tmp_path / "cube.zarr", consolidated=False)["cube"]
    assert np.array_equal(opened_array.values, x)
    (tmp_path / "cube.zarr/cube/c/1/2/0").unlink()
    with pytest.raises(ValueError, match="cut short"):
        io.load_cube(tmp_path / "cube.zarr")


def test_what_is_not_stored_band_after_band_is_left_to_the_readers(tmp_path):
    import tifffile

    x = np.random.default_rng(0).random((3, 8, 9), dtype=np.float32)
    np.save(tmp_path / "hwc.npy", x.transpose(1, 2, 0))
    tifffile.imwrite(tmp_path / "zip.tif", x, compression="zlib", photometric="minisblack")
    tifffile.imwrite(tmp_path / "int.tif", (9 * x).astype(np.uint8), photometric="minisblack")
    io.write_cube(tmp_path / "cube.mat", x)
    for name in ("hwc.npy", "zip.tif", "int.tif", "cube.mat"):
        assert open_stack(tmp_path / name) is None


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match="in parts; use one of"):
        create_stack(tmp_path / "cube.mat", (3, 4, 5), None)
    with pytest.raises(ValueError, match="cannot hold wavelengths"):
        create_stack(tmp_path / "cube.npy", (3, 4, 5), NM)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("count", [2, 4])
def test_a_store_with_too_few_or_too_many_wavelengths_is_refused(tmp_path, count):
    path = tmp_path / "cube.zarr"
    io.write_cube(path, np.ones((3, 8, 9), np.float32), wavelengths=NM[:3])
    (path / "wavelength" / "c" / "0").write_bytes(bytes(8 * count))
    with pytest.raises(
        ValueError, match=f"expected 24 bytes, one wavelength a band, got {8 * count}"
    ):
        open_stack(path)
