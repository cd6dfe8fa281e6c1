"""Files that are refused: what runs code, does not fit or claims too much; and how that is said."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import cassi
from cassi.apps.train.files import add_earlier_options, checkpoint_folder, save_options
from cassi.models.load import create_model, load_model, load_published
from cassi.priors.weights import MAX_LISTED_NAMES, find_weights, load_weights, read_file

BANDS = 4


def _net() -> Any:
    torch.manual_seed(0)
    return create_model("gap_net", bands=BANDS, stages=2)


def _load(file: Path) -> nn.Module:
    return load_published("gap_net", file, BANDS, stages=2)


def _save(content: Any, folder: Path) -> Path:
    file = folder / "weights.pth"
    torch.save(content, file)
    return file


class Malicious:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return exec, (f"open({str(self.file)!r}, 'w').close()",)


@pytest.mark.parametrize("old", [True, False], ids=["old container", "zip"])
@pytest.mark.parametrize("where", ["alone", "beside weights"])
def test_a_malicious_pickle_is_refused_and_not_run(old: bool, where: str, tmp_path: Path) -> None:
    witness = tmp_path / "executed"
    plain = _net().state_dict()
    evil = Malicious(witness)
    content = evil if where == "alone" else {"model": plain, "opt": evil}
    file = tmp_path / "weights.pth"
    torch.save(content, file, _use_new_zipfile_serialization=not old)
    with pytest.raises(ValueError, match=r"Python object \(\S*exec\)") as caught:
        _load(file)
    assert "\n" not in str(caught.value)
    assert not witness.exists()
    torch.load(file, weights_only=False)
    assert witness.exists()  # it would have done harm


class Options:
    """An object of the authors' code beside the weights."""


