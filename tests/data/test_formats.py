"""Headers that other programs read, and files of other programs that cassi reads."""

import json
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest
import rasterio
import rsciio.hspy as rsciio
import tifffile
import torch
import xarray
import zarr

from cassi.data import formats, io
from cassi.data.formats.stacks import open_stack
from cassi.data.formats.zarr import read_zarr
from cassi.data.scenes import find_scenes, load_scene

NM = (453.5, 457.5, 462.0, 466.125, 640.0)
CUBE = torch.rand(5, 7, 4, generator=torch.Generator().manual_seed(0))


def test_envi_header(tmp_path):
    io.write_cube(tmp_path / "a.hdr", CUBE, NM, fwhm=[9.5] * 5)
    from spectral.io import envi

    header = envi.read_envi_header(tmp_path / "a.hdr")
    assert header["default bands"] == ["5", "4", "3"]  # nearest to 640, 550 and 460 nm
    assert header["band names"] == ["453.5 nm", "457.5 nm", "462 nm", "466.125 nm", "640 nm"]
    assert header["wavelength units"] == "Nanometers"
    keys = ("interleave", "byte order", "data ignore value", "file type")
    assert [header[name] for name in keys] == ["bsq", "0", "nan", "ENVI Standard"]
    image = envi.open(str(tmp_path / "a.hdr"))
    assert image.bands.bandwidths == [9.5] * 5
    assert image.bands.band_unit == "Nanometers"
    io.write_cube(tmp_path / "b.hdr", CUBE)
    header = envi.read_envi_header(tmp_path / "b.hdr")
    assert header["band names"][0] == "band 1"
    assert "default bands" not in header


def test_what_was_noted_of_an_earlier_file_goes(tmp_path):
    for name in ("a.hdr", "a.tif"):
        io.write_cube(tmp_path / name, CUBE, NM)
    notes = [tmp_path / f"a.{suffix}.aux.xml" for suffix in ("img", "hdr", "tif")]
    note_file = tmp_path / "b.tif.aux.xml"
    for note in (*notes, note_file):
        note.write_text("<PAMDataset/>")
    for name in ("a.hdr", "a.tif"):
        io.write_cube(tmp_path / name, CUBE + 1, NM)
    assert not any(note.exists() for note in notes)
    assert note_file.exists()


def test_pixels_without_a_value(tmp_path):
    io.write_cube(tmp_path / "a.hdr", CUBE - CUBE.min(), NM)  # with a zero
    header = tmp_path / "a.hdr"
    text = header.read_text()
    header.write_text(text.replace("data ignore value = nan", "data ignore value = 0"))
    assert io.read_cube(header).min() == 0
    io.write_cube(header, torch.where(CUBE > 0.5, CUBE, -9999.0), NM)
    header.write_text(text.replace("data ignore value = nan", "data ignore value = -9999"))
    with pytest.raises(ValueError, match="values are its data ignore value -9999; crop"):
        io.read_cube(header)


def test_widths_of_bands(tmp_path):
    io.write_cube(tmp_path / "a.zarr", CUBE, NM, fwhm=range(1, 6))
    assert xarray.open_zarr(tmp_path / "a.zarr")["fwhm"].values.tolist() == [1, 2, 3, 4, 5]
    assert io.load_cube(tmp_path / "a.zarr").wavelengths == NM
    io.write_cube(tmp_path / "a.nc", CUBE, NM, fwhm=range(1, 6))
    with xarray.open_dataset(tmp_path / "a.nc", engine="h5netcdf") as data:
        assert data["fwhm"].attrs["units"] == "nm"
    assert io.load_cube(tmp_path / "a.nc").wavelengths == NM
    for name, nm, widths in (
        ("a.tif", NM, [1] * 5),
        ("a.hdr", None, [1] * 5),
        ("a.nc", NM, [0] * 5),
    ):
        with pytest.raises(ValueError, match="fwhm: expected"):
            io.write_cube(tmp_path / name, CUBE, nm, fwhm=widths)


