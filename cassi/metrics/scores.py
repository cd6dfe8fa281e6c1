"""All metrics of a scene at once, and their mean over scenes."""

import math
from collections.abc import Iterable, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from cassi.metrics.measures import (
    check_pair,
    compute_band_mse,
    ergas_of_mse,
    explain_undefined,
    psnr_of_mse,
    rmse_of_mse,
    sam,
    ssim,
)
from cassi.metrics.presets import DEFAULT_PRESET, PRESETS, Preset, SSIMRule, get_preset, keep
from cassi.plugins import METRICS as METRICS
from cassi.plugins import parts, place_of

Scores = dict[str, float | None]
"""Values by name of the metric; None if a metric is not defined.

The metrics of `METRICS` come first, in the order of tables: PSNR in dB, SSIM without a unit, SAM in
degrees, RMSE in the unit of the cube, ERGAS in per cent."""


@torch.no_grad()
def evaluate(x: Tensor, truth: Tensor, preset: str | Preset = DEFAULT_PRESET) -> Scores:
    """Measure one cube with every metric.

    Args:
        x: estimate, ``(C, H, W)`` or ``(1, C, H, W)``, reflectance or radiance in [0, 1].
        truth: reference, same shape.
        preset: rule for PSNR and SSIM; SAM, RMSE and ERGAS take the values as they are.

    Returns:
        One number for each of `METRICS` and each metric of `cassi.register_metric`. SSIM is None if
        the preset defines no SSIM, or if the image is smaller than the window.

    Raises:
        TypeError: a cube is not a floating-point tensor.
        ValueError: cubes that do not match or are not finite, or several cubes; an unknown preset;
            or a metric of the user that fails or returns no number.

    Example:
        >>> truth = torch.full((4, 16, 16), 0.5)
        >>> evaluate(truth + 0.25, truth, preset="global")["rmse"]
        0.25
    """
    preset_rule = get_preset(preset)
    return evaluate_all(x, truth, [preset_rule])[preset_rule.name]


@torch.no_grad()
def evaluate_all(
    x: Tensor,
    truth: Tensor,
    presets: Iterable[Preset] = PRESETS.values(),
    *,
    with_user_metrics: bool = True,
) -> dict[str, Scores]:
    """Measure one cube as `evaluate` does, under several presets.

    Args:
        x: estimate, as for `evaluate`.
        truth: reference, same shape.
        presets: rules for PSNR and SSIM.
        with_user_metrics: whether the user's own metrics are measured too.

    Returns:
        The scores by the name of the preset.
    """
    cube, reference = _check_single(x, truth)
    # Presets that prepare the values alike share their errors.
    band_mse = cache(partial(compute_band_mse, cube[None], reference[None]))
    shared_scores: Scores = {
        "sam": sam(cube, reference).item(),
        "rmse": rmse_of_mse(band_mse(keep)).item(),
        "ergas": ergas_of_mse(band_mse(keep), reference[None]).item(),
    }
    if with_user_metrics:
        shared_scores |= user_scores(cube, reference)
    ssim_scores: dict[SSIMRule | None, float | None] = {}
    scores: dict[str, Scores] = {}
    for preset in presets:
        if preset.ssim not in ssim_scores:
            is_undefined = explain_undefined(preset, cube.shape) is not None
            ssim_scores[preset.ssim] = (
                None if is_undefined else ssim(cube, reference, preset).item()
            )
        scores[preset.name] = {
            "psnr": psnr_of_mse(band_mse(preset.prepare), reference[None], preset).item(),
            "ssim": ssim_scores[preset.ssim],
            **shared_scores,
        }
    return scores


