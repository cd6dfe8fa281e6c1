"""A guide: a picture of the scene by an ordinary camera, beside the coded snapshot."""

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
from cassi.systems.base import Relay, System
from cassi.systems.motion import Movable, corners, step_towards

DAMPING = 0.5
"""ν of `Following` for a picture with 1 % of noise, from training scenes."""
KEPT, RANK = 50.0, 6
"""With a guide weak components are kept down to 1/50 of the energy, and 6 at the start."""
EVERY, LAST = 5, 80
"""Every fifth call of a run may move the picture, up to call 80."""
FILLED = 3
"""From call 80 on every third call fills in what the moved picture cannot show."""
SURE, AT_ONCE = 0.2, 3
"""A run whose first σ is not above 0.2 starts from a good cube: its first call moves thrice, and
fills in, as every third call does from then on."""
LEAST = 0.15
"""Pixels: a picture whose corners are less far off is left as it is."""
MOST = 0.12
"""Of the longer side: a motion of the corners beyond it is not believed."""


class Guide(System):
    """An ordinary camera, without mask or disperser: each channel sums the bands with its response.

        y[g, h, w] = Σ_c R[g, c] · x[c, h, w]

    Args:
        response: R, `(G, C)` or `(C,)`, finite: sensitivity of every channel to every band. A
            panchromatic camera has one row.
        size: (H, W); None: `Stacked` sets that of the systems beside it.

    Raises:
        ValueError: the response has another shape, holds NaN or infinity, or a channel sees no
            band.

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
        return self.response.shape[1], *self._known_size()

    @property
    def measurement_shape(self) -> tuple[int, int, int]:
        """(G, H, W)."""
        return self.response.shape[0], *self._known_size()

    def _known_size(self) -> tuple[int, int]:
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
        wide = self.response.to(torch.promote_types(self.response.dtype, torch.float32))
        gram = (wide @ wide.mT)[:, :, None, None].expand(-1, -1, *r.shape[2:])
        return ops.gram_solve(r, gram.contiguous(), rho)

    def part(self, start: int, stop: int) -> Guide:
        """Return the camera of the rows start to stop."""
        return self.part_along(-2, start, stop)

    def part_along(self, axis: int, start: int, stop: int) -> Guide:
        """Return the camera of the rows (columns for the axis -1) start to stop."""
        height, width = self._known_size()
        return self.sized(*((stop - start, width) if axis == -2 else (height, stop - start)))

    def extra_repr(self) -> str:
        """Return the sizes in one line."""
        channels, bands = self.response.shape
        return f"channels={channels}, bands={bands}, size={self.size}"


class Guided(Relay):
    """A camera with a picture of its scene from a guide beside it.

    It measures as the camera alone. Solvers that work on spectral components pull these towards the
    picture in every iteration; see `Following`.

    Args:
        system: the camera, its bad pixels left out or not.
        picture: g, `(G, H, W)` or `(1|B, G, H, W)`, linear in light, of any exposure and white
            balance. NaN where the guide saw nothing of the scene.
        response: R, `(G, C)`; see `Guide`.
        noise: standard deviation of g relative to its root mean square, > 0.
        motion: from the cube to the picture, `(4,)`: down and right in pixels, angle in radians,
            logarithm of the scale, about the centre. None: the picture lies on the cube.
        follow: every run finds the motion more closely, from this one on.

    Raises:
        ValueError: the sizes do not fit, or the picture is dark.
    """

    system: System
    guide: Guide
    movable: Movable
    picture: Tensor
    seen: Tensor
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
        like = next(iter([*system.parameters(), *system.buffers()]))
        g = g.to(like.device, torch.promote_types(like.dtype, torch.float32))
        self.guide, self.noise, self.follow = guide.to(like.device), noise, follow
        self.movable = Movable(g)
        self._place(torch.zeros(4, dtype=torch.float64) if motion is None else motion)
        if not bool((self.picture.square().sum((2, 3)) > 0).all()):
            raise ValueError("guide: expected light in every channel, got a dark one")

    def _place(self, motion: Tensor) -> None:
        """Show the picture where a motion has it."""
        self.motion, self.found = motion, Found(motion)
        g = self.movable(motion)
        self.register_buffer("picture", torch.nan_to_num(g))
        self.register_buffer("seen", g.isfinite().all(1, keepdim=True).to(g.dtype))

    def _around(self, system: System) -> Guided:
        """Return another camera with the same guide."""
        other = copy.copy(self)
        other._buffers, other._modules = dict(self._buffers), dict(self._modules)
        other.system = system
        return other

    def moved(self, motion: Tensor) -> Guided:
        """Return the camera with the picture elsewhere, which every run is to find more closely."""
        other = self._around(self.system)
        other.follow = True
        other._place(motion)
        return other

    def around_prior(self, prior: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return the prior of a run, pulled towards the picture if it has spectral components."""
        return Following(prior, self) if has_components(prior) else prior

    def weighted(self, variance: Array | None = None, bad_pixels: Array | None = None) -> Guided:
        """Return the weighted camera with the same guide."""
        return self._around(self.system.weighted(variance, bad_pixels))

    def part(self, start: int, stop: int) -> Guided:
        """Return the camera of a part of the scene, with that part of the picture in its place."""
        axis = self.part_axis
        assert axis is not None
        g = torch.where(self.seen > 0, self.picture, torch.nan).narrow(axis, start, stop - start)
        other = self._around(self.system.part(start, stop))
        other.movable = Movable(g)
        other._place(torch.zeros_like(self.motion))
        return other

    def begin(self) -> Guided:
        """Return what a run of a solver uses in this camera's place."""
        return self._around(self.system.begin())

    def extra_repr(self) -> str:
        """Return the noise in one line."""
        return f"noise={self.noise:g}"


