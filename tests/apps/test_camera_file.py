"""One file says what a camera is, in every command and in Python."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import cassi
from cassi.apps.camera.file import load_camera
from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import Calibrate, Evaluate, Reconstruct, Train

NM = [450.0, 490.0, 530.0, 570.0, 610.0, 650.0]
QUICK = ("solver.iterations=3", "output.pictures=false", "output.progress=false")
TRAIN = (
    *("model=gap_net", "model.stages=1", "data=folder", "data.root=scenes", "data.crop=16"),
    *("data.batch_size=1", "data.steps_per_epoch=2", "data.workers=0", "trainer.max_steps=2"),
    *("trainer.enable_progress_bar=false", "trainer.accelerator=cpu"),
)


@dataclass(frozen=True)
class Rig:
    """A camera of 96 x 80 pixels, 6 bands, -1.5 pixels a band along rows, and its raw frame."""

    file: Path
    frame: Path
    system: cassi.SDCassi
    cube: torch.Tensor
    values: dict

    def write(self, **values):
        """Write the file anew with other values; None leaves a value out."""
        kept = {k: v for k, v in (self.values | values).items() if v is not None}
        self.file.write_text(yaml.safe_dump(kept))
        return f"camera={self.file}"


@pytest.fixture
def rig(tmp_path):
    """Write the file of a camera, all that it names, a frame, and scenes to train on."""
    random = torch.Generator().manual_seed(3)
    mask = (torch.rand(96, 80, generator=random) > 0.5).float() * 0.9 + 0.1
    ramp = torch.linspace(0.2, 1, 80).expand(96, 80)
    cube = torch.stack([ramp * (0.3 + 0.1 * c) for c in range(6)])[None]
    system = cassi.SDCassi(mask, 6, step=-1.5, axis=-2)
    folder = tmp_path / "rig"
    folder.mkdir()
    np.savez(folder / "masks.npz", other=np.zeros(3), white=mask.numpy())
    raw = np.zeros((108, 84), np.float32)
    raw[1:105, 2:82] = system(cube)[0, 0].numpy() / 0.5
    dark = np.random.default_rng(0).uniform(0.1, 0.2, raw.shape).astype(np.float32)
    np.save(folder / "dark.npy", dark)
    raw += dark
    bad = np.zeros(raw.shape, np.float32)
    bad[20, 20] = 1
    raw[20, 20] = np.nan
    np.save(folder / "bad.npy", bad)
    np.save(tmp_path / "frame.npy", raw)
    for part, count in (("train", 2), ("validation", 1)):
        (tmp_path / "scenes" / part).mkdir(parents=True)
        for number in range(count):
            scene = torch.rand(6, 12, 10, generator=random).repeat_interleave(8, 1)
            scene = scene.repeat_interleave(8, 2)
            cassi.write_cube(tmp_path / f"scenes/{part}/{part}{number}.npz", scene, wavelengths=NM)
    values = {
        "mask": "masks.npz",
        "keys": {"mask": "white"},
        "system": {"step": -1.5, "axis": -2},
        "wavelengths": NM,
        "dark": "dark.npy",
        "window": [1, 2, 104, 80],
        "scale": 0.5,
        "bad_pixels": "bad.npy",
        "noise": {"full_well": 8000.0, "read": 2.0},
    }
    made = Rig(folder / "camera.yaml", tmp_path / "frame.npy", system, cube, values)
    made.write()
    return made


def test_all_commands_and_python_take_it(
    reconstruct, calibrate, evaluate, train, results, rig, tmp_path
):
    camera = f"camera={rig.file}"
    done = reconstruct(camera, "measurement=frame.npy", *QUICK).ok()
    assert "offsets=7.5 to 0, detector=104, axis=-2" in done.out
    numbers = results()
    assert numbers["cube_shape"] == [6, 96, 80]
    assert numbers["preprocessing"]["bad_pixels"]["left_out"] == 1
    cube = cassi.read_cube(tmp_path / "run" / "cube.tif")

    opened = cassi.read_camera(rig.file)
    assert "settings" not in repr(opened)  # a page of them
    y, system = opened.read(tmp_path / "frame.npy")
    assert opened.wavelengths == tuple(NM)
    assert opened.system.offsets == rig.system.offsets
    expected = system.without_bad_pixels(rig.system(rig.cube))
    torch.testing.assert_close(y, expected, atol=1e-4, rtol=1e-4)
    overrides = {"solver.iterations": 3}
    x = cassi.reconstruct(y, system, {"method": "auto", "overrides": overrides})
    assert torch.equal(x, cube)
    assert opened.noise(y, 6, torch.Generator()).shape == y.shape

    rig.write(bad_pixels=None)  # of the frame below
    np.save(tmp_path / "frame.npy", np.nan_to_num(np.load(tmp_path / "frame.npy"), nan=0.5))
    train(camera, *TRAIN, "hydra.run.dir=net").ok()
    evaluate(
        *(camera, "data=folder", "data.root=scenes/validation", "figures=false", "report=false"),
        "reconstructors=[gap_tv,net/model.safetensors]",
        *("progress=false", "hydra.run.dir=table"),
    ).ok()
    assert {row["method"] for row in results("results.csv", "table")} >= {"gap_tv", "net"}
    reconstruct(camera, "measurement=frame.npy", "model=net/model.safetensors", *QUICK[1:]).ok()

    quick = ("solver.iterations=3", "radius=1", "hydra.run.dir=found")
    calibrate(camera, "measurement=frame.npy", *quick).ok()
    found = yaml.safe_load((tmp_path / "found" / "camera.yaml").read_text())
    assert found["mask"] == "mask.npy"
    assert found["noise"] == load_camera(rig.file)["noise"]
    assert (found["dark"], found["window"]) == (str(rig.file.parent / "dark.npy"), [1, 2, 104, 80])
    (tmp_path / "found").rename(tmp_path / "moved")  # paths are relative to the file
    again = cassi.read_camera(tmp_path / "moved" / "camera.yaml")
    assert again.system.measurement_shape == (1, 104, 80)
    reconstruct("camera=moved/camera.yaml", "measurement=frame.npy", *QUICK).ok()


def settings(kind, *options):
    return compose_settings(options, kind=kind)


def test_the_command_line_wins(rig):
    """Over the file, whole nodes included; the file wins over data sets."""
    curve = {"_target_": "cassi.systems.Curve", "file": "curve.csv"}
    (rig.file.parent / "curve.csv").write_text("450,7.5\n650,0\n")
    camera = rig.write(system={"offsets": curve, "axis": -2, "detector": 57})
    frame = ("measurement=frame.npy", camera)
    told = settings(Reconstruct, *frame)
    assert told.system["offsets"] == curve | {"file": str(rig.file.parent / "curve.csv")}
    assert (told.system["detector"], told.scale) == (57, 0.5)
    told = settings(Reconstruct, *frame, "system.offsets=[0,1,2]", "scale=2", "dark=0.3")
    assert (told.system["offsets"], told.scale, told.dark) == ([0, 1, 2], 2, 0.3)
    assert told.system["detector"] == 57
    told = settings(Reconstruct, *frame, "system.step=1", "mask=other.npy")
    assert (told.system["offsets"], told.system["step"], told.system["axis"]) == (None, 1, -2)
    assert (told.mask, told.keys.mask) == ("other.npy", None)
    told = settings(Reconstruct, *frame, "dispersion@system.offsets=linear")
    assert told.system["offsets"]["_target_"] == "cassi.systems.Linear"
    told = settings(Reconstruct, *frame, "system.offsets.absolute=true")
    assert told.system["offsets"]["absolute"] is True
    assert told.system["offsets"]["_target_"] == curve["_target_"]
    told = settings(Reconstruct, *frame, "system=blurred", "system.line_spread=0.3")
    assert told.system["_target_"] == "cassi.systems.BlurredCassi"
    assert (told.system["line_spread"], told.system["axis"]) == (0.3, -2)
    told = settings(Reconstruct, *frame, "experiment=tsa_real", "scene=scene2")
    assert (told.mask, told.scale) == (str(rig.file.parent / "masks.npz"), 0.5)
    assert told.wavelengths == NM


def test_what_counts_depends_on_whether_frames_were_taken(rig):
    camera = rig.write()
    taken = settings(Reconstruct, "measurement=frame.npy", camera)
    assert (taken.noise, taken.window) == (None, [1, 2, 104, 80])
    simulated = settings(Reconstruct, "truth=cube.npz", camera)
    assert (simulated.window, simulated.dark) == (None, 0.0)
    assert simulated.bad_pixels != taken.bad_pixels == str(rig.file.parent / "bad.npy")
    assert simulated.noise["full_well"] == 8000
    assert simulated.noise["shot"] == "poisson"  # as noise=sensor has it
    assert settings(Reconstruct, "truth=cube.npz", camera, "noise=null").noise is None
    assert settings(Calibrate, "truth=cube.npz", camera).system["step"] == -1.5
    folder = ("data=folder", "data.root=null", camera)
    told = settings(Evaluate, *folder, "data.measurements=day")
    assert told.data.evaluation["dark"] == str(rig.file.parent / "dark.npy")
    assert told.noise is None
    told = settings(Evaluate, "data=folder", "data.root=scenes", camera)
    assert told.data.evaluation["dark"] == 0.0
    assert (told.noise["full_well"], told.data.wavelengths) == (8000, NM)
    assert told.data.evaluation["mask_key"] == "white"
    steps = {"bits": 12, "saturation": 4000, "bad_pixels": None}
    camera = rig.write(**steps)
    with rig.file.open("a") as file:
        file.write("bad_pixels: null\n")  # what is found in frames can be turned off
    told = settings(Calibrate, camera, "white=w.npy")
    assert {name: getattr(told, name) for name in steps} == steps
    evaluation = settings(Evaluate, *folder, "data.measurements=day").data.evaluation
    assert {name: evaluation[name] for name in steps} == steps


def test_a_training_for_the_camera(rig):
    model = ("model=gap_net", "folder=x", "data=cave")
    camera = rig.write(system={"offsets": [0, 1.5, 3, 4.5, 6, 7.6], "axis": -2, "detector": 56})
    told = settings(Train, *model, camera).data.simulator
    assert told["masks"]["_target_"] == "cassi.data.simulation.MaskCrops"
    assert (told["offsets"][-1], told["detector"], told["axis"]) == (7.6, 56, -2)
    assert told["noise"]["read"] == 2
    told = settings(Train, *model, camera, "+data.simulator.masks.flip=false").data.simulator
    assert told["masks"]["flip"] is False
    assert told["masks"]["mask"] == str(rig.file.parent / "masks.npz")
    told = settings(Train, *model, camera, "data.simulator.step=2").data.simulator
    assert (told["offsets"], told["step"]) == (None, 2)
    with pytest.raises(ValueError, match="expected SDCassi, which a training simulates, got DD"):
        settings(Train, *model, rig.write(system={"_target_": "cassi.systems.DDCassi"}))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"drak": 1}, "no value 'drak' in .*camera.yaml; did you mean dark"),
        (
            {"system": {"step": 1, "band": 5}},
            "'system.band' of cassi.systems.SDCassi; .*mean bands",
        ),
        ({"keys": {"msk": "x"}}, "no value 'keys.msk' in .*; did you mean keys.mask"),
        ({"defaults": ["reconstruct"]}, "is a config of a command"),
        ({"system": [1]}, r"system: expected values by name, got \[1\]"),
        ({"mask": "nowhere.npy"}, "no file .*rig/nowhere.npy"),
        ({"dark": "drk.npy"}, "no file .*rig/drk.npy; did you mean dark.npy"),
        ({"wavelengths": NM[:5]}, "wavelengths: expected 6 values, one per band that step -1.5"),
        ({"system": {"step": -1.5, "axis": -2, "detector": 20}}, "got 104: system.detector says"),
    ],
)
def test_what_is_wrong_in_the_file_is_one_line(reconstruct, rig, values, said):
    line = reconstruct(rig.write(**values), "measurement=frame.npy", *QUICK).refusal
    assert re.search(said, line), line


def test_a_file_that_is_none(reconstruct, train, rig, tmp_path):
    for command in (reconstruct, train):
        assert (
            "camera: no file rig/camra.yaml; did you mean"
            in command("camera=rig/camra.yaml").refusal
        )
    for text, said in (
        *((text, "camera: ") for text in ("", "mask", "[1, 2]", "mask: [", "\x00\x01")),
        ("vars: &a [1, 2]\nmask: *a\n", "has an alias"),
        ("[" * 5000, "not valid YAML"),
        ("mask: ${vars.none}", "not valid YAML: Interpolation key"),
        ("\xff\xfe", "not valid YAML"),
        ("3", "not valid YAML"),
    ):
        rig.file.write_bytes(text.encode("latin-1"))
        with pytest.raises(ValueError, match=re.escape(said)):
            load_camera(rig.file)
    assert said in reconstruct(f"camera={rig.file}").refusal
    (tmp_path / "big.yaml").write_bytes(b"a" * 2**21)
    with pytest.raises(ValueError, match="expected at most 1048576 bytes"):
        load_camera(tmp_path / "big.yaml")


def test_bands_that_nothing_states(rig):
    rig.write(wavelengths=None)
    with pytest.raises(ValueError, match=r"system\.bands: expected the number of bands, by"):
        cassi.read_camera(rig.file)
    rig.write(system={"bands": 5, "step": -1.5})
    with pytest.raises(ValueError, match=r"expected 5 values as system\.bands says, got 6"):
        cassi.read_camera(rig.file)
    rig.write(mask=None)
    with pytest.raises(ValueError, match="mask: expected a file"):
        cassi.read_camera(rig.file)


def test_bands_beside_the_detector(reconstruct, rig):
    offsets = [0, 40, 60, 80, 100, 104.0]
    camera = rig.write(system={"offsets": offsets, "axis": -2, "detector": 104})
    line = reconstruct(camera, "measurement=frame.npy", *QUICK).refusal
    assert "band 6 of 6 begins at pixel 104" in line
    camera = rig.write(system={"offsets": [*offsets[:5], 99], "axis": -2, "detector": 104})
    done = reconstruct(camera, "measurement=frame.npy", *QUICK)
    assert "5 bands, 2 to 6, fall up to 92 rows beside the detector, 58.9 %" in done.out


def test_paths_are_relative_to_the_file_else_to_the_folder(rig, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "here.npy", np.zeros((108, 84)))
    rig.write(dark="here.npy", flat="/abs/flat.npy", bad_pixels=["auto", "here.npy"])
    found = load_camera("rig/camera.yaml")
    assert (found["mask"], found["dark"]) == ("rig/masks.npz", "here.npy")
    assert found["flat"] == "/abs/flat.npy"
    assert found["bad_pixels"] == ["auto", "here.npy"]
    rig.file.write_text("vars: {rig: deep}\nmask: ${vars.rig}/mask.npy\nscale: 1e-3\n")
    assert load_camera("rig/camera.yaml") == {"mask": "rig/deep/mask.npy", "scale": 1e-3}


def test_where_the_bands_fall(show, results, rig):
    done = show(f"camera={rig.file}", "measurement=frame.npy").ok()
    assert re.search(r"^ +1 +450.0 +7.500  7 to 103$", done.out, re.MULTILINE)
    numbers = results("camera.json")
    assert numbers["measurement_shape"] == [1, 104, 80]
    assert [band["first"] for band in numbers["bands"]] == [7, 6, 4, 3, 1, 0]
    assert numbers["bands"][0]["beside"] == 0
    assert numbers["files"] == ["camera.png"]
    assert show(f"camera={rig.file}").status == 0  # without a frame
    assert "the mask, (" not in show("mask=rig/masks.npz", "keys.mask=white", "system.bands=3").out


@pytest.mark.parametrize("frame", [(), ("measurement=frame.npy",)])
def test_bands_beside_the_detector_end_with_status_2(show, results, rig, frame):
    offsets = [22, 18, 12, 8, 4, 0]
    camera = rig.write(system={"offsets": offsets, "axis": -2, "detector": 104})
    line = show(camera, *frame).refusal
    assert "system: 3 bands, 1 to 3, fall up to 14 rows beside the detector, 4.86 %" in line
    bands = results("camera.json")["bands"]
    assert [band["beside"] for band in bands] == [14, 10, 4, 0, 0, 0]
    assert (bands[0]["first"], bands[0]["last"]) == (22, 103)


def test_an_evaluation_on_frames_leaves_bad_pixels_out(evaluate, results, rig, tmp_path):
    (tmp_path / "day").mkdir()
    rows = []
    for value in (np.nan, 7.0):
        raw = np.load(rig.frame)
        raw[20, 20] = value
        np.save(tmp_path / "day" / "one.npy", raw)
        evaluate(
            *(f"camera={rig.file}", "data=folder", "data.root=null", "data.measurements=day"),
            "reconstructors=[{name: gap, method: gap_tv, overrides: {solver.iterations: 3}}]",
            *("figures=false", "report=false", "progress=false"),
        ).ok()
        rows.append(float(results("results.csv")[0]["residual"]))
    assert rows[0] == rows[1]
