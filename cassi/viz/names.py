"""Format the names of bands for labels: the wavelength, with its standard error."""

import math
from collections.abc import Sequence

import numpy as np


def name_band(
    band: int,
    wavelengths: Sequence[float] | np.ndarray | None,
    errors: Sequence[float] | None = None,
) -> str:
    """Return the label of a band: its wavelength, with the standard error if that is known.

    The error has one significant digit, or two if the first digit is a 1. The wavelength is rounded
    to the same decimal place. Neither has more than one decimal. An error below 0.05 nm is left
    out.

    Args:
        band: number of the band, from 0.
        wavelengths: (C,), nm; None names the band by its number.
        errors: standard errors of the wavelengths, (C,), nm, if known.

    >>> name_band(0, [604.6], [2.3]), name_band(0, [604.6], [1.23]), name_band(0, [604.6])
    ('605 ± 2 nm', '604.6 ± 1.2 nm', '604.6 nm')
    """
    if wavelengths is None:
        return f"band {band + 1}"
    wavelength, error = float(wavelengths[band]), 0.0 if errors is None else float(errors[band])
    if not 0.1 <= round(error, 1) < math.inf:
        return f"{round(wavelength, 1):g} nm"
    # The error decides how many decimal places both numbers have. It keeps one significant digit,
    # or two if the first digit is a 1: 1 would be too coarse for 1.4.
    digits, power = f"{error:e}".split("e")
    places = min(1, digits.startswith("1") - int(power))
    texts = (f"{round(value, places):.{max(0, places)}f}" for value in (wavelength, error))
    return f"{' ± '.join(texts)} nm"