@pytest.mark.parametrize("name", ["a.nc", "classic.nc", "a.zarr", "two.zarr"])
def test_what_xarray_writes(tmp_path, name):
    """Other names, orders, units and packings, and the formats it knows."""
    counts = (CUBE * 1000).round().to(torch.int16).numpy()
    array = xarray.DataArray(counts.transpose(1, 2, 0), dims=("lat", "lon", "band"))
    reversed_um = ("band", [nm / 1000 for nm in NM], {"units": "um"})
    data = xarray.Dataset({"radiance": array}, {"wavelength": reversed_um})
    data["radiance"].attrs["scale_factor"] = np.float32(0.5)
    path = tmp_path / name
    if path.suffix == ".zarr":
        data.to_zarr(path, zarr_format=2 if name == "two.zarr" else 3)
    else:
        data.to_netcdf(path, engine="scipy" if name == "classic.nc" else "h5netcdf")
    loaded_cube = io.load_cube(path)
    assert torch.equal(loaded_cube.data[0], torch.from_numpy(counts).float() * 0.5)
    assert loaded_cube.wavelengths == NM
    assert loaded_cube.axes == "HWC"


@pytest.mark.parametrize("version", [2, 3])
def test_a_plain_store_of_others_takes_the_package_that_the_page_names(
    version, tmp_path, monkeypatch
):
    """Uncompressed, one array in a group, no consolidated metadata."""
    path = tmp_path / "a.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=version)
    group.create_array("scene", data=CUBE.numpy(), chunks=(1, 7, 4), compressors=None)
    assert torch.equal(io.load_cube(path, axes="CHW").data[0], CUBE)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"package zarr .*: pip install 'cassi\[xarray\]'$"):
        read_zarr(path).__enter__()
    io.write_cube(tmp_path / "own.zarr", CUBE, NM)
    with read_zarr(tmp_path / "own.zarr") as source:
        assert source.shapes == {"cube": (5, 7, 4)}
    page = Path(__file__).parents[2] / "docs" / "guides" / "files.md"
    assert "except to read Zarr stores of others: `pip install 'cassi[xarray]'`" in page.read_text()


def write_bands_scaled(path, cube):
    stored_values = (cube * 1000).round().astype(np.uint16)
    steps = np.float32([1, 2, 3, 4, 5]) / 1000
    with h5py.File(path, "w") as file:
        file["cube"] = stored_values
        file["cube"].attrs["scale_factor"] = steps
        file["cube"].attrs["add_offset"] = np.float32(0.25)
    return stored_values * steps[:, None, None] + np.float32(0.25)


@pytest.mark.parametrize("suffix", [".nc", ".h5"])
def test_a_scale_of_each_band(tmp_path, suffix):
    expected = write_bands_scaled(tmp_path / f"a{suffix}", CUBE.numpy())
    result = io.load_cube(tmp_path / f"a{suffix}", axes="CHW").data
    torch.testing.assert_close(result[0], torch.from_numpy(expected))
    with h5py.File(tmp_path / f"a{suffix}", "a") as file:
        file["cube"].attrs["scale_factor"] = np.float32([1, 2, 3])
    with pytest.raises(ValueError, match="scale_factor: expected one number, or one per band"):
        io.load_cube(tmp_path / f"a{suffix}")


def with_attribute(name, value):
    def write(path, values):
        with h5py.File(path, "w") as file:
            file["cube"] = values
            file["cube"].attrs[name] = value

    return write


def write_no_data(path, values):
    _, height, width = values.shape
    options = {"driver": "GTiff", "count": len(values), "dtype": "float32", "nodata": -1}
    with rasterio.open(path, "w", height=height, width=width, **options) as image:
        image.write(values)


def write_pages(folder, values):
    folder.mkdir()
    for band, page in enumerate(values):
        write_no_data(folder / f"{band}.tif", page[None])


def write_store(path, values):
    data = xarray.Dataset({"cube": (("band", "y", "x"), values)})
    data["cube"].encoding["_FillValue"] = np.float32(-1)
    data.to_zarr(path, zarr_format=3, consolidated=False)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.tif", write_no_data),
        ("pages", write_pages),
        ("a.zarr", write_store),
        ("a.nc", with_attribute("_FillValue", np.float32(-1))),
        ("a.h5", with_attribute("missing_value", np.float32(-1))),
        ("b.nc", with_attribute("valid_min", np.float32(0))),
        ("b.h5", with_attribute("valid_range", np.float32([0, 10]))),
    ],
)
def test_values_that_stand_for_none(tmp_path, name, write):
    values = CUBE.numpy().copy()
    values[1, 2, 3] = -1
    write(tmp_path / name, values)
    with pytest.raises(ValueError, match=r"1 values (that are NaN|are its data ignore value -1)"):
        io.load_cube(tmp_path / name)
    assert open_stack(tmp_path / name) is None if name == "a.tif" else True


