"""Refractive indices of the glasses that prisms are made of."""

from __future__ import annotations

import difflib
import math

# Sellmeier coefficients B1 B2 B3, C1 C2 C3 (µm²), relative to air at 20 °C: SCHOTT optical glass
# catalogue (schott_2017-01-20b.agf). Fused silica: Malitson, J. Opt. Soc. Am. 55, 1205 (1965),
# whose C are squares of resonances.
# fmt: off
_BK7 = (1.03961212, 0.231792344, 1.01046945, 0.00600069867, 0.0200179144, 103.560653)
SELLMEIER: dict[str, tuple[float, float, float, float, float, float]] = {
    "BK7": _BK7,
    "N-BK7": _BK7,
    "N-BAK4": (1.28834642, 0.132817724, 0.945395373, 0.00779980626, 0.0315631177, 105.965875),
    "F2": (1.34533359, 0.209073176, 0.937357162, 0.00997743871, 0.0470450767, 111.886764),
    "N-F2": (1.39757037, 0.159201403, 1.2686543, 0.00995906143, 0.0546931752, 119.248346),
    "SF2": (1.40301821, 0.231767504, 0.939056586, 0.0105795466, 0.0493226978, 112.405955),
    "N-SF2": (1.47343127, 0.163681849, 1.36920899, 0.0109019098, 0.0585683687, 127.404933),
    "SF10": (1.61625977, 0.259229334, 1.07762317, 0.0127534559, 0.0581983954, 116.60768),
    "SF11": (1.73848403, 0.311168974, 1.17490871, 0.0136068604, 0.0615960463, 121.922711),
    "N-SF11": (1.73759695, 0.313747346, 1.89878101, 0.013188707, 0.0623068142, 155.23629),
    "fused silica": (0.6961663, 0.4079426, 0.8974794, 0.0684043**2, 0.1162414**2, 9.896161**2),
}
# fmt: on


def refractive_index(glass: str, wavelength: float) -> float:
    """Return the index of a glass, relative to air, n² = 1 + Σ_i B_i λ² / (λ² − C_i).

    Args:
        glass: a name of `SELLMEIER`.
        wavelength: λ in nm, 300 to 2500 (the formula's range).

    Raises:
        ValueError: the glass is unknown, or the wavelength is outside.

    >>> round(refractive_index("N-BK7", 587.5618), 5)
    1.5168
    """
    coefficients = SELLMEIER.get(glass)
    if coefficients is None:
        near = difflib.get_close_matches(str(glass).upper(), SELLMEIER, n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"glass: expected one of {', '.join(SELLMEIER)}, got {glass!r}{hint}")
    if not 300 <= wavelength <= 2500:
        raise ValueError(f"wavelengths: expected 300 to 2500 nm for a prism, got {wavelength}")
    square = (wavelength / 1000) ** 2
    terms = zip(coefficients[:3], coefficients[3:], strict=True)
    return math.sqrt(1 + sum(b * square / (square - c) for b, c in terms))
