"""The file of a camera may be a stranger's: it is read, and nothing of it runs or grows."""

import inspect
import time
from importlib import import_module

import numpy as np
import pytest

from cassi.apps.camera.file import load_camera
from cassi.apps.camera.nodes import CURVES, KINDS
from cassi.apps.camera.text import parse
from cassi.apps.reconstructors import compose_settings
from cassi.data.bundled import bundled_path
from cassi.systems import BlurredCassi, PsfCassi

CLASSES = {name: keys for kind in (*KINDS.values(), CURVES) for name, keys in kind.items()}
GROWING = ", ".join(f"a{i}: '{f'${{vars.a{i - 1}}}' * 8}'" for i in range(1, 8))
ENDLESS = {
    "brackets": "[" * 200_000,
    "braces": "{" * 200_000,
    "dashes": "- " * 200_000,
    "questions": "? " * 200_000,
    "indentation": "\n".join(" " * i + "a:" for i in range(1400)),
    "parts": f"[{'1,' * 500_000}]",
    "a number": "scale: " + "9" * 900_000,
    "a number in base 60": "scale: " + "1:" * 400_000 + "1",
    "directives": "%TAG !a! b\n" * 80_000,
    "references": f"vars: {{a0: {'y' * 100}, {GROWING}}}\nmask: ${{vars.a7}}",
    "empty references": f"vars: {{a0: '', {GROWING}}}\nmask: ${{vars.a7}}",
    "a circle": "vars: {a: '${vars.b}', b: '${vars.a}'}\nmask: m.npy",
}


def refusal(folder, text):
    file = folder / "camera.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match="camera: ") as caught:
        load_camera(file)
    said = str(caught.value)
    assert len(said) < 1000
    assert "\n" not in said
    return said


@pytest.mark.parametrize("name", ENDLESS)
def test_a_small_file_takes_no_long_time(tmp_path, name):
    start = time.process_time()
    refusal(tmp_path, ENDLESS[name])
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    "text",
    [
        "mask: ${oc.env:SECRET}",
        "mask: x${oc.env:SECRET}",
        "mask: ${oc.env:NONE,${oc.env:SECRET}}",
        "vars: {a: '${oc.env:SECRET}'}\nmask: m.npy",
        "vars: {a: '$', b: '{oc.env:SECRET}'}\nmask: ${vars.a}${vars.b}",
        "mask: ${hydra:runtime.cwd}",
        "mask: ${scale}\nscale: 1",
    ],
)
def test_a_reference_is_of_vars_alone(tmp_path, monkeypatch, text):
    monkeypatch.setenv("SECRET", "hunter2")
    said = refusal(tmp_path, text)
    assert "expected references ${vars.NAME} alone" in said
    assert "hunter2" not in said


def test_references():
    text = "vars: {a: [1, {b: 2e-1}], c: '${vars.a[1].b}'}\nx: ${vars.a}\ny: <${vars.c}>\n"
    found = parse(text)
    assert found["x"] == [1, {"b": 0.2}]
    assert found["y"] == "<0.2>"


@pytest.mark.parametrize(
    "text",
    [
        "noise: {_target_: torch.nn.Linear, in_features: 40000, out_features: 40000}",
        "noise: {_target_: cassi.priors.Denoiser, network: evil.pt}",
        "system: {_target_: cassi.data.sensor.Sensor}",
        "system: {_target_: [cassi.systems.SDCassi]}",
        "system: {offsets: {_target_: torch.nn.Linear, in_features: 40000, out_features: 40000}}",
        "mask: {_target_: cassi.systems.LearnableMask, height: 40000, width: 40000}",
    ],
)
def test_only_classes_of_a_short_list(tmp_path, text):
    assert "is not allowed as" in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("system: {_partial_: true}", "no config value 'system._partial_'"),
        ("system: {_target_: cassi.systems.WarpedCassi, mask: 3}", "no config value 'system.mask'"),
        ("system: {step: {a: 1}}", "system.step: expected numbers and texts"),
        ("noise: {hot: [[1, {_target_: cassi.priors.TV}]]}", "noise.hot: expected numbers and"),
        ("scale: {_target_: cassi.priors.TV}", "scale: expected numbers and texts"),
        ("dark: !!binary aGk=", "dark: expected numbers and texts"),
        ("dark: !!python/name:os.system", "could not determine a constructor"),
        ("keys: {mask: [1]}", "keys.mask: expected a name"),
        ("system: {bands: 1000000000}", "system.bands: expected at most 65536"),
        ("system: {offsets: [0, 1e12]}", "system.offsets: expected at most"),
        ("system: {_target_: cassi.systems.BlurredCassi, line_spread: [1e9]}", "at most 100"),
        ("mask: {_target_: cassi.systems.RandomMask, shots: 100000000}", "mask.shots: expected"),
    ],
)
def test_values_are_plain_and_of_a_sensible_size(tmp_path, text, said):
    assert said in refusal(tmp_path, text)


def _taken(kind):
    found = set(inspect.signature(kind).parameters)
    if "further" in found and kind is PsfCassi:  # is handed to BlurredCassi; the kernels are p
        found |= _taken(BlurredCassi) - {"point_spread"}
    elif "further" in found:  # is handed to the plain camera
        found |= {"offsets", "detector"}
    return found - {"mask", "further", "measured_mask"}  # a value of the file beside the camera


@pytest.mark.parametrize("name", CLASSES)
def test_the_list_has_what_each_class_takes(name):
    module, _, kind = name.rpartition(".")
    assert set(CLASSES[name]) == _taken(getattr(import_module(module), kind))


def test_a_command_has_the_same_list():
    linear = "{_target_: torch.nn.Linear,in_features: 40000,out_features: 40000}"
    for option in (f"+noise={linear}", "system._target_=torch.nn.Linear", f"mask={linear}"):
        with pytest.raises(ValueError, match="not allowed as"):
            compose_settings(["truth=x.npy", option])


def test_bands_too_far_apart(show, tmp_path):
    np.save(tmp_path / "m.npy", np.eye(8))
    (tmp_path / "camera.yaml").write_text("mask: m.npy\nsystem: {step: 1e6, bands: 8}\n")
    assert "pixels along the dispersion" in show("camera=camera.yaml").refusal


def test_a_bundled_file_has_a_name_alone(reconstruct, tmp_path):
    for name in ("/etc/passwd", "../pyproject.toml", "manifests/../../x"):
        with pytest.raises(ValueError, match="expected the name of a bundled file"):
            bundled_path(name)
    (tmp_path / "camera.yaml").write_text("mask: bundled:/etc/hostname\n")
    line = reconstruct("camera=camera.yaml", "measurement=bundled:scene.tif").refusal
    assert "bundled: expected a name such as mask.tif, got" in line
