"""How much a camera amplifies: the step length of gradient methods."""

from __future__ import annotations

import torch
from torch import Tensor

from cassi.solvers.base import LinearSystem
from cassi.solvers.reading import reading_of

_FLOOR = 1e-3  # keeps the vector positive where the detector is dark


@torch.no_grad()
def largest_eigenvalue(y: Tensor, system: LinearSystem, steps: int = 8) -> Tensor:
    """Bound λ_max(AAᵀ) = ‖A‖² from above by power iteration.

        λ_max <= max_i (AAᵀv)_i / v_i   for every v > 0

    holds because no entry of AAᵀ is negative: a camera adds light. From v = 1 the bound is exact
    where AAᵀ is diagonal, one shot; power iteration tightens it for several shots.

    Args:
        y: a measurement, for its shape, dtype and device.
        system: the camera.
        steps: power iterations.

    Returns:
        The smallest of the bounds, a scalar > 0; 1 if A = 0.

    Source: Horn, Johnson, "Matrix analysis", 2nd ed., 2013, theorem 8.1.26.
    """
    reading = reading_of(system)
    if reading is not None:
        return reading.largest_eigenvalue.to(y)
    vector = torch.ones_like(y[:1])
    bounds = []
    for _ in range(steps):
        image = system(system.adjoint(vector))
        bounds.append((image / vector).amax())
        vector = image / image.amax().clamp_min(torch.finfo(y.dtype).tiny) + _FLOOR
    bound = torch.stack(bounds).amin()
    return torch.where(bound > 0, bound, torch.ones_like(bound))
