"""Which array of a file is read, how its axes, wavelengths and scale are understood."""

import h5py
import numpy as np
import pytest
import scipy.io as scipy_io
import tifffile
import torch
from spectral.io import envi

from cassi.data import io

NM = (453.5, 457.5, 462.0, 466.125, 471.5)
RNG = np.random.default_rng(0)


def test_matlab73_means_the_same_axes_as_v5(tmp_path, save_hdf5_as_matlab):
    array = np.random.default_rng(0).random((6, 7, 3))
    scipy_io.savemat(tmp_path / "v5.mat", {"img": array, "lambda": NM[:3]})
    save_hdf5_as_matlab(tmp_path / "v73.mat", img=array, **{"lambda": np.array([NM[:3]])})
    file_v5, file_v73 = (io.load_cube(tmp_path / f"{name}.mat") for name in ("v5", "v73"))
    assert file_v5.axes == file_v73.axes == "HWC"
    assert torch.equal(file_v5.data, file_v73.data)
    assert file_v5.data.shape == (1, 3, 6, 7)
    assert file_v5.wavelengths == file_v73.wavelengths == NM[:3]


def test_plain_hdf5_named_mat_keeps_its_axes(tmp_path):
    with h5py.File(tmp_path / "a.mat", "w") as file:
        file["img"] = np.random.default_rng(0).random((3, 6, 7))
    assert io.load_cube(tmp_path / "a.mat").axes == "CHW"


