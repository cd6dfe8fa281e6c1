"""The camera whose mask and bands lie where they were found."""

import torch
from torch import Tensor

from cassi.camera.displacement import ALONG, BLURS, DISPLACEMENTS, MOVES_BANDS, moved_mask
from cassi.systems import SDCassi, TiltedCassi


def moved_camera(
    system: SDCassi, values: dict[str, float], pivot: float | None = None
) -> SDCassi | TiltedCassi:
    r"""Return a camera with its mask and its bands elsewhere, on the same detector.

        o'(c) = o(c) + bands + step·z + curve·(3z² − 1)/2,   z = (o(c) − middle)/reach

    and tilt·z pixels across the dispersion; all else moves the mask, see `moved_mask`.

    No snapshot tells a shift of the mask alone from one of mask and scene. With a pivot the scene
    lies where the nominal camera has it at that place of the spectrum, and the mask takes the rest.

    The first band stays with a `pivot` of 0, the last with 1; None leaves both where they were
    found.
    """
    offsets = torch.tensor(system.offsets, dtype=torch.float64)
    middle = float(offsets[[0, -1]].mean())
    z = (offsets - middle) / max(float((offsets[-1] - offsets[0]).abs()) / 2, 1.0)
    along = values["bands"] + values["step"] * z
    across = values["tilt"] * z
    mask = {key: value for key, value in values.items() if key not in MOVES_BANDS}
    if pivot is not None:
        beside, aside = (float(torch.lerp(each[0], each[-1], pivot)) for each in (along, across))
        mask |= {"along": mask["along"] + beside, "across": mask["across"] + aside}
        along, across = along - beside, across - aside
    along = along + values["curve"] * (3 * z * z - 1) / 2
    moves = any(mask[key] for key in (*DISPLACEMENTS, *ALONG, "blur") if key in mask)
    found = moved_mask(system, mask, parts=1) if moves else system.mask
    return placed_camera(
        system, found, (offsets + along).tolist(), across if values["tilt"] else None
    )


def placed_camera(
    system: SDCassi, mask: Tensor, offsets: list[float], across: Tensor | None = None
) -> SDCassi | TiltedCassi:
    """Return a camera with another mask and other places of the bands, on the same detector."""
    if across is not None:
        tilted = TiltedCassi(
            mask,
            system.bands,
            offsets=offsets,
            across=across,
            axis=system.axis,
            detector=system.measurement_shape[system.axis],
            tolerance=1e-3,
            iterations=10,
        )
        return system.tell(tilted)
    if mask is system.mask and tuple(offsets) == tuple(system.offsets):
        return system
    return system.like(mask=mask, offsets=offsets)


def unmoved() -> dict[str, float]:
    """Return the values of a camera that is as it should be."""
    return dict.fromkeys((*DISPLACEMENTS, *ALONG), 0.0) | dict.fromkeys(BLURS, 0.0)
