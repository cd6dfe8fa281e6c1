"""Total variation and a whole GAP-TV iteration against what public codes run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import cassi
from cassi.models.pretrained import total_variation
from cassi.solvers.components import make_cube
from cassi.systems import System
from scripts.benchmarks.operator_workloads import CLONE, Mismatch, Settings, name_case
from scripts.benchmarks.results import BEST_TV, PUBLIC_TV, TV, TV_COUPLED, Results, Row, rank
from scripts.benchmarks.timing import Candidate, measure

WEIGHT = 0.1
ITERATIONS = 5
CPU = torch.device("cpu")
CubeShape = tuple[int, int, int]
Array = NDArray[np.floating]


class NumpyGap:
    """Accelerated GAP in NumPy on a wide cube `(H, W', C)` in float64.

        t ← t + (y − Ax),   v = x + Aᵀ((t − Ax) / Φs),   x ← shift(denoise(shift_back(v)))

    Args:
        mask: `(H, W)`.
        bands: number of bands C.
        step: dispersion, pixels per band.
        denoise: maps a cube `(H, W, C)` to one.
    """

    def __init__(
        self, mask: Array, bands: int, step: int, denoise: Callable[[Array], Array]
    ) -> None:
        """Shift the mask of every band, and sum their squares."""
        self.step = step
        self.extra = (bands - 1) * step
        self.denoise = denoise
        cube = np.repeat(mask[:, :, None].astype(np.float64), bands, axis=2)
        self.masks = self.shift(cube)
        self.gram = (self.masks**2).sum(2)
        self.gram[self.gram == 0] = 1

    def shift(self, cube: Array) -> Array:  # (H, W, C) -> (H, W', C)
        """Widen the cube and roll every band to its columns."""
        wide = np.zeros((cube.shape[0], cube.shape[1] + self.extra, cube.shape[2]))
        wide[:, : cube.shape[1]] = cube
        for c in range(cube.shape[2]):
            wide[:, :, c] = np.roll(wide[:, :, c], c * self.step, axis=1)
        return wide

    def shift_back(self, wide: Array) -> Array:  # (H, W', C) -> (H, W, C)
        """Roll every band back and crop."""
        for c in range(wide.shape[2]):
            wide[:, :, c] = np.roll(wide[:, :, c], -c * self.step, axis=1)
        return wide[:, : wide.shape[1] - self.extra]

    def iterate(self, wide: Array, y: Array, target: Array) -> tuple[Array, Array]:
        """Run one iteration; return the wide cube and the target `(H, W')`."""
        simulated = (wide * self.masks).sum(2)
        target = target + (y - simulated)
        step = ((target - simulated) / self.gram)[:, :, None] * self.masks
        return self.shift(self.denoise(self.shift_back(wide + step))), target


def denoise_public(cube: Array, weight: float, iterations: int) -> Array:
    """Call scikit-image on `(H, W, C)` as the public codes do: in its dtype, over all channels."""
    from skimage.restoration import denoise_tv_chambolle

    return denoise_tv_chambolle(
        cube, weight=weight, eps=0, max_num_iter=iterations, channel_axis=-1
    )


def denoise_planes(cube: Array, weight: float, iterations: int) -> Array:
    """Call scikit-image on one contiguous band of `(C, H, W)` at a time, its fastest form."""
    from skimage.restoration import denoise_tv_chambolle

    clean = np.empty_like(cube)
    for band, out in zip(cube, clean, strict=True):
        out[:] = denoise_tv_chambolle(band, weight=weight, eps=0, max_num_iter=iterations)
    return clean


def measure_tv(settings: Settings, shape: CubeShape, results: Results) -> None:
    """Time `tv_prox` against scikit-image at equal inner iterations, on a cube `(C, H, W)`.

    Ours takes projected-gradient steps, scikit-image Chambolle's of 2004: the two agree where they
    end, which is verified on a corner of the cube, not after five steps. scikit-image always runs
    on the CPU.
    """
    case, title = name_case(shape), f"tv_prox, {ITERATIONS} iterations"
    print(f"{case}  {title}", file=sys.stderr, flush=True)
    cube = _random_cube(shape)
    device = settings.device
    x = cube.to(device)[None]

    def ours(norm: cassi.ops.Norm) -> Callable[[], Tensor]:
        return lambda: cassi.ops.tv_prox(x, WEIGHT, ITERATIONS, norm=norm)

    def warm(norm: cassi.ops.Norm) -> Callable[[], tuple[Tensor, Tensor]]:
        _, dual = cassi.ops.tv_prox(x, WEIGHT, ITERATIONS, norm=norm, return_dual=True)
        return lambda: cassi.ops.tv_prox(
            x, WEIGHT, ITERATIONS, norm=norm, dual=dual, return_dual=True
        )

    candidates = [
        Candidate(TV, ours("band"), device),
        Candidate(TV_COUPLED, ours("frobenius"), device),
        Candidate(f"{TV}, dual in and out", warm("band"), device),
        Candidate(f"{TV_COUPLED}, dual in and out", warm("frobenius"), device),
    ]
    try:
        verify_tv(cube[:2, :24, :24])
    except ImportError as error:
        results.leave_out(case, title, "denoise_tv_chambolle", error)
    else:
        planes = cube.numpy()
        public = np.ascontiguousarray(planes.transpose(1, 2, 0), dtype=np.float64)
        candidates += [
            Candidate(PUBLIC_TV, lambda: denoise_public(public, WEIGHT, ITERATIONS), CPU),
            Candidate(BEST_TV, lambda: denoise_planes(planes, WEIGHT, ITERATIONS), CPU),
        ]
    candidates.append(Candidate(f"limit: {CLONE}", x.clone, device))
    _add_rows("tv", case, title, candidates, settings, "tv_prox", results)


def verify_tv(cube: Tensor, iterations: int = 500, limit: float = 1e-3) -> None:
    """Compare `tv_prox` with scikit-image, both run until they hardly move.

    Raises:
        Mismatch: they differ by more than `limit`, relative to what the prior takes away.
    """
    found = cassi.ops.tv_prox(cube, WEIGHT, iterations)
    removed = (found - cube).norm()
    planes = np.ascontiguousarray(cube.numpy())
    bands_last = np.ascontiguousarray(planes.transpose(1, 2, 0), dtype=np.float64)
    for name, other in (
        (BEST_TV, denoise_planes(planes, WEIGHT, iterations)),
        (PUBLIC_TV, denoise_public(bands_last, WEIGHT, iterations).transpose(2, 0, 1)),
    ):
        error = ((torch.from_numpy(other.copy()) - found).norm() / removed).item()
        if not error <= limit:
            raise Mismatch(f"{name}: differs from ours by {error:.1e} where both should have ended")


def measure_iteration(settings: Settings, shape: CubeShape, results: Results) -> None:
    """Time one accelerated GAP-TV iteration against that of public NumPy codes, on the CPU."""
    case, title = name_case(shape), "accelerated GAP-TV iteration"
    print(f"{case}  {title}", file=sys.stderr, flush=True)
    bands, device = shape[0], settings.device
    cube = _random_cube(shape)
    mask = _random_mask(shape)
    system = cassi.SDCassi(mask, bands=bands, step=settings.step).to(device)
    algorithm, prior = cassi.GAP(accelerated=True), cassi.TV(iterations=ITERATIONS)
    with torch.no_grad():
        y = system(cube.to(device)[None])
        state = algorithm.init(y, system, system.pinv(y))

    def step() -> object:
        with torch.no_grad():
            return algorithm.step(state, y, system, prior, WEIGHT, algorithm.rho)

    candidates = [Candidate("ours", step, device)]
    try:
        verify_tv(cube[:2, :24, :24])
    except ImportError as error:
        results.leave_out(case, title, "public NumPy form", error)
    else:
        verify_iteration(shape, settings.step)

        def denoise(image: Array) -> Array:
            return denoise_public(image, WEIGHT, ITERATIONS)

        public = NumpyGap(mask.numpy(), bands, settings.step, denoise)
        snapshot = y[0, 0].double().cpu().numpy()
        wide = public.shift(state.x[0].double().cpu().numpy().transpose(1, 2, 0))
        candidates.append(
            Candidate("public NumPy form", lambda: public.iterate(wide, snapshot, snapshot), CPU)
        )
    _add_rows("iteration", case, title, candidates, settings, "data_step", results)


def verify_iteration(shape: CubeShape, step: int, limit: float = 1e-5) -> None:
    """Compare an iteration of both forms with a prior that changes nothing.

    The NumPy form moves its target before it projects, ours after.

    Raises:
        Mismatch: the cubes differ by more than `limit`, relative to their norm.
    """
    mask = _random_mask(shape)
    system = cassi.SDCassi(mask, bands=shape[0], step=step)
    algorithm = cassi.GAP(accelerated=True)
    with torch.no_grad():
        y = system(_random_cube(shape, seed=1)[None])
        state = algorithm.init(y, system, _random_cube(shape, seed=2)[None])
        before = (state.target - (y - system(state.x)))[0, 0].double().numpy()
        found = (
            algorithm.step(state, y, system, lambda x, sigma: x, 0.0, algorithm.rho).x[0].double()
        )
    public = NumpyGap(mask.numpy(), shape[0], step, lambda image: image)
    wide = public.shift(state.x[0].double().numpy().transpose(1, 2, 0))
    wide, _ = public.iterate(wide, y[0, 0].double().numpy(), before)
    other = torch.from_numpy(public.shift_back(wide).transpose(2, 0, 1).copy())
    error = ((other - found).norm() / found.norm()).item()
    if not error <= limit:
        raise Mismatch(f"public NumPy form: differs from ours by {error:.1e}")


def measure_auto(settings: Settings, shapes: list[CubeShape], results: Results) -> None:
    """Time the default method whole, on components and on cubes, and the camera on components."""
    for shape in shapes:
        case, title = name_case(shape), "auto, 125 iterations"
        print(f"{case}  {title}", file=sys.stderr, flush=True)
        device, solver = settings.device, total_variation("large")
        system = cassi.SDCassi(_random_mask(shape), bands=shape[0], step=settings.step).to(device)
        y = system(_smooth_cube(shape).to(device)[None])
        cubes = replace(solver, prior=_AsCubes(solver.prior))
        candidates = [
            Candidate("ours", partial(solver.run, y, system), device),
            Candidate("a cube in every step", partial(cubes.run, y, system), device),
        ]
        _add_rows("auto", case, title, candidates, settings, "forward_subspace", results)
        count = min(6, shape[0])
        basis = torch.linalg.qr(torch.rand(shape[0], count)).Q.to(device)[None]
        a = torch.rand(1, count, *shape[1:]).to(device)
        x = make_cube(a, basis)
        for title, ours, whole in (
            (
                f"A of {count} components",
                partial(system.forward_subspace, a, basis),
                partial(System.forward_subspace, system, a, basis),
            ),
            (
                f"{count} components of Aᵀy",
                partial(system.adjoint_subspace, y, basis),
                partial(System.adjoint_subspace, system, y, basis),
            ),
        ):
            candidates = [
                Candidate("ours", ours, device),
                Candidate("through the cube", whole, device),
                Candidate(f"limit: {CLONE}", x.clone, device),
            ]
            _add_rows("auto", case, title, candidates, settings, "forward_subspace", results)


@dataclass(frozen=True)
class _AsCubes:
    """A prior that does not show that its cubes are of few components."""

    prior: Any

    def __call__(self, x: Tensor, sigma: Any) -> Tensor:
        return cast(Tensor, self.prior(x, sigma))

    def begin(self) -> Callable[[Tensor, Any], Tensor]:
        running = self.prior.begin()
        return lambda x, sigma: running(x, sigma)


def _smooth_cube(shape: CubeShape) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(1, 5, *(max(2, side // 16) for side in shape[1:]), generator=generator)
    spectra = torch.rand(shape[0], 5, generator=generator)
    fine = torch.nn.functional.interpolate(coarse, size=shape[1:], mode="bilinear")
    return torch.einsum("cr,rhw->chw", spectra, fine[0])


def _add_rows(
    workload: str,
    case: str,
    title: str,
    candidates: list[Candidate],
    settings: Settings,
    kernel: str,
    results: Results,
) -> None:
    timings = measure(candidates, settings.rounds, settings.seconds)
    limit = timings.get(f"limit: {CLONE}")
    rows = []
    for candidate in candidates:
        timing = timings[candidate.name]
        row = Row(workload, case, title, candidate.name, timing.ms, rounds=timing.rounds)
        if limit is not None and timing is not limit:
            row.over_limit = timing.ms / limit.ms
        if settings.device.type == "cuda":
            row.wall_ms = timing.wall_ms
        if candidate.name.startswith("ours"):
            row.kernel = cassi.ops.backend(settings.device, kernel)
        rows.append(row)
    rank(rows)
    results.rows += rows


def _random_cube(shape: CubeShape, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def _random_mask(shape: CubeShape) -> Tensor:
    return torch.rand(shape[1:], generator=torch.Generator().manual_seed(3)).mul_(0.9).add_(0.1)
