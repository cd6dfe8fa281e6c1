"""Infer the number of bands from the sizes of mask and measurement and the step."""

import math

# If the detector ends less than this far from the end of the bands, bands and step are assumed to
# be right, and the first advice is to set the detector's length. If it ends farther away, another
# number of bands or another step is likelier, and the list of these comes first.
_MAX_END_ERROR_PIXELS = 3


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
    span = detector_length - mask_length
    return [(span // step + 1, step) for step in range(1, span + 1) if span % step == 0]


def infer_bands(
    mask_length: int, detector_length: int, step: float, bands: int | None = None
) -> int:
    """Return the number of bands that fits mask, detector and step.

        detector − mask = ⌈(bands − 1)·|step|⌉

    Args:
        mask_length: pixels of the mask along the dispersion.
        detector_length: pixels of the measurement along the dispersion.
        step: pixels per band, whole or not.
        bands: the expected number, which is checked; None accepts any number that fits.

    Raises:
        ValueError: no number of bands fits this step, or `bands` does not; the message lists what
            would fit. Or several numbers fit a step below one pixel.

    >>> infer_bands(256, 279, -1.5)
    16
    """
    if bands is not None and bands < 1:
        raise ValueError(f"system.bands: expected at least 1, got {bands}")
    span = detector_length - mask_length
    fits = fitting_dispersions(mask_length, detector_length)
    fitting_bands = {float(size): count for count, size in fits}.get(abs(step))
    if not float(step).is_integer():
        fitting_bands = _fit_fractional_step(span, step, bands)
    if step == 0 and span == 0:
        if bands is None:
            raise ValueError(
                "system.bands: expected the number of bands, got none; with system.step=0 no size "
                "shows it"
            )
        return bands
    if span == 0 and bands in (None, 1):
        return 1
    if fitting_bands is not None and bands in (None, fitting_bands):
        return fitting_bands
    expectation = f"{bands} bands and step {step:g}" if bands is not None else f"step {step:g}"
    if span < 0:
        hint = "the measurement is smaller than the mask"
    elif span == 0:
        hint = "equal sizes leave no room for dispersion (only 1 band, or step 0)"
    else:
        nearest_fits = sorted(fits, key=lambda fit: abs(fit[1] - abs(step)))
        options = ", ".join(f"{count} bands x step {size}" for count, size in nearest_fits[:4])
        hint = f"what would fit: {options} (either sign)"
        hint = _add_detector_advice(hint, detector_length, span, step, bands)
        if bands is not None and bands > 1 and span % (bands - 1) and hint.startswith("what"):
            # No whole step gives this number of bands, but a fractional one does: the last band
            # may end anywhere in the last pixel. Steps are rounded inwards to a thousandth.
            min_step = (math.floor(1000 * (span - 1) / (bands - 1)) + 1) / 1000
            max_step = math.floor(1000 * span / (bands - 1)) / 1000
            steps = f"what would fit: {bands} bands x step {min_step:g} to {max_step:g},"
            hint = hint.replace("what would fit:", steps, 1)
    raise ValueError(
        f"measurement: {detector_length} pixels along the dispersion do not fit a mask of "
        f"{mask_length}, {expectation}; {hint}"
    )


def _add_detector_advice(
    hint: str, detector: int, span: int, step: float, bands: int | None
) -> str:
    """Add the advice to set the detector's length: before the hint if that is likelier."""
    count = bands or (math.floor(span / abs(step) + 1e-9) + 1 if step else 1)
    if step == 0 or count == 1:
        return hint
    overhang = span - (count - 1) * abs(step)
    advice = f"set system.detector={detector}"
    if bands is None:
        advice = f"set system.bands={count} system.detector={detector}"
    if abs(overhang) < _MAX_END_ERROR_PIXELS:
        return f"{advice}, which {say_end(overhang)}; {hint}"
    if 0 <= overhang < span:
        return f"{hint}; or {advice} if it reaches beyond the bands"
    return hint


def say_end(overhang: float) -> str:
    """Say by how many pixels a detector ends beyond the bands, or before them."""
    size = f"{abs(overhang):.3g}"
    size += " pixel" if size == "1" else " pixels"
    return (
        f"reaches {size} beyond the bands" if overhang >= 0 else f"ends {size} before the bands do"
    )


def _fit_fractional_step(span: int, step: float, bands: int | None) -> int | None:
    """Return how many bands a fractional step spreads over `span` pixels; None if none fits."""
    # ⌈(bands − 1)·|step|⌉ = span, solved for the bands. `Dispersion.offsets` rounds to 1e-9 pixels,
    # so the same margin keeps a product like 53.99999999 from losing a band.
    min_bands = math.floor((span - 1) / abs(step) + 1e-9) + 2 if span > 0 else 1
    max_bands = math.floor(span / abs(step) + 1e-9) + 1
    if bands is None and min_bands < max_bands:
        raise ValueError(
            f"system.bands: expected the number of bands, got none; {min_bands} to {max_bands} "
            f"bands fit system.step={step:g}"
        )
    if min_bands > max_bands or (bands is not None and not min_bands <= bands <= max_bands):
        return None
    return max_bands if bands is None else bands
