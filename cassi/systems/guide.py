"""A guide: a picture of the scene by an ordinary camera, beside the coded snapshot."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cassi import ops
from cassi.systems.arguments import check_shape
from cassi.systems.base import Around, System

DAMPING = 0.5
"""ν of `Guided.pull` for a picture with 1 % of noise, from training scenes."""


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

    def __init__(self, response: Any, size: tuple[int, int] | None = None) -> None:
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


class Guided(Around):
    """A camera with a picture of its scene from a guide beside it.

    It measures as the camera alone. Solvers that work on spectral components pull these towards the
    picture in every iteration; see `pull`.

    Args:
        system: the camera, its bad pixels left out or not.
        picture: g, `(G, H, W)` or `(1|B, G, H, W)`, linear in light, of any exposure and white
            balance. NaN where the guide saw nothing of the scene.
        response: R, `(G, C)`; see `Guide`.
        noise: standard deviation of g relative to its root mean square, > 0.

    Raises:
        ValueError: the sizes do not fit, or the picture is dark.
    """

    system: System
    guide: Guide
    picture: Tensor
    seen: Tensor

    def __init__(self, system: System, picture: Any, response: Any, noise: float = 0.01) -> None:
        super().__init__()
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
        seen = g.isfinite().all(1, keepdim=True)
        g = torch.where(seen, g, 0)
        if not bool((g.square().sum((2, 3)) > 0).all()):
            raise ValueError("guide: expected light in every channel, got a dark one")
        self.system, self.guide, self.noise = system, guide.to(like.device), noise
        self.register_buffer("picture", g)
        self.register_buffer("seen", seen.to(g.dtype))
        self.sees_all = bool(seen.all())
        self.conjugate, self.part_axis = system.conjugate, system.part_axis

    def pull(self, components: Tensor, synthesis: Tensor, analysis: Tensor) -> Tensor:
        """Pull the components of a cube F c towards the picture.

            c ← c + GᵀRᵀ (R F GᵀRᵀ + ν m I)⁻¹ (D g − R F c)

        G and F are analysis and synthesis, F Gᵀ projects onto the subspace, m is the mean of
        the diagonal of the first term. It is the proximal map of a penalty on ‖D g − R F c‖², in
        the metric of the cube. D = diag(d) is the exposure of each channel: it fits the picture to
        the present cube.

        Args:
            components: c, `(B, R, H, W)`.
            synthesis: F, `(B, C, R)`.
            analysis: G, `(B, C, R)`.
        """
        r = self.guide.response.to(components.dtype)
        through, back = r @ synthesis, analysis.mT @ r.mT  # (B, G, R), (B, R, G)
        gram = through @ back
        eye = torch.eye(len(r), dtype=gram.dtype, device=gram.device)
        size = gram.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
        damped = gram + DAMPING * max(1.0, self.noise / 0.01) * size * eye
        c, g = components.flatten(2), self.picture.flatten(2)
        p = through @ c
        gain = torch.linalg.vecdot(g, p) / torch.linalg.vecdot(g, g)  # g is 0 where it saw nothing
        p = p if self.sees_all else p * self.seen.flatten(2)
        left = torch.addcmul(-p, gain.clamp_min(0)[..., None], g)
        back = torch.linalg.solve(damped, back.mT).mT  # the matrix is symmetric
        return torch.baddbmm(c, back.expand(len(c), -1, -1), left).view_as(components)

    @property
    def plain(self) -> System:
        """The camera with all its pixels, without the guide."""
        return self.system.plain

    @property
    def good_pixels(self) -> Tensor | None:
        """Of the camera."""
        return self.system.good_pixels

    def forward(self, x: Tensor) -> Tensor:
        """Simulate the measurement of the camera."""
        y: Tensor = self.system(x)
        return y

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the camera's transpose."""
        return self.system.adjoint(y)

    def add_adjoint(self, v: Tensor, y: Tensor) -> Tensor:
        """Return v + Aᵀy."""
        return self.system.add_adjoint(v, y)

    def forward_subspace(self, components: Tensor, basis: Tensor) -> Tensor:
        """Simulate the measurement of the cube E a."""
        return self.system.forward_subspace(components, basis)

    def adjoint_subspace(self, y: Tensor, basis: Tensor) -> Tensor:
        """Return the components Eᵀ Aᵀ y."""
        return self.system.adjoint_subspace(y, basis)

    def gram_product(self, y: Tensor) -> Tensor:
        """Return A Aᵀ y."""
        return self.system.gram_product(y)

    def gram_solve(self, r: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve (AAᵀ + diag ρ) z = r, as the camera does."""
        return self.system.gram_solve(r, rho)

    def data_step(self, v: Tensor, y: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """Solve argmin_x ½‖Ax − y‖² + ρ/2‖x − v‖², as the camera does."""
        return self.system.data_step(v, y, rho)

    def without_bad_pixels(self, y: Tensor) -> Tensor:
        """Return the measurement with zeros for the camera's bad pixels."""
        return self.system.without_bad_pixels(y)

    def weighted(self, variance: Any = None, bad_pixels: Any = None) -> Any:
        """Return the weighted camera with the same guide."""
        return self._around(self.system.weighted(variance, bad_pixels))

    def part(self, start: int, stop: int) -> Guided:
        """Return the camera of a part of the scene, with that part of the picture."""
        inner, axis = self.system.part(start, stop), self.part_axis
        assert axis is not None
        g, seen = (v.narrow(axis, start, stop - start) for v in (self.picture, self.seen))
        return self._around(inner, g, seen)

    def begin(self) -> Any:
        """Return what a run of a solver uses in this camera's place."""
        return self._around(self.system.begin())

    def _around(self, system: Any, g: Tensor | None = None, seen: Tensor | None = None) -> Guided:
        other = Guided.__new__(Guided)
        nn.Module.__init__(other)
        if isinstance(system, nn.Module):
            other.add_module("system", system)
        else:  # of one run
            object.__setattr__(other, "system", system)
        other.guide, other.noise = self.guide, self.noise
        other.register_buffer("picture", self.picture if g is None else g)
        other.register_buffer("seen", self.seen if seen is None else seen)
        other.sees_all = self.sees_all
        other.conjugate, other.part_axis = self.conjugate, self.part_axis
        return other

    def extra_repr(self) -> str:
        """Return the noise in one line."""
        return f"noise={self.noise:g}"


def as_response(response: Any) -> Tensor:  # (G, C)
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
