"""Priors: callables `(cube, sigma) -> cube`."""

from cassi.priors.denoiser import Denoiser
from cassi.priors.low_rank import LowRank
from cassi.priors.moving_patches import MovingPatches
from cassi.priors.non_local import NonLocalLowRank
from cassi.priors.sequence import Compose, Stages
from cassi.priors.spectral_tv import SpectralTV
from cassi.priors.subspace import Subspace
from cassi.priors.tv import TV
from cassi.priors.wavelet import Wavelet

__all__ = [
    "TV",
    "Compose",
    "Denoiser",
    "LowRank",
    "MovingPatches",
    "NonLocalLowRank",
    "SpectralTV",
    "Stages",
    "Subspace",
    "Wavelet",
]
