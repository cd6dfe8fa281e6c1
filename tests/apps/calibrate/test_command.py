"""cassi-calibrate: the camera it writes is one that cassi-reconstruct takes."""

import copy
import inspect
import io
import json

import numpy as np
import pytest
import torch

from cassi import read_camera
from cassi.apps import snapshot as way
from cassi.apps.calibrate.results import make_camera_values
from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import Calibrate
from cassi.camera.displaced_camera import displaced_camera, no_displacement
from cassi.evaluation import Twin
from cassi.pipeline import calibrate as pipeline
from cassi.systems import SDCassi, TiltedCassi
from cassi.systems.mask_kind import is_design

BANDS, HEIGHT, WIDTH = 6, 80, 80
SHIFT, ROTATION, DISPERSION = (0.6, -0.4), 0.1, 0.03
QUICK = ("solver.iterations=3",)


@pytest.fixture(scope="module")
def kept():
    """What calibrations found, and the state of the random numbers behind them, by arguments."""
    return {}


@pytest.fixture(autouse=True)
def _calibrate_once(kept, monkeypatch):
    """Calibrate once on the same bits: tests here are of what commands ask for and make of it."""
    calibrate_on = pipeline.calibrate_on

    def calibrate_once(*arguments, **named):
        asked = inspect.signature(calibrate_on).bind(*arguments, **named)
        asked.apply_defaults()
        system = copy.deepcopy(asked.arguments["system"])
        for module in system.modules():
            module._load_state_dict_post_hooks.clear()  # torch numbers them as they come
        light_frames = tuple(asked.arguments["light_frames"])
        same = {"system": system, "light_frames": light_frames, "watch": None}
        torch.save(asked.arguments | same, bits := io.BytesIO())
        if (key := bits.getvalue()) not in kept:
            kept[key] = calibrate_on(*arguments, **named), torch.get_rng_state()
        found, state = kept[key]
        torch.set_rng_state(state)
        return copy.deepcopy(found)

    monkeypatch.setattr(pipeline, "calibrate_on", calibrate_once)


@pytest.fixture
def bench(tmp_path):
    """Files of a camera that is off: mask, two snapshots, a white and a monochromatic frame."""
    mask = torch.rand(HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0))
    camera = SDCassi(mask, BANDS)
    rows = torch.linspace(0, 1, HEIGHT).view(-1, 1).expand(-1, WIDTH)
    bands = torch.linspace(0, 1, BANDS).view(-1, 1, 1)
    white, single = torch.ones(1, BANDS, HEIGHT, WIDTH), torch.zeros(1, BANDS, HEIGHT, WIDTH)
    single[:, 2] = 1
    scenes = {
        "first": (0.2 + 0.5 * bands * rows)[None],
        "second": (0.7 - 0.5 * bands * rows)[None],
        "white": 4 * white,
        "single": single,
    }
    for name, scene in scenes.items():
        y = Twin(shift=SHIFT, rotation=ROTATION, dispersion=DISPERSION).expose(scene, camera)
        np.save(tmp_path / f"{name}.npy", y[0, 0].numpy())
    np.save(tmp_path / "mask.npy", mask.numpy())
    return ("mask.npy", "first.npy", "second.npy")


def assert_place(estimates):
    """Assert that mask and bands were found, within their errors."""
    found = {entry["key"]: entry for entry in estimates}
    wanted = {"down": SHIFT[0], "right": SHIFT[1], "rotation": ROTATION, "dispersion": DISPERSION}
    for key, value in wanted.items():
        assert found[key]["standard_error"] > 0
        assert abs(found[key]["value"] - value) < max(0.03, 3 * found[key]["standard_error"])
    assert found["down"]["taken"]
    assert found["right"]["taken"]
    assert all(each["value"] == each["nominal"] for each in estimates if not each["taken"])


def test_writes_a_camera_that_reconstructs(calibrate, reconstruct, results, bench, tmp_path):
    done = calibrate("measurement=first.npy", "mask=mask.npy", *QUICK).ok()
    assert "shift down (px)" in done.out
    assert "gain: unknown" in done.out
    folder = tmp_path / "run"
    numbers = results("calibration.json")
    assert_place(numbers["estimates"])
    written = {file.name for file in folder.iterdir()} - {".hydra"}
    assert written == {"camera.yaml", "mask.npy", "calibration.json", "calibration.png"}
    assert numbers["heldout_error"]["calibrated"] < numbers["heldout_error"]["nominal"]
    used = reconstruct(
        "camera=run/camera.yaml",
        *("measurement=second.npy", "solver.iterations=3", "output.pictures=false"),
        f"hydra.run.dir={tmp_path / 'cube'}",
    ).ok()
    offsets = [round(offset, 6) for offset in numbers["offsets"]["calibrated"]]  # as in the file
    if offsets != numbers["offsets"]["nominal"]:
        assert f"offsets={offsets[0]:.4g} to {offsets[-1]:.4g}" in used.out


