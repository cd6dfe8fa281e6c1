from .arguments import spaced_offsets
from .band_numbers import fitting_dispersions, infer_bands
from .base import System, Weighted, dot_test
from .blurred import BlurredCassi
from .conjugate import ConjugateGradients, SolveReport
from .dd_cassi import DDCassi
from .dispersion import (
    Curve,
    Dispersion,
    Linear,
    Polynomial,
    Prism,
)
from .guide import Guide, Guided
from .mask_patterns import (
    BlueNoiseMask,
    ColourMask,
    Complementary,
    HoleMask,
    MaskPattern,
    OpenMask,
    RandomMask,
)
from .masks import LearnableMask, check_mask, unshift_masks
from .mosaic import MosaicCassi
from .psf import PsfCassi, TurningPsf
from .sd_cassi import SDCassi
from .stacked import Stacked
from .tilted import TiltedCassi
from .warped import WarpedCassi

__all__ = [
    "BlueNoiseMask",
    "BlurredCassi",
    "ColourMask",
    "Complementary",
    "ConjugateGradients",
    "Curve",
    "DDCassi",
    "Dispersion",
    "Guide",
    "Guided",
    "HoleMask",
    "LearnableMask",
    "Linear",
    "MaskPattern",
    "MosaicCassi",
    "OpenMask",
    "Polynomial",
    "Prism",
    "PsfCassi",
    "RandomMask",
    "SDCassi",
    "SolveReport",
    "Stacked",
    "System",
    "TiltedCassi",
    "TurningPsf",
    "WarpedCassi",
    "Weighted",
    "check_mask",
    "dot_test",
    "fitting_dispersions",
    "infer_bands",
    "spaced_offsets",
    "unshift_masks",
]
