"""Answers from samples: shapes, intervals, and where there is none."""

import math

import pytest
import torch

import cassi
from cassi.uncertainty import Area, Index, RegionMean, Samples, answer, estimate
from cassi.uncertainty.answers import ANSWER_LEVELS, load_half_widths
from cassi.uncertainty.samples import Scale

BANDS = 6
NM = tuple(float(nm) for nm in range(500, 620, 20))


@pytest.fixture(scope="module")
def samples():
    """Samples of a small scene."""
    random = torch.Generator().manual_seed(0)
    mask = (torch.rand(64, 64, generator=random) > 0.5).float()
    cells = torch.rand(1, BANDS, 8, 8, generator=random)
    system = cassi.SDCassi(mask, bands=BANDS, step=1)
    y = system(torch.nn.functional.interpolate(cells, size=(64, 64), mode="bilinear"))
    y = y + 0.02 * torch.randn(y.shape, generator=random)
    method = cassi.Solver(cassi.TV(), iterations=15)
    return estimate(y, system, method, method.run(y, system).x, samples=16).samples


def weigh(x):
    """Return a linear answer: a weighted sum."""
    return torch.einsum("chw,c->", x, torch.arange(x.shape[0]).to(x)) / x[0].numel()


def make_samples(x):
    """Return samples without errors."""
    system = cassi.SDCassi(torch.ones(x.shape[-2:]), bands=x.shape[1], step=0)
    zero = torch.zeros_like(x)
    return Samples(2, x, (Scale(zero, zero),), system(x), system, 0.0)


def test_answers(samples):
    where = torch.zeros(64, 64, dtype=torch.bool)
    where[10:20, 30:40] = True
    index = Index("w600 / w500", NM)
    questions = {
        "map": index,
        "maps": lambda x: x[:2],
        "list": RegionMean(where, tuple(map(str, NM)), "counts"),
        "number": weigh,
        "share": Area(index, 1.0, where),
    }
    answers = answer(samples, questions)
    shapes = {"map": (64, 64), "maps": (2, 64, 64), "list": (BANDS,), "number": (), "share": ()}
    for name, each in answers.items():
        assert each.value.shape == each.abstained.shape == shapes[name]
        assert each.low.shape == each.high.shape == (len(ANSWER_LEVELS), *shapes[name])
        kept = ~each.abstained
        assert bool(((each.low <= each.value) & (each.value <= each.high))[:, kept].all())
        assert bool((each.low[1] <= each.low[0])[kept].all())
        assert bool((each.high[1] >= each.high[0])[kept].all())
        assert bool(each.reason) == bool(each.abstained.any())
    assert answers["list"].labels == tuple(map(str, NM))
    assert answers["list"].unit == "counts"
    values = torch.stack([weigh(sample) for sample in samples]).double()
    change = float(values.mean() - weigh(samples.cube[0]))
    assert abs(change) < 1.5 * float(values.std())
    half = load_half_widths()[0] * values.std(correction=0)
    number = answers["number"]
    assert float(number.value) == pytest.approx(float(values.mean()), rel=1e-5)
    widths = (number.high - number.low).double() / 2
    torch.testing.assert_close(widths, half.double(), rtol=1e-3, atol=0)


def test_a_unit_is_that_of_the_answer(samples):
    doubled = samples.converted(lambda cube: 2 * cube)
    torch.testing.assert_close(doubled[1], 2 * samples[1])
    one, two = (answer(each, {"sum": weigh})["sum"] for each in (samples, doubled))
    torch.testing.assert_close(two.high, 2 * one.high)


@pytest.mark.parametrize(
    "question", [lambda x: x[:, 1:], lambda x: x[0, :3], lambda x: x[None], lambda x: x[0, 1:]]
)
def test_other_shapes_are_refused(samples, question):
    with pytest.raises(ValueError, match=r"^mine: expected a map \(H, W\) or \(N, H, W\) with"):
        answer(samples, {"mine": question})


def test_there_is_no_answer_without_contrast(samples):
    cube = samples.cube[0]
    noise = torch.randn(64, 64, generator=torch.Generator().manual_seed(2))
    questions = {
        "constant": Index("3", NM),
        "errors": lambda x: noise + 1000 * (x - cube)[0],
        "contrast": lambda x: x[0] + 100 * noise,
        "number": lambda x: 3.0,
    }
    answers = answer(samples, questions)
    assert bool(answers["constant"].abstained.all())
    assert float(answers["errors"].abstained.float().mean()) > 0.9
    assert "the samples vary here" in answers["errors"].reason
    for name in ("contrast", "number"):
        assert not bool(answers[name].abstained.any())
        assert answers[name].reason == ""


def test_there_is_no_answer_where_a_result_is_not_finite():
    ramp = torch.linspace(0, 1, 20).expand(1, 2, 20, 20)
    holes = torch.ones(20, 20)
    holes[3, 4] = math.nan
    given = answer(make_samples(ramp), {"map": lambda x: x[0] * holes})["map"]
    assert given.reason == "the result is not finite in a sample"
    assert int(given.abstained.sum()) == 25  # the square over which variances are averaged
    assert bool(given.abstained[3, 4])
    torch.testing.assert_close(given.value[10], ramp[0, 0, 10])


def test_bounds_hold(samples):
    class Bounded:
        bounds = (0.45, 0.55)

        def __call__(self, x):
            return x[0]

    given = answer(samples, {"map": Bounded()})["map"]
    for each in (given.value, given.low, given.high):
        assert bool(((each > 0.4499) & (each < 0.5501)).all())
