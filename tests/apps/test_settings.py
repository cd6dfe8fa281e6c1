"""What a user's own config file may hold, in every command, and which slips in it are named."""

import numpy as np
import pytest

from cassi.apps.camera.yaml_slips import find_slip
from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import Calibrate, Evaluate, Reconstruct, Train

KINDS = {"reconstruct": Reconstruct, "evaluate": Evaluate, "train": Train, "calibrate": Calibrate}
PLAIN = {"train": ("model=gap_net",)}


@pytest.fixture
def run_file(commands, tmp_path):
    """Run a command with a config file of the user's own."""

    def run(name, text, *options):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "own.yaml").write_text(f"defaults: [{name}, _self_]\n{text}\n")
        chosen = ("--config-dir", "mine", "--config-name", "own", *PLAIN.get(name, ()), *options)
        return commands(name)(*chosen)

    return run


@pytest.mark.parametrize(
    ("names", "text", "said"),
    [
        # Misspelt keys: at the top, one level down, inside an object.
        ("reconstruct", "precison: 16", "'precison'; did you mean precision"),
        ("reconstruct", "paths: {dat_dir: x}", "mean paths.data_dir?"),
        (
            "reconstruct evaluate train calibrate camera",
            "xyzzy: 1",
            "names of your own go under vars:",
        ),
        ("evaluate", "data: {evaluation: {cubs: x}}", "did you mean data.evaluation.cubes"),
        ("evaluate", "reconstructors: [{methd: auto}]", "'methd'; did you mean method?"),
        ("evaluate", "system: {stpe: 1}", "'system.stpe' of cassi.systems.S"),
        ("reconstruct", "solver: {algorithm: {rohs: 1}}", "'solver.algorithm' of"),
        ("train", "callbacks: {best: {monitr: x}}", "'callbacks.best.monitr' of"),
        ("train", "model: {stags: 2}", "'model.stags' of gap_net; did you mean model.stages?"),
        ("train", "data: {simulator: {stpe: 2}}", "'stpe' of cassi.data.simulation.Simulator; did"),
        # Other types.
        ("train", "threads: many", "config value threads: Value"),
        ("evaluate", "vars: 3", "config value vars: Cannot assign"),
        ("reconstruct", "system: null", "system: expected a node with _target_"),
        ("calibrate", "mask: [1, 2]", "mask: expected a node with _target_"),
        ("reconstruct", "output: 3", "config value output: Invalid type"),
        ("reconstruct", "model: {nme: gap_net}", "model: expected a name of its group"),
        ("train", "trainer: {max_steps: many}", "trainer.max_steps: expected a whole number"),
        ("train", "logger: {mine: 3}", "logger.mine: expected a node with _target_, got 3"),
        # References, and files that are no config.
        ("train", "seed: ${vars.none}", "config value seed: Interpolation key"),
        ("reconstruct", "system: {bands: 5", "not valid YAML"),
        ("reconstruct", "\tmask: a", "not valid YAML"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line(run_file, tmp_path, names, text, said):
    for name in names.split():
        line = run_file(name, text).refusal
        assert said in line, name
        (tmp_path / "mine" / "own.yaml").unlink()
        (tmp_path / "mine").rmdir()


@pytest.mark.parametrize("name", ["calibrate", "train"])
def test_a_file_of_another_command(commands, tmp_path, name):
    (tmp_path / "own.yaml").write_text("defaults: [reconstruct, _self_]\nmask: mask.npy\n")
    line = commands(name)("--config-dir", ".", "--config-name", "own").refusal
    assert "of this command, another command has it" in line
    assert "camera=FILE" in line


@pytest.mark.parametrize("name", ["reconstruct", "calibrate"])
def test_a_file_begins_with_the_defaults(run_file, tmp_path, name):
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "own.yaml").write_text("mask: mask.npy\n")
    assert f"defaults: [{name}, _self_]" in run_file(name, "", "--config-dir=bare").refusal


def test_names_of_ones_own_stand_for_values(run_file, camera, results):
    text = (
        "measurement: y.npy\nmask: mask.npy\nvars: {shift: -1, turns: {few: 2}, note: [a, 3]}\n"
        "system: {bands: 5, step: '${vars.shift}'}\nsolver: {iterations: '${vars.turns.few}'}\n"
        "wavelengths: [450, 500, 550, 600, 650]\noutput: {pictures: false}"
    )
    run_file("reconstruct", text).ok()
    numbers = results()
    assert (numbers["cube_shape"], numbers["iterations"]) == ([5, 12, 17], 2)


@pytest.mark.parametrize("name", KINDS)
def test_names_of_ones_own_are_free_in_every_command(name):
    options = [*PLAIN.get(name, ()), *(["folder=x"] if name == "train" else [])]
    more = ["+vars.mine={deep: [1, x]}", "seed=${vars.number}", "+vars.number=7"]
    settings = compose_settings([*options, *more], kind=KINDS[name])
    assert (settings.seed, settings.vars["mine"]) == (7, {"deep": [1, "x"]})


STEP = "a blank is missing after ':'; write step: 2"
MASK = "a blank is missing after ':'; write mask: mask.npy"
SLIPS = {
    "tab": ("system:\n\tstep: 2\n", 2, "there is a tab; write blanks"),
    "first of two": ("mask:mask.npy\n\nsystem:\n  step: 2\n", 1, MASK),
    "last of values": ("system:\n  bands: 3\n  step:2\n", 3, STEP),
    "in braces": ("mask: bundled:mask.tif\nsystem: {bands: 3, step:2}\n", 2, STEP),
}


@pytest.mark.parametrize("place", ["camera", "config", "experiment"])
@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_named_with_its_file_and_line(slip, place, reconstruct, tmp_path):
    text, number, what = SLIPS[slip]
    np.save(tmp_path / "y.npy", np.ones((4, 6), np.float32))
    head = {"camera": "", "config": "defaults: [reconstruct, _self_]\n"}
    lines = head.get(place, "# @package _global_\n")
    (tmp_path / "experiment").mkdir()
    file = tmp_path / ("experiment" if place == "experiment" else "") / "own.yaml"
    file.write_text(lines + text)
    words = {
        "camera": ["camera=own.yaml"],
        "config": ["--config-dir", ".", "--config-name", "own"],
        "experiment": ["--config-dir", ".", "experiment=own"],
    }
    said = reconstruct(*words[place], "measurement=y.npy").refusal
    number += lines.count("\n")
    assert "own.yaml" in said
    assert said.endswith(f" line {number}: {what}")


def test_what_an_error_does_not_quote_is_no_slip():
    """`key:value` is a text like any other."""
    text = "mask:\n  bundled:mask.tif\nsystem: {step: 2}\n"
    assert find_slip(text, ValueError("system: expected bands")) is None
    assert find_slip(text + "# a\ttab\n", ValueError("system: expected bands")) is None