def test_hdf5_groups_and_attributes(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["scenes/one/cube"] = RNG.random((3, 6, 7))
        file["scenes/two/img2"] = RNG.random((3, 6, 8))
        file["scenes/one/cube"].attrs["wavelengths"] = NM[:3]
    assert io.load_cube(path).key == "scenes/one/cube"
    assert io.load_cube(path).wavelengths == NM[:3]
    assert io.read_cube(path, key="/scenes/two/img2").shape == (1, 3, 6, 8)


def test_key_is_chosen(tmp_path):
    cube, mask, y = RNG.random((6, 7, 3)), RNG.random((6, 7)), RNG.random((6, 11))
    path = tmp_path / "a.npz"
    np.savez(path, Truth=cube, mask=mask, y=y, step=2, name="scene", wavelengths=NM[:3])
    assert io.load_cube(path).key == "Truth"
    assert io.load_mask(path).key == "mask"
    assert io.load_measurement(path).key == "y"
    with pytest.raises(ValueError, match="measurement has 2 or 3 axes"):
        io.read_measurement(path, key="step")
    with pytest.raises(ValueError, match="'name' is of type <U5, not an array of numbers"):
        io.read_measurement(path, key="name")
    with pytest.raises(ValueError, match=r"no array 'truth'; it holds T.*; did you mean Truth\?"):
        io.read_cube(path, key="truth")
    with pytest.raises(ValueError, match=r"a cube has 3 axes, this array has shape \(6, 7\)"):
        io.read_cube(path, key="mask")


def test_only_or_several_candidates(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, foo=RNG.random((6, 7, 3)), bar=RNG.random((6, 7)))
    assert io.load_cube(path).key == "foo"
    with pytest.raises(ValueError, match=r"more than one array .*foo \(6, 7, 3\), bar .*pass key="):
        io.read_mask(path)
    np.savez(path, mask=RNG.random((6, 7)))
    with pytest.raises(ValueError, match=r"no array there could be the measurement: mask \(6, 7\)"):
        io.read_measurement(path)
    np.savez(path, img=RNG.random((6, 7)))  # the name of a cube, which two axes cannot be
    assert io.load_measurement(path).key == io.load_mask(path).key == "img"
    np.save(tmp_path / "a.npy", RNG.random((6, 7)))
    with pytest.raises(ValueError, match="drop key="):
        io.read_mask(tmp_path / "a.npy", key="mask")


@pytest.mark.parametrize("order", ["CHW", "HWC", "HCW", "WHC", "CWH", "WCH"])
def test_axis_orders(tmp_path, order):
    cube = RNG.random((3, 6, 7), dtype=np.float32)
    path = tmp_path / "a.npy"
    np.save(path, cube.transpose(["CHW".index(letter) for letter in order]))
    # Nothing tells rows from columns, so a file that has columns first has to be told.
    rows_first = order.index("H") < order.index("W")
    for axes in (order, order.lower(), *([None] if rows_first else [])):
        loaded_cube = io.load_cube(path, axes=axes)
        assert loaded_cube.axes == order
        assert np.array_equal(loaded_cube.data[0], cube)


def test_ambiguous_axes(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, RNG.random((6, 6, 8)))
    with pytest.raises(ValueError, match=r"cannot tell which axis of \(6, 6, 8\) is C: pass axes="):
        io.read_cube(path)
    assert io.load_cube(path, bands=8).axes == "HWC"
    with pytest.raises(ValueError, match="cannot tell"):
        io.load_cube(path, bands=6)
    assert io.load_cube(path, axes="chw").data.shape == (1, 6, 6, 8)
    for wrong_axes in ("HW", "HWK", "HWCC", ""):
        with pytest.raises(ValueError, match="expected an order of 'CHW'"):
            io.read_cube(path, axes=wrong_axes)


@pytest.mark.parametrize(
    ("read", "shape", "axes", "expected"),
    [
        (io.read_mask, (6, 7), None, (1, 1, 6, 7)),
        (io.read_mask, (6, 7), "WH", (1, 1, 7, 6)),
        (io.read_mask, (6, 7, 3), None, (1, 3, 6, 7)),
        (io.read_mask, (3, 6, 7), "KHW", (3, 1, 6, 7)),
        (io.read_mask, (2, 3, 6, 7), None, (2, 3, 6, 7)),
        (io.read_mask, (6, 7, 3, 2), "HWCK", (2, 3, 6, 7)),
        (io.read_measurement, (6, 11), None, (1, 1, 6, 11)),
        (io.read_measurement, (6, 11, 2), None, (1, 2, 6, 11)),
        (io.read_measurement, (2, 6, 11), None, (1, 2, 6, 11)),
        (io.read_measurement, (1, 2, 6, 11), None, (1, 2, 6, 11)),
        (io.read_measurement, (7, 6, 11), "KHW", (1, 7, 6, 11)),
        (io.read_measurement, (7, 6, 11), "CHW", (1, 7, 6, 11)),
    ],
)
def test_shapes_of_masks_and_measurements(tmp_path, read, shape, axes, expected):
    np.save(tmp_path / "a.npy", RNG.random(shape))
    assert read(tmp_path / "a.npy", axes=axes).shape == expected


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("wl", [0.4535, 0.4575, 0.462], NM[:3]),
        ("lambda", np.array([[453.5], [457.5], [462.0]]) * 1e-9, NM[:3]),
        ("bands", NM[:3], NM[:3]),
        ("bands", [1, 2, 3], None),
        ("wavelengths_um", [8.0, 10.0, 12.0], (8000.0, 10000.0, 12000.0)),
        ("bands_nm", [453.5, 457.5], None),
        ("wavelengths", [453.5, np.nan, 462.0], None),
        ("wavelengths", [0.0, 1.0, 2.0], None),
    ],
)
def test_wavelength_units(tmp_path, name, values, expected):
    arrays = {"cube": RNG.random((6, 7, 3)), name: np.asarray(values)}
    np.savez(tmp_path / "a.npz", **arrays)
    assert io.load_cube(tmp_path / "a.npz").wavelengths == expected


