"""guide= of cassi-reconstruct: its files, its errors, its numbers."""

import numpy as np
import pytest
import tifffile
import torch
from shared import write_scene

import cassi
from cassi.apps.camera.guide import read_response
from cassi.apps.reconstructors import Recipe, compose_settings
from cassi.apps.snapshot import prepare
from cassi.data.io import load_guide, read_measurement


def _write_scene(folder, size=64, bands=6):
    x = write_scene(folder, size, bands, (0.2, 0.8))
    tifffile.imwrite(folder / "pan.tif", x.mean(0).numpy().astype(np.float32))
    return x


def _run(folder, *options):
    common = [f"truth={folder / 'truth.tif'}", f"mask={folder / 'mask.npy'}", "system.step=1"]
    settings = compose_settings([*common, "align=false", *options])
    recipe = Recipe(settings, torch.device("cpu"))
    return prepare(settings, recipe)


def test_a_colour_png_is_read_and_a_grey_one(tmp_path):
    from PIL import Image

    colours = np.random.default_rng(0).integers(0, 255, (5, 6, 3), dtype=np.uint8)
    Image.fromarray(colours).save(tmp_path / "rgb.png")
    Image.fromarray(colours[..., 0]).save(tmp_path / "pan.png")
    found = load_guide(tmp_path / "rgb.png").data
    np.testing.assert_allclose(found[0].numpy(), colours.transpose(2, 0, 1) / 255, atol=1e-6)
    assert load_guide(tmp_path / "pan.png").data.shape == (1, 1, 5, 6)
    with pytest.raises(ValueError, match="grey"):
        read_measurement(tmp_path / "rgb.png")


def test_numbers_tell_what_became_of_a_guide(tmp_path, reconstruct, results):
    """A picture of the scene is taken and registered; one of something else is said."""
    from PIL import Image

    from cassi.viz.color import srgb

    x = _write_scene(tmp_path)
    photograph = srgb(x.numpy(), np.linspace(450, 650, 6))
    Image.fromarray(photograph).save(tmp_path / "rgb.png")
    noise = np.random.default_rng(0).integers(0, 255, photograph.shape, dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    files = [f"truth={tmp_path / 'truth.tif'}", f"mask={tmp_path / 'mask.npy'}", "system.step=1"]
    short = ("align=false", "solver.iterations=2", "output.pictures=false", "output.report=false")
    errors = []
    for name, taken in (("pan.tif", True), ("rgb.png", True), ("noise.png", False)):
        done = reconstruct(*files, *short, f"guide={tmp_path / name}").ok()
        found = results()["guide"]
        assert (found["taken"], found["response"]) == (taken, "pan" if "pan" in name else "cie")
        errors.append((cassi.read_cube(tmp_path / "run" / "cube.tif")[0] - x).norm())
        assert ("warning: guide: " in done.err) == (not taken)
        assert ("shift" in str(found)) == taken
    assert errors[0] < errors[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["guide=FOLDER/small.tif"], "guide: expected a picture of 64 x 64 pixels"),
        (
            ["guide=FOLDER/pan.tif", "guide.response=cie"],
            "cie is for 3 channels, the picture has 1",
        ),
        (["guide=FOLDER/pan.tif", "guide.response=FOLDER/no.csv"], "no file"),
        (["guide=FOLDER/pan.tif", "guide.noise=0"], "guide.noise: expected a number above 0"),
        (["guide=FOLDER/pan.tif", "uncertainty=true"], "guide: expected null with uncertainty"),
        (["guide=FOLDER/pan.tif", "method=gap_tv"], "guide: expected null, this method"),
        (["guide=FOLDER/absent.tif"], "no file"),
    ],
)
def test_what_does_not_fit(tmp_path, options, message):
    _write_scene(tmp_path)
    tifffile.imwrite(tmp_path / "small.tif", np.ones((9, 8), np.float32))
    with pytest.raises((ValueError, OSError), match=message):
        _run(tmp_path, *(option.replace("FOLDER", str(tmp_path)) for option in options))


def test_responses(tmp_path):
    nm = (450.0, 550.0, 650.0)
    assert torch.equal(read_response("pan", 1, 3, None), torch.full((1, 3), 1 / 3))
    assert read_response("cie", 3, 3, nm).sum(1).tolist() == pytest.approx([1, 1, 1])
    with pytest.raises(ValueError, match=r"wavelengths=\[…\]"):
        read_response("cie", 3, 3, None)
    file = tmp_path / "curves.csv"
    file.write_text("nm,blue,red\n400,0,0\n500,1,0\n600,0,1\n700,0,0\n")
    expected = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    torch.testing.assert_close(read_response(str(file), 2, 3, nm), expected)
    file.write_text("1,0,0\n0,1,1\n")
    assert read_response(str(file), 2, 3, None).tolist() == [[1, 0, 0], [0, 1, 1]]
    for wrong in ("1,2\n", "1,x,2\n", ""):
        file.write_text(wrong)
        with pytest.raises(ValueError, match=r"guide\.response: .*expected"):
            read_response(str(file), 2, 3, nm)
