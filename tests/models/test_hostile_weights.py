"""Weights, options and tables made to harm: they claim too much, or want to run code."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import torch

import cassi
from cassi.apps.training_files import checkpoint_folder
from cassi.apps.training_options import add_earlier_options
from cassi.models.load import load_model
from cassi.priors.weights import read_file
from cassi.systems import Curve


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bands": "1000000000"}, "at most 4096"),
        ({"bands": '"many"'}, "does not say"),
        ({"bands": "1e999"}, "does not say"),
        (
            {"model": '{"name": "gap_net", "settings": {"stages": 40}}'},
            r"its network has \d+ weights, the file",
        ),
        ({"model": "[" * 100_000}, "does not say"),
        ({"model": '{"name": "gap_net", "settings": {"stages": 100000}}'}, "at most 4096"),
        (
            {"model": '{"name": "gap_net", "settings": {"weights": "b.pth"}}'},
            "unexpected keyword argument 'weights'",
        ),
        ({"model": '{"name": "os.system", "settings": {}}'}, "no model named"),
    ],
)
def test_cards(change: dict[str, str], message: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    network = cassi.create_model("gap_net", bands=2, stages=1)
    card = {"model": '{"name": "gap_net", "settings": {"stages": 1}}', "bands": "2"}
    path = tmp_path / "a.safetensors"
    few = dict(list(network.state_dict().items())[:2])
    save_file(few, path, card | {"wavelengths": "null"} | change)
    with pytest.raises(ValueError, match=message):
        load_model(path)


def test_weights_in_an_archive_that_lies(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(100)}, tmp_path / "a.pth")
    with (
        zipfile.ZipFile(tmp_path / "a.pth") as old,
        zipfile.ZipFile(tmp_path / "b.pth", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for info in old.infolist():
            new.writestr(info.filename, old.read(info) * (1000 if "data/0" in info.filename else 1))
    assert read_file(tmp_path / "a.pth")["a"].shape == (100,)
    with pytest.raises(ValueError, match="is compressed"):
        read_file(tmp_path / "b.pth")


@pytest.mark.parametrize(
    "options",
    [
        ["+hydra.callbacks.x._target_=os.system"],
        ["hydra/launcher=joblib"],
        [{"a": 1}],
        {"a": 1},
        "text",
    ],
)
def test_options_of_a_stranger(options: object, tmp_path: Path) -> None:
    """Hydra builds whatever its own settings name."""
    arguments = ["ckpt=last", f"hydra.run.dir={tmp_path}"]
    checkpoint_folder(tmp_path).mkdir()
    (checkpoint_folder(tmp_path) / "options.yaml").write_text(json.dumps(options))
    with pytest.raises(ValueError, match="expected a list of options"):
        add_earlier_options(arguments)


def test_curve(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1," + "2" * 200_000)
    with pytest.raises(ValueError, match="is no CSV file"):
        Curve(file=str(tmp_path / "a.csv"))
