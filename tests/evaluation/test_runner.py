"""Running methods on problems."""

import pytest
import torch

from cassi.apps.errors import describe_failure
from cassi.data.benchmarks import BenchmarkScene
from cassi.data.simulation import WhiteNoise
from cassi.evaluation import (
    Job,
    RecordFolder,
    Runner,
    Twin,
    make_problem,
    scene_generator,
)  # fmt: skip
from cassi.evaluation.runner import PeakMemory, measure, warm_up
from cassi.pipeline.fit import FixedMethod
from cassi.solvers import Function
from cassi.systems import SDCassi

CPU = torch.device("cpu")


@pytest.fixture
def item():
    random = torch.Generator().manual_seed(0)
    mask = torch.rand(1, 1, 12, 14, generator=random)
    return BenchmarkScene("one", torch.rand(3, 12, 14, generator=random), None, mask, None, "")


def problem_of(item, bands=3, **more):
    return make_problem(item, SDCassi(item.mask, bands, 1), item.mask, **more)


def pinv(y, system):
    return system.pinv(y)


def test_noise_is_the_scenes_own(item):
    def noisy(seed=0, name="one"):
        named = BenchmarkScene(name, item.truth, None, item.mask, None, "")
        return problem_of(named, noise=WhiteNoise(snr_db=20), seed=seed)

    assert torch.equal(noisy().y, noisy().y)
    assert noisy().digest == noisy().digest
    assert not torch.equal(noisy().y, noisy(seed=1).y)
    assert not torch.equal(noisy().y, noisy(name="two").y)
    first, again = (torch.rand(3, generator=scene_generator(5, "x")) for _ in range(2))
    assert torch.equal(first, again)


def test_a_camera_that_is_off_is_measured_and_not_told(item):
    problem = problem_of(item, twin=Twin(shift=[0, 1]))
    nominal = problem_of(item)
    assert torch.equal(problem.system.mask, nominal.system.mask)
    assert not torch.equal(problem.y, nominal.y)
    assert problem.digest != nominal.digest
    noise = WhiteNoise(snr_db=20)
    assert not torch.equal(problem_of(item, twin=Twin(shift=[0, 1]), noise=noise).y, problem.y)
    with pytest.raises(ValueError, match="noise: expected none beside a twin"):
        problem_of(item, twin=Twin(bits=8), noise=noise)


def test_a_given_measurement_is_taken(item):
    y = torch.rand(1, 12, 16)
    given = BenchmarkScene("one", None, y, item.mask, None, "")
    problem = problem_of(given)
    assert torch.equal(problem.y[0], y)
    with pytest.raises(ValueError, match="the measurement is not simulated"):
        problem_of(given, noise=WhiteNoise(snr_db=20))
    with pytest.raises(ValueError, match=r"expected a measurement \(K, H', W'\) = \(1, 12, 17\)"):
        problem_of(given, 4)


def test_memory_and_time_are_of_the_run(item):
    problem = problem_of(item)

    def hungry(y, system):
        block = torch.ones(1 << 24)  # 64 MiB, touched
        return system.pinv(y) + 0 * block[0]

    small = measure(Function(pinv), problem)
    large = measure(Function(hungry), problem)
    assert small.seconds > 0
    if PeakMemory(CPU).initial is None:
        assert large.peak_memory is None
    else:
        assert large.peak_memory > 60 << 20 > small.peak_memory


class Unrolled(torch.nn.Module):
    """Stages that are given parts of one parameter, as unrolled networks have them."""

    def __init__(self):
        super().__init__()
        self.rho = torch.nn.Parameter(torch.ones(2))
        self.conv = torch.nn.Conv2d(3, 3, 3, padding=1)
        self.stage = Scaled()

    def forward(self, x):
        for rho in self.rho:
            x = self.stage(self.conv(x), rho)
        return x


class Scaled(torch.nn.Module):
    def forward(self, x, rho):
        return rho * x


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_stages_with_parts_of_a_parameter_are_counted(item, mode):
    net = Unrolled()
    method = Function(mode()(lambda y, system: net(system.pinv(y)).detach()), network=net)
    with torch.no_grad():
        assert warm_up(method, problem_of(item)) == 2 * (2 * 12 * 14 * 3 * 3 * 9)


def test_a_network_that_cannot_be_counted_is_evaluated(item, tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("torch cannot count this")

    monkeypatch.setattr("torch.utils.flop_counter.FlopCounterMode._count_flops", refuse)
    net = torch.nn.Conv2d(3, 3, 3, padding=1)
    method = Function(lambda y, system: net(system.pinv(y)), network=net)
    problem = problem_of(item)
    told = (
        lambda *_: problem,
        {"a": FixedMethod(method)},
        {"a": "as it is"},
        RecordFolder(tmp_path),
    )
    record = Runner(*told, settings={}, explain=describe_failure).run(Job("", "one", "a"))
    assert record.error is None
    assert record.about == {"parameters": 3 * 3 * 9 + 3, "flops": None}


def test_operations_do_not_depend_on_the_scene(item):
    net = torch.nn.Conv2d(3, 3, 3, padding=1)

    def run(y, system):
        x = system.pinv(y)
        for _ in range(1 + int(100 * x.std())):
            x = net(x)
        return x

    plain = BenchmarkScene("plain", torch.full_like(item.truth, 0.5), None, item.mask, None, "")
    counts = {warm_up(Function(run, network=net), problem_of(scene)) for scene in (item, plain)}
    assert len(counts) == 1


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (lambda y, system: system.pinv(y)[:, :2], "expected a cube "),
        (lambda y, system: system.pinv(y) * torch.nan, "not finite"),
    ],
)
def test_unfit_cubes_are_refused(item, run, said):
    with pytest.raises(ValueError, match=said):
        measure(Function(run), problem_of(item))


def test_a_failure_is_a_record_and_the_rest_goes_on(item, tmp_path):
    def prepare(point, scene):
        if scene == "lost":
            raise FileNotFoundError("no file lost")
        return problem_of(item)

    def broken(y, system):
        raise KeyError("a defect")

    methods = {"pinv": FixedMethod(Function(pinv)), "broken": FixedMethod(Function(broken))}
    jobs = [Job("", s, m) for s in ("lost", "one") for m in methods]
    told = (prepare, methods, dict.fromkeys(methods, "as it is"), RecordFolder(tmp_path))
    runner = Runner(*told, settings={}, explain=describe_failure)
    seen = [runner.run(job) for job in jobs]
    assert [record.job for record in seen] == jobs
    assert [record.error is None for record in seen] == [False, False, True, False]
    assert seen[0].error == "no file lost"
    assert seen[3].error.startswith("KeyError: ")
    assert seen[2].metrics["residual"] < 1e-5
