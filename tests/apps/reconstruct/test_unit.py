"""The unit of the cube: output.unit= and response= of cassi-reconstruct."""

import json

import numpy as np
import pytest
import torch

import cassi
from cassi.apps.command import Run
from cassi.apps.reconstruct.job import reconstruct
from cassi.apps.reconstructors import compose_settings
from cassi.calibration import Response
from cassi.data import io

LIGHT = [0.4, 1.0, 1.6, 1.2]
NM = [450, 500, 550, 600]


@pytest.fixture
def folder(tmp_path):
    random = torch.Generator().manual_seed(0)
    mask = (torch.rand(48, 48, generator=random) > 0.5).float()
    camera = cassi.SDCassi(mask, bands=4, step=2)
    rows = torch.linspace(0.2, 0.8, 48)[:, None].expand(48, 48)
    scene = torch.stack([rows, rows.mT, 1 - rows, rows])
    scene[:, 20:32, 20:32] = 0.9
    light = torch.tensor(LIGHT)[:, None, None]
    np.save(tmp_path / "mask.npy", mask.numpy())
    np.save(tmp_path / "frame.npy", camera((scene * light)[None])[0, 0].numpy())
    np.save(tmp_path / "white.npy", camera(light.expand(4, 48, 48)[None])[0, 0].numpy())
    rows = "\n".join(f"{nm},{value}" for nm, value in zip(NM, LIGHT, strict=True))
    (tmp_path / "light.csv").write_text("nm,light\n" + rows)
    np.save(tmp_path / "light.npy", np.array(LIGHT))
    return tmp_path


def _run(folder, name, *options):
    settings = compose_settings(
        [
            f"measurement={folder}/frame.npy",
            f"mask={folder}/mask.npy",
            f"wavelengths={NM}",
            "output.progress=false",
            *options,
        ]
    )
    reconstruct(settings, Run(folder / name, False))
    cube = io.load_cube(folder / name / "cube.tif").data[0]
    return cube, json.loads((folder / name / "metrics.json").read_text())


def test_all_ways_to_a_response(folder):
    plain, numbers = _run(folder, "plain", "output.pictures=false")
    assert "unit" not in numbers
    light = torch.tensor(LIGHT)[:, None, None]
    ways = {
        "list": f"response={LIGHT}",
        "csv": f"response={folder}/light.csv",
        "npy": f"response={folder}/light.npy",
        "white": f"response={{white: {folder}/white.npy}}",
    }
    for name, way in ways.items():
        cube, numbers = _run(folder, name, way, "output.unit=radiance", "output.pictures=false")
        assert numbers["unit"] == "radiance"
        torch.testing.assert_close(cube, plain / light, rtol=2e-3, atol=1e-4)
        assert numbers["response"]["values"] == pytest.approx(LIGHT, rel=2e-3)
    cube, _ = _run(folder, "surfaces", way, "output.unit=reflectance", "output.pictures=false")
    likeliest = Response(torch.tensor(LIGHT), torch.zeros(4)).scene(plain, NM)
    torch.testing.assert_close(cube, likeliest, rtol=2e-3, atol=1e-4)
    patch = "response={patch: [22, 22, 8, 8], reflectance: 0.9}"
    cube, _ = _run(folder, "patch", patch, "output.unit=reflectance")
    assert cube[:, 22:30, 22:30].mean((1, 2)).tolist() == pytest.approx([0.9] * 4, rel=1e-4)
    assert b'"unit": "reflectance"' in (folder / "patch" / "report.html").read_bytes()


def test_every_shot_has_a_white_frame(folder):
    """One for two shots would be taken for the light of both, and the rest for stray light."""
    masks = (torch.rand(2, 1, 48, 48, generator=torch.Generator().manual_seed(1)) > 0.5).float()
    camera = cassi.SDCassi(masks, bands=4, step=2)
    light = torch.tensor(LIGHT)[:, None, None].expand(4, 48, 48)[None]
    for shot in range(2):
        np.save(folder / f"mask{shot}.npy", masks[shot, 0].numpy())
        for name, scene in (("white", light), ("frame", 0.5 * light)):
            np.save(folder / f"{name}{shot}.npy", camera(scene)[0, shot].numpy())
    kept = ("output.unit=reflectance", "output.pictures=false")
    names = {name: f"[{folder}/{name}0.npy,{folder}/{name}1.npy]" for name in ("frame", "mask")}
    given = (f"measurement={names['frame']}", f"mask={names['mask']}", *kept)
    white = f"{folder}/white0.npy"
    cube, _ = _run(folder, "two", *given, f"response={{white: [{white},{folder}/white1.npy]}}")
    torch.testing.assert_close(cube, torch.full_like(cube, 0.5), rtol=0.02, atol=0)
    with pytest.raises(ValueError, match=r"2 white frames, one per shot, got 1; set response="):
        _run(folder, "one", *given, f"response={{white: {white}}}")
    with pytest.raises(ValueError, match=r"1 white frames, .* got 2; set response={white: FILE}"):
        _run(folder, "one", *kept, f"response={{white: [{white},{folder}/white1.npy]}}")


