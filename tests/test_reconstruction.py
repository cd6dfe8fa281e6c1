"""What the commands do, as functions: the same bits."""

import json

import numpy as np
import pytest
import torch
from hydra import initialize_config_module
from scipy.io import savemat

import cassi
from cassi.apps.calibrate.job import calibrate_camera
from cassi.apps.command import Run
from cassi.apps.inputs import load_snapshot
from cassi.apps.reconstruct.job import reconstruct
from cassi.apps.reconstructors import compose_settings, settings_named
from cassi.apps.settings import Calibrate
from cassi.data.io import load_mask, load_measurement, read_cube
from cassi.data.sensor import Sensor
from cassi.data.simulation import WhiteNoise
from cassi.evaluation import Twin

CPU = torch.device("cpu")


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """Files of a scene of 40 x 44 pixels, 6 bands: options, measurement, camera, cube."""
    monkeypatch.chdir(tmp_path)
    random = torch.Generator().manual_seed(0)
    mask = torch.rand(40, 44, generator=random)
    cube = torch.rand(1, 6, 8, 11, generator=random).repeat_interleave(5, 2)
    cube = cube.repeat_interleave(4, 3)
    system = cassi.SDCassi(mask, bands=6, step=1)
    cassi.write_cube("cube.npz", cube, [450, 490, 530, 570, 610, 650])
    cassi.write_cube("mask.npy", mask[None])
    cassi.write_cube("y.npy", system(cube)[0])
    assert torch.equal(load_mask("mask.npy").data, system.mask)
    options = ["measurement=y.npy", "mask=mask.npy", "system.bands=6", "system.step=1"]
    return options, system(cube), system, cube


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("auto", ()),
        ("gap_tv", ("method=gap_tv",)),
        ({"model": "pretrained", "overrides": {"model.size": "small"}}, ("model=pretrained",)),
    ],
    ids=["auto", "gap_tv", "pretrained"],
)
def test_a_name_gives_the_bits_of_the_command(scene, tmp_path, method, options):
    given, y, system, _ = scene
    more = ["model.size=small"] if "model=pretrained" in options else []
    settings = compose_settings([*given, *options, *more, "output.pictures=false"])
    reconstruct(settings, Run(tmp_path / "run", is_multirun=False))
    x = cassi.reconstruct(y, system, method)
    assert torch.equal(x, read_cube(tmp_path / "run" / "cube.tif"))


UNITS = pytest.mark.parametrize("unit", [2.0**-100, 2.0**100], ids=["tiny", "huge"])


@pytest.fixture(scope="module")
def noisy():
    """A scene of 96 x 96 pixels in noise, which windows and held-out pixels look at."""
    random = torch.Generator().manual_seed(0)
    down, right = torch.meshgrid(torch.linspace(0, 5, 96), torch.linspace(0, 6, 96), indexing="ij")
    bands = [0.5 + 0.4 * torch.sin(right + 0.3 * band) * down.cos() for band in range(6)]
    system = cassi.SDCassi((torch.rand(96, 96, generator=random) > 0.5).float(), bands=6, step=1)
    y = system(torch.stack(bands)[None])
    return system, (y + 0.02 * y.mean() * torch.randn(y.shape, generator=random)).double()


@UNITS
@pytest.mark.parametrize("method", ["auto", "gap_tv", "twist", "admm_tv", "pretrained"])
def test_the_unit_of_a_measurement_changes_no_digit(noisy, method, unit):
    system, y = noisy
    x = cassi.reconstruct(y, system, method)
    assert torch.equal(cassi.reconstruct(unit * y, system, method), unit * x)


@UNITS
def test_a_file_in_any_unit(noisy, tmp_path, monkeypatch, unit):
    monkeypatch.chdir(tmp_path)
    system, y = noisy
    np.save("mask.npy", system.mask[0, 0].numpy())
    reports = []
    for number, c in enumerate((1.0, unit)):
        np.save("y.npy", c * y[0].numpy())
        camera = ["mask=mask.npy", "system.bands=6", "system.step=1"]
        settings = compose_settings(["measurement=y.npy", *camera, "heldout=0.05"])
        reconstruct(settings, Run(tmp_path / str(number), is_multirun=False))
        numbers = json.loads((tmp_path / str(number) / "metrics.json").read_text())
        numbers["camera_check"].pop("seconds")
        reports.append([numbers[key] for key in ("relative_residual", "heldout", "camera_check")])
    assert torch.equal(read_cube("1/cube.tif"), unit * read_cube("0/cube.tif"))
    assert reports[0] == reports[1]