@dataclass
class Found:
    """Where the last run of a whole scene found the picture: `(4,)`, see `Guided`."""

    motion: Tensor


class Following(PulledPrior):
    """The prior of one run on spectral components, with a pull towards a guide's picture.

        c ← c + GᵀRᵀ (R F GᵀRᵀ + ν m I)⁻¹ (D g − R F c)

    c are the prior's components, F makes the cube of them, G takes components of a cube, and F Gᵀ
    projects onto the subspace. m is the mean of the diagonal of the first term. It is the proximal
    map of a penalty on ‖D g − R F c‖², in the metric of the cube. D = diag(d) is the exposure of
    each channel: it fits the picture to the present cube.

    Where the camera follows, some calls first move the picture towards R F c by a step of
    Gauss–Newton. The measurement holds the components where they belong, so these steps end where
    the picture lies. A picture that is sampled anew has lost what lies between its pixels. So late
    calls follow p + V (D g − W p), p = R F c, in its place: the difference is taken in the
    picture's pixels (W moves there, V back), and the cube keeps what the picture cannot show.
    """

    def __init__(self, prior: ComponentPrior, camera: Guided) -> None:
        super().__init__(prior, KEPT, RANK)
        self.camera, self.calls, self.sure = camera, 0, False
        self.motion = camera.motion
        self.known: Basis | None = None
        self._show(torch.where(camera.seen > 0, camera.picture, torch.nan))

    def pull(self, components: Tensor, sigma: float | Tensor) -> Tensor:
        """Move the picture where that is due, and pull components `(B, R, H, W)` to it."""
        through, back = self._matrices()
        c, channels = components.flatten(2), through.shape[1]
        self.calls += 1
        p = (through @ c).view(-1, channels, *components.shape[2:])
        if self.calls == 1:
            self.sure = float(torch.as_tensor(sigma).max()) <= SURE
        moves = self._moves() if self.camera.follow else 0
        for _ in range(moves):
            self._move(p)
        late = self.sure or self.calls >= LAST
        if late and (moves or self.calls % FILLED == 0):
            self._show(self.camera.movable.filled(self.motion, p))
        g, p = self.picture.flatten(2), p.flatten(2)
        if not self.whole:
            p = p * self.seen.flatten(2)  # both 0 where g saw nothing
        gain = (torch.linalg.vecdot(g, p) / self.power).clamp_min(0)[..., None]
        left = torch.addcmul(-p, gain, g)
        return torch.baddbmm(c, back.expand(len(c), -1, -1), left).view_as(components)

    def _matrices(self) -> tuple[Tensor, Tensor]:
        """Return R F, `(B, G, R)`, and what is added per unit of D g − R F c, `(B, R, G)`."""
        basis = self.prior.basis
        if basis is not self.known:
            r = self.camera.guide.response.to(basis.synthesis.dtype)
            through, back = r @ basis.synthesis, basis.analysis.mT @ r.mT
            gram = through @ back  # symmetric
            size = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
            eye = torch.eye(len(r), dtype=gram.dtype, device=gram.device)
            damped = gram + DAMPING * max(1.0, self.camera.noise / 0.01) * size * eye
            self.known = basis
            self.matrices = through, torch.linalg.solve(damped, back.mT).mT.contiguous()
        return self.matrices

    def _moves(self) -> int:
        if self.calls == 1:
            return AT_ONCE if self.sure else 0
        return int(self.calls % EVERY == 0 and self.calls <= LAST)

    def _move(self, predicted: Tensor) -> None:
        here = torch.where(self.seen > 0, self.picture, torch.nan)
        motion = self.motion - step_towards(here, predicted)
        size = predicted.shape[2:]
        if not float(corners(motion, *size)) < MOST * max(size):
            return  # also where it is not finite
        if float(corners(motion, *size)) < LEAST:
            motion = torch.zeros_like(motion)
        self._show(self.camera.movable(motion))
        self.motion = self.camera.found.motion = motion

    def _show(self, g: Tensor) -> None:
        seen = g.isfinite().all(1, True)
        self.whole = bool(seen.all())
        self.picture, self.seen = g if self.whole else torch.nan_to_num(g), seen.to(g.dtype)
        self.power = torch.linalg.vecdot(self.picture.flatten(2), self.picture.flatten(2))


def as_response(response: Array) -> Tensor:  # (G, C)
    """Check a response, `(G, C)` or `(C,)`; see `Guide`."""
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
