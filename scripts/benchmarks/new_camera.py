"""What a new user reaches with a camera of their own: a camera's file, a raw frame, one command.

    python scripts/benchmarks/new_camera.py                      # CAVE's validation scenes
    python scripts/benchmarks/new_camera.py SCENE [SCENE …]

The camera is made on a grid four times as fine (`FineTwin`), not by our model of it: a binary mask
of 240×320 pixels, half a pixel off, 16 bands, −1.5 pixels per band along the rows on a slight
curve, a frame of 264×320 pixels. The sensor has 12 bits, dark level, shot and read noise, a dead
column; frames are 16-bit PNGs, the brightest pixels saturated. The file of the camera says what its
user knows. Cubes are registered with the truth by quarters of a pixel, scaled so that white is 1,
and compared without the outermost 2 pixels.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean

import numpy as np
import torch
import yaml
from PIL import Image
from torch import Tensor
from torch.nn.functional import avg_pool2d

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

import cassi
from cassi import metrics
from cassi.apps.reconstructors import compose_settings
from cassi.apps.settings import Evaluate
from cassi.data.scenes import load_scene
from cassi.data.sensor import Sensor
from cassi.systems import SDCassi
from scripts.benchmarks.fine_twin import FINE, FineTwin, enlarged
from scripts.benchmarks.tables import Parser, Table, data_folder

SHAPE, BANDS, STEP, DETECTOR = (240, 320), 16, -1.5, 264
SHIFT = (2, 0)
"""Of the mask over the scene, quarters of a pixel."""
BEND = 0.3
"""Pixels, by which the first and the last band lie off the nominal step, the middle ones half."""
BITS, DARK, FULL_WELL, READ = 12, 200, 10500, 2.4
DEAD_COLUMN = 137
CLIPPED = 0.0008
"""Share of the pixels that the exposure saturates."""
RUNS = {
    "as told": ("camera.yaml", "align=false"),
    "as told, mask aligned": ("camera.yaml",),
    "calibrated": ("camera.yaml", "calibrate=true"),
    "true camera": ("true.yaml",),
    "pretrained, calibrated": ("camera.yaml", "calibrate=true", "model=pretrained"),
    "pretrained, true camera": ("true.yaml", "model=pretrained"),
}
"""Camera's file and options of `cassi-reconstruct`."""


def make_twin(shift: tuple[int, int]) -> FineTwin:
    """Make the camera, its mask shifted by so many fine pixels (down, right)."""
    mask = (torch.rand(*SHAPE, generator=torch.Generator().manual_seed(20)) < 0.5).float()
    band = torch.arange(BANDS, dtype=torch.float64)
    nominal = STEP * (band - BANDS + 1)
    v = 2 * band / (BANDS - 1) - 1
    offsets = (nominal + BEND * (3 * v * v - 1) / 2).tolist()
    system = SDCassi(mask, BANDS, offsets=nominal.tolist(), detector=DETECTOR, axis=-2)
    return FineTwin(system, shift, tuple(offsets), {})


def take(y: Tensor, seed: int) -> tuple[dict[str, np.ndarray], float]:
    """Expose the sensor to y `(1, 1, H', W')`.

    Returns:
        A frame and a dark frame, counts of 12 bits, and the y that reaches full scale.
    """
    gain = FULL_WELL / 2**BITS
    fills = y.flatten().quantile(1 - CLIPPED).item() / (1 - DARK / 2**BITS)
    sensor = Sensor(
        exposure=BANDS / (2 * fills),
        shot="poisson",
        full_well=FULL_WELL,
        read=READ,
        gain=gain,
        offset=DARK,
        bits=BITS,
        saturate=True,
        raw=True,
    )
    random, frames = torch.Generator().manual_seed(seed), {}
    for name, light in (("frame", y), ("dark", torch.zeros_like(y))):
        counts = sensor(light, BANDS, random)[0, 0] * (sensor.unit(BANDS) / gain)
        counts[:, DEAD_COLUMN] = 0
        frames[name] = counts.round().numpy().astype(np.uint16)
    return frames, (2**BITS - 1) * gain / sensor.unit(BANDS)


