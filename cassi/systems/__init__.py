"""Camera models: linear operators from cube to measurement."""

from cassi.systems.base import System, dot_test
from cassi.systems.curves import Curve, Dispersion, Linear, Polynomial, Prism
from cassi.systems.dispersion import fitting_dispersions, infer_bands
from cassi.systems.masks import check_mask
from cassi.systems.sd_cassi import SDCassi

__all__ = [
    "Curve",
    "Dispersion",
    "Linear",
    "Polynomial",
    "Prism",
    "SDCassi",
    "System",
    "check_mask",
    "dot_test",
    "fitting_dispersions",
    "infer_bands",
]
