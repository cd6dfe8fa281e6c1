"""The plugin of napari: its manifest, its functions without a display, and once with napari."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import cassi
from cassi.apps import napari as plugin
from cassi.apps.napari import widgets
from cassi.data.io import WRITE_SUFFIXES

NM = [450.0, 500.5, 550.0]
CUBE = torch.rand(3, 12, 14, generator=torch.Generator().manual_seed(0))


def test_the_manifest_is_valid_and_names_what_is_there():
    npe2 = pytest.importorskip("npe2")
    manifest = npe2.PluginManifest.from_distribution("cassi")
    manifest.validate_imports()
    found = manifest.contributions
    assert set(found.writers[0].filename_extensions) <= {*WRITE_SUFFIXES, ".ome.tif"}
    assert {widget.display_name for widget in found.widgets} == {"Reconstruct", "Spectrum"}
    assert [sample.key for sample in found.sample_data] == ["scene"]


@pytest.mark.parametrize("name", ["a.tif", "a.ome.tif", "a.hdr", "a.nc", "a.zarr", "a.hspy"])
def test_files_become_layers_and_layers_files(tmp_path, name):
    cassi.write_cube(tmp_path / name, CUBE, NM)
    read = plugin.get_reader(str(tmp_path / name))
    ((data, about, kind),) = read(str(tmp_path / name))
    assert kind == "image"
    assert np.array_equal(data, CUBE.numpy())
    assert about["metadata"]["wavelengths"] == NM
    assert (about["name"], about["axis_labels"]) == ("a", ("wavelength", "y", "x"))
    written = str(tmp_path / f"b{name[1:]}")
    assert plugin.write_image(written, data, about) == [written]
    again = cassi.data.io.load_cube(written)
    assert torch.equal(again.data[0], CUBE)
    assert list(again.wavelengths) == NM


def test_other_files_are_left_to_others(tmp_path):
    (tmp_path / "a.tif").write_bytes(b"none")
    assert plugin.get_reader(str(tmp_path / "a.tif")) is None
    assert plugin.get_reader(str(tmp_path)) is None
    assert plugin.get_reader(["a.tif", "b.tif"]) is None


def test_only_cubes_are_written(tmp_path):
    for shape, about in (((3, 4), {}), ((3, 4, 3), {"rgb": True})):
        with pytest.raises(ValueError, match="expected a layer"):
            plugin.write_image(str(tmp_path / "a.tif"), np.zeros(shape), about)
    path = str(tmp_path / "cut.tif")
    plugin.write_image(path, CUBE.numpy()[:2], {"metadata": {"wavelengths": NM}})
    assert cassi.data.io.load_cube(path).wavelengths is None


def test_the_sample_is_reconstructed():
    cube, mask, snapshot = (data for data, *_ in plugin.open_sample())
    bands = len(cube)
    assert widgets.count_bands(snapshot.shape, mask.shape, plugin.SAMPLE_STEP) == bands
    small = mask[:16, :16]  # the first rows and columns are a camera of their own
    camera = cassi.SDCassi(small, bands=bands, step=plugin.SAMPLE_STEP)
    y = camera(torch.from_numpy(cube)[None, :, :16, :16])
    data, about, kind = widgets.reconstruct_layer(
        y[0, 0].numpy(), small, 2.0, "columns", (450.0, 650.0), "gap_tv"
    )
    assert (about["name"], kind) == ("reconstruction", "image")
    assert about["metadata"]["wavelengths"][:: bands - 1] == [450.0, 650.0]
    assert np.array_equal(data, cassi.reconstruct(y, camera, "gap_tv")[0].numpy())


@pytest.mark.parametrize(
    ("snapshot", "mask", "step", "axis", "bands"),
    [
        ((8, 20), (8, 10), 2, -1, 6),
        ((8, 20), (8, 10), -2.5, -1, 5),
        ((18, 10), (8, 10), 5, -2, 3),
        ((8, 15), (6, 8, 10), 1, -1, 6),
        ((8, 20), (8, 10), 3, -1, None),
        ((8, 10), (8, 10), 1, -1, None),
    ],
)
def test_bands_follow_from_the_sizes(snapshot, mask, step, axis, bands):
    if bands is None:
        with pytest.raises(ValueError, match="check step and axis"):
            widgets.count_bands(snapshot, mask, step, axis)
    else:
        assert widgets.count_bands(snapshot, mask, step, axis) == bands


def test_spectra_of_regions():
    labels = np.zeros((12, 14), int)
    labels[:2], labels[5, 5] = 1, 4
    found = widgets.spectra_of(CUBE.numpy(), labels)
    assert list(found) == [1, 4]
    mean, spread, count = found[1]
    assert count == 28
    assert np.allclose(mean, CUBE[:, :2].mean((1, 2)))
    assert np.allclose(spread, CUBE[:, :2].std((1, 2), correction=0), atol=1e-6)
    drawn = np.zeros(CUBE.shape, int)
    drawn[2, 3] = 7
    assert list(widgets.spectra_of(CUBE.numpy(), drawn)) == [7]
    with pytest.raises(ValueError, match="draw one"):
        widgets.spectra_of(CUBE.numpy(), np.zeros((12, 14), int))
    with pytest.raises(ValueError, match="expected labels"):
        widgets.spectra_of(CUBE.numpy(), np.zeros((4, 4), int))


@pytest.mark.parametrize("nm", [NM, None])
def test_spectra_are_drawn_and_kept_in_the_layer_of_the_regions(monkeypatch, nm):
    """Of layers no more is asked for than their data, name and metadata."""
    from matplotlib import pyplot

    labels = np.zeros((12, 14), int)
    labels[:2], labels[5, 5] = 1, 4
    cube = SimpleNamespace(data=CUBE.numpy(), name="a", metadata={"wavelengths": nm} if nm else {})
    regions = SimpleNamespace(data=labels, metadata={})
    monkeypatch.setattr("matplotlib.figure.Figure.show", lambda figure: None)
    widgets.spectrum(cube, regions)
    told, plot = regions.metadata["spectra"], pyplot.gca()
    pyplot.close()
    assert told["wavelengths"] == nm
    assert np.allclose(told["labels"][4]["mean"], CUBE[:, 5, 5])
    assert told["labels"][4]["std"] == [0, 0, 0]
    assert [text.get_text() for text in plot.get_legend().get_texts()] == [
        "1, 28 pixels",
        "4, 1 pixels",
    ]
    assert (plot.get_xlabel(), plot.get_ylabel()) == ("wavelength, nm" if nm else "band", "a")
