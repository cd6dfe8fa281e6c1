"""Answer questions about a scene, with intervals, from samples of its cube."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from cassi.uncertainty.error_model import FILE
from cassi.uncertainty.local_mean import mean_around_pixels
from cassi.uncertainty.questions import Question
from cassi.uncertainty.samples import Samples

ANSWER_LEVELS = (0.68, 0.9)
"""Nominal coverages of the intervals of an answer."""
# A standard deviation of 16 samples is off by a fifth. In a map it is averaged over squares of this
# side, pixels, because the errors of neighbours are alike. This lowers the half widths of 90 %
# intervals, in standard deviations, from 1.62 to 1.35 for indices and from 1.69 to 1.54 for
# abundances (docs/development/experiments/samples.md).
_POOLED_SIDE = 5
# Largest variance of an answer over that of its map. Above it, a pixel is known less well than by
# the mean of the map. On training scenes, indices lose 9 % of the pixels and 14 % of their error by
# this ratio, with 0.5 they lose 18 % and 25 %. On the validation scenes, which have little contrast
# in this index, 0.5 withholds 61 % of the pixels (docs/development/experiments/samples.md).
_MAX_VARIANCE_RATIO = 1.0
_REASON = "the samples vary here at least as much as the map varies over the scene"
_NOT_FINITE = "the result is not finite in a sample"


@dataclass(frozen=True)
class Answer:
    """The answer to a question, and its intervals.

    Attributes:
        value: mean of the question over the samples: maps `(H, W)` or `(N, H, W)`, or numbers
            `(N,)` or `()`.
        low: lower ends of the intervals of `ANSWER_LEVELS`, `(2, …)`.
        high: upper ends, `(2, …)`.
        abstained: bool, of the shape of `value`: there is no answer here, for `reason`.
        labels: names along the first axis of `value`, if it has N.
        unit: unit of the values.
        reason: why there is no answer where `abstained`; an empty text if there is one everywhere.
    """

    value: Tensor
    low: Tensor
    high: Tensor
    abstained: Tensor
    labels: tuple[str, ...] = ()
    unit: str = ""
    reason: str = ""


@torch.no_grad()
def answer(samples: Samples, questions: Mapping[str, Question]) -> dict[str, Answer]:
    r"""Answer questions about the scene of some samples.

    With the results f_s of a question for S samples,

        value = mean_s f_s,   interval = value ± k √(mean_s (f_s − value)²),

    cut at the bounds of the question. In a map, the variance is averaged over squares of 5×5
    pixels. k depends on the level, and on whether the result is a map, but not on the question;
    `scripts/release/answers.py` fits it. An answer is withheld where the variance over the samples
    is at least the variance of the question's own map over the scene.

    Args:
        samples: samples of a cube.
        questions: functions of a cube by name, see `cassi.uncertainty.questions`.

    Raises:
        ValueError: a question returns something else than maps, a list or a number.
    """
    sums: dict[str, list[Tensor]] = {}
    for sample in samples:
        for name, question in questions.items():
            result = torch.as_tensor(question(sample)).double()
            if result.ndim > 3 or (result.ndim > 1 and result.shape[-2:] != sample.shape[-2:]):
                raise ValueError(
                    f"{name}: expected a map (H, W) or (N, H, W) with (H, W) = "
                    f"{tuple(sample.shape[-2:])}, N numbers or one, got {tuple(result.shape)}"
                )
            # Differences from the first result keep the variance exact if it is small.
            first, total, squares = sums.setdefault(
                name, [result, torch.zeros_like(result), torch.zeros_like(result)]
            )
            total += result - first
            squares += (result - first).square()
    cube = samples.cube[0]
    answers = {}
    for name, question in questions.items():
        first, total, squares = sums[name]
        mean = total / len(samples)
        variance = (squares / len(samples) - mean.square()).clamp_min(0)
        answers[name] = _judge(first + mean, variance.sqrt(), question, cube)
    return answers


@lru_cache(maxsize=1)
def load_half_widths() -> Tensor:
    """Return the half widths of intervals, in standard deviations over the samples, `(2, 2)`.

    The first row is for numbers, the second for maps. Each of `ANSWER_LEVELS` has a column.
    """
    from safetensors import safe_open

    with safe_open(FILE, "pt") as file:
        half_widths: Tensor = file.get_tensor("half_widths")
    return half_widths


def _judge(value: Tensor, deviation: Tensor, question: Question, cube: Tensor) -> Answer:
    """Return an answer from mean and standard deviation over the samples."""
    minimum, maximum = getattr(question, "bounds", (-math.inf, math.inf))
    is_map = value.ndim > 1
    if is_map:
        deviation = _pool(deviation)
    half_widths = load_half_widths()[int(is_map)].to(value)
    half = half_widths.view(-1, *[1] * value.ndim) * deviation
    value = value.clamp(minimum, maximum)
    low, high = (value - half).clamp_min(minimum), (value + half).clamp_max(maximum)
    is_finite = low[-1].isfinite() & high[-1].isfinite()
    is_withheld = ~is_finite
    pixels = torch.as_tensor(getattr(question, "pixels", question)(cube)).double()
    if pixels.ndim > 1:
        variance = _finite_variance(pixels.flatten(-2))
        variance = variance.view(variance.shape + (1,) * (value.ndim - variance.ndim))
        is_withheld |= deviation.square() >= _MAX_VARIANCE_RATIO * variance
    reasons = ((~is_finite, _NOT_FINITE), (is_withheld & is_finite, _REASON))
    return Answer(
        value.float(),
        low.float(),
        high.float(),
        is_withheld,
        tuple(getattr(question, "labels", ())),
        str(getattr(question, "unit", "")),
        "; ".join(reason for is_affected, reason in reasons if bool(is_affected.any())),
    )


def _finite_variance(values: Tensor) -> Tensor:
    """Return the variance along the last axis, of the finite values."""
    is_finite = values.isfinite()
    count = is_finite.sum(-1, keepdim=True)
    values = torch.where(is_finite, values, 0)
    deviation = torch.where(is_finite, values - values.sum(-1, keepdim=True) / count, 0)
    return deviation.square().sum(-1) / (count[..., 0] - 1)


def _pool(deviation: Tensor) -> Tensor:
    """Return root mean squares over squares of `_POOLED_SIDE` pixels around every pixel."""
    variance = deviation.square().reshape(1, -1, *deviation.shape[-2:])
    return mean_around_pixels(variance, _POOLED_SIDE).sqrt().reshape(deviation.shape)
