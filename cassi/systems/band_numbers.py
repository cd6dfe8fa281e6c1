"""How many bands the sizes of a mask and a measurement leave room for."""

import math

_NEAR = 3
"""Pixels by which a detector is taken to end elsewhere, and the camera to be right."""


def fitting_dispersions(mask_length: int, detector_length: int) -> list[tuple[int, int]]:
    """List all (bands, |step|) with detector = mask + (bands − 1)·|step|, smallest step first.

    Args:
        mask_length: pixels of the mask along the dispersion.
        detector_length: pixels of the measurement along the dispersion.

    Returns:
        Pairs with at least two bands and a step of at least one pixel; empty if none fits.

    >>> fitting_dispersions(256, 260)
    [(5, 1), (3, 2), (2, 4)]
    """
    extra = detector_length - mask_length
    return [(extra // step + 1, step) for step in range(1, extra + 1) if extra % step == 0]


def infer_bands(
    mask_length: int, detector_length: int, step: float, bands: int | None = None
) -> int:
    """Return the number of bands that fits mask, detector and step.

        detector − mask = ⌈(bands − 1)·|step|⌉

    Args:
        mask_length: pixels of the mask along the dispersion.
        detector_length: pixels of the measurement along the dispersion.
        step: pixels per band, whole or not.
        bands: the expected number, to check; None accepts what fits.

    Raises:
        ValueError: no number of bands fits this step, or `bands` does not; the message lists what
            would fit. Or several numbers fit a step below one pixel.

    >>> infer_bands(256, 279, -1.5)
    16
    """
    if bands is not None and bands < 1:
        raise ValueError(f"system.bands: expected at least 1, got {bands}")
    extra = detector_length - mask_length
    fits = fitting_dispersions(mask_length, detector_length)
    found = {float(size): count for count, size in fits}.get(abs(step))
    if not float(step).is_integer():
        found = _fractional_fit(extra, step, bands)
    if step == 0 and extra == 0:
        if bands is None:
            raise ValueError(
                "system.bands: expected the number of bands, got none; with system.step=0 no size "
                "shows it"
            )
        return bands
    if extra == 0 and bands in (None, 1):
        return 1
    if found is not None and bands in (None, found):
        return found
    wanted = f"{bands} bands and step {step:g}" if bands is not None else f"step {step:g}"
    if extra < 0:
        hint = "the measurement is smaller than the mask"
    elif extra == 0:
        hint = "equal sizes leave no room for dispersion (only 1 band, or step 0)"
    else:
        near = sorted(fits, key=lambda fit: abs(fit[1] - abs(step)))
        options = ", ".join(f"{count} bands x step {size}" for count, size in near[:4])
        hint = f"what would fit: {options} (either sign)"
        hint = _with_detector(hint, detector_length, extra, step, bands)
        if bands is not None and bands > 1 and extra % (bands - 1) and hint.startswith("what"):
            least = math.floor(1000 * (extra - 1) / (bands - 1)) + 1  # thousandths of a pixel
            most = math.floor(1000 * extra / (bands - 1))
            own = f"what would fit: {bands} bands x step {least / 1000:g} to {most / 1000:g},"
            hint = hint.replace("what would fit:", own, 1)
    raise ValueError(
        f"measurement: {detector_length} pixels along the dispersion do not fit a mask of "
        f"{mask_length}, {wanted}; {hint}"
    )


def _with_detector(hint: str, detector: int, extra: int, step: float, bands: int | None) -> str:
    """Return a hint with the detector's end before it, where that is likelier, or behind it."""
    count = bands or (math.floor(extra / abs(step) + 1e-9) + 1 if step else 1)
    if step == 0 or count == 1:
        return hint
    beyond = extra - (count - 1) * abs(step)
    longer = f"set system.detector={detector}"
    if bands is None:
        longer = f"set system.bands={count} system.detector={detector}"
    if abs(beyond) < _NEAR:  # no other camera, a detector that ends a little further on
        return f"{longer}, which {say_end(beyond)}; {hint}"
    return f"{hint}; or {longer} if it reaches beyond the bands" if 0 <= beyond < extra else hint


def say_end(beyond: float) -> str:
    """Say by how many pixels a detector ends beyond the bands, or before them."""
    size = f"{abs(beyond):.3g}"
    size += " pixel" if size == "1" else " pixels"
    return f"reaches {size} beyond the bands" if beyond >= 0 else f"ends {size} before the bands do"


def _fractional_fit(extra: int, step: float, bands: int | None) -> int | None:
    """Return how many bands a fractional step spreads over `extra` pixels; None if none fits."""
    # The last digits are those that `Dispersion.offsets` drops.
    least = math.floor((extra - 1) / abs(step) + 1e-9) + 2 if extra > 0 else 1
    most = math.floor(extra / abs(step) + 1e-9) + 1
    if bands is None and least < most:
        raise ValueError(
            f"system.bands: expected the number of bands, got none; {least} to {most} bands fit "
            f"system.step={step:g}"
        )
    if least > most or (bands is not None and not least <= bands <= most):
        return None
    return most if bands is None else bands
