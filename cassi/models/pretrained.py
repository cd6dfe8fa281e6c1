"""The network whose weights come with the package, and the cameras that it is for."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from torch import nn

from cassi.methods.automatic import auto
from cassi.methods.refinement import MirroringDenoiser, nonlocal_refining, refining
from cassi.models.camera_adapters import HasShapes
from cassi.models.denoisers.drunet import DRUNet
from cassi.models.inference import ShippedNetwork, SolverChooser
from cassi.models.load import make_network, read_card
from cassi.models.registry import register_model
from cassi.priors import TV, Compose, Denoiser
from cassi.solvers import Solver

# Weights of the network: one set for any number of bands, any mask, step and direction.
WEIGHTS_FILE = Path(__file__).with_name("weights") / "cassi_net.safetensors"
# Weights of the denoiser that refines the network's cube. scripts/release/train_refiner.py trained
# it on cubes of the network.
REFINER = WEIGHTS_FILE.with_name("refiner.safetensors")
# Weak total variation. Every iteration of the first refining solver applies it before the denoiser.
TV_PRIOR = TV(weight=0.3, iterations=5, norm="nuclear", warm=True)
# The files that the results of the model "pretrained" depend on.
FILES = (WEIGHTS_FILE, REFINER)
# Settings of the iterations with total variation before the learned stages, by size. The keys are
# arguments of `CassiNet`. If `large` had 100 iterations instead of 125, it would lose 0.04 to
# 0.64 dB (docs/development/experiments/pretrained.md).
SIZES: dict[str, dict[str, float]] = {
    "large": {"start": 125, "strength": 0.024, "balance": 1.0},
    "small": {"start": 70, "strength": 0.03, "balance": 1.0},
}
# Fewest and most bands of a camera. A camera with fewer or more bands is refused. A camera within
# this range, but outside of `TRAINED_BANDS`, gets a warning.
BAND_RANGE = (4, 40)
# Fewest pixels along each side of the cube. Smaller scenes are refused.
MIN_SIDE = 32
# Fewest and most bands of the cameras in the training.
TRAINED_BANDS = (5, 28)
# Smallest and largest dispersion of the cameras in the training, pixels per band.
TRAINED_STEPS = (1, 3)
# Largest noise of the measurements in the training, relative to the root mean square of y. It is a
# signal-to-noise ratio of 25 dB.
TRAINED_NOISE = 0.056


def refining_denoiser(weights: Path | None = None, learns: bool = False) -> Denoiser:
    """Return the denoiser that refines the network's cube, as a prior of spectral components.

    Args:
        weights: file of weights; None takes the file in the package.
        learns: see `cassi.priors.Denoiser`.
    """
    network = DRUNet(channels=1, widths=(16, 32, 64, 64), blocks=1, shuffle=2, residual=True)
    return Denoiser(
        network,
        weights=weights or REFINER,
        domain="components",
        sigma_range=(0.0, 0.3),
        precision="auto",
        learns=learns,
    )


def start_solver(size: str, noise: float | Literal["auto"] = "auto") -> Solver:
    """Return the solver that computes the network's first cube: `auto` with settings of a size.

    Only the large size holds out pixels. For the small size this would take longer than all of its
    iterations.
    """
    settings = SIZES[size]
    return auto(
        iterations=int(settings["start"]),
        strength=settings["strength"],
        balance=settings["balance"],
        noise=noise,
        heldout=0.1 if size == "large" else 0.0,
    )


def refining_solvers() -> SolverChooser:
    """Return a function that chooses the solvers that refine the network's cube.

    The first solver uses weak total variation and the denoiser, the second one similar patches.
    """
    prior = Compose([TV_PRIOR, MirroringDenoiser(refining_denoiser())])
    return lambda noise: (refining(noise, prior), nonlocal_refining(noise))


def check_camera(system: HasShapes) -> None:
    """Refuse a camera for which the shipped weights are not the best choice.

    Args:
        system: the camera.

    Raises:
        ValueError: too few or too many bands, a small image, several shots, or a dual disperser.
    """
    bands, height, width = system.cube_shape
    shots, *detector = system.measurement_shape
    reason = None
    if not BAND_RANGE[0] <= bands <= BAND_RANGE[1]:
        reason = f"{bands} bands (they are for {BAND_RANGE[0]} to {BAND_RANGE[1]})"
    elif min(height, width) < MIN_SIDE:
        reason = f"an image of {height} x {width} (they are for {MIN_SIDE} x {MIN_SIDE} and more)"
    # The network was trained with one shot and single dispersers. Several shots, or two dispersers,
    # measure so much more of the scene that total variation alone reconstructs it better.
    elif shots > 1:
        reason = f"{shots} shots (they are for one)"
    elif detector == [height, width]:
        reason = "two dispersers (they are for one, whose bands fall beside each other)"
    if reason is not None:
        raise ValueError(
            f"pretrained: no shipped weights fit a camera with {reason}; solver=auto is the best "
            "that needs no training"
        )


def list_differences_from_training(system: HasShapes, noise: float) -> list[str]:
    """List how a camera that `check_camera` accepts differs from those of the training.

    Args:
        system: the camera.
        noise: noise of the measurement, relative to the root mean square of y.
    """
    differences = []
    bands, offsets = system.cube_shape[0], getattr(system, "offsets", None)
    if not TRAINED_BANDS[0] <= bands <= TRAINED_BANDS[1]:
        differences.append(f"{bands} bands (trained with {TRAINED_BANDS[0]} to {TRAINED_BANDS[1]})")
    if offsets is not None and bands > 1:
        step = (max(offsets) - min(offsets)) / (bands - 1)
        low, high = TRAINED_STEPS
        # The step of a calibrated camera is not exactly a whole number of pixels, so a quarter of a
        # pixel is tolerated.
        if not low - 0.25 <= step <= high + 0.25:
            differences.append(f"{step:.2g} pixels per band (trained with {low} to {high})")
    if noise > TRAINED_NOISE:
        differences.append(f"{noise:.0%} of noise (trained with up to {TRAINED_NOISE:.0%})")
    return differences


@register_model("pretrained", shipped=True, files=FILES, any_bands=True)
def shipped_network(
    bands: int | None = None,
    *,
    size: str = "large",
    noise: float | Literal["auto"] = "auto",
) -> nn.Module:
    """Return the network that comes with the package; see docs/guides/pretrained.md.

    This is the bare network, which can be trained further. `create_model("pretrained")` wraps it as
    a reconstructor.

    Args:
        bands: has no effect, because the weights are for any number of bands.
        size: "large" or "small". The small size is faster and a little less sharp. The large size
            also runs `refining_solvers`. This about doubles the time.
        noise: noise of the measurement, relative to its root mean square; "auto" estimates it. An
            error of the mask acts like noise: give a larger value then.

    Raises:
        ValueError: there is no such size, or noise is no number.
    """
    if size not in SIZES:
        raise ValueError(f"pretrained size: expected {' or '.join(SIZES)}, got {size!r}")
    return load_shipped(WEIGHTS_FILE, size, noise=noise)


def load_shipped(path: Path, size: str, noise: float | Literal["auto"] = "auto") -> nn.Module:
    """Load a file of `cassi_net` as one of the sizes of the network that comes with the package."""
    card = read_card(path)
    card = replace(card, settings={**card.settings, **SIZES[size], "noise": noise})
    network = make_network(card.name, card.bands, path, **card.settings)
    solvers = refining_solvers() if size == "large" else None
    start = start_solver(size, noise)
    network.shipped = ShippedNetwork(
        card, check_camera, start, solvers, list_differences_from_training
    )  # type: ignore[assignment]
    return network
