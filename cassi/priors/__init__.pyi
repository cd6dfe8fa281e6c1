from .denoiser import Denoiser
from .low_rank import LowRank
from .moving_patches import MovingPatches
from .non_local import NonLocalLowRank
from .sequence import Compose, Stages
from .spectral_tv import SpectralTV
from .subspace import Subspace
from .tv import TV
from .wavelet import Wavelet

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
