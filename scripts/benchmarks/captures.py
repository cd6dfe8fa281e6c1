"""What the commands' defaults make of real captures.

    python -m scripts.benchmarks.captures                          # captures of two cameras
    python -m scripts.benchmarks.captures --methods auto gap_tv --pictures outputs/captures

Of a real capture there is no truth. Printed are where the mask is found, if it is moved, the
relative residual, the error at 5 % of the detector pixels that the method was not given
(`heldout=0.05`: the brightest lines), and of the resolution target, which is chrome on glass under
one lamp, the mean spectral angle of its bright ground to its own mean spectrum and the contrast
(max − min) / (max + min) of three coarse bars.
"""

import time
from pathlib import Path

import torch
from torch import Tensor

import cassi
from cassi.apps.inputs import load_snapshot
from cassi.apps.reconstructors import Recipe, compose_settings, settings_of, understand
from cassi.camera.ends import find_grid
from cassi.methods.along_dispersion import AlongDispersion
from cassi.pipeline.align import align
from cassi.solvers.heldout import measure_heldout
from cassi.systems import System
from cassi.viz import save_rgb
from scripts.benchmarks.tables import Parser, Table

CAPTURES = {
    "smem": ("resolution_target", "fern_root", "blood_sample1"),
    "tsa_real": ("scene1", "scene2", "scene3", "scene4", "scene5"),
}


def load_capture(camera: str, scene: str) -> tuple[Tensor, System, tuple[float, ...] | None]:
    """Return measurement, camera and wavelengths (nm) of `experiment=CAMERA scene=SCENE`."""
    settings = compose_settings([f"experiment={camera}", f"scene={scene}"])
    snapshot = load_snapshot(settings, torch.device("cpu"))
    return snapshot.y, snapshot.camera.system, settings.given_wavelengths


def bright_ground(x: Tensor) -> Tensor:
    """Return where the resolution target lets light through: bool `(H, W)`, of a cube `(C, H, W)`.

    In captures of 660×706 pixels the field is a circle of radius 230 about (330, 330).
    """
    light = x.mean(0)
    down, right = (torch.arange(size, device=x.device) - 330 for size in light.shape)
    field = down[:, None] ** 2 + right**2 < 230**2
    return field & (light > 0.6 * light[field].quantile(0.75))


def spectral_angle(x: Tensor, where: Tensor) -> float:
    """Return the mean angle, degrees, of spectra `(C, H, W)` there to their mean."""
    spectra = x[:, where]
    mean = spectra.mean(1, keepdim=True)
    cosine = torch.cosine_similarity(spectra, mean.expand_as(spectra), dim=0)
    return float(torch.rad2deg(cosine.clamp(-1, 1).acos()).mean())


def contrast(x: Tensor) -> float:
    """Return the contrast of the three coarse horizontal bars."""
    profile = x.mean(0)[108:200, 418:488].mean(1)
    low, high = profile.min(), profile.max()
    return float((high - low) / (high + low))


def look_at_captures(methods: list[str], pictures: Path | None) -> None:
    """Print a line for each capture and method."""
    columns = ("camera", "capture", "method", "residual", "held-out error", "angle", "contrast")
    table = Table(*columns, "s")
    for camera, names in CAPTURES.items():
        for name in names:
            y, system, wavelengths = load_capture(camera, name)
            if (moved := align(y, system)) is not None:
                print(f"{camera} {name}: {moved}")
                system = moved.system
            for method in methods:
                start = time.perf_counter()
                x = cassi.reconstruct(y, system, method, align=False)
                seconds = time.perf_counter() - start
                recipe = Recipe(settings_of(understand(method)), y.device)
                reconstructor, _ = recipe.make(system.cube_shape[0])
                grid = recipe.grid(find_grid(y, system))
                if grid is not None:
                    reconstructor = AlongDispersion(reconstructor, grid)
                error = measure_heldout(y, system, reconstructor, 0.05).error
                target = name == "resolution_target"
                angle = f"{spectral_angle(x[0], bright_ground(x[0])):.2f}" if target else ""
                bars = f"{contrast(x[0]):.3f}" if target else ""
                found = reconstructor.run(y, system).measured(system)
                residual = float((y - found).norm() / y.norm())
                row = (camera, name, method, f"{residual:.4f}", f"{error:.4f}", angle, bars)
                table.print(*row, f"{seconds:.1f}")
                if pictures is not None:
                    pictures.mkdir(parents=True, exist_ok=True)
                    file = pictures / f"{camera}_{name}_{method}.png"
                    save_rgb(file, x[0], wavelengths)


def main() -> None:
    """Read the options, and look."""
    parser = Parser(__doc__)
    parser.add_argument("--methods", nargs="+", default=["auto", "pretrained"])
    parser.add_argument("--pictures", type=Path, help="folder for a picture of each cube")
    arguments = parser.parse_args()
    look_at_captures(arguments.methods, arguments.pictures)


if __name__ == "__main__":
    main()