def write_cameras(folder: Path, twin: FineTwin, wavelengths: list[float]) -> None:
    """Write the file of the camera as its user knows it, and as it is."""
    mask = twin.system.mask[0, 0]
    known = {
        "mask": "mask.png",
        "system": {"step": STEP, "axis": -2, "detector": DETECTOR},
        "wavelengths": wavelengths,
        "bits": BITS,
        "dark": "dark.png",
        "scale": BANDS / 2,
    }
    Image.fromarray((255 * mask).byte().numpy()).save(folder / "mask.png")
    fine = mask.repeat_interleave(FINE, 0).repeat_interleave(FINE, 1)
    columns = (torch.arange(fine.shape[1]) - twin.shift[1]).clamp(0, fine.shape[1] - 1)
    np.save(folder / "true_mask.npy", avg_pool2d(fine[None, :, columns], FINE)[0].numpy())
    offsets = [offset + twin.shift[0] / FINE for offset in twin.offsets]
    system = {"offsets": offsets, "axis": -2, "detector": DETECTOR}
    true = known | {"mask": "true_mask.npy", "system": system}
    for name, camera in (("camera.yaml", known), ("true.yaml", true)):
        (folder / name).write_text(yaml.safe_dump(camera, sort_keys=False))


def registered(x: Tensor, scene: Tensor) -> tuple[float, tuple[float, float]]:
    """Return the PSNR of a cube where it fits best, and how far down and right that is.

    Args:
        x: cube `(C, H, W)`.
        scene: `(C, 4 H, 4 W)`.
    """
    inner = (..., slice(2, -2), slice(2, -2))
    found = []
    for down in range(-FINE, FINE + 1):
        for right in range(-FINE, FINE + 1):
            truth = avg_pool2d(scene.roll((-down, -right), (-2, -1)), FINE)
            level = metrics.psnr(x[inner], truth[inner]).item()
            found.append((level, (down / FINE, right / FINE)))
    return max(found)


def reconstruct(folder: Path, camera: str, *options: str) -> Tensor:
    """Run `cassi-reconstruct` on the frame of a folder; return the cube `(C, H, W)`."""
    results = folder / "results"
    run = subprocess.run(
        (
            *(sys.executable, "-m", "cassi", "reconstruct"),
            f"camera={folder / camera}",
            f"measurement={folder / 'frame.png'}",
            *("output.pictures=false", "output.report=false"),
            f"hydra.run.dir={results}",
            *options,
        ),
        capture_output=True,
        text=True,
    )
    if run.returncode:
        print(run.stdout, run.stderr, sep="\n", flush=True)
    run.check_returncode()
    return cassi.read_cube(results / "cube.tif")[0]


def main() -> None:
    """Print a line for each scene."""
    parser = Parser(__doc__)
    parser.add_argument("scenes", nargs="*", type=Path, help="cubes; CAVE's validation scenes")
    arguments = parser.parse_args()
    bands = compose_settings(["data=cave"], kind=Evaluate).data.given_wavelengths
    assert bands is not None
    if not arguments.scenes:
        arguments.scenes = sorted(data_folder("cave_raw").glob("*/*"))
    twin = make_twin(SHIFT)
    chosen = torch.linspace(0, len(bands) - 1, BANDS).round().long().tolist()
    levels: dict[str, list[float]] = {run: [] for run in RUNS}
    table = Table("scene", "saturated", *levels)
    for number, path in enumerate(arguments.scenes):
        scene = load_scene(path, bands)
        fine = enlarged(scene.cube[None], SHAPE, BANDS)
        frames, fills = take(twin.measure(fine), number)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            for name, counts in frames.items():
                Image.fromarray(counts).save(folder / f"{name}.png")
            write_cameras(folder, twin, [bands[band] for band in chosen])
            said = []
            for run in levels:
                camera, *options = RUNS[run]
                x = reconstruct(folder, camera, *options)
                level, at = registered(x * (fills / (BANDS / 2)), fine)
                levels[run].append(level)
                said.append(f"{level:.2f} at ({at[0]:g}, {at[1]:g})")
        saturated = int((frames["frame"] == 2**BITS - 1).sum())
        table.print(scene.name, saturated, *said)
    table.print("mean", "", *(f"{mean(values):.2f}" for values in levels.values()))


if __name__ == "__main__":
    main()