def test_error_bars_have_the_unit_of_the_cube(folder):
    _, before = _run(folder, "plain", "uncertainty=true", "output.pictures=false")
    given = (f"response={LIGHT}", "output.unit=radiance", "output.pictures=false")
    _, after = _run(folder, "scaled", "uncertainty=true", *given)
    light = torch.tensor(LIGHT)[:, None, None]
    std, scaled = (
        io.load_cube(folder / name / "uncertainty.tif").data[0] for name in ("plain", "scaled")
    )
    # Light that a method puts into a band beside its own: that of two bands either way.
    most = torch.stack([std[max(0, band - 2) : band + 3].amax(0) for band in range(len(LIGHT))])
    torch.testing.assert_close(scaled, most / light)
    assert after["uncertainty"]["mean"] == pytest.approx(float(scaled.mean()), rel=1e-4)
    assert after["relative_residual"] == before["relative_residual"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["output.unit=reflectance"], "output.unit: expected response=FILE with reflectance"),
        (
            ["output.unit=reflectence"],
            "output.unit: there is no 'reflectence'; did you mean reflectance",
        ),
        (["response=[1,2,3]"], "response: expected 4 numbers, one per band"),
        (["response={wite: a.png}"], "response: no value 'wite'.*white"),
        (["response={patch: [1, 2, 3]}"], "expected patch: .top, left, height, width"),
        (["response={patch: [0, 0, 500, 8]}"], r"a patch .* within .* got \[0, 0, 500, 8\]"),
        (["response={reflectance: 0.9}"], "response: expected white: FILE or patch"),
        (["response=frame.png"], "expected a file of numbers, .csv .txt .npy, got frame.png"),
    ],
)
def test_what_is_no_response_is_refused(folder, options, message):
    with pytest.raises(ValueError, match=message):
        _run(folder, "none", *options)


def test_a_camera_file_has_a_response(folder):
    (folder / "camera.yaml").write_text(
        f"mask: mask.npy\nsystem: {{step: 2}}\nwavelengths: {NM}\nresponse: {{white: white.npy}}\n"
    )
    settings = compose_settings([f"camera={folder}/camera.yaml"])
    assert settings.response == {"white": str(folder / "white.npy")}
    assert cassi.read_camera(folder / "camera.yaml").system.bands == 4


@pytest.mark.parametrize("response", ["white: white.npy", "patch: [22, 22, 8, 8]"])
def test_python_gives_the_bits_of_the_command(folder, response):
    """A white frame corrects the snapshot, whatever the unit."""
    white = np.load(folder / "white.npy") + 0.3  # stray light
    np.save(folder / "white.npy", white)
    np.save(folder / "frame.npy", np.load(folder / "frame.npy") + 0.1)
    (folder / "camera.yaml").write_text(
        f"mask: mask.npy\nsystem: {{step: 2}}\nwavelengths: {NM}\nresponse: {{{response}}}\n"
    )
    y, system = cassi.read_camera(folder / "camera.yaml").read(folder / "frame.npy")
    for name in (None, "reflectance", "radiance"):
        options = ["output.pictures=false", f"output.unit={'null' if name is None else name}"]
        if name is not None:
            options.append("uncertainty=true")
        cube, _ = _run(folder, str(name), f"camera={folder}/camera.yaml", *options)
        made = cassi.reconstruct(y, system, uncertainty=name is not None, unit=name)
        assert torch.equal(made if name is None else made.x, cube[None])
        if name is not None:
            std = io.load_cube(folder / name / "uncertainty.tif").data
            torch.testing.assert_close(made.std, std)
    assert system.weighted(variance=torch.ones(y.shape)).unit is system.unit


def test_a_unit_needs_a_response(folder):
    y, system = torch.zeros(1, 1, 48, 54), cassi.SDCassi(torch.rand(48, 48), bands=4, step=2)
    with pytest.raises(ValueError, match="unit: expected None, as this camera has no response"):
        cassi.reconstruct(y, system, unit="reflectance")
    with pytest.raises(ValueError, match="expected None, reflectance or radiance, got 'percent'"):
        cassi.reconstruct(y, system, unit="percent")
