"""What a band is called."""

import math
from collections.abc import Sequence

import numpy as np


def name_band(
    band: int,
    wavelengths: Sequence[float] | np.ndarray | None,
    errors: Sequence[float] | None = None,
) -> str:
    """Gives the wavelength of a band, from 0, with its standard error where that is known.

    The error has one significant digit, or two where the first is a 1. The wavelength ends at the
    same decimal place, and neither has more than tenths. An error below 0.05 nm is left out.

    >>> name_band(0, [604.6], [2.3]), name_band(0, [604.6], [1.23]), name_band(0, [604.6])
    ('605 ± 2 nm', '604.6 ± 1.2 nm', '604.6 nm')
    """
    if wavelengths is None:
        return f"band {band + 1}"
    wavelength, error = float(wavelengths[band]), 0.0 if errors is None else float(errors[band])
    if not 0.1 <= round(error, 1) < math.inf:
        return f"{round(wavelength, 1):g} nm"
    digits, power = f"{error:e}".split("e")
    places = min(1, digits.startswith("1") - int(power))
    texts = (f"{round(each, places):.{max(0, places)}f}" for each in (wavelength, error))
    return f"{' ± '.join(texts)} nm"
