"""A camera of one's own: two shapes, A and Aᵀ. Every method then runs on it."""

import torch
from torch import Tensor

import cassi
from cassi.data.bundled import bundled_path
from cassi.systems import System


class FilterArray(System):
    """A sensor with a filter on every pixel, y = Σ_c f_c·x_c, and no disperser.

    Args:
        filters: transmission f, (C, H, W), 0 to 1.
    """

    filters: Tensor

    def __init__(self, filters: Tensor) -> None:
        super().__init__()
        self.register_buffer("filters", filters)

    @property
    def cube_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        bands, height, width = self.filters.shape
        return bands, height, width

    @property
    def measurement_shape(self) -> tuple[int, int, int]:
        """(K, H', W')."""
        return (1, *self.cube_shape[1:])

    def forward(self, x: Tensor) -> Tensor:
        """A x."""
        return (self.filters * x).sum(1, keepdim=True)

    def adjoint(self, y: Tensor) -> Tensor:
        """Aᵀ y."""
        return self.filters * y

    def gram_solve(self, r: Tensor, rho: float | Tensor = 0.0) -> Tensor:
        """(AAᵀ + ρI)⁻¹ r: AAᵀ is diagonal here; without this, conjugate gradients solve it."""
        gram = self.filters.square().sum(0)
        return r / (gram + rho).clamp_min(1e-12)


def main(size: int = 256, method: str = "gap_tv") -> float:
    """Return the PSNR, dB, behind random filters of a few broad bands each."""
    scene = cassi.read_cube(bundled_path("scene.tif"))[..., :size, :size]
    random = torch.Generator().manual_seed(0)
    centre = 28 * torch.rand(4, 1, size, size, generator=random)
    band = torch.arange(28.0)[:, None, None]
    filters = torch.exp(-(((band - centre) / 3) ** 2)).sum(0).clamp(max=1)  # (28, H, W)
    camera = FilterArray(filters)
    cassi.dot_test(camera, verbose=True)  # ⟨Ax, y⟩ = ⟨x, Aᵀy⟩, else no method works
    x = cassi.reconstruct(camera(scene), camera, method=method)
    psnr = float(cassi.metrics.psnr(x, scene).mean())
    print(f"{method}: {psnr:.2f} dB")
    return psnr


if __name__ == "__main__":
    main()
