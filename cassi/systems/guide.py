"""Guides: pictures of the scene by an ordinary camera, which solvers use beside the snapshot."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cassi import ops
from cassi.prior_protocols import Basis, ComponentPrior, has_components
from cassi.pulled_prior import PulledPrior
from cassi.systems.arguments import Array, check_shape
from cassi.systems.base import DelegatingWrapper, System
from cassi.systems.motion import Movable, max_corner_shift, step_towards

# The gains that follow were measured in docs/development/experiments/guide.md.
DAMPING = 0.5
"""ν of `GuidedPrior` for a picture with 1 % of noise, chosen on training scenes.

A larger value pulls less."""
ENERGY_DIVISOR, MIN_START_RANK = 50.0, 6
"""First: with a guide, the energy limit below which components are dropped is 50 times smaller.
Second: a run starts with at least 6 components.

Most of the gain by a guide comes from weak components."""
MOVE_INTERVAL_CALLS, LAST_MOVE_CALL = 5, 80
"""First: every fifth call of a run moves the picture by one step. Second: the last such call.

Without the moves 3 to 8 dB are lost."""
FILL_INTERVAL_CALLS = 3
"""From call 80 on, every third call fills in the details that sampling has lost.

If the true motion is given, the result has 45.07 dB. With the best sampling, and no details filled
in, it has 44.34 dB."""
MAX_WARM_SIGMA, N_WARM_MOVES = 0.2, 3
"""First: if the first σ of a run is at most 0.2, the run starts from a good cube. Second: the first
call of such a run moves the picture three times.

