"""Camera models: linear operators from cube to measurement."""

from cassi.systems.arguments import spaced_offsets
from cassi.systems.base import System, Weighted, dot_test
from cassi.systems.blurred import BlurredCassi
from cassi.systems.conjugate import ConjugateGradients, SolveReport
from cassi.systems.dd_cassi import DDCassi
from cassi.systems.dispersion import (
    Curve,
    Dispersion,
    Linear,
    Polynomial,
    Prism,
    fitting_dispersions,
    infer_bands,
)
from cassi.systems.guide import Guide, Guided
from cassi.systems.masks import (
    BlueNoiseMask,
    ColourMask,
    Complementary,
    HoleMask,
    LearnableMask,
    MaskPattern,
    OpenMask,
    RandomMask,
    check_mask,
    unshift_masks,
)
from cassi.systems.mosaic import MosaicCassi
from cassi.systems.psf import PsfCassi, TurningPsf
from cassi.systems.sd_cassi import SDCassi
from cassi.systems.stacked import Stacked
from cassi.systems.tilted import TiltedCassi
from cassi.systems.warped import WarpedCassi

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
