"""Commands on a frame in light of all wavelengths: along the dispersion, and by other names."""

import json

import numpy as np
import pytest
import torch

import cassi
from cassi import viz
from cassi.systems import SDCassi
from cassi.systems.grid import SpectralGrid

PRISM = [0.4, 5.1, 8.7, 11.4, 13.5, 15.1]
EVEN = [0.4, *(0.4 + 2.94 * band for band in range(1, 5)), 15.1]
NM = [450, 490, 530, 570, 610, 650]


@pytest.fixture
def given(tmp_path):
    """Options for a frame in light of all wavelengths, but for the offsets."""
    random = torch.Generator().manual_seed(3)
    mask = (torch.rand(48, 56, generator=random) < 0.5).float()
    fine = SDCassi(mask, 148, offsets=torch.linspace(0.4, 15.1, 148).tolist(), detector=74)
    place = torch.linspace(0, 1, 148)[:, None, None]
    rows, columns = torch.meshgrid(torch.arange(48.0), torch.arange(56.0), indexing="ij")
    x = (1 + torch.sin(rows / 9 + 2 * place) * torch.cos(columns / 11 + place))[None] / 148
    np.save(tmp_path / "mask.npy", mask.numpy())
    np.save(tmp_path / "y.npy", fine(x)[0, 0].numpy())
    return (
        *("measurement=y.npy", "mask=mask.npy", "light=all", f"wavelengths={NM}", "align=false"),
        *("system.detector=74", "solver.iterations=8", "output.pictures=false"),
    )


def numbers_in(folder):
    return json.loads((folder / "metrics.json").read_text())


def test_another_curve_costs_no_reconstruction(reconstruct, show, given, tmp_path):
    run = (*given, "hydra.run.dir=run")
    outcome = reconstruct(*run, f"system.offsets={EVEN}", "output.bands=dispersion").ok()
    assert "read at 6" in outcome.out
    along = cassi.read_cube(tmp_path / "run" / "cube.tif")
    told = numbers_in(tmp_path / "run")["dispersion"]
    assert along.shape[1] == len(told["offsets"]) >= 16
    names = (f"wavelengths={NM}", f"system.offsets={PRISM}", "system.detector=74", "mask=mask.npy")
    show("rename=run/cube.tif", *names, "hydra.run.dir=named").ok()
    renamed = cassi.read_cube(tmp_path / "named" / "cube.tif")
    assert torch.allclose(renamed, SpectralGrid(tuple(told["offsets"]), tuple(PRISM)).read(along))
    reconstruct(*given, f"system.offsets={PRISM}", "hydra.run.dir=right").ok()
    right = cassi.read_cube(tmp_path / "right" / "cube.tif")
    assert torch.allclose(renamed, right, rtol=1e-4, atol=1e-5 * float(right.max()))
    backwards = (*names, f"system.offsets={PRISM[::-1]}")
    assert "in the direction of the cube's" in show("rename=run/cube.tif", *backwards).refusal
    assert "no offsets of 6 bands" in show("rename=right/cube.tif", *names).refusal
    numbers = numbers_in(tmp_path / "right")
    numbers["dispersion"]["offsets"] = PRISM  # as many as the cube has, of other bands
    (tmp_path / "right" / "metrics.json").write_text(json.dumps(numbers))
    assert "no offsets of 6 bands" in show("rename=right/cube.tif", *names).refusal
    assert "rename: expected the file of a cube" in show("rename=run", *names).refusal


def test_lines_stay_at_their_offsets(reconstruct, given, tmp_path):
    options = (f"system.offsets={PRISM}", "hydra.run.dir=run", "light=lines")
    reconstruct(*given, *options).ok()
    assert "dispersion" not in numbers_in(tmp_path / "run")
    refused = reconstruct(*given, *options, "output.bands=dispersion").refusal
    assert "output.bands: expected wavelengths" in refused
    assert (
        "light: there is no 'line'; did you mean lines" in reconstruct(*given, "light=line").refusal
    )


@pytest.mark.parametrize("unit", [None, "radiance"])
def test_pictures_show_the_light_along_the_dispersion_and_errors_of_names(
    unit, reconstruct, given, tmp_path, monkeypatch
):
    drawn, save = [], viz.save_spectra
    monkeypatch.setattr(viz, "save_spectra", lambda *all: (drawn.append(all[-1]), save(*all)))
    options = (f"system.offsets={PRISM}", "wavelengths_error=2", "hydra.run.dir=run")
    in_unit = () if unit is None else (f"output.unit={unit}", "response=[1,1,1,1,1,2]")
    reconstruct(*given, *options, *in_unit, "output.pictures=true").ok()
    assert '"450 \\u00b1 2 nm"' in (tmp_path / "run" / "report.html").read_text()
    if unit is None:
        cube, nm = drawn[0]
        bands = len(numbers_in(tmp_path / "run")["dispersion"]["offsets"])
        assert len(cube) == len(nm) == bands
    else:
        assert drawn[0] is None


def test_error_bars_have_those_of_the_names(reconstruct, given, tmp_path):
    options = (f"system.offsets={PRISM}", "uncertainty=true")
    bars = []
    for error in (0, 20):
        told = (f"wavelengths_error={error}", f"hydra.run.dir=run{error}")
        reconstruct(*given, *options, *told).ok()
        bars.append(cassi.read_cube(tmp_path / f"run{error}" / "uncertainty.tif"))
        assert numbers_in(tmp_path / f"run{error}")["wavelengths_error"] == [error] * 6
    assert bool((bars[1] >= bars[0] * (1 - 1e-6)).all())
    assert float(bars[1].mean()) > 1.05 * float(bars[0].mean())
    wrong = reconstruct(*given, *options, "wavelengths_error=[1,2]").refusal
    assert "expected one number or 6" in wrong