def test_bad_and_saturated_pixels_have_no_influence(calibrate, results, bench, tmp_path):
    frame = np.load(tmp_path / "first.npy")
    bad = np.random.default_rng(0).random(frame.shape) < 0.03
    bad[40:44, 30:34] = True
    np.save(tmp_path / "bad.npy", bad)
    level = float(np.quantile(frame[~bad], 0.99))
    options = ("mask=mask.npy", "bad_pixels=bad.npy", f"saturation={level}", *QUICK)
    found = []
    for value in (np.nan, 30.0):
        np.save(tmp_path / "spoilt.npy", np.where(bad, value, frame.clip(max=level)))
        calibrate("measurement=spoilt.npy", *options).ok()
        found.append(results("calibration.json")["estimates"])
    assert found[0] == found[1]
    assert_place(found[0])
    camera = (tmp_path / "run" / "camera.yaml").read_text()
    assert f"bad_pixels: {tmp_path / 'bad.npy'}" in camera


def test_known_light_gives_gain_and_mask(calibrate, results, bench, tmp_path):
    calibrate(
        *("measurement=first.npy", "mask=mask.npy", "white=white.npy", *QUICK),
        *("monochromatic.file=single.npy", "monochromatic.wavelength=500"),
        "wavelengths=[480,490,500,510,520,530]",
    ).ok()
    numbers = results("calibration.json")
    assert numbers["gain"] == pytest.approx(4, rel=0.05)
    camera = read_camera(tmp_path / "run" / "camera.yaml")
    assert camera.preprocessing.scale == pytest.approx(1 / numbers["gain"])
    assert camera.wavelengths == (480, 490, 500, 510, 520, 530)
    assert np.load(tmp_path / "run" / "mask.npy").shape == (HEIGHT, WIDTH)


def test_frames_through_filters_make_a_camera(calibrate, reconstruct, results, bench, tmp_path):
    mask = torch.rand(HEIGHT, WIDTH, generator=torch.Generator().manual_seed(1))
    nanometres = [500, 510, 520, 530, 540, 550]
    true = SDCassi(mask, 6, offsets=[3 + 1.5 * band for band in range(6)], detector=WIDTH + 14)

    def frame(x):  # brighter by a dark level, and larger than the field
        return np.pad(true(x)[0, 0].numpy(), ((7, 5), (0, 0))) + 0.5

    for band, wavelength in ((0, 500), (2, 520), (5, 550)):
        x = torch.zeros(1, 6, HEIGHT, WIDTH)
        x[:, band] = 1
        np.save(tmp_path / f"{wavelength}.npy", frame(x))
    np.save(tmp_path / "even.npy", frame(torch.full((1, 6, HEIGHT, WIDTH), 2.0)))
    several = "{file: 500.npy, wavelength: 500}, {file: 520.npy, wavelength: 520}"
    done = calibrate(
        f"monochromatic=[{several}, {{file: 550.npy, wavelength: 550}}]",
        *(f"wavelengths={nanometres}", "white=even.npy", "measurement=even.npy", "dark=0.5"),
    ).ok()
    assert "camera check" in done.out
    assert "warning" not in done.out
    numbers = results("calibration.json")
    assert numbers["offsets"] == pytest.approx(list(true.offsets), abs=0.1)
    assert numbers["field"] == [HEIGHT, WIDTH]
    assert numbers["gain"] == pytest.approx(2, rel=0.1)
    used = reconstruct(
        *("camera=run/camera.yaml", "measurement=even.npy", "solver.iterations=3"),
        *("output.pictures=false", f"hydra.run.dir={tmp_path / 'cube'}"),
    ).ok()
    assert "warning: mask" not in used.out + used.err
    single = "monochromatic=[{file: 520.npy, wavelength: 520}]"
    more = (f"wavelengths={nanometres}", single, "dark=0.5")
    assert "set system.step" in calibrate(*more).refusal
    ends = f"system.offsets={list(true.offsets)}"
    calibrate(*more, ends, "measurement=even.npy", f"hydra.run.dir={tmp_path / 'one'}").ok()
    offsets = read_camera(tmp_path / "one" / "camera.yaml").system.offsets
    assert offsets == pytest.approx(list(true.offsets), abs=0.3)


