"""A mask that is learned together with what reconstructs from it."""

from __future__ import annotations

from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

__all__ = ["LearnableMask"]

S = TypeVar("S", bound=nn.Module)


class LearnableMask(nn.Module):
    """A mask in [0, 1] with free parameters.

    `learnable()` is the mask; `learnable.place_in(camera)` makes it the camera's, so that every
    method of the camera sees its present value and passes gradients on to it.

    Args:
        mask: where learning starts: transmission in [0, 1], of any shape; see
            `cassi.systems.RandomMask`.
        constraint: "sigmoid", m = 1 / (1 + e^{−p}): p is free; a start at 0 or 1 is moved to 1e-3
            from there, where it can still change. "clamp", m = p cut to [0, 1]: a gradient that
            would lead out is set to zero, so that gradient descent is a projected one.

    Raises:
        TypeError: the mask is not of real numbers.
        ValueError: it has values outside of [0, 1], or the constraint is unknown.
    """

    def __init__(self, mask: Tensor, constraint: Literal["sigmoid", "clamp"] = "sigmoid") -> None:
        super().__init__()
        if not isinstance(mask, Tensor) or mask.is_complex():
            raise TypeError(f"mask: expected a tensor of real numbers, got {type(mask).__name__}")
        if constraint not in ("sigmoid", "clamp"):
            raise ValueError(f"constraint: expected 'sigmoid' or 'clamp', got {constraint!r}")
        start = mask.detach().clone()
        start = start if start.is_floating_point() else start.to(torch.get_default_dtype())
        if not bool(((start >= 0) & (start <= 1)).all()):
            raise ValueError("mask: expected transmissions in [0, 1] to start from")
        self.constraint = constraint
        self.values = nn.Parameter(start.logit(1e-3) if constraint == "sigmoid" else start)

    def forward(self) -> Tensor:
        """Return the mask, in [0, 1], of the shape that it started with."""
        if self.constraint == "sigmoid":
            return self.values.sigmoid()
        cut = self.values.clamp(0, 1)
        outside = (self.values - cut).detach()  # its sign is the side
        mask = self.values - outside
        if mask.requires_grad:
            mask.register_hook(lambda gradient: gradient * (outside * gradient >= 0))
        return mask

    def place_in(self, system: S) -> S:
        """Make this the mask of a camera, and its parameters the camera's.

        Args:
            system: a camera with a buffer `mask`, changed in place; several may share one mask.

        Returns:
            The same camera.

        Raises:
            ValueError: its mask has another number of elements.
        """
        given = system.get_buffer("mask")
        if given.numel() != self.values.numel():
            raise ValueError(
                f"mask: expected the camera's shape {tuple(given.shape)}, got "
                f"{tuple(self.values.shape)}"
            )
        parametrize.register_parametrization(system, "mask", _Taken(self))
        return system


class _Taken(nn.Module):
    """Gives a camera the present mask instead of its own."""

    def __init__(self, source: LearnableMask) -> None:
        super().__init__()
        self.source = source

    def forward(self, own: Tensor) -> Tensor:
        mask = self.source().to(own).view_as(own)
        if not torch.is_grad_enabled():
            # A camera derives its gram afresh only for a mask that asks for gradients; this one
            # changes with every step of the optimizer.
            mask = mask.detach().requires_grad_()
        return mask

    def extra_repr(self) -> str:
        return f"constraint={self.source.constraint}"
