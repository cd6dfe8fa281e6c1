"""Files of weights as authors write them: every form gives the same network, others are refused."""

import argparse
from functools import cache

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import save_file
from shared import every_network, small_settings
from torch import nn

from cassi.apps.reconstructors import build_network, model_node
from cassi.models.load import Card, create_model, load_model, load_published, save_model

BANDS = 4
EXAMPLE = "rdluf_mixs2_3stg"
"""Has frozen parameters, which an average of the trained ones leaves out."""


@pytest.fixture(autouse=True)
def _empty_weights(monkeypatch):
    """Draw no weights for networks that are given others."""
    for name in (name for name in dir(nn.init) if name.endswith("_") and name[0] != "_"):
        monkeypatch.setattr(nn.init, name, lambda tensor, *_, **__: tensor)


@cache
def _states(name):
    """Return the weights of a network as the optimizer left them, and as averaged."""
    net = _network(name)
    states = []
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        for value in net.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand(value.shape, generator=generator))
        states.append({key: value.clone() for key, value in net.state_dict().items()})
    plain, average = states
    parameters = {key for key, _ in net.named_parameters(remove_duplicate=False)}
    # Buffers, such as running means, have no average.
    return plain, {key: (average if key in parameters else plain)[key] for key in plain}


@cache
def _network(name):
    return create_model(name, bands=BANDS, **small_settings(name))


def _parameters(name, trained=False):
    named = _network(name).named_parameters()
    return [key for key, p in named if p.requires_grad or not trained]


def _load(file, name, **more):
    net = load_published(name, file, BANDS, **small_settings(name), **more)
    assert not net.training
    return net.state_dict()


def _save(content, folder, suffix=".pth"):
    file = folder / f"weights{suffix}"
    torch.save(content, file)
    return file


def _assert_equal(got, wanted):
    assert got.keys() == wanted.keys()
    assert all(torch.equal(got[key], wanted[key]) for key in wanted)


def _before(prefix, state):
    return {prefix + key: value for key, value in state.items()}


