"""Reconstruct the bundled scene through every preset of an instrument, by the default method.

    python scripts/benchmarks/presets.py
    python scripts/benchmarks/presets.py --figure .github/images/presets.png

PSNR, SSIM, SAM and seconds of `solver=auto`, as `cassi-reconstruct system=NAME` prints them: masks
and kernels are the drawn ones of the presets, and the mask of the package where a preset has none.
No noise. The figure shows every measurement above its reconstruction.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

from cassi.apps.pipeline import prepare, recover
from cassi.apps.reconstructors import Recipe, compose_settings
from cassi.viz.color import srgb
from scripts.benchmarks.tables import Parser, Table

PRESETS = {
    "one shot": ["system=sd_cassi"],
    "Bayer sensor": ["system=bayer"],
    "colour-coded aperture": ["system=colour_aperture"],
    "mosaic 4×4": ["system=mosaic"],
    "mosaic 5×5": ["system=mosaic", "system.pattern=5"],
    "grid of holes": ["system=pmvis"],
    "complementary shots": ["system=dmd"],
    "dual disperser": ["system=dd_cassi"],
    "diffractive lens": ["system=diffractive"],
    "the same, with a mask": [
        "system=diffractive",
        "mask={_target_: cassi.systems.RandomMask}",
    ],
}


def reconstruct(options: list[str]) -> tuple[Any, Any]:
    """Return the inputs and the result of a command line."""
    settings = compose_settings([*options, "output.progress=false"])
    inputs, method = prepare(settings, Recipe(settings, torch.device("cpu")))
    return inputs, recover(inputs, method, settings.seed, visible=False)


def draw(path: Path, shown: dict[str, tuple[Any, Any]]) -> None:
    """Draw measurements above reconstructions."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.7 * len(shown), 3.9), layout="constrained")
    axes = figure.subplots(2, len(shown))
    for column, (name, (inputs, result)) in enumerate(shown.items()):
        y = inputs.measurement[0, 0]
        axes[0, column].imshow(y / y.quantile(0.995), cmap="gray", vmin=0, vmax=1)
        axes[0, column].set_title(name, fontsize=8)
        axes[1, column].imshow(srgb(result.solution.x[0].cpu(), inputs.wavelengths))
    for each in axes.flat:
        each.set_axis_off()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Print the table, and draw the figure if asked for."""
    parser = Parser(__doc__)
    parser.add_argument("--figure", type=Path, help="file of a figure")
    options = parser.parse_args()
    table = Table("preset", "PSNR, dB", "SSIM", "SAM", "seconds")
    shown = {}
    for name, given in PRESETS.items():
        inputs, result = reconstruct(given)
        scores = result.numbers["metrics"]["matlab-uint8"]
        table.print(
            name,
            f"{scores['psnr']:.2f}",
            f"{scores['ssim']:.4f}",
            f"{scores['sam']:.2f}°",
            f"{result.numbers['seconds']:.2f}",
        )
        for warning in result.numbers["warnings"]:
            print(f"    warning: {warning['about']}: {warning['message']}")
        shown[name] = inputs, result
    if options.figure is not None:
        draw(options.figure, shown)


if __name__ == "__main__":
    main()