In such a run every third call fills in the lost details, and so does every call that moves the
picture."""
MIN_MOTION_PIXELS = 0.15
"""A motion that moves the corners by fewer pixels counts as none: the picture is kept as it is."""
MAX_MOTION_FRACTION = 0.12
"""A motion that moves the corners by more than this fraction of the longer side is refused."""


class Guide(System):
    """An ordinary camera, without mask or disperser: each channel sums the bands with its response.

        y[g, h, w] = Σ_c R[g, c] · x[c, h, w]

    Args:
        response: R, `(G, C)` or `(C,)`, finite: sensitivity of every channel to every band. A
            panchromatic camera has one row.
        size: (H, W). None: `Stacked` sets the size to that of its other systems.

    Raises:
        ValueError: the response has another shape, holds NaN or infinity, or a channel's row is
            zero.

    >>> Guide([1.0, 1.0, 1.0], size=(1, 2))(torch.ones(1, 3, 1, 2))
    tensor([[[[3., 3.]]]])
    """

    response: Tensor
    axis = -1

    def __init__(self, response: Array, size: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.register_buffer("response", as_response(response))
        self.size = None if size is None else (int(size[0]), int(size[1]))
        self.part_axis = -2

    def sized(self, height: int, width: int) -> Guide:
        """Return the camera of scenes of this size."""
        return Guide(self.response, (height, width))

    @property
    def cube_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.response.shape[1], *self._require_size()

    @property
    def measurement_shape(self) -> tuple[int, int, int]:
        """(G, H, W)."""
        return self.response.shape[0], *self._require_size()

    def _require_size(self) -> tuple[int, int]:
        if self.size is None:
            raise ValueError("Guide: expected a size=(H, W), or a place in cassi.Stacked")
        return self.size

    def forward(self, x: Tensor) -> Tensor:
        """Take the picture: `(B, C, H, W)` → `(B, G, H, W)`."""
        check_shape("x", x, self.cube_shape)
        return (self.response.to(x) @ x.flatten(2)).unflatten(2, x.shape[2:])

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose: `(B, G, H, W)` → `(B, C, H, W)`."""
        check_shape("y", y, self.measurement_shape)
        return (self.response.to(y).mT @ y.flatten(2)).unflatten(2, y.shape[2:])

    def gram_solve(self, r: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve (RRᵀ + diag ρ) z = r at every pixel, as `cassi.ops.gram_solve`."""
        check_shape("y", r, self.measurement_shape)
        response = self.response.to(torch.promote_types(self.response.dtype, torch.float32))
        gram = (response @ response.mT)[:, :, None, None].expand(-1, -1, *r.shape[2:])
        return ops.gram_solve(r, gram.contiguous(), rho)

    def part(self, start: int, stop: int) -> Guide:
        """Return the camera of the rows `start` to `stop`; see `System.part`."""
        return self.part_along(-2, start, stop)

    def part_along(self, axis: int, start: int, stop: int) -> Guide:
        """Return the camera of the rows (columns for axis -1) `start` to `stop`."""
        height, width = self._require_size()
        if axis == -2:
            return self.sized(stop - start, width)
        return self.sized(height, stop - start)

    def extra_repr(self) -> str:
        """Return the sizes in one line."""
        channels, bands = self.response.shape
        return f"channels={channels}, bands={bands}, size={self.size}"


class Guided(DelegatingWrapper):
    """A camera together with a guide's picture of the scene.

    It measures as the camera alone. If a solver works on spectral components, every iteration pulls
    them towards the picture; see `GuidedPrior`.

    Args:
        system: the camera, with or without bad pixels.
        picture: g, `(G, H, W)` or `(1|B, G, H, W)`, linear in light, of any exposure and white
            balance. NaN where the guide does not show the scene.
        response: R, `(G, C)`; see `Guide`.
        noise: standard deviation of g relative to its root mean square, > 0.
        motion: motion from the cube to the picture, `(4,)`, about the centre: down and right in
            pixels, angle in radians, logarithm of the scale. None: the picture lies on the cube.
        follow: whether every run of a solver refines the motion, starting from `motion`.

    Raises:
        ValueError: the sizes do not fit, or the picture is dark.
    """

    system: System
    guide: Guide
    movable: Movable
    picture: Tensor
    is_visible: Tensor
    is_guided = True

    def __init__(
        self,
        system: System,
        picture: Array,
        response: Array,
        noise: float = 0.01,
        motion: Tensor | None = None,
        follow: bool = False,
    ) -> None:
        super().__init__(system)
        bands, height, width = system.cube_shape
        guide = Guide(response, (height, width))
        g = torch.as_tensor(picture)
        g = g[(None,) * (4 - g.ndim)] if g.ndim < 4 else g
        if guide.response.shape[1] != bands:
            raise ValueError(
                f"guide: expected a response (G, C) for {bands} bands, "
                f"got {tuple(guide.response.shape)}"
            )
        if tuple(g.shape[1:]) != guide.measurement_shape:
            raise ValueError(
                f"guide: expected a picture (G, H, W) = {guide.measurement_shape} as response and "
                f"cube say, got {tuple(g.shape[1:])}"
            )
        if not noise > 0:
            raise ValueError(f"guide: expected a noise > 0, got {noise}")
        reference = next(iter([*system.parameters(), *system.buffers()]))
        g = g.to(reference.device, torch.promote_types(reference.dtype, torch.float32))
        self.guide, self.noise, self.follow = guide.to(reference.device), noise, follow
        self.movable = Movable(g)
        self._set_motion(torch.zeros(4, dtype=torch.float64) if motion is None else motion)
        if not bool((self.picture.square().sum((2, 3)) > 0).all()):
            raise ValueError("guide: expected light in every channel, got a dark one")

    def _set_motion(self, motion: Tensor) -> None:
        """Sample the picture with a motion."""
        self.motion, self.last_motion = motion, LastMotion(motion)
        g = self.movable(motion)
        self.register_buffer("picture", torch.nan_to_num(g))
        self.register_buffer("is_visible", g.isfinite().all(1, keepdim=True).to(g.dtype))

    def _wrap(self, system: System) -> Guided:
        """Return the guide around another camera."""
        # A shallow copy shares the picture and `last_motion`. A run stores the motion that it
        # estimates in `last_motion`, so the user's camera gets it too.
        guided_camera = copy.copy(self)
        guided_camera._buffers, guided_camera._modules = dict(self._buffers), dict(self._modules)
        guided_camera.system = system
        return guided_camera

    def moved(self, motion: Tensor) -> Guided:
        """Return the camera with another motion of the picture, which every run refines."""
        moved_camera = self._wrap(self.system)
        moved_camera.follow = True
        moved_camera._set_motion(motion)
        return moved_camera

    def around_prior(self, prior: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return the prior of a run, pulled towards the picture if it has spectral components."""
        return GuidedPrior(prior, self) if has_components(prior) else prior

    def weighted(self, variance: Array | None = None, bad_pixels: Array | None = None) -> Guided:
        """Return the weighted camera with the same guide."""
        return self._wrap(self.system.weighted(variance, bad_pixels))

    def part(self, start: int, stop: int) -> Guided:
        """Return the camera of a part of the scene, with the same part of the moved picture."""
        axis = self.part_axis
        assert axis is not None
        g = torch.where(self.is_visible > 0, self.picture, torch.nan)
        g = g.narrow(axis, start, stop - start)
        part_camera = self._wrap(self.system.part(start, stop))
        part_camera.movable = Movable(g)
        part_camera._set_motion(torch.zeros_like(self.motion))
        return part_camera

    def begin(self) -> Guided:
        """Return the camera for one run of a solver; see `System.begin`."""
        return self._wrap(self.system.begin())

    def extra_repr(self) -> str:
        """Return the noise in one line."""
        return f"noise={self.noise:g}"


@dataclass
class LastMotion:
    """The motion that the last run of a whole scene estimated, `(4,)`; see `Guided`."""

    motion: Tensor


class GuidedPrior(PulledPrior):
    """The prior of one run on spectral components, with a pull towards a guide's picture.

        c ← c + GᵀRᵀ (R F GᵀRᵀ + ν m I)⁻¹ (D g − R F c)

    c are the prior's components. F c is their cube, Gᵀ x are the components of a cube x, and F Gᵀ
    projects onto the subspace. m is the mean of the diagonal of R F GᵀRᵀ. The pull is the proximal
    map of a penalty on ‖D g − R F c‖², in the metric of the cube. D = diag(d) holds the exposure of
    each channel, fitted to the present cube.

    If `camera.follow`, every fifth call up to call 80 first moves the picture towards R F c by a
    step of Gauss–Newton. The measurement fixes the position of the cube, so these steps converge to
    the motion of the picture.

    Sampling the picture between its pixels loses fine details. So late calls take the finest
    details from the prediction p = R F c, and all else from the picture: they use p + V (D g − W p)
    in place of the sampled picture. W samples p on the pixels of the picture, and V samples the
    difference on the pixels of the cube.
    """

    def __init__(self, prior: ComponentPrior, camera: Guided) -> None:
        super().__init__(prior, ENERGY_DIVISOR, MIN_START_RANK)
        self.camera, self.calls, self.is_warm = camera, 0, False
        self.motion = camera.motion
        self.matrices_basis: Basis | None = None
        self._set_picture(torch.where(camera.is_visible > 0, camera.picture, torch.nan))

    def pull(self, components: Tensor, sigma: float | Tensor) -> Tensor:
        """Move the picture if this call has to, and pull components `(B, R, H, W)` towards it."""
        projection, pull_matrix = self._get_matrices()
        c, channels = components.flatten(2), projection.shape[1]
        self.calls += 1
        p = (projection @ c).view(-1, channels, *components.shape[2:])
        # A run that starts from zero begins with a larger σ than one that starts from a good cube.
        if self.calls == 1:
            self.is_warm = float(torch.as_tensor(sigma).max()) <= MAX_WARM_SIGMA
        moves = self._count_moves() if self.camera.follow else 0
        for _ in range(moves):
            self._move_picture(p)
        fills_in = self.is_warm or self.calls >= LAST_MOVE_CALL
        if fills_in and (moves or self.calls % FILL_INTERVAL_CALLS == 0):
            self._set_picture(self.camera.movable.fill_details(self.motion, p))
        g, p = self.picture.flatten(2), p.flatten(2)
        if not self.is_whole:
            p = p * self.is_visible.flatten(2)  # p and g are 0 where g is not visible: no pull
        exposure = (torch.linalg.vecdot(g, p) / self.power).clamp_min(0)[..., None]
        residual = torch.addcmul(-p, exposure, g)
        return torch.baddbmm(c, pull_matrix.expand(len(c), -1, -1), residual).view_as(components)

    def _get_matrices(self) -> tuple[Tensor, Tensor]:
        """Return R F, `(B, channels, components)`, and the matrix that multiplies D g − R F c.

        The second matrix is `(B, components, channels)`. Both are kept until the basis changes.
        """
        basis = self.prior.basis
        if basis is not self.matrices_basis:
            r = self.camera.guide.response.to(basis.synthesis.dtype)
            projection, transpose = r @ basis.synthesis, basis.analysis.mT @ r.mT
            gram = projection @ transpose  # symmetric
            mean_diagonal = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
            identity = torch.eye(len(r), dtype=gram.dtype, device=gram.device)
            # A noisier picture pulls less. Below 1 % of noise the pull stays the same.
            damping = DAMPING * max(1.0, self.camera.noise / 0.01)
            damped_gram = gram + damping * mean_diagonal * identity
            pull_matrix = torch.linalg.solve(damped_gram, transpose.mT).mT.contiguous()
            self.matrices, self.matrices_basis = (projection, pull_matrix), basis
        return self.matrices

    def _count_moves(self) -> int:
        if self.calls == 1:
            return N_WARM_MOVES if self.is_warm else 0
        return int(self.calls % MOVE_INTERVAL_CALLS == 0 and self.calls <= LAST_MOVE_CALL)

    def _move_picture(self, prediction: Tensor) -> None:
        visible_picture = torch.where(self.is_visible > 0, self.picture, torch.nan)
        motion = self.motion - step_towards(visible_picture, prediction)
        size = prediction.shape[2:]
        if not float(max_corner_shift(motion, *size)) < MAX_MOTION_FRACTION * max(size):
            return  # NaN compares as false, so a motion that is not finite is refused too
        if float(max_corner_shift(motion, *size)) < MIN_MOTION_PIXELS:
            motion = torch.zeros_like(motion)
        self._set_picture(self.camera.movable(motion))
        self.motion = self.camera.last_motion.motion = motion

    def _set_picture(self, g: Tensor) -> None:
        is_finite = g.isfinite().all(1, True)
        self.is_whole = bool(is_finite.all())
        self.picture = g if self.is_whole else torch.nan_to_num(g)
        self.is_visible = is_finite.to(g.dtype)
        self.power = torch.linalg.vecdot(self.picture.flatten(2), self.picture.flatten(2))


def as_response(response: Array) -> Tensor:  # (G, C)
    """Check a response, `(G, C)` or `(C,)`; see `Guide`.

    Raises:
        ValueError: it has another shape, holds NaN or infinity, or a row is zero.
    """
    r = torch.as_tensor(response).detach().clone()
    r = r if r.is_floating_point() else r.to(torch.get_default_dtype())
    r = r[None] if r.ndim == 1 else r
    if r.ndim != 2 or 0 in r.shape:
        raise ValueError(f"response: expected (G, C) or (C,), got shape {tuple(r.shape)}")
    if not bool(r.isfinite().all()):
        raise ValueError("response: expected finite numbers, got NaN or infinity")
    if not bool((r != 0).any(1).all()):
        raise ValueError("response: expected every channel to see a band, got a row of zeros")
    return r
