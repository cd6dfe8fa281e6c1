"""Simulate measurements of training cubes by cameras that differ from the nominal one."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Generator, Tensor

from cassi.data.simulation import MaskSource, Simulator
from cassi.data.synthetic.twin import Twin
from cassi.systems import SDCassi, System

_INTEGER_SETTINGS = ("bits", "seed", "supersample")


class RealCameras(Simulator):
    """Measures each sample with a random `Twin`, and returns the nominal camera.

    Each defect is present with a given probability, and its size is uniform in its range. So a
    network is trained with single and combined defects. Like a user with a real camera, it knows
    the nominal mask and dispersion and the stuck pixels. For half of the frames it also knows the
    variance of photon and read noise at every pixel (`cassi.systems.Weighted`). The dark level is
    subtracted.

    Args:
        masks: source of masks, or one mask for all, as in `Simulator`.
        defects: the range (low, high) of each setting of a twin that varies.
        chance: probability of each defect.
        ideal: fraction of the samples that are measured by the nominal camera, as in `Simulator`.
        settings: further arguments of `Simulator`. Its `noise` is added only to the ideal samples.

    Raises:
        ValueError: an unknown defect, or a range or probability out of its limits.

    >>> cameras = RealCameras(torch.rand(16, 16), {"mask_blur": (0, 0.5)}, step=1)
    >>> y, camera = cameras(torch.rand(2, 3, 16, 16), torch.Generator().manual_seed(0))
    >>> y.shape == (2, *camera.measurement_shape)
    True
    """

    def __init__(
        self,
        masks: MaskSource | Tensor,
        defects: Mapping[str, Sequence[float]],
        chance: float = 0.5,
        ideal: float = 0.25,
        **settings: Any,
    ) -> None:
        super().__init__(masks, **settings)
        # The twin's noise follows from `bits` and `full_well`, and its seed is drawn for each
        # sample.
        allowed_names = {entry.name for entry in fields(Twin)} - {"shot", "saturate", "seed"}
        for name, limits in defects.items():
            if name not in allowed_names:
                raise ValueError(f"defects: expected values of a twin, got {name!r}")
            if len(limits) != 2 or not limits[0] <= limits[1]:
                raise ValueError(f"defects.{name}: expected (low, high), got {limits!r}")
        for name, share in (("chance", chance), ("ideal", ideal)):
            if not 0 <= share <= 1:
                raise ValueError(f"{name}: expected 0 to 1, got {share!r}")
        self.defects = {name: tuple(limits) for name, limits in defects.items()}
        self.chance, self.ideal = chance, ideal

    @torch.no_grad()
    def __call__(self, x: Tensor, generator: Generator) -> tuple[Tensor, System]:
        """Measure cubes x `(B, C, H, W)`, as `Simulator` does.

        Returns:
            y `(B, K, H', W')`, and the nominal camera without the stuck pixels.
        """
        y, nominal = super().__call__(x, generator)
        assert isinstance(nominal, SDCassi)
        variance = torch.ones_like(y)
        bad_pixels = torch.zeros_like(y, dtype=torch.bool)
        for k in range(len(x)):
            if _draw_uniform(generator) < self.ideal:
                continue
            twin, sample_camera = self.draw(generator), _select_sample_camera(nominal, k)
            frame = twin.measure(x[k : k + 1], sample_camera, generator)
            truth = twin.true_camera(sample_camera)
            y[k] = frame[0] - truth.dark
            bad_pixels[k] = truth.bad
            shot_factor, noise_floor = truth.noise
            if shot_factor and _draw_uniform(generator) < 0.5:
                expected_variance = shot_factor * y[k].clamp_min(0) + noise_floor
                # If there is no read noise, the variance of a dark pixel is 0, and its weight would
                # be infinite. So the variance is at least a hundredth of its mean. If the fraction
                # were larger, dark pixels would have less weight.
                expected_variance = expected_variance.clamp_min(0.01 * expected_variance.mean())
                variance[k] = expected_variance / expected_variance.mean()
        return y, nominal.weighted(variance, bad_pixels)

    def draw(self, generator: Generator) -> Twin:
        """Draw a camera with random defects."""
        values: dict[str, Any] = {"seed": int(torch.randint(2**31, (), generator=generator))}
        for name, (low, high) in self.defects.items():
            if name == "shift":
                pair = torch.rand(2, generator=generator).tolist()
                value: object = [low + (high - low) * uniform for uniform in pair]
            else:
                number = low + (high - low) * _draw_uniform(generator)
                value = round(number) if name in _INTEGER_SETTINGS else number
            if _draw_uniform(generator) < self.chance:
                values[name] = value
        if "bits" in values or "full_well" in values:
            values["shot"] = "poisson"
        else:
            # Read noise is in electrons, which have no scale without a converter or a full well.
            values.pop("read", None)
        # The open mask has the transmission offset + contrast, which is at most 1.
        max_contrast = 1 - values.get("mask_offset", 0.0)
        values["mask_contrast"] = min(max_contrast, values.get("mask_contrast", 1.0))
        return Twin(**values)


def _select_sample_camera(nominal: SDCassi, k: int) -> SDCassi:
    """Return the nominal camera with the mask of sample k only."""
    mask = nominal.mask.detach()
    mask = mask if mask.ndim == 4 else mask[k]
    axis, offsets, detector = nominal.axis, nominal.offsets, nominal.detector
    return SDCassi(mask, nominal.bands, axis=axis, offsets=offsets, detector=detector).to(mask)


def _draw_uniform(generator: Generator) -> float:
    return float(torch.rand((), generator=generator, device=generator.device))
