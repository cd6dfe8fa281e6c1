"""All metrics of a scene, and the mean over scenes."""

import json
import math

import pytest
import torch

from cassi import metrics

PRESETS = metrics.list_presets()


def _batch(scenes=3, side=12):
    generator = torch.Generator().manual_seed(11)
    truth = torch.rand(scenes, 3, side, side, generator=generator)
    noise = torch.linspace(0.02, 0.3, scenes)[:, None, None, None]
    return truth + noise * torch.randn(truth.shape, generator=generator), truth


@pytest.mark.parametrize("name", PRESETS)
def test_evaluate_calls_every_function(name):
    x, truth = (a[0] for a in _batch())
    scores = metrics.evaluate(x, truth, name)
    assert tuple(scores) == metrics.METRICS
    assert scores["psnr"] == metrics.psnr(x, truth, name).item()
    assert scores["sam"] == metrics.sam(x, truth).item()
    assert scores["rmse"] == metrics.rmse(x, truth).item()
    assert scores["ergas"] == metrics.ergas(x, truth).item()
    if metrics.PRESETS[name].ssim is None:
        assert scores["ssim"] is None
    else:
        assert scores["ssim"] == metrics.ssim(x, truth, name).item()
    assert metrics.evaluate(x[None], truth[None], name) == scores
    assert json.loads(json.dumps(scores)) == scores


def test_evaluate_takes_one_cube():
    with pytest.raises(ValueError, match="expected one cube, got a batch of 3; use MetricSet"):
        metrics.evaluate(*_batch())


@pytest.mark.parametrize("name", PRESETS)
def test_mean_of_per_scene_values(name):
    x, truth = _batch()
    collected = metrics.MetricSet(name)
    collected.update(x, truth)
    each = [metrics.evaluate(a, b, name) for a, b in zip(x, truth, strict=True)]
    assert list(collected.scenes.values()) == each
    mean = collected.compute()
    for metric in metrics.METRICS:
        values = [scores[metric] for scores in each]
        expected = None if None in values else pytest.approx(sum(values) / 3, rel=1e-14)
        assert mean[metric] == expected
    # PSNR of the pooled error would be another number.
    pooled = -20 * math.log10(sum(scores["rmse"] ** 2 for scores in each) / 3) / 2
    assert mean["psnr"] != pytest.approx(pooled, abs=0.1)


def test_one_by_one_in_any_order_equals_a_batch():
    x, truth = _batch()
    at_once, singly = metrics.MetricSet(), metrics.MetricSet()
    returned = at_once.update(x, truth, ["a", "b", "c"])
    for i in (2, 0, 1):
        assert singly.update(x[i], truth[i], name="abc"[i]) == [returned[i]]
    assert singly.compute() == at_once.compute()
    assert singly.scenes == at_once.scenes
    assert len(singly) == 3


def test_scenes_of_different_sizes():
    collected = metrics.MetricSet()
    collected.update(*_batch(1, side=12))
    collected.update(*_batch(2, side=20))
    assert list(collected.scenes) == ["scene01", "scene02", "scene03"]
    assert 0 < collected.compute()["ssim"] < 1
    collected.update(*_batch(1, side=8))  # smaller than the window
    mean = collected.compute()
    assert mean["ssim"] is None
    assert math.isfinite(mean["psnr"])


def test_infinity_stays_infinity():
    x, truth = _batch()
    x[1] = truth[1]
    collected = metrics.MetricSet()
    collected.update(x, truth)
    mean = collected.compute()
    assert mean["psnr"] == math.inf
    assert [math.isinf(scores["psnr"]) for scores in collected.scenes.values()] == [0, 1, 0]
    assert all(math.isfinite(mean[key]) for key in ("ssim", "sam", "rmse", "ergas"))


def test_names():
    x, truth = _batch()
    collected = metrics.MetricSet()
    collected.update(x[0], truth[0], "flowers")
    with pytest.raises(ValueError, match=r"not taken yet, got \['flowers'\]"):
        collected.update(x[1], truth[1], "flowers")
    with pytest.raises(ValueError, match=r"not taken yet, got \['a'\]"):
        collected.update(x, truth, ["a", "b", "a"])
    with pytest.raises(ValueError, match=r"one name for each of 3 scenes, got \['abc'\]"):
        collected.update(x, truth, "abc")
    assert list(collected.scenes) == ["flowers"]


def test_a_refused_batch_leaves_nothing():
    x, truth = _batch()
    x[2, 0, 0, 0] = math.nan
    collected = metrics.MetricSet()
    with pytest.raises(ValueError, match="NaN"):
        collected.update(x, truth)
    collected.update(x[:1], truth[:1])
    collected.reset()
    assert len(collected) == 0
    with pytest.raises(ValueError, match="at least one scene"):
        collected.compute()
