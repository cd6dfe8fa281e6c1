"""What single dispersers have in common whose optics couple pixels in both directions."""

from torch import nn

from cassi.systems.coded import CodedSystem
from cassi.systems.conjugate import ConjugateGradients
from cassi.systems.sd_cassi import SDCassi


class CoupledCassi(CodedSystem):
    """A single disperser whose optics couple pixels: AAᵀ is inverted by conjugate gradients.

    The plain camera is the same without those optics, and gives mask and sizes.
    """

    def __init__(self, plain: SDCassi, tolerance: float | None, iterations: int) -> None:
        super().__init__()
        self.bands, self.step, self.axis = plain.bands, plain.step, plain.axis
        self.detector, self._offsets = plain.detector, plain.offsets
        self.conjugate = ConjugateGradients(tolerance, iterations)
        if isinstance(plain.mask, nn.Parameter):
            self.mask = plain.mask
        else:
            self.register_buffer("mask", plain.mask)