def _check_single(x: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Return one cube and its truth, `(C, H, W)` each; raise ValueError for a larger batch."""
    cubes, references = check_pair(x, truth)
    if len(cubes) != 1:
        raise ValueError(f"expected one cube, got a batch of {len(cubes)}; use MetricSet")
    return cubes[0], references[0]


@torch.no_grad()
def user_scores(cube: Tensor, reference: Tensor) -> Scores:
    """Return the value of each of the user's metrics for a cube `(C, H, W)` and its truth."""
    scores: Scores = {}
    for name, metric in parts("metric").items():
        try:
            value = metric.make(cube, reference)
        # The user's function may raise anything. The message names the metric and the line.
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ValueError(f"metric {name}{place_of(metric.make, error)}: {reason}") from error
        try:
            scores[name] = float(value)
        except (TypeError, ValueError, RuntimeError):
            value_text = " ".join(f"{value!r:.80}".split())
            raise ValueError(
                f"metric {name}{place_of(metric.make)}: expected one number, got {value_text}"
            ) from None
    return scores


def _average(values: Sequence[float | None]) -> float | None:
    """Return the mean of values; None if a value is None."""
    defined_values = [value for value in values if value is not None]
    if len(defined_values) < len(values):
        return None
    # fsum is exact, so the order of the scenes does not matter. The sum with an
    # infinite value is infinite. For infinities of opposite sign fsum raises an error.
    return math.fsum(defined_values) / len(defined_values)


class MetricSet:
    """Every metric of every scene, and the mean over scenes of the per-scene values.

    Args:
        preset: a name of `list_presets`, or a `Preset`.

    Raises:
        ValueError: an unknown preset.

    Example:
        >>> scores = MetricSet("unit")
        >>> for level in (0.25, 0.75):
        ...     _ = scores.update(torch.full((2, 11, 11), level), torch.full((2, 11, 11), 0.5))
        >>> scores.compute()["rmse"], list(scores.scenes)
        (0.25, ['scene01', 'scene02'])
    """

    def __init__(self, preset: str | Preset = DEFAULT_PRESET) -> None:
        self.preset = get_preset(preset)
        self.scenes: dict[str, Scores] = {}

    def __len__(self) -> int:
        return len(self.scenes)

    def update(
        self, x: Tensor, truth: Tensor, name: str | Sequence[str] | None = None
    ) -> list[Scores]:
        """Measure one cube or a batch and keep the scores, each scene under its own name.

        Args:
            x: estimate, ``(B, C, H, W)`` or ``(C, H, W)``.
            truth: reference, same shape.
            name: one name per scene, a string for a single scene; by default ``scene01``,
                ``scene02``, …, continued from call to call.

        Returns:
            The scores of these scenes, as `evaluate` gives them.

        Raises:
            TypeError: a cube is not a floating-point tensor.
            ValueError: cubes that do not match or are not finite; too many or too few names, or a
                name that is taken. Then no score is kept.
        """
        cubes, references = check_pair(x, truth)
        names = self._make_names(name, len(cubes))
        scores = [
            evaluate(cube, reference, self.preset)
            for cube, reference in zip(cubes, references, strict=True)
        ]
        self.scenes.update(zip(names, scores, strict=True))
        return scores

    def _make_names(self, name: str | Sequence[str] | None, count: int) -> list[str]:
        if name is None:
            name = [f"scene{len(self) + i:02d}" for i in range(1, count + 1)]
        names = [name] if isinstance(name, str) else list(name)
        if len(names) != count:
            raise ValueError(f"expected one name for each of {count} scenes, got {names}")
        duplicates = sorted({n for n in names if n in self.scenes or names.count(n) > 1})
        if duplicates:
            raise ValueError(f"expected names that are not taken yet, got {duplicates}")
        return names

    def compute(self) -> Scores:
        """Return the mean over scenes of each metric.

        A mean is infinite if the value of a scene is infinite, and None if a scene has no value;
        see `scenes`.

        Raises:
            ValueError: no scene was added, or infinities of opposite sign.
        """
        if not self.scenes:
            raise ValueError("expected at least one scene before compute(), got none")
        rows = list(self.scenes.values())
        names = dict.fromkeys(name for row in rows for name in row)
        return {metric: _average([row.get(metric) for row in rows]) for metric in names}

    def reset(self) -> None:
        """Remove all scenes."""
        self.scenes.clear()
