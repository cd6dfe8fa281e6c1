"""Tabs and missing blanks in the YAML of users: the line is named, whichever file it is in."""

import numpy as np
import pytest

from cassi.apps.camera.yaml_slips import find_slip

STEP = "a blank is missing after ':'; write step: 2"
MASK = "a blank is missing after ':'; write mask: mask.npy"
SLIPS = {
    "tab": ("system:\n\tstep: 2\n", 2, "there is a tab; write blanks"),
    "one line": ("mask:mask.npy\n", 1, MASK),
    "first of two": ("mask:mask.npy\n\nsystem:\n  step: 2\n", 1, MASK),
    "value": ("mask: mask.npy\nsystem:\n  step:2\n", 3, STEP),
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
