"""The job of `cassi-camera`: show where the bands of a camera fall on its detector."""

from typing import Any

import torch
from torch import Tensor

from cassi.apps.camera.camera import make_camera_alone
from cassi.apps.camera.rename import rename_bands
from cassi.apps.command import Run, prepare_process
from cassi.apps.inputs import load_snapshot
from cassi.apps.results import write_numbers
from cassi.apps.settings import Camera
from cassi.data.atomic import atomic_folder
from cassi.systems.band_positions import SIDES, BandPosition, describe_loss, find_places

CPU = torch.device("cpu")


def show_camera(settings: Camera, run: Run) -> float:
    """Print, draw and write where the bands of a camera fall.

    Returns:
        Pixels by which the worst band falls beside the detector, for sweeps.

    Raises:
        ValueError: a band falls beside the detector by more than two pixels. Picture and table are
            already written then.
    """
    from cassi.viz.camera import save_camera

    prepare_process(settings)
    if settings.rename is not None:
        rename_bands(settings, run.folder)
        return 0.0
    if settings.measurement is not None or settings.truth is not None:
        snapshot = load_snapshot(settings, CPU)
        system, wavelengths = snapshot.camera.system.base_camera, snapshot.camera.wavelengths
        notes = list(snapshot.notes)
        frame = snapshot.y[0, 0]
    else:
        camera, wavelengths = make_camera_alone(settings), settings.given_wavelengths
        system, notes = camera.system, camera.notes
        with torch.no_grad():
            frame = system(torch.ones(1, *system.cube_shape))[0, 0]  # a white scene
    places, axis = find_places(system), settings.system.get("axis", -1)
    print(*notes, *tabulate_places(places, wavelengths, axis), sep="\n")
    detector = system.measurement_shape[axis]
    numbers: dict[str, Any] = {
        "cube_shape": list(system.cube_shape),
        "measurement_shape": list(system.measurement_shape),
        "axis": axis,
        "wavelengths": wavelengths,
        "bands": [
            {
                "offset": place.offset,
                "first": place.first,
                "last": place.last,
                "beside": place.pixels_beside,
                "lost": place.lost_fraction,
            }
            for place in places
        ],
        "inputs": notes,
    }
    # All systems with a dispersion have a mask, which the type `System` does not state.
    optics: Any = system
    mask: Tensor = optics.mask[0].mean(0)
    with atomic_folder(run.folder) as stage:
        spans = [(place.offset, place.offset + mask.shape[axis]) for place in places]
        save_camera(stage / "camera.png", frame, mask, spans, axis, wavelengths)
        write_numbers(stage / "camera.json", numbers)
    print(f"-> {run.folder}")
    # This error comes last, because picture and table show what is wrong with the camera.
    if (loss := describe_loss(places, axis)) is not None:
        raise ValueError(
            f"system: {loss}; correct step, offsets or system.detector={detector}, or give more"
        )
    return max(place.pixels_beside for place in places)


def tabulate_places(
    places: list[BandPosition], wavelengths: tuple[float, ...] | None, axis: int
) -> list[str]:
    """Return a table of where the bands fall, a line each; pixels count from 0."""
    wavelength_column = [None] * len(places) if wavelengths is None else list(wavelengths)
    lines = [f"{'band':>4}{'nm':>8}{'offset':>10}  {SIDES[axis]:14}light beside the detector"]
    for band, (place, wavelength) in enumerate(zip(places, wavelength_column, strict=True), 1):
        wavelength_text = "" if wavelength is None else f"{wavelength:.1f}"
        span = f"{place.first} to {place.last}"
        # Rounded offsets leave a tiny remainder, which is no loss of light.
        loss_text = ""
        if place.pixels_beside > 1e-9:
            loss_text = f"{place.pixels_beside:.3g} px, {100 * place.lost_fraction:.3g} %"
        line = f"{band:>4}{wavelength_text:>8}{place.offset:>10.3f}  {span:14}{loss_text}"
        lines.append(line.rstrip())
    return lines