@pytest.mark.parametrize(
    "make",
    [
        lambda net: net,
        nn.DataParallel,
        lambda net: {"model": net, "optimizer": torch.optim.Adam(net.parameters())},
        lambda net: {"state_dict": net.state_dict(), "options": Options()},
        lambda net: {"epoch": 3, "checkpoint": Options(), "ema": list(net.parameters())},
    ],
    ids=["network", "parallel", "network in a dict", "object beside weights", "average"],
)
def test_a_pickled_object_is_refused_with_the_way_to_convert_it(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = _net()
    content = make(net)
    file = _save(content, tmp_path)
    with pytest.raises(ValueError, match="Python object") as caught:
        _load(file)
    message = str(caught.value)
    assert "\n" not in message
    monkeypatch.chdir(tmp_path)
    exec(message.rpartition("is installed, run ")[2], {"torch": torch})
    converted = _load(Path("weights_weights.pth"))
    assert all(
        torch.equal(a, b) for a, b in zip(converted.parameters(), net.parameters(), strict=True)
    )


def test_weights_under_a_name_of_the_authors_are_found_by_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _save({"epoch": 3, "generator": _net().state_dict()}, tmp_path)
    with pytest.raises(
        ValueError, match="got them under 'generator'; write the file by "
    ) as caught:
        _load(file)
    converted = tmp_path / "converted.pth"
    exec(str(caught.value).rpartition(" by ")[2], {"torch": torch, "FILE": converted})
    _load(converted)
    with pytest.raises(ValueError, match=r"expected a network or its weights, got .*'generator'"):
        find_weights(torch.load(file))


@pytest.mark.parametrize("suffix", [".pth", ".ckpt", ".safetensors"])
def test_pointers_of_git_lfs_are_named(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"weights{suffix}"
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n")
    for read in (_load, load_model) if suffix == ".safetensors" else (_load,):
        with pytest.raises(ValueError, match=f"weights{suffix}: expected the file, got a pointer"):
            read(file)


@pytest.mark.parametrize("content", [{}, [], {"epoch": 3}, {"model": {"a": 1}}, "words"], ids=str)
def test_files_without_weights_are_refused(content: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected names and tensors"):
        _load(_save(content, tmp_path))


def test_all_that_does_not_fit_is_reported_and_nothing_is_loaded(tmp_path: Path) -> None:
    plain = _net().state_dict()
    keys = list(plain)
    wrong = dict(plain)
    for key in keys[:7]:
        del wrong[key]
    wrong |= {f"more.{i}": torch.zeros(i + 1) for i in range(3)}
    wrong[keys[7]] = torch.zeros(2, 3)
    net = _net()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with pytest.raises(ValueError, match="not those of this GAPNet") as caught:
        load_weights(net, _save(wrong, tmp_path))
    message = str(caught.value)
    assert "\n" not in message
    assert f"7 tensors ({keys[0]} {tuple(plain[keys[0]].shape)}, " in message
    assert f"and {7 - MAX_LISTED_NAMES} more) missing; " in message
    assert "3 tensors (more.0 (1,), more.1 (2,), more.2 (3,)) unknown; " in message
    assert f"1 tensor ({keys[7]} (2, 3) for {tuple(plain[keys[7]].shape)}) of another s" in message
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_the_network_that_would_fit_is_named(tmp_path: Path) -> None:
    file = _save(create_model("mst_m").state_dict(), tmp_path)
    with pytest.raises(ValueError, match=r"; they fit mst_m$"):
        load_published("mst_s", file)


def test_settings_and_names_are_checked(tmp_path: Path) -> None:
    small = create_model("dauhst_2stg", bands=BANDS, stages=2, size=(64, 64))
    file = _save(small.state_dict(), tmp_path)
    with pytest.raises(ValueError, match=r"pos_emb\w* .* of another shape"):
        load_published("dauhst_2stg", file, BANDS, stages=2)  # made for another size
    with pytest.raises(ValueError, match="did you mean dauhst_2stg"):
        load_published("dauhst_2st", file)
    with pytest.raises(OSError, match="no file"):
        load_published("dauhst_2stg", tmp_path / "none.pth")


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
    network = cassi.create_model("gap_net", bands=2, stages=1)
    card = {"model": '{"name": "gap_net", "settings": {"stages": 1}}', "bands": "2"}
    path = tmp_path / "a.safetensors"
    few = dict(list(network.state_dict().items())[:2])
    save_file(few, path, card | {"wavelengths": "null"} | change)
    with pytest.raises(ValueError, match=message):
        load_model(path)


@pytest.mark.parametrize("length", [1 << 40, 1 << 63, 20_000_000])
def test_a_header_that_is_too_long(length: int, tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(length.to_bytes(8, "little") + b" " * 1000)
    for call in (read_file, load_model):
        with pytest.raises(ValueError, match=f"its header claims {length} bytes"):
            call(file)
    file = file.with_suffix(".pth")  # not of torch 1.6 or later
    file.touch()
    os.truncate(file, 1 << 40)
    with pytest.raises(ValueError, match="at most 536870912 bytes"):
        read_file(file)


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
        ["+hydra/callbacks=log"],
        ["~hydra"],
        ["~hydra/launcher"],
        ["hydra@x=y"],
        ["+trainer@hydra.callbacks.x=default"],
        ["model=gap_net", "++hydra.searchpath=[file:///tmp]"],
        ["'hydra'.callbacks.x._target_=os.system"],
        [" hydra.run.dir=x"],
        ["+ hydra.run.dir=x"],
        ["\nhydra.run.dir=x"],
        ["--experimental-rerun=checkpoints/last.ckpt"],
        ["--config-dir=.", "--config-name=mine"],
        ["-cd", "."],
        ["--multirun"],
        ["-m"],
        ["seed"],
        ["defaults=[x]"],
        ["+searchpath=[file:///tmp]"],
        ["callback.x._target_=os.system"],
        ["experiment=../../../tmp/mine"],
        ["experiment=/tmp/mine"],
        ["experiment='../mine'"],
        ["experiment=${vars.x}"],
        ["data=[bundled,../mine]"],
        ["+experiment@_global_=../mine"],
        ["+experiment/../../mine=x"],
        ["+noise@data.simulator.noise=../mine"],
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


@pytest.mark.parametrize(
    "option",
    [
        "model=gap_net", "model.stages=1", "~optimizer.betas", "+vars.x=1", "ckpt=null",
        "optimizer._target_=torch.optim.SGD", "scheduler=null", "callbacks=[default,ema]",
        "noise@data.simulator.noise=shot", "data.root='../a b/c'", "~logger", "~scheduler=cosine",
        "model.path='../a/model.safetensors'", "trainer=ddp_cpu", "camera=../mine.yaml",
    ],
)  # fmt: skip
def test_options_of_ones_own(option: str, tmp_path: Path) -> None:
    arguments = ["ckpt=last", f"hydra.run.dir={tmp_path}"]
    save_options(tmp_path, [option])
    assert add_earlier_options(arguments)[-2:] == arguments


@pytest.mark.parametrize(
    "option",
    [
        *("plugins=[evil.py]", "plugins=evil.py", "+plugins=[evil.py]", "++plugins=[evil.py]"),
        *("plugins.0=evil.py", "logger=wandb", "logger=[csv,mlflow]", "+logger@vars=wandb"),
        "logger.csv._target_=lightning.pytorch.loggers.MLFlowLogger",
        *("logger.tensorboard=${vars.x}", "+logger/wandb=x"),
    ],
)
def test_programs_and_services_are_named_again(option: str, tmp_path: Path) -> None:
    save_options(tmp_path, ["seed=1", option])
    arguments = ["ckpt=last", f"hydra.run.dir={tmp_path}"]
    with pytest.raises(ValueError, match="so give it again"):
        add_earlier_options(arguments)
    again = [*arguments, "plugins=[mine.py]", "logger=csv"]
    if option != "plugins.0=evil.py":
        assert add_earlier_options(again) == ["seed=1", *again]