def _trained(plain):
    """Return what lies beside the weights in the checkpoint of a training."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    return {
        "model": plain,
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "epoch": 3,
        "psnr": np.float64(38.5),
        "loss": [np.float32(0.5), torch.tensor(0.25)],
        "opt": argparse.Namespace(stage=9, method="any"),
    }


def _averages(values):
    """Return what the package torch_ema writes."""
    shadow = list(values)
    return {"decay": 0.999, "num_updates": 7, "shadow_params": shadow, "collected_params": None}


@every_network
def test_the_authors_form_of_every_network_gives_the_same_bits(name, tmp_path):
    plain, average = _states(name)
    parallel = _save(_before("module.", plain), tmp_path)
    _assert_equal(_load(parallel, name), plain)
    listed = _trained(plain) | {"ema": _averages(average[key] for key in _parameters(name))}
    file = _save(listed, tmp_path, ".pkl")
    _assert_equal(_load(file, name), average)


def test_what_only_the_training_of_a_network_needs_is_left_out(tmp_path):
    plain, _ = _states("lade_dun_3stg")
    more = {"gt_le.conv1.conv1.weight": torch.ones(2), "diffusion.betas": torch.ones(16)}
    _assert_equal(_load(_save({"model": plain | more}, tmp_path), "lade_dun_3stg"), plain)
    other = _save({"model": plain | {"gamma": torch.ones(2)}}, tmp_path)
    with pytest.raises(ValueError, match=r"1 tensor \(gamma \(2,\)\) unknown"):
        _load(other, "lade_dun_3stg")


PLAIN_FORMS = {
    "bare": lambda state: state,
    **{
        key: lambda state, key=key: {key: state, "epoch": 3}
        for key in (
            *("state_dict", "model_state_dict", "model", "net", "network", "params", "weights"),
            "module",
        )
    },
    "nested": lambda state: {"model": {"state_dict": state}, "epoch": 3},
    "trained": _trained,
    **{
        prefix: lambda state, prefix=prefix: _before(prefix, state)
        for prefix in ("module.", "model.", "net.", "_orig_mod.", "module._orig_mod.", "network.")
    },
    "part compiled": lambda state: {
        key.replace(".", "._orig_mod.", 1): value for key, value in state.items()
    },
    "profiled": lambda state: (
        state | {"total_ops": torch.zeros(1), "a.b.total_params": torch.ones(1)}
    ),
}


@pytest.mark.parametrize("form", PLAIN_FORMS)
def test_plain_weights(form, tmp_path):
    plain, _ = _states(EXAMPLE)
    _assert_equal(_load(_save(PLAIN_FORMS[form](plain), tmp_path), EXAMPLE), plain)


def test_an_average_that_is_not_there_is_not_wanted(tmp_path):
    plain, _ = _states(EXAMPLE)
    file = _save(_trained(plain), tmp_path)
    _assert_equal(_load(file, EXAMPLE, ema=False), plain)
    with pytest.raises(ValueError, match=r"no moving average; leave out ema=True"):
        _load(file, EXAMPLE, ema=True)


AVERAGED_FORMS = {
    **{
        key: lambda plain, average, *_, key=key: {"model": plain, key: average}
        for key in ("ema", "ema_state_dict", "state_dict_ema", "model_ema", "ema_model")
    },
    "params_ema": lambda plain, average, *_: {"params": plain, "params_ema": average},
    "all": lambda plain, _, values, __: {"model": plain, "ema": _averages(values)},
    "trained ones": lambda plain, _, __, values: {"model": plain, "ema": _averages(values)},
    "list": lambda plain, _, values, __: {"state_dict": plain, "ema": values},
    "by name": lambda plain, average, *_: {
        "model": plain,
        "ema": {"shadow": average, "decay": 0.9},
    },
    "averaged model": lambda plain, average, *_: {
        "model": plain,
        "ema": _before("module.", average) | {"n_averaged": torch.tensor(9)},
    },
    "inside": lambda plain, average, *_: {"model": {"state_dict": plain, "ema": average}},
    "of Lightning": lambda plain, average, *_: {
        "current_model_state": _before("net.", plain),
        "state_dict": _before("net.", average),
        "averaging_state": {"n_averaged": torch.tensor(9)},
    },
}


@pytest.mark.parametrize("form", AVERAGED_FORMS)
def test_the_moving_average_is_preferred(form, tmp_path):
    plain, average = _states(EXAMPLE)
    values = [average[key] for key in _parameters(EXAMPLE)]
    trained = [average[key] for key in _parameters(EXAMPLE, trained=True)]
    assert len(trained) == len(values) - 20
    file = _save(AVERAGED_FORMS[form](plain, average, values, trained), tmp_path)
    frozen = set(_parameters(EXAMPLE)) - set(_parameters(EXAMPLE, trained=True))
    if form == "trained ones":
        average = average | {key: plain[key] for key in frozen}
    _assert_equal(_load(file, EXAMPLE), average)
    _assert_equal(_load(file, EXAMPLE, ema=False), plain)


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_moving_average_alone(wrapped, tmp_path):
    _, average = _states("dauhst_2stg")
    values = [average[key] for key in _parameters("dauhst_2stg")]
    file = _save(_averages(values) if wrapped else values, tmp_path)
    _assert_equal(_load(file, "dauhst_2stg"), average)
    with pytest.raises(ValueError, match="it holds a moving average only"):
        _load(file, "dauhst_2stg", ema=False)


def test_a_list_without_buffers_beside_it_is_refused(tmp_path):
    _, average = _states("hdnet")
    file = _save([average[key] for key in _parameters("hdnet")], tmp_path)
    with pytest.raises(ValueError, match=r"16 tensors \(.*running_mean .* more\) missing$"):
        _load(file, "hdnet")


def test_a_list_of_another_length_is_refused(tmp_path):
    plain, average = _states(EXAMPLE)
    file = _save({"model": plain, "ema": _averages(list(average.values())[1:])}, tmp_path)
    with pytest.raises(ValueError, match=r"expected a moving average of \d+ tensors.*, got \d+$"):
        _load(file, EXAMPLE)
    _assert_equal(_load(file, EXAMPLE, ema=False), plain)


def test_an_average_by_name_that_lacks_something_is_not_mixed(tmp_path):
    plain, average = _states(EXAMPLE)
    key = _parameters(EXAMPLE, trained=True)[0]
    lacking = {k: v for k, v in average.items() if k != key}
    file = _save({"params": plain, "params_ema": lacking}, tmp_path)
    with pytest.raises(ValueError, match=f"average lacks 1 tensor .{key}.*; take .* ema=False$"):
        _load(file, EXAMPLE)


@pytest.mark.parametrize("old", [True, False], ids=["old container", "zip"])
def test_half_precision_and_both_containers(old, tmp_path):
    plain, _ = _states(EXAMPLE)
    half = {key: value.half() for key, value in plain.items()}
    file = tmp_path / "weights.tar"
    torch.save(half, file, _use_new_zipfile_serialization=not old)
    _assert_equal(_load(file, EXAMPLE), {key: value.float() for key, value in half.items()})


def test_safetensors_and_files_of_cassi_train(tmp_path):
    plain, _ = _states(EXAMPLE)
    file = tmp_path / "weights.safetensors"
    save_file(_before("module.", plain), file)
    _assert_equal(_load(file, EXAMPLE), plain)
    settings = small_settings(EXAMPLE)
    save_model(file, plain, Card(EXAMPLE, BANDS, settings))
    _assert_equal(_load(file, EXAMPLE), plain)
    net, card = load_model(file)
    assert (card.name, card.bands, card.settings) == (EXAMPLE, BANDS, settings)
    _assert_equal(net.state_dict(), plain)


@pytest.mark.parametrize("ema", [None, True, False])
def test_configs_say_which_weights(ema, tmp_path):
    plain, average = _states(EXAMPLE)
    file = _save({"model": plain, "ema": average}, tmp_path)
    node = model_node(EXAMPLE) | small_settings(EXAMPLE) | {"weights": str(file), "ema": ema}
    net, _ = build_network(OmegaConf.create(node), BANDS)
    _assert_equal(net.state_dict(), plain if ema is False else average)
    with pytest.raises(ValueError, match=r"model\.ema: expected true, false or null, got 'maybe'"):
        build_network(OmegaConf.create(node | {"ema": "maybe"}), BANDS)
