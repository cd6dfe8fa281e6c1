"""The base class of single dispersers whose optics couple pixels in both directions."""

from torch import nn

from cassi.systems.coded import CodedSystem
from cassi.systems.conjugate import ConjugateGradients
from cassi.systems.sd_cassi import SDCassi


class CoupledCassi(CodedSystem):
    """A single disperser whose optics couple pixels: AAᵀ is inverted by conjugate gradients.

    Args:
        disperser: the camera without these optics; it gives mask, offsets and sizes.
        tolerance: relative tolerance of conjugate gradients; see `ConjugateGradients`.
        iterations: most iterations of conjugate gradients.
    """

    def __init__(self, disperser: SDCassi, tolerance: float | None, iterations: int) -> None:
        super().__init__()
        self.bands, self.step, self.axis = disperser.bands, disperser.step, disperser.axis
        self.detector, self._offsets = disperser.detector, disperser.offsets
        self.conjugate = ConjugateGradients(tolerance, iterations)
        if isinstance(disperser.mask, nn.Parameter):
            self.mask = disperser.mask
        else:
            self.register_buffer("mask", disperser.mask)
