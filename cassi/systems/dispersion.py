"""Which numbers of bands and steps explain the size of a detector."""

from __future__ import annotations


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


def infer_bands(mask_length: int, detector_length: int, step: int, bands: int | None = None) -> int:
    """Return the number of bands that fits, or `bands` when it does.

    Raises:
        ValueError: no number of bands fits this step, or `bands` is not the one that does; the
            message lists what would fit.
    """
    if bands is not None and bands < 1:
        raise ValueError(f"system.bands: expected at least 1, got {bands}")
    extra = detector_length - mask_length
    fits = fitting_dispersions(mask_length, detector_length)
    found = {size: count for count, size in fits}.get(abs(step))
    if step == 0 and extra == 0:
        if bands is None:
            raise ValueError("system.bands: expected the number of bands, which step 0 leaves open")
        return bands
    if extra == 0 and bands in (None, 1):
        return 1
    if found is not None and bands in (None, found):
        return found
    wanted = f"{bands} bands and step {step}" if bands is not None else f"step {step}"
    if extra < 0:
        hint = "the measurement is smaller than the mask"
    elif extra == 0:
        hint = "equal sizes leave no room for dispersion (only 1 band, or step 0)"
    else:
        options = ", ".join(f"{count} bands x step {size}" for count, size in fits)
        hint = f"what would fit: {options} (either sign)"
    raise ValueError(
        f"measurement: {detector_length} pixels along the dispersion do not fit a mask of "
        f"{mask_length}, {wanted}; {hint}"
    )