def test_darkness_is_a_value(tmp_path):
    options = {"driver": "GTiff", "count": 5, "dtype": "uint16", "nodata": 0}
    with rasterio.open(tmp_path / "a.tif", "w", height=7, width=4, **options) as image:
        image.write(np.zeros((5, 7, 4), np.uint16))
    loaded_cube = io.load_cube(tmp_path / "a.tif")
    assert not loaded_cube.data.any()
    assert "0 taken for darkness, not for its no-data value" in loaded_cube.note


def test_bad_bands_are_refused(tmp_path):
    io.write_cube(tmp_path / "a.hdr", CUBE, NM)
    with (tmp_path / "a.hdr").open("a") as file:
        file.write("bbl = { 1, 0, 1, 1, 0 }\n")
    with pytest.raises(ValueError, match=r"marks 2 bands as bad \(bbl\), the first is band 2 of 5"):
        io.load_cube(tmp_path / "a.hdr")


def test_parts_that_were_never_written(tmp_path):
    store = zarr.create_array(
        tmp_path / "a.zarr", shape=(5, 8, 4), chunks=(1, 8, 4), dtype="f4", fill_value=0
    )
    store[:3] = 1
    with pytest.raises(ValueError, match="2 of its 5 chunks are not there; copy the store again"):
        io.load_cube(tmp_path / "a.zarr")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("cube", (5, 8, 4), "f4", chunks=(1, 8, 4))[:3] = 1
    with pytest.raises(ValueError, match="2 of its 5 chunks were never written"):
        io.load_cube(tmp_path / "a.h5")
    options = {"driver": "GTiff", "count": 5, "dtype": "float32", "sparse_ok": True, "tiled": True}
    options |= {"blockxsize": 16, "blockysize": 16}
    with rasterio.open(tmp_path / "a.tif", "w", height=32, width=16, **options) as image:
        image.write(np.ones((16, 16), np.float32), 1, window=((0, 16), (0, 16)))
    with pytest.raises(ValueError, match="strips or tiles of it were never written"):
        io.load_cube(tmp_path / "a.tif")


def test_even_wavelengths_are_an_even_axis_of_hyperspy(tmp_path):
    io.write_cube(tmp_path / "a.hspy", CUBE, [400.0, 410.0, 420.0, 430.0, 440.0])
    axis = rsciio.file_reader(str(tmp_path / "a.hspy"))[0]["axes"][2]
    keys = [axis[name] for name in ("_type", "offset", "scale", "units", "name", "navigate")]
    assert keys == ["UniformDataAxis", 400.0, 10.0, "nm", "Wavelength", False]
    assert io.load_cube(tmp_path / "a.hspy").wavelengths == (400.0, 410.0, 420.0, 430.0, 440.0)


def test_channels_of_ome_have_names(tmp_path):
    io.write_cube(tmp_path / "a.ome.tif", CUBE, NM)
    with tifffile.TiffFile(tmp_path / "a.ome.tif") as file:
        assert file.series[0].axes == "CYX"
        options = tifffile.xml2dict(file.ome_metadata)["OME"]["Image"]["Pixels"]["Channel"]
    assert [channel["Name"] for channel in options][:2] == ["453.5 nm", "457.5 nm"]
    assert [channel["EmissionWavelength"] for channel in options] == list(NM)
    channel_names = {"axes": "CYX", "Channel": {"Name": [f"{nm} nm" for nm in NM]}}
    tifffile.imwrite(tmp_path / "b.ome.tif", CUBE.numpy(), photometric=1, metadata=channel_names)
    assert io.load_cube(tmp_path / "b.ome.tif").wavelengths == NM
    xml = b'<!DOCTYPE a [<!ENTITY b "x">]><OME><Channel EmissionWavelength="500"/></OME>'
    tifffile.imwrite(tmp_path / "c.tif", CUBE.numpy(), photometric=1, description=xml)
    assert io.load_cube(tmp_path / "c.tif").wavelengths is None