@pytest.mark.parametrize("largest", [1e39, 1e-40])
def test_values_beyond_float32_are_refused(tmp_path, largest):
    for path in (tmp_path / "y.npy", tmp_path / "y.mat"):
        values = np.full((8, 9), largest)
        np.save(path, values) if path.suffix == ".npy" else savemat(path, {"y": values})
        with pytest.raises(ValueError, match=r"beyond float32.* in another unit"):
            load_measurement(path)


def test_auto_is_video_where_the_bands_are_frames(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    random = torch.Generator().manual_seed(0)
    masks = (torch.rand(3, 24, 26, generator=random) > 0.5).float()
    system = cassi.SDCassi(masks, bands=3, step=0)
    y = system(torch.rand(1, 3, 6, 13, generator=random).repeat_interleave(4, 2).repeat(1, 1, 1, 2))
    for name, values in (("mask.npy", masks), ("y.npy", y[0])):
        cassi.write_cube(name, values)
    given = ["measurement=y.npy", "mask=mask.npy", "system.step=0", "output.pictures=false"]
    found = {}
    for more in ((), ("wavelengths=[500,550,600]",), ("solver.iterations=99",)):
        reconstruct(compose_settings([*given, *more]), Run(tmp_path / "run", is_multirun=False))
        found[more[:1]] = read_cube(tmp_path / "run" / "cube.tif"), capsys.readouterr()
    video, bands, changed = found.values()
    with pytest.warns(UserWarning, match=r'"video" in place of "auto".*cassi.methods.auto\(\)'):
        x = cassi.reconstruct(y, system)
    assert torch.equal(x, video[0])
    assert torch.equal(cassi.reconstruct(y, system, "video"), x)
    assert torch.equal(cassi.reconstruct(y, system, cassi.methods.auto()), bands[0])
    assert "method=video in place of auto" in video[1].out
    assert "frames" not in video[1].err + bands[1].out + bands[1].err
    assert "warning: frames: set method=video" in changed[1].err  # auto with settings stays


def test_a_running_command_says_what_a_name_means():
    alone = settings_named("twist")
    assert settings_named("twist") is alone  # composed once
    with initialize_config_module("cassi.conf", version_base="1.3"):
        assert settings_named("twist") == alone
        assert settings_named("twist") is not alone


def test_reconstructors_and_functions_are_methods(scene):
    _, y, system, _ = scene
    solver = cassi.Solver(cassi.TV(), cassi.GAP(), iterations=3)
    assert torch.equal(cassi.reconstruct(y, system, solver), solver(y, system))
    pinv = cassi.reconstruct(y, system, lambda y, system: system.pinv(y))
    assert torch.equal(pinv, system.pinv(y))
    before = torch.get_rng_state()
    drawn = [
        cassi.reconstruct(y, system, lambda y, system: torch.rand(1, *system.cube_shape), seed=s)
        for s in (0, 0, 1)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(torch.get_rng_state(), before)  # the caller's numbers are its own


@pytest.mark.parametrize(
    "given",
    [
        lambda y: y[0, 0].numpy().astype(float),
        lambda y: np.asfortranarray(y[0].numpy()),
        lambda y: y.numpy().astype(">f4"),
        lambda y: y[0, 0].tolist(),
        lambda y: np.frombuffer(y.numpy().tobytes(), "f4").reshape(y.shape),  # not to be written
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_measurement_may_be_any_array(scene, given):
    _, y, system, _ = scene
    method = {"method": "auto", "overrides": {"solver.iterations": 3}}
    x = cassi.reconstruct(given(y), system, method, align=False)
    assert torch.equal(x, cassi.reconstruct(y, system, method, align=False))
    found, expected = (cassi.check_camera(each, system) for each in (given(y), y))
    assert found == expected


def test_calibrate_gives_the_camera_of_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nominal = cassi.SDCassi(torch.rand(64, 64, generator=torch.Generator().manual_seed(0)), bands=4)
    ramp = torch.linspace(0.2, 0.9, 64).view(1, 1, -1, 1).expand(1, 4, 64, 64)
    y, white = (
        Twin(shift=[0.4, -0.3]).expose(x, nominal) for x in (ramp, torch.ones(1, 4, 64, 64))
    )
    for name, values in (("mask", nominal.mask[0]), ("y", y[0]), ("white", white[0])):
        cassi.write_cube(f"{name}.npy", values)
    files = ["measurement=y.npy", "mask=mask.npy", "white=white.npy", "system.bands=4"]
    calibrate_camera(compose_settings(files, kind=Calibrate), Run(tmp_path / "run", False))
    camera = cassi.calibrate(y, nominal, white=white)
    written = load_mask(tmp_path / "run" / "mask.npy").data
    assert torch.equal(camera.mask, written)
    text = (tmp_path / "run" / "camera.yaml").read_text()
    assert all(f"- {round(offset, 6)}" in text for offset in camera.offsets)
    with pytest.raises(ValueError, match="radius"):
        cassi.calibrate(y, nominal, radius=50)


@pytest.mark.parametrize("name", [None, "sensor", "shot", "white"])
def test_simulate_gives_the_measurement_of_the_command(scene, name):
    given, _, system, cube = scene
    options = ["truth=cube.npz", *given[1:], "seed=3"] + ([f"noise={name}"] if name else [])
    y = load_snapshot(compose_settings(options), CPU).y
    assert torch.equal(cassi.simulate(cube, system, noise=name, seed=3, scene="cube"), y)


def test_noise_by_settings_or_function(scene):
    _, y, system, cube = scene

    def simulate(noise, **more):
        return cassi.simulate(cube, system, noise=noise, **more)

    white = simulate({"name": "white", "snr_db": 20})
    assert torch.equal(white, simulate(WhiteNoise(snr_db=20)))
    assert not torch.equal(white, simulate({"name": "white", "snr_db": 30}))
    assert not torch.equal(white, simulate(WhiteNoise(snr_db=20), scene="other"))
    sensor = Sensor(shot="poisson", full_well=1e4)
    assert torch.equal(simulate(sensor, seed=1), simulate(sensor, seed=1))
    assert torch.equal(simulate(None), y)
    assert torch.equal(cassi.simulate(cube[0].double().numpy(), system), y)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda y, a, x: cassi.reconstruct(a, y), r"expected \(y, system\)"),
        (lambda y, a, x: cassi.simulate(x, 3), r"expected \(x, system\), a tensor and a camera"),
        (lambda y, a, x: cassi.reconstruct(y[..., 1:], a), r"as of SDCassi\(mask=.*got shape"),
        (lambda y, a, x: cassi.reconstruct(y.mT, a), r"; y\.mT would fit"),
        (
            lambda y, a, x: cassi.reconstruct(y, a, lambda y, a: y),
            r"method: expected a cube .* got",
        ),
        (
            lambda y, a, x: cassi.reconstruct(y, a, lambda y, a: [y]),
            "method: .* tensor .* got list",
        ),
        (lambda y, a, x: cassi.reconstruct(y + 0j, a), "y: expected real numbers"),
        (lambda y, a, x: cassi.reconstruct("y.mat", a), r"got \(str.*cassi\.read_measurement"),
        (lambda y, a, x: cassi.reconstruct(y, a.mask.numpy()), r"expected \(y, system\).*ndarray"),
        (lambda y, a, x: cassi.reconstruct(torch.nan * y, a, "gap_tv"), "finite|diverged"),
        (lambda y, a, x: cassi.calibrate(y, cassi.BlurredCassi(a.mask, 6, 1)), "got BlurredCassi"),
        (lambda y, a, x: cassi.calibrate(y, cassi.DDCassi(a.mask, 6, width=49), white=y), "white"),
        (lambda y, a, x: cassi.simulate(x[:, 1:], a), "expected"),
        (lambda y, a, x: cassi.simulate(x, a, noise="shott"), "did you mean shot"),
        (lambda y, a, x: cassi.simulate(x, a, noise={"name": "white", "snr": 3}), "snr_db"),
    ],
)
def test_refusals(scene, call, said):
    with pytest.raises(Exception, match=said) as caught:
        call(*scene[1:])
    assert isinstance(caught.value, ValueError | TypeError | OSError)