def test_a_filter_has_a_width(calibrate, results, tmp_path):
    """Under a lamp that rises steeply the middle of its light is not that of the filter."""
    mask = torch.rand(HEIGHT, WIDTH, generator=torch.Generator().manual_seed(1))
    bands, light = np.arange(500, 601, 10), np.arange(495, 606)
    places = [3 + 0.3 * (nm - 500) for nm in light]
    true = SDCassi(mask, len(light), offsets=places, detector=WIDTH + 36)
    lamp = torch.from_numpy(np.exp((light - 500) / 40)).float()
    seen = {"white": torch.ones(len(light))}
    for nm in (510, 550, 590):
        seen[str(nm)] = torch.from_numpy(np.exp2(-4 * ((light - nm) / 10.0) ** 2)).float()
    for name, part in seen.items():
        y = true((lamp * part).view(1, -1, 1, 1).expand(1, -1, HEIGHT, WIDTH))
        np.save(tmp_path / f"{name}.npy", y[0, 0].numpy() / float(y.mean()))
    # The mask is the frame of the middle filter, and lies as much further.
    shift, off = 10**2 / (8 * np.log(2)) / 40, {}
    for width in ("", ", fwhm: 10"):
        filters = [f"{{file: {nm}.npy, wavelength: {nm}{width}}}" for nm in (510, 550, 590)]
        wavelengths = f"wavelengths={bands.tolist()}"
        given = (f"monochromatic=[{','.join(filters)}]", wavelengths, "white=white.npy")
        calibrate(*given).ok()
        found = np.array(results("calibration.json")["offsets"])
        off[width] = np.abs(found - (3 + 0.3 * (bands - 500 - shift))).mean()
    assert off[", fwhm: 10"] < 0.06
    assert off[""] > 0.1
    assert "fwhm: expected white=FILE" in calibrate(*given[:2]).refusal
    wrong = given[0].replace("fwhm: 10", "fwhm: 0")
    assert "fwhm: expected a width in nm > 0" in calibrate(wrong, *given[1:]).refusal


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("measurement=nowhere.npy",), "nowhere.npy"),
        (("measurement=first.npy", "radius=50"), "radius: expected a whole number"),
        (("measurement=[]",), "at least one file"),
        (("measurement=first.npy", "twin=shifted"), "twin: expected a truth alone"),
        (("measurement=first.npy", "monochromatic.file=single.npy"), "wavelengths="),
        (
            (
                *("measurement=first.npy", "monochromatic.file=single.npy"),
                *("wavelengths=[480,490,500,510,520,530]", "monochromatic.wavelength=600"),
            ),
            "480 to 530 nm",
        ),
        (("measurement=first.npy", "system=dd_cassi", "system.bands=6"), "SDCassi"),
        (("measurement=first.npy", "degree=2"), "chooses it from the frame"),
        (("monochromatic=[]",), "of each filter"),
        (("monochromatic=[{file: single.npy, wavelength: 500}]",), "wavelengths="),
        (
            ("monochromatic=[{file: single.npy, wavelenght: 500}]",),
            "did you mean monochromatic.wavelength?",
        ),
    ],
)
def test_refuses_in_one_line(calibrate, bench, tmp_path, arguments, said):
    assert said in calibrate("mask=mask.npy", *arguments).refusal
    assert {file.name for file in (tmp_path / "run").glob("*")} <= {".hydra"}