@pytest.mark.parametrize("order", [[2, 1, 0], [1, 0, 2]])
def test_bands_are_put_in_rising_order(tmp_path, order):
    cube = RNG.random((3, 6, 7)).astype(np.float32)
    np.savez(tmp_path / "a.npz", cube=cube[order], wavelengths=np.array(NM[:3])[order])
    loaded_cube = io.load_cube(tmp_path / "a.npz")
    assert loaded_cube.wavelengths == NM[:3]
    assert np.array_equal(loaded_cube.data[0], cube)
    assert "rising wavelength" in loaded_cube.note


def test_integer_tiff(tmp_path):
    levels = np.arange(3 * 6 * 7, dtype=np.uint16).reshape(3, 6, 7)
    metadata = {"axes": "CYX", "wavelengths_nm": NM[:3]}
    path = tmp_path / "a.tif"
    tifffile.imwrite(
        path, levels, photometric="minisblack", metadata=metadata | {"full_scale": 1023}
    )
    loaded_cube = io.load_cube(path)
    np.testing.assert_array_equal(loaded_cube.data[0], levels / np.float32(1023))
    assert "uint16 divided by full_scale 1023" in loaded_cube.note
    tifffile.imwrite(path, levels, photometric="minisblack", metadata=metadata)
    loaded_cube = io.load_cube(path)
    np.testing.assert_array_equal(loaded_cube.data[0], levels / np.float32(65535))
    assert "uint16 divided by 65535" in loaded_cube.note
    tifffile.imwrite(path, levels, photometric="minisblack", metadata=metadata | {"full_scale": 0})
    with pytest.raises(ValueError, match="positive full_scale, got 0"):
        io.read_cube(path)


def test_integer_masks(tmp_path):
    binary = (RNG.random((6, 7)) < 0.5).astype(np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", binary)
    tifffile.imwrite(tmp_path / "b.tif", binary * 255)
    np.save(tmp_path / "c.npy", binary)
    np.save(tmp_path / "d.npy", binary.astype(bool))
    for name in ("a.tif", "b.tif", "c.npy", "d.npy"):
        assert np.array_equal(io.read_mask(tmp_path / name)[0, 0], binary), name


def test_tiff_pages_of_other_programs(tmp_path):
    pages = RNG.random((9, 6, 7)).astype(np.float32)
    with tifffile.TiffWriter(tmp_path / "a.tif") as tiff:
        for page in pages:
            tiff.write(page, metadata=None, contiguous=False, compression="zlib")
    tifffile.imwrite(tmp_path / "b.tif", pages, imagej=True)
    for name in "ab":
        assert np.array_equal(io.read_cube(tmp_path / f"{name}.tif")[0], pages)
    rows = pages.transpose(1, 2, 0)[..., :5]  # saved whole, the bands last
    tifffile.imwrite(tmp_path / "c.tif", rows, photometric="minisblack")
    assert io.load_cube(tmp_path / "c.tif").axes == "HWC"


@pytest.mark.parametrize("interleave", ["bsq", "bil", "bip"])
def test_envi_of_other_programs(tmp_path, interleave):
    cube = np.random.default_rng(0).integers(0, 10000, (6, 7, 3)).astype(np.int16)
    micrometres = [w / 1000 for w in NM[2::-1]]
    metadata = {"wavelength": micrometres, "Wavelength Units": "Micrometers"}
    metadata["reflectance scale factor"] = 10000
    envi_options = {
        "ext": ".dat",
        "interleave": interleave,
        "byteorder": "big",
        "metadata": metadata,
    }
    envi.save_image(str(tmp_path / "a.hdr"), cube, **envi_options)
    for name in ("a.hdr", "a.dat"):
        loaded_cube = io.load_cube(tmp_path / name)
        assert loaded_cube.axes == "HWC"
        assert loaded_cube.wavelengths == NM[:3]
        expected = (cube / np.float32(10000)).transpose(2, 0, 1)[::-1]
        np.testing.assert_array_equal(loaded_cube.data[0], expected)
    (tmp_path / "a.dat").unlink()
    with pytest.raises(ValueError, match=r"no data file a\.img"):
        io.read_cube(tmp_path / "a.hdr")
