"""Refine the mask of a camera, pixel by pixel, with frames of even scenes in known light."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cassi.calibration.frame import Frame
from cassi.systems import SDCassi, TiltedCassi
from cassi.systems.conjugate import ConjugateGradients
from cassi.systems.tilted import forward_parts, line_parts

# Conjugate gradient iterations of `refine_mask`. Fewer leave the mask nearer to the start.
_ITERATIONS = 40
# Weight μ of the mask m₀ of the calibrated camera, relative to the frames. Structures of the mask
# that the sum over the bands blurs away are not identifiable from the frames. They stay as in m₀.
_PRIOR_WEIGHT = 0.03


@dataclass(frozen=True)
class Light:
    """The light of an even scene.

    Attributes:
        frame: frame of the scene.
        spectrum: spectrum of the light over the points of the frame, `(P,)`, in units of y.
    """

    frame: Frame
    spectrum: Tensor

    @property
    def level(self) -> float:
        """Mean of the spectrum: the measurement of a band of value 1 behind a mask of 1."""
        return self.spectrum.mean().item()


def fit_light(frame: Frame, system: SDCassi | TiltedCassi) -> Light:
    """Estimate the spectrum of an even scene by least squares over the whole frame.

    Args:
        frame: frame of an even scene, one sample.
        system: the calibrated camera.

    Returns:
        The frame with the spectrum of its light, not negative.
    """
    y = system.orient(frame.y)[:1]
    images = torch.stack(
        [_simulate_even_frame(frame, spectrum, system) for spectrum in frame.spectra]
    )
    counts = system.orient(frame.counts).flatten().double()
    columns = images.flatten(1).double() * counts
    normal = columns @ columns.mT
    # Some combinations of spectra hardly change the frame. This small ridge keeps their weights
    # small.
    normal += torch.eye(len(normal), dtype=normal.dtype, device=normal.device) * (
        1e-8 * normal.diagonal().mean()
    )
    weights = torch.linalg.solve(normal, columns @ y.flatten().double())
    return Light(frame, (weights.to(frame.spectra) @ frame.spectra).clamp_min(0))


@torch.no_grad()
def refine_mask(lights: Sequence[Light], system: SDCassi | TiltedCassi) -> Tensor:
    r"""Fit the mask, pixel by pixel, to frames of even scenes.

        min_m Σ_f ‖y_f − A_f m‖²/a_f + μ ‖m − m₀‖²,   a_f = Σ_p s_p²

    is solved by conjugate gradients. m₀ is the mask of the calibrated camera, s the spectrum of
    scene f, and A_f m = Σ_p s_p S(o(p)) m.

    Args:
        lights: frames with their spectra.
        system: the calibrated camera, with one mask for all bands.

    Returns:
        Transmission of the mask, `(K, 1, H, W)`, from 0 to 1, or to the largest value of m₀ if that
        is above 1.

    Raises:
        ValueError: the camera has a mask per band.
    """
    if system.mask.shape[1] > 1:
        raise ValueError("calibration: expected one mask for all bands to refine, got one per band")
    start = system.orient(system.mask)

    def compute_gradient(mask: Tensor, with_data: bool) -> Tensor:
        with torch.enable_grad():
            m = mask.detach().requires_grad_()
            total = m.new_zeros(())
            for light in lights:
                image = _simulate_even_frame(light.frame, light.spectrum, system, m)
                y = system.orient(light.frame.y)[0] if with_data else torch.zeros_like(image)
                residual = (image - y) * system.orient(light.frame.counts)[0]
                total = total + residual.square().sum() / light.spectrum.square().sum() / 2
            (gradient_of_mask,) = torch.autograd.grad(total, m)
        return gradient_of_mask

    # The misfit of the frames is quadratic. So for y = 0 its gradient is its matrix times the mask.
    solver = ConjugateGradients(iterations=_ITERATIONS)
    x, _ = solver.solve(
        lambda m: compute_gradient(m.transpose(0, 1), False).transpose(0, 1),
        -compute_gradient(start, True).transpose(0, 1),
        start.new_tensor([_PRIOR_WEIGHT]),
    )
    x = x.transpose(0, 1)
    largest = max(1.0, start.amax().item())
    return system.orient((start + x).clamp(0, largest)).contiguous()


def _simulate_even_frame(
    frame: Frame, spectrum: Tensor, system: SDCassi | TiltedCassi, mask: Tensor | None = None
) -> Tensor:
    """Simulate the frame of an even scene, `(K, H, W')`, dispersion along the last axis."""
    mask = system.orient(system.mask) if mask is None else mask
    offsets = torch.tensor(system.offsets, dtype=torch.float64)
    tilt = system.across.cpu() if isinstance(system, TiltedCassi) else torch.zeros_like(offsets)
    places = torch.stack((offsets, tilt))
    if frame.points is not None:
        points = torch.tensor(frame.points, dtype=torch.float64).clamp(0, len(offsets) - 1)
        low = points.floor().long().clamp_max(max(len(offsets) - 2, 0))
        high = (low + 1).clamp_max(len(offsets) - 1)
        places = torch.lerp(places[:, low], places[:, high], points - low)
        if mask.shape[1] > 1:
            mask = mask[:, points.round().long()]
    offsets_along, offsets_across = places.to(mask.device).unbind()
    parts = line_parts(offsets_along, offsets_across, mask.dtype, frame.shift)
    scene = spectrum.to(mask).view(1, -1, 1, 1).expand(1, -1, *mask.shape[-2:]).contiguous()
    return forward_parts(scene, mask, parts, system.measurement_shape[system.axis])[0]