@pytest.mark.parametrize("raw", [False, True])
def test_both_commands_find_one_camera(calibrate, reconstruct, results, bench, tmp_path, raw):
    """As simulations give it, and as a sensor does: both have one line of light per band."""
    files = ["measurement=first.npy", "mask=mask.npy", "solver.iterations=3"]
    if raw:
        np.save(tmp_path / "raw.npy", np.load(tmp_path / "first.npy") + 0.1)
        nanometres = np.linspace(420, 720, BANDS).tolist()
        files += ["measurement=raw.npy", "dark=0.1", f"wavelengths={nanometres}"]
    alone = calibrate(*files).ok()
    numbers = results("calibration.json")
    saved = read_camera(tmp_path / "run" / "camera.yaml").system.base_camera
    done = reconstruct(*files, "calibrate=true", "output.pictures=false").ok()
    found = results("metrics.json")["calibration"]
    same = ("estimates", "heldout_error", "dropped", "offsets", "dispersion_told")
    assert {key: numbers[key] for key in same} == {key: found[key] for key in same}
    assert numbers["light"] == found["light"]
    assert found["dispersion_told"]
    table = alone.out[alone.out.index("before") : alone.out.index("gain:")]
    assert table in done.out
    taken = [entry for entry in found["estimates"] if entry["taken"]]
    assert table.count(", taken") == len(taken) > 0
    settings = compose_settings([*files, "calibrate=true", "output.progress=false"])
    snapshot = way.find_camera_by_settings(way.read(settings, way.make_recipe(settings)), settings)
    used = snapshot.camera.system.base_camera
    assert torch.equal(saved.mask, used.mask.clamp(0, 1))
    assert saved.offsets == pytest.approx(used.offsets, abs=1e-6)
    assert used.offsets == tuple(found["offsets"]["calibrated"])


def test_two_frames_leave_out_the_bad_pixels_of_each(calibrate, results, bench, tmp_path):
    level = f"saturation={float(np.quantile(np.load(tmp_path / 'first.npy'), 0.99))}"
    calibrate("measurement=[first.npy,second.npy]", "mask=mask.npy", level, *QUICK).ok()
    assert_place(results("calibration.json")["estimates"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("measurement=*.npy",), "many snapshots"),
        (("measurement=first.npy", "memory_budget=1GiB"), "memory_budget"),
        (("measurement=first.npy", "system=blurred"), "SDCassi"),
        (("measurement=first.npy", "calibrate=perhaps"), "not a valid bool"),
        (("measurement=first.npy", "calibrate=auto"), "auto is align=true now"),
    ],
)
def test_calibration_is_refused_in_one_line(reconstruct, bench, arguments, said):
    refusal = reconstruct("mask=mask.npy", "calibrate=true", *arguments).refusal
    assert "calibrate" in refusal
    assert said in refusal


@pytest.mark.parametrize("design", [True, False], ids=["design", "measured"])
def test_a_raw_frames_design_stays_one_as_it_is_moved(calibrate, bench, tmp_path, design):
    mask = np.load(tmp_path / "mask.npy")
    mask = (mask > 0.5).astype(np.float32) if design else mask
    offsets = [0.5 + 2 * band for band in range(BANDS)]
    camera = SDCassi(torch.from_numpy(mask), BANDS, offsets=offsets)
    scene = 0.2 + torch.linspace(0, 0.5, HEIGHT).view(-1, 1).expand(1, BANDS, -1, WIDTH)
    y = Twin(shift=SHIFT).expose(scene, camera)[0, 0].numpy()
    np.save(tmp_path / "mask.npy", mask)
    np.save(tmp_path / "raw.npy", y + 0.1)
    place = (f"system.offsets={offsets}", f"system.detector={y.shape[1]}")
    files = (
        f"mask={tmp_path}/mask.npy",
        f"measurement={tmp_path}/raw.npy",
        *place,
        "dark=0.1",
        *QUICK,
    )
    settings = compose_settings([*files, "calibrate=true", "output.progress=false"])
    snapshot = way.read(settings, way.make_recipe(settings))
    snapshot = way.find_camera_by_settings(snapshot, settings)
    assert snapshot.camera.system.base_camera.measured_mask is not design
    assert not is_design(snapshot.camera.system.mask)
    calibrate(*files).ok()
    written = (tmp_path / "run" / "camera.yaml").read_text()
    assert ("measured_mask: false" in written) is design


def test_the_file_of_a_tilted_camera_is_read_back(tmp_path):
    nominal = SDCassi(torch.rand(20, 24), 3)
    camera = displaced_camera(
        nominal, no_displacement() | {"across": 0.2, "along": -0.3, "tilt": 0.01}
    )
    settings = compose_settings(kind=Calibrate)
    np.save(tmp_path / "mask.npy", camera.mask[0, 0].numpy())
    (tmp_path / "camera.yaml").write_text(
        json.dumps(make_camera_values(settings, camera, None, None))
    )
    back = read_camera(tmp_path / "camera.yaml").system
    assert isinstance(back, TiltedCassi)
    x = torch.rand(1, 3, 20, 24)
    torch.testing.assert_close(back(x), camera(x), atol=1e-4, rtol=0)
