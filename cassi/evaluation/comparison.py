"""Compare methods scene by scene, by Wilcoxon's signed-rank test."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cassi.evaluation.records import Record, Values

MIN_PAIRED_SCENES = 6
"""With fewer scenes no p is given: with five pairs p of Wilcoxon's test is at least 0.0625."""


@dataclass(frozen=True)
class Comparison:
    """A method compared with the method of the best mean, on the same scenes."""

    method: str
    best: str  # name of the method with the best mean
    measure: str  # "psnr/PRESET", or "residual" where there is no truth
    scenes: int  # number of scenes for which both have a value
    difference: float  # value of the best method minus that of this one, mean over scenes
    p: float | None  # of Wilcoxon's signed-rank test, two-sided; None for too few scenes


def compare_best(
    records: Sequence[Record], means: Mapping[str, Values], preset: str
) -> list[Comparison]:
    """Compare the method of the best mean with every other method, scene by scene.

    The compared value is the PSNR, or the residual where there is no truth. p is not corrected for
    the number of comparisons.

    Source: Wilcoxon, "Individual comparisons by ranking methods", Biometrics Bulletin 1945.
    """
    has_psnr = any(f"psnr/{preset}" in record.metrics for record in records)
    measure, sign = (f"psnr/{preset}", 1) if has_psnr else ("residual", -1)
    candidates = [name for name in means if means[name].get(measure) is not None]
    if len(candidates) < 2:
        return []
    best = max(candidates, key=lambda name: sign * (means[name][measure] or 0.0))
    values: dict[str, dict[str, float]] = {name: {} for name in means}
    for record in records:
        # The PSNR of a perfect cube is infinite, so differences from it are not defined.
        value = record.metrics.get(measure)
        if value is not None and math.isfinite(value) and record.error is None:
            values[record.method][record.scene] = value
    comparisons = []
    for name in means:
        common_scenes = [scene for scene in values[best] if scene in values[name]]
        n_scenes = len(common_scenes)
        if name == best or not common_scenes:
            continue
        differences = [values[best][scene] - values[name][scene] for scene in common_scenes]
        mean, p = math.fsum(differences) / n_scenes, signed_rank(differences)
        comparisons.append(Comparison(name, best, measure, n_scenes, mean, p))
    return comparisons


def signed_rank(differences: Sequence[float]) -> float | None:
    """Return the two-sided p of Wilcoxon's signed-rank test; None for fewer than six differences.

    >>> signed_rank([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    0.03125
    """
    from scipy.stats import wilcoxon

    if len(differences) < MIN_PAIRED_SCENES:
        return None
    # The test is not defined where all differences are zero. Equal results are no evidence.
    if not any(differences):
        return 1.0
    return float(wilcoxon(differences).pvalue)
