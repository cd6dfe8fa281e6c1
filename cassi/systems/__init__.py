"""Camera models: linear operators from cube to measurement."""

from cassi.systems.base import System, dot_test
from cassi.systems.blurred import BlurredCassi
from cassi.systems.conjugate import ConjugateGradients, SolveReport
from cassi.systems.curves import Curve, Dispersion, Linear, Polynomial, Prism
from cassi.systems.dd_cassi import DDCassi
from cassi.systems.dispersion import fitting_dispersions, infer_bands
from cassi.systems.learnable import LearnableMask
from cassi.systems.masks import check_mask
from cassi.systems.patterns import BlueNoiseMask, MaskPattern, RandomMask
from cassi.systems.sd_cassi import SDCassi
from cassi.systems.shifted_masks import unshift_masks
from cassi.systems.warped import WarpedCassi

__all__ = [
    "BlueNoiseMask",
    "BlurredCassi",
    "ConjugateGradients",
    "Curve",
    "DDCassi",
    "Dispersion",
    "LearnableMask",
    "Linear",
    "MaskPattern",
    "Polynomial",
    "Prism",
    "RandomMask",
    "SDCassi",
    "SolveReport",
    "System",
    "WarpedCassi",
    "check_mask",
    "dot_test",
    "fitting_dispersions",
    "infer_bands",
    "unshift_masks",
]