def _save_tiff(path, values, bits, photometric=1):
    """Write one page of pixels without gaps, as cameras do."""
    height, width = values.shape
    pixel_bits = (values[..., None] >> np.arange(bits)[::-1]) & 1
    data = np.packbits(pixel_bits.reshape(height, -1).astype(np.uint8), axis=1).tobytes()
    tags = [(256, width), (257, height), (258, bits), (259, 1), (262, photometric), (273, 8)]
    tags += [(277, 1), (278, height), (279, len(data))]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    head = struct.pack("<2sHI", b"II", 42, 8 + len(data))
    path.write_bytes(head + data + struct.pack("<H", len(tags)) + entries + bytes(4))


@pytest.mark.parametrize("bits", [10, 12, 14])
@pytest.mark.parametrize("width", [7, 8])
def test_packed_pixels(tmp_path, bits, width):
    counts = np.random.default_rng(0).integers(0, 1 << bits, (5, width))
    _save_tiff(tmp_path / "a.tif", counts, bits)
    loaded_cube = io.load_measurement(tmp_path / "a.tif")
    expected_frame = torch.from_numpy((counts / np.float32((1 << bits) - 1)).astype(np.float32))
    assert torch.equal(loaded_cube.data[0, 0], expected_frame)
    assert loaded_cube.full_scale == 1.0
    raw = io.load_measurement(tmp_path / "a.tif", counts=True)
    assert torch.equal(raw.data[0, 0], torch.from_numpy(counts).float())
    content = (tmp_path / "a.tif").read_bytes()
    width_tag, wider_tag = (struct.pack("<HHII", 256, 4, 1, size) for size in (width, width + 1))
    (tmp_path / "a.tif").write_bytes(content.replace(width_tag, wider_tag))
    with pytest.raises(ValueError, match=r"expected .* bytes of .*-bit pixels"):
        io.load_measurement(tmp_path / "a.tif")


def test_mosaics_of_colours_are_refused(tmp_path):
    _save_tiff(tmp_path / "a.tif", np.ones((4, 4), int), 12, photometric=32803)
    with pytest.raises(ValueError, match="mosaic of colour filters; expected a monochrome"):
        io.load_measurement(tmp_path / "a.tif")


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_a_folder_of_images(tmp_path, suffix):
    from PIL import Image

    folder = tmp_path / "scene"
    folder.mkdir()
    levels = (CUBE * 65535).to(torch.int32).numpy().astype(np.uint16)
    for number in (9, 10, 11):
        Image.fromarray(levels[number - 9]).save(folder / f"band_{number}{suffix}")
    (folder / "notes.txt").write_text("of the lamp")
    loaded_cube = io.load_cube(folder)
    assert loaded_cube.wavelengths is None
    assert torch.equal(loaded_cube.data[0], torch.from_numpy(levels[:3] / np.float32(65535)))
    for nm, level in zip((650, 450.5, 500), levels, strict=False):
        Image.fromarray(level).save(folder / f"a_{nm}nm{suffix}")
    for file in folder.glob("band*"):
        file.unlink()
    loaded_cube = io.load_cube(folder)
    assert loaded_cube.wavelengths == (450.5, 500.0, 650.0)
    assert torch.equal(loaded_cube.data[0, 2], torch.from_numpy(levels[0] / np.float32(65535)))
    Image.fromarray(levels[0, :, :3]).save(folder / f"b_700nm{suffix}")
    with pytest.raises(ValueError, match="expected images alike"):
        io.load_cube(folder)
    for file in folder.glob(f"*{suffix}"):
        file.unlink()
    with pytest.raises(IsADirectoryError, match="or a folder of images, one a band"):
        io.load_cube(folder)
    with pytest.raises(IsADirectoryError):
        io.load_mask(folder)
    for name in ("a.png", "b.tif"):
        Image.fromarray(levels[0]).save(folder / name)
    with pytest.raises(ValueError, match="expected a folder of PNG or of TIFF images"):
        io.load_cube(folder)


def test_stores_are_scenes(tmp_path):
    (tmp_path / "set").mkdir()
    io.write_cube(tmp_path / "set/Apple.zarr", CUBE, NM)
    io.write_cube(tmp_path / "set/Pear.ome.tif", CUBE, NM)
    assert [path.name for path in find_scenes(tmp_path)] == ["Apple.zarr", "Pear.ome.tif"]
    names = [load_scene(path, NM).name for path in find_scenes(tmp_path / "set")]
    assert names == ["Apple", "Pear"]
    assert find_scenes(tmp_path / "set/Apple.zarr") == [tmp_path / "set/Apple.zarr"]


