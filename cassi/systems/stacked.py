"""Several cameras that measure one scene, as one system."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from cassi.ops._checks import canonical_damping
from cassi.systems.arguments import check_shape
from cassi.systems.base import System
from cassi.systems.conjugate import Apply
from cassi.systems.guide import Guide


class Stacked(System):
    r"""Systems that measure one cube, each with its own detector: A x = (A₁x, A₂x, …).

    One tensor holds all measurements: `y = stacked.pack([y1, y2])` is `(B, ΣKᵢ, max H', max W')`,
    the channels of the first system, then the channels of the second, …. Smaller measurements are
    padded with zeros below and to the right. `stacked.split(y)` returns the measurements. The data
    step is weighted:

        argmin_x ½ Σ_i w_i ‖A_i x − y_i‖² + ρ/2 ‖x − v‖²

    AAᵀ couples the detectors, so it is inverted by conjugate gradients. If every system solves in
    closed form, the preconditioner applies the inverse of each A_i A_iᵀ + ρ/w_i I.

    Args:
        systems: at least one, all with the same cube shape. A `Guide` without a size takes
            the size of the others.
        weights: w_i > 0, one per system: relative inverse variance of its noise. None: 1 for all.

    Raises:
        TypeError: an entry is no system.
        ValueError: no system has a size, cube shapes differ, or there is not one finite weight > 0
            per system.

    >>> from cassi.systems import SDCassi
    >>> both = Stacked([SDCassi(torch.ones(4, 6), bands=3, step=1), Guide(torch.ones(1, 3))])
    >>> both.measurement_shape
    (2, 4, 8)
    >>> [tuple(y.shape) for y in both.split(both(torch.ones(1, 3, 4, 6)))]
    [(1, 1, 4, 8), (1, 1, 4, 6)]
    """

    def __init__(self, systems: Sequence[System], weights: Sequence[float] | None = None) -> None:
        super().__init__()
        systems = list(systems)
        for system in systems:
            if not isinstance(system, System):
                raise TypeError(f"Stacked: expected systems, got {type(system).__name__}")
        sized_systems = [s for s in systems if not (isinstance(s, Guide) and s.size is None)]
        if not sized_systems:
            raise ValueError("Stacked: expected a system with a height and width, got none")
        shape = sized_systems[0].cube_shape
        systems = [
            s.sized(*shape[1:]) if isinstance(s, Guide) and s.size is None else s for s in systems
        ]
        shapes = [system.cube_shape for system in systems]
        if any(cube_shape != shape for cube_shape in shapes):
            shape_list = " and ".join(map(str, dict.fromkeys(shapes)))
            raise ValueError(f"Stacked: expected systems of one cube (C, H, W), got {shape_list}")
        self.weights = [1.0] * len(systems) if weights is None else [float(w) for w in weights]
        if len(self.weights) != len(systems) or not all(0 < w < torch.inf for w in self.weights):
            raise ValueError(
                f"Stacked weights: expected {len(systems)} finite numbers > 0, got {weights}"
            )
        self.systems = nn.ModuleList(systems)
        self.conjugate = sized_systems[0].conjugate
        # A guide can be cut along either axis, so the other systems decide.
        axes = {s.part_axis for s in systems if not isinstance(s, Guide)}
        if not axes:
            self.part_axis = -2
        else:
            self.part_axis = axes.pop() if len(axes) == 1 else None

    @property
    def parts(self) -> list[System]:
        """The systems, in order."""
        return list(self.systems)  # type: ignore[arg-type]

    @property
    def axis(self) -> int:  # type: ignore[override]
        """Axis of the first system's dispersion, -1 or -2."""
        return self.parts[0].axis

    @property
    def cube_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.parts[0].cube_shape

    @property
    def measurement_shape(self) -> tuple[int, int, int]:
        """(ΣK, max H', max W')."""
        shots, heights, widths = zip(*(s.measurement_shape for s in self.parts), strict=True)
        return sum(shots), max(heights), max(widths)

    def split(self, y: Tensor) -> list[Tensor]:
        """Return the measurement of every system: `(B, ΣK, H', W')` → `(B, K_i, H'_i, W'_i)`."""
        check_shape("y", y, self.measurement_shape)
        shapes = [system.measurement_shape for system in self.parts]
        pieces = y.split([shots for shots, _, _ in shapes], 1)
        return [piece[..., :h, :w] for piece, (_, h, w) in zip(pieces, shapes, strict=True)]

    def without_guide(self, y: Tensor) -> tuple[Tensor, System, tuple[Tensor, Tensor] | None]:
        """Separate a camera and its guide: return y, camera, and the guide's picture and response.

        A stack that is not one camera and one guide is returned as it is, with None.
        """
        guides = [n for n, part in enumerate(self.parts) if isinstance(part, Guide)]
        if len(self.parts) != 2 or len(guides) != 1:
            return y, self, None
        measurements, guide = self.split(y), self.parts[guides[0]]
        assert isinstance(guide, Guide)
        coded_index = 1 - guides[0]
        camera = self.parts[coded_index]
        assert isinstance(camera, System)
        return measurements[coded_index], camera, (measurements[guides[0]], guide.response)

    def pack(self, measurements: Sequence[Tensor]) -> Tensor:
        """Return one tensor of the measurements of all systems, in their order.

        Raises:
            ValueError: there is not one measurement per system, or a shape does not fit its system.
        """
        if len(measurements) != len(self.systems):
            raise ValueError(
                f"pack: expected {len(self.systems)} measurements, got {len(measurements)}"
            )
        _, height, width = self.measurement_shape
        for y, system in zip(measurements, self.parts, strict=True):
            check_shape("y", y, system.measurement_shape)
        padded = [pad(y, (0, width - y.shape[-1], 0, height - y.shape[-2])) for y in measurements]
        return torch.cat(padded, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Simulate the measurements: `(B, C, H, W)` → `(B, ΣK, H', W')`."""
        return self.pack([system(x) for system in self.parts])

    def adjoint(self, y: Tensor) -> Tensor:
        """Apply the transpose, Σ_i A_iᵀ y_i: `(B, ΣK, H', W')` → `(B, C, H, W)`."""
        first_pair, *pairs = zip(self.parts, self.split(y), strict=True)
        x = first_pair[0].adjoint(first_pair[1])
        for system, piece in pairs:
            x = x + system.adjoint(piece)
        return x

    def forward_subspace(self, components: Tensor, basis: Tensor) -> Tensor:
        """Simulate the measurements of the cube E a, as the systems do."""
        return self.pack([system.forward_subspace(components, basis) for system in self.parts])

    def adjoint_subspace(self, y: Tensor, basis: Tensor) -> Tensor:
        """Return the components Eᵀ Aᵀ y, as the systems do."""
        pieces = zip(self.parts, self.split(y), strict=True)
        return torch.stack([s.adjoint_subspace(piece, basis) for s, piece in pieces]).sum(0)

    def part(self, start: int, stop: int) -> Stacked:
        """Return the systems of a part of the scene; see `System.part`."""
        if self.part_axis is None:
            super().part(start, stop)
        axis = -2 if self.part_axis is None else self.part_axis
        parts = [
            system.part_along(axis, start, stop)
            if isinstance(system, Guide)
            else system.part(start, stop)
            for system in self.parts
        ]
        return Stacked(parts, self.weights)

    def _solve(self, r: Tensor, rho: float | Tensor, start: Tensor | None) -> Tensor:
        if any(weight != 1 for weight in self.weights):
            check_shape("y", r, self.measurement_shape)
            shots = [system.measurement_shape[0] for system in self.parts]
            system_weights = torch.tensor(self.weights, dtype=torch.float64).repeat_interleave(
                torch.tensor(shots)
            )
            rho_map = canonical_damping(rho, r, r)
            # w‖Ax − y‖² with damping ρ is ‖Ax − y‖² with damping ρ/w at the pixels of a system.
            rho = (rho_map / system_weights.to(rho_map)[:, None, None]).expand(-1, *r.shape[1:])
        return super()._solve(r, rho, start)

    def _precondition(self, rho: Tensor) -> Apply | None:
        if any(type(system).gram_solve is System.gram_solve for system in self.parts):
            return None
        rho = rho.view(-1, 1, 1, 1) if rho.ndim == 1 else rho
        rho = rho.expand(-1, *self.measurement_shape).detach()
        # Beside a smaller detector AAᵀ is zero, so AAᵀ + ρ is ρ. With ρ = 0 any
        # divisor > 0 serves, because the adjoint does not read these pixels.
        divisor = torch.where(rho == 0, 1, rho)
        is_inside = self.pack([torch.ones_like(piece) for piece in self.split(rho)]) > 0

        def apply(r: Tensor) -> Tensor:
            pairs = zip(self.parts, self.split(r), self.split(rho), strict=True)
            solution = self.pack([s.gram_solve(piece.contiguous(), d) for s, piece, d in pairs])
            return torch.where(is_inside, solution, r / divisor)

        return apply

    def extra_repr(self) -> str:
        """Return the weights in one line."""
        return f"weights={self.weights}"
