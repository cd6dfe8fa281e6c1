"""Losses: RMSE, its logarithm, the Charbonnier loss, and a sum over the stages of a network."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cassi.checks import check_loss


class RMSE(nn.Module):
    """Root mean square error, of each cube or of the whole batch.

        mean_b √(mean_chw (x_b − t_b)²)   or   √(mean_bchw (x − t)²)

    The first does not depend on how a batch is divided among devices. The second is the loss in the
    public code of MST and DAUHST. With one cube per batch both are equal.

    Args:
        batch: True computes the second, False the first.
    """

    def __init__(self, batch: bool = False) -> None:
        super().__init__()
        self.batch = batch

    def forward(self, x: Tensor, truth: Tensor) -> Tensor:
        """Compare `(B, C, H, W)` with the truth of the same shape; return one number.

        Raises:
            ValueError: the shapes differ, or are not `(B, C, H, W)`.
        """
        _check_shapes(x, truth)
        error = (x.float() - truth).square()
        mean = error.mean() if self.batch else error.mean((1, 2, 3))
        # The slope of the square root is infinite at zero. With the lower limit, the gradient of an
        # error below the smallest normal number is zero.
        return mean.clamp_min(torch.finfo(mean.dtype).tiny).sqrt().mean()


class LogRMSE(nn.Module):
    """The logarithm of the root mean square error of each cube.

        mean_b ln √(mean_chw (x_b − t_b)²)

    Minimizing it maximizes the mean PSNR. A decibel has the same weight in simple and in difficult
    scenes, whereas difficult scenes dominate the mean `RMSE`.
    """

    def forward(self, x: Tensor, truth: Tensor) -> Tensor:
        """Compare `(B, C, H, W)` with the truth of the same shape; return one number.

        Raises:
            ValueError: the shapes differ, or are not `(B, C, H, W)`.
        """
        _check_shapes(x, truth)
        mean = (x.float() - truth).square().mean((1, 2, 3))
        # A mean square error of 1e-8, a PSNR of 80 dB, is good enough: smaller errors get no
        # gradient. The limit also avoids the logarithm of zero.
        return mean.clamp_min(1e-8).log().mean() / 2


class Charbonnier(nn.Module):
    """A smooth absolute error, mean √((x − t)² + ε²).

    Args:
        eps: ε > 0. The loss is quadratic in errors much smaller than ε, and linear in larger ones.

    Raises:
        ValueError: eps is not > 0.
    """

    def __init__(self, eps: float = 1e-3) -> None:
        super().__init__()
        if not eps > 0:
            raise ValueError(f"Charbonnier eps: expected a number > 0, got {eps!r}")
        self.eps = eps

    def forward(self, x: Tensor, truth: Tensor) -> Tensor:
        """Compare `(B, C, H, W)` with the truth of the same shape; return one number.

        Raises:
            ValueError: the shapes differ, or are not `(B, C, H, W)`.
        """
        _check_shapes(x, truth)
        return ((x.float() - truth).square() + self.eps**2).sqrt().mean()


class MultiStage(nn.Module):
    """A loss on the last stages of an unrolled network: Σ_i w_i · base(x_i, t).

    It is for networks with a method `outputs(y, system)`, which returns the cubes of all stages,
    the last stage first. Of any other network, the single output is compared.

    Args:
        weights: w_i, the last stage first; further stages have the weight 0.
        base: the loss of one stage, by default `RMSE`.

    Raises:
        ValueError: there is no weight, or a weight is negative.

    Source: DPU and SSR train with (1, 0.7, 0.5, 0.3).
    """

    def __init__(
        self, weights: Sequence[float] = (1.0, 0.7, 0.5, 0.3), base: nn.Module | None = None
    ) -> None:
        super().__init__()
        if not weights or min(weights) < 0:
            raise ValueError(f"MultiStage weights: expected numbers >= 0, got {weights!r}")
        self.weights = tuple(float(weight) for weight in weights)
        self.base = RMSE() if base is None else base

    def forward(self, outputs: Sequence[Tensor] | Tensor, truth: Tensor) -> Tensor:
        """Compare cubes `(B, C, H, W)`, the last stage first, with the truth.

        Raises:
            ValueError: the loss of a stage is not one number.
        """
        cubes = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        terms = [self.base(x, truth) for _, x in zip(self.weights, cubes, strict=False)]
        for term in terms:
            check_loss(self.base, term, needs_gradient=False)
        weighted_terms = [w * term for w, term in zip(self.weights, terms, strict=False)]
        return torch.stack(weighted_terms).sum()


def _check_shapes(x: Tensor, truth: Tensor) -> None:
    if x.shape != truth.shape or x.ndim != 4:
        raise ValueError(
            f"loss: expected two cubes (B, C, H, W) of one shape, got {tuple(x.shape)} and "
            f"{tuple(truth.shape)}"
        )
