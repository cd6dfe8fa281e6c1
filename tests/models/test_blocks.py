"""Blocks of the networks against their plain forms, and settings that are refused."""

import pytest
import torch

import cassi
from cassi.models.load import create_model

BANDS = 4


def _camera(step=2):
    mask = torch.rand(18, 23, generator=torch.Generator().manual_seed(1))
    return cassi.SDCassi(mask, bands=BANDS, step=step)


def test_random_clusters_repeat_with_the_seed(make):
    net, camera = make("cst_s", BANDS, window=4).eval(), _camera()
    y = camera(torch.rand(1, BANDS, 18, 23))
    with torch.no_grad():
        results = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            results.append(net(y, camera))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize(
    "name",
    ["mst_s", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("cst_s", "bisrnet"))],
)
def test_one_graph(make, name):
    net, camera = make(name, BANDS, blocks=(1, 1)).eval(), _camera()
    y = camera(torch.rand(1, BANDS, 18, 23))
    torch._dynamo.reset()
    results = []
    with torch.no_grad():
        for run in (net, torch.compile(net, fullgraph=True, backend="eager")):
            torch.manual_seed(0)
            results.append(run(y, camera))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: create_model("tsa_net", size=(60, 64)), "multiples of 16, at least 64"),
        (lambda: create_model("hdnet", width=30), "a multiple of 4 and 2, got 30"),
        (lambda: create_model("dgsmp", taps=4), "an odd number, got 4"),
        (lambda: create_model("cst_s", window=5), "an even number, got 5"),
        (lambda: create_model("mst_s", blocks=(1, 0)), "at least 1, got 0"),
    ],
)
def test_unfit_settings_are_told(make, words):
    with pytest.raises(ValueError, match=words):
        make()
