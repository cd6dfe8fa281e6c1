"""Priors: callables `(cube, sigma) -> cube`."""

from cassi.priors.tv import TV

__all__ = ["TV"]