def make_store(path, **how):
    size = {"shape": (5, 7, 4), "chunks": (5, 7, 4), "dimension_names": ("band", "y", "x")}
    zarr.create_array(path, dtype="f4", **size, **how)[...] = CUBE.numpy()
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_a_folder_of_arrays_needs_no_group(tmp_path, version):
    zarr.save_array(tmp_path / "a.zarr" / "cube", CUBE.numpy(), zarr_format=version)
    assert torch.equal(io.load_cube(tmp_path / "a.zarr", axes="CHW").data[0], CUBE)
    (tmp_path / "empty.zarr").mkdir()
    with pytest.raises(ValueError, match="No group found"):
        io.load_cube(tmp_path / "empty.zarr")


@pytest.mark.parametrize(
    "packing", ["auto", zarr.codecs.GzipCodec(), zarr.codecs.BloscCodec(), None]
)
def test_chunks_may_be_compressed(tmp_path, packing):
    store = make_store(tmp_path / "a.zarr", compressors=packing)
    assert torch.equal(io.read_cube(store)[0], CUBE)


CODECS = [{"name": "numcodecs.pickle", "configuration": {}}]
PICKLES = {"zarr_format": 2, "shape": [2, 2, 3], "chunks": [2, 2, 3], "dtype": "|O", "order": "C"}
PICKLES |= {"compressor": None, "filters": [{"id": "pickle"}], "fill_value": 0}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("zarr.json", {"codecs": CODECS}),
        ("zarr.json", {"data_type": {"name": "structured", "configuration": {}}}),
        ("zarr.json", {"shape": [50_000, 50_000, 4_000]}),
        (".zarray", PICKLES),
        (".zarray", PICKLES | {"dtype": "<f4"}),
        *(("zarr.json", text) for text in ("", "[]", "{", "[" * 9999)),
    ],
)
def test_nothing_of_a_store_is_believed(tmp_path, name, changes):
    store = make_store(tmp_path / "a.zarr")
    options = json.loads((store / "zarr.json").read_text())
    if name == ".zarray":
        (store / "zarr.json").unlink()
        options = {}
    text = changes if isinstance(changes, str) else json.dumps(options | changes)
    (store / name).write_text(text)
    with pytest.raises(ValueError, match=r"cannot read .* as \.zarr") as error_info:
        io.read_cube(store, axes="HWC")
    assert "\n" not in str(error_info.value)


def test_a_sharded_store_is_refused(tmp_path):
    zarr.create_array(
        tmp_path / "a.zarr", shape=(4, 8, 8), chunks=(2, 4, 4), shards=(4, 8, 8), dtype="f4"
    )[...] = 1
    with pytest.raises(ValueError, match="expected chunks without shards"):
        io.read_cube(tmp_path / "a.zarr", axes="CHW")


@pytest.mark.parametrize(
    ("group", "limits", "slurm", "megabytes"),
    [
        ("0::/a/b", {"a/memory.max": "1073741824", "a/b/memory.max": "max"}, "", 1024),
        ("0::/a/b", {"memory.max": "536870912", "a/b/memory.max": "1073741824"}, "", 512),
        ("4:cpu,memory:/j", {"memory/j/memory.limit_in_bytes": "268435456"}, "", 256),
        ("0::/", {"memory/memory.limit_in_bytes": "268435456"}, "", 256),
        ("0::/", {}, "100", 100),
        ("0::/", {}, ",40,3", 120),
        ("0::/", {"memory.max": "104857600"}, "0,40,3", 100),
        ("0::/", {"memory.max": "104857600"}, "0,40,", 100),
    ],
)
def test_memory_that_a_job_may_use(tmp_path, monkeypatch, group, limits, slurm, megabytes):
    """The least of all levels of control groups, and of what SLURM grants."""
    files = {f"sys/fs/cgroup/{name}": text for name, text in limits.items()}
    for name, text in (files | {"proc/self/cgroup": group}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    names = ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE")
    for name, value in zip(names, [*slurm.split(","), "", ""], strict=False):
        monkeypatch.setenv(name, value)
    assert formats.machine_memory.__wrapped__(tmp_path) == megabytes << 20
