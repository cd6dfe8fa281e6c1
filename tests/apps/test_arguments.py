"""The command line: flags anywhere, groups left out, what is closed or missing."""

import os
import subprocess
import sys

import pytest
from hydra.errors import OverrideParseException
from omegaconf import OmegaConf

from cassi.apps.arguments import arrange, quoted, spell
from cassi.apps.errors import describe
from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import to_yaml


@pytest.mark.parametrize(
    ("given", "arranged"),
    [
        ("a=1 --config-dir D --multirun b=2", "--config-dir D --multirun a=1 b=2"),
        ("a=1 -cn N b=2 --cfg job", "-cn N --cfg job a=1 b=2"),
        ("a=1 --config-name=N b=2", "--config-name=N a=1 b=2"),
        ("a=1 --info defaults b=2", "--info defaults a=1 b=2"),
        ("~a b=-1 +c=2", "~a b=-1 +c=2"),
    ],
)
def test_flags_may_stand_anywhere(given, arranged):
    assert arrange(given.split()) == arranged.split()


@pytest.mark.parametrize("word", ["--mask=m.npy", "--mask"])
def test_a_value_given_as_a_flag_is_told_the_way_to_write_it(word):
    with pytest.raises(ValueError, match=r"write mask=(m\.npy|VALUE)$"):
        arrange([word, "m.npy"])


def test_options_are_spelled_as_hydra_takes_them():
    assert spell(["noise=null", "model=null", "dispersion@system.offsets=null"]) == [
        "~noise",
        "~model",
        "~dispersion@system.offsets",
    ]
    assert spell(["mask=null", "system.offsets=null"]) == ["mask=null", "system.offsets=null"]
    assert spell(["system.offsets.step=2"]) == ["++system.offsets.step=2"]
    assert spell(["system.smile=2", "system.step=1"]) == ["system.smile=2", "system.step=1"]
    assert spell(["camera=a.yaml", "system.smile=2", "system.step=1", "noise.read=1"]) == [
        *("camera={file:a.yaml}", "++system.smile=2", "system.step=1", "++noise.read=1")
    ]


def test_a_config_that_is_not_there_is_named_with_its_folder(reconstruct, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "bench.yaml").write_text("defaults: [reconstruct, _self_]\n")
    line = reconstruct("threads=1", "--config-dir", "mine", "--config-name", "bensh").refusal
    assert "no config 'bensh' in mine; did you mean bench?" in line
    line = reconstruct("--config-dir", "mine", "--config-name", "other").refusal
    assert "no config 'other' in mine; there is bench" in line
    assert "--config-dir DIR" in reconstruct("--config-name", "bench").refusal


def test_a_closed_pipe_ends_quietly():
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "cassi", "reconstruct", "--help"],
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("y.npy", "got y.npy; a file is measurement=FILE"),
        ("wavelengths=[450,460", "got wavelengths=[450,460; close the bracket"),
        ("mask=a=b.npy", """needs quotes of its own, 'KEY="VALUE"'"""),
    ],
)
def test_a_word_that_is_no_value_is_told_what_would_be(word, said):
    assert said in describe(OverrideParseException(word, "no viable alternative at input"))


@pytest.mark.parametrize(
    "text",
    ["${seed}", "a${", r"\${seed}", r"\\${seed}\\", r"a\b", r"a\\", "\\'${x}'\\", 'a"b', " "],
)
def test_a_quoted_text_is_the_text(text):
    settings = compose_settings([f"measurement={quoted(f'x{text}')}"])
    assert settings.measurement == f"x{text}"
    read = OmegaConf.create(to_yaml({"a": [text]}))
    assert OmegaConf.to_container(read, resolve=True) == {"a": [text]}
