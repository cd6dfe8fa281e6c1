"""The mask and the gain of a camera from frames of scenes that are known."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cassi.calibration.frame import Frame
from cassi.systems import SDCassi, TiltedCassi
from cassi.systems.conjugate import ConjugateGradients
from cassi.systems.tilted import forward_parts, line_parts

_ITERATIONS = 40
_PRIOR = 0.03
"""What the mask before weighs beside the frames: they say nothing of what the bands average out."""


@dataclass(frozen=True)
class Light:
    """An even scene: what it shines at each place of the spectrum, `(P,)`, in frame units."""

    frame: Frame
    spectrum: Tensor

    @property
    def level(self) -> float:
        """Mean over the spectrum: what a band of value 1 gives under a mask of 1."""
        return self.spectrum.mean().item()


def fit_light(frame: Frame, system: SDCassi | TiltedCassi) -> Light:
    """Find the spectrum of an even scene by least squares over the whole frame.

    Args:
        frame: of an even scene, one sample.
        system: the calibrated camera.
    """
    y = system.turn(frame.y)[:1]
    images = torch.stack([_even(frame, spectrum, system) for spectrum in frame.spectra])
    keep = system.turn(frame.counts).flatten().double()
    columns = images.flatten(1).double() * keep
    normal = columns @ columns.mT
    # Spectra that hardly differ on the detector stay small.
    normal += torch.eye(len(normal), dtype=normal.dtype, device=normal.device) * (
        1e-8 * normal.diagonal().mean()
    )
    weights = torch.linalg.solve(normal, columns @ y.flatten().double())
    return Light(frame, (weights.to(frame.spectra) @ frame.spectra).clamp_min(0))


@torch.no_grad()
def refine_mask(lights: Sequence[Light], system: SDCassi | TiltedCassi) -> Tensor:
    r"""Fit the mask, pixel by pixel, to frames of even scenes.

        min_m Σ_f ‖y_f − A_f m‖²/a_f + μ ‖m − m₀‖²,   a_f = Σ_p s_p²

    by conjugate gradients, with the mask m₀ of the calibrated camera, the spectrum s of scene f,
    and A_f m = Σ_p s_p S(o(p)) m.

    Args:
        lights: frames and their spectra.
        system: the calibrated camera, with one mask for all bands.

    Returns:
        The mask `(K, 1, H, W)`, a transmission: from 0 to 1, or to what the camera's reaches.

    Raises:
        ValueError: the camera has a mask per band.
    """
    if system.mask.shape[1] > 1:
        raise ValueError("calibration: expected one mask for all bands to refine, got one per band")
    start = system.turn(system.mask)

    def gradient(mask: Tensor, measured: bool) -> Tensor:
        with torch.enable_grad():
            m = mask.detach().requires_grad_()
            total = m.new_zeros(())
            for light in lights:
                shown = _even(light.frame, light.spectrum, system, m)
                y = system.turn(light.frame.y)[0] if measured else torch.zeros_like(shown)
                missed = (shown - y) * system.turn(light.frame.counts)[0]
                total = total + missed.square().sum() / light.spectrum.square().sum() / 2
            (found,) = torch.autograd.grad(total, m)
        return found

    # The misfit is quadratic, so its gradient without data applies its matrix.
    solver = ConjugateGradients(iterations=_ITERATIONS)
    x, _ = solver.solve(
        lambda m: gradient(m.transpose(0, 1), False).transpose(0, 1),
        -gradient(start, True).transpose(0, 1),
        start.new_tensor([_PRIOR]),
    )
    x = x.transpose(0, 1)
    most = max(1.0, start.amax().item())
    return system.turn((start + x).clamp(0, most)).contiguous()


def _even(
    frame: Frame, spectrum: Tensor, system: SDCassi | TiltedCassi, mask: Tensor | None = None
) -> Tensor:
    """Return what an even scene shows, `(K, H, W')`, dispersion along the last axis."""
    mask = system.turn(system.mask) if mask is None else mask
    offsets = torch.tensor(system.offsets, dtype=torch.float64)
    tilt = system.across.cpu() if isinstance(system, TiltedCassi) else torch.zeros_like(offsets)
    places = torch.stack((offsets, tilt))
    if frame.points is not None:
        at = torch.tensor(frame.points, dtype=torch.float64).clamp(0, len(offsets) - 1)
        low = at.floor().long().clamp_max(max(len(offsets) - 2, 0))
        high = (low + 1).clamp_max(len(offsets) - 1)
        places = torch.lerp(places[:, low], places[:, high], at - low)
        if mask.shape[1] > 1:
            mask = mask[:, at.round().long()]
    along, across = places.to(mask.device).unbind()
    parts = line_parts(along, across, mask.dtype, frame.shift)
    scene = spectrum.to(mask).view(1, -1, 1, 1).expand(1, -1, *mask.shape[-2:]).contiguous()
    return forward_parts(scene, mask, parts, system.measurement_shape[system.axis])[0]
