"""How often the spectra of a cube put the sign of the step in doubt, in even light and under lamps.

    python -m scripts.benchmarks.camera_check --lamp 6

Each of CAVE's training scenes is judged by the statistics of the others: in even light, and in that
of so many lamps of 2400 to 6500 K as sensors of drawn response see it, parts of 160×176 pixels.
"""

import torch
from torch.nn.functional import avg_pool2d

import cassi
from cassi.calibration.spectra_check import REVERSED, prefer
from cassi.data.bundled import bundled_path
from cassi.data.manifest import read_manifest
from scripts.benchmarks.tables import Parser, Table, data_folder
from scripts.data.spectra import summarize


def look_under_lamps(count: int) -> None:
    """Print how many cubes are warned of as reversed that are not, and that are."""
    manifest = read_manifest(bundled_path("manifests/cave.json"))
    given = torch.tensor(manifest.wavelengths, dtype=torch.float64)
    folder = data_folder()
    names = sorted(manifest.files("train"))
    cubes = [avg_pool2d(cassi.read_cube(folder / name), 2)[0] for name in names]
    random = torch.Generator().manual_seed(0)

    def between(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=random))

    table = Table("light", "cubes", "right, warned of", "reversed, warned of")
    for light, many in (("even", 1), ("lamps", count)):
        right, wrong, total = 0, 0, 0
        for skipped, cube in enumerate(cubes):
            known = summarize([each for k, each in enumerate(cubes) if k != skipped], given)
            for _ in range(many):
                shape = torch.ones_like(given)
                if light == "lamps":
                    kelvin, best, width = between(2400, 6500), between(550, 700), between(120, 300)
                    shape = given**-4 / ((1.4388e7 / (given * kelvin)).exp() - 1)
                    shape *= (-((given - best) / width).square()).exp()
                top, left = int(between(0, 96)), int(between(0, 80))
                part = cube[:, top : top + 160, left : left + 176]
                x = part * (shape / shape.max()).float().view(-1, 1, 1)
                score, total = prefer(x, given.tolist(), known=known) or 0.0, total + 1
                right += score < REVERSED
                wrong += -score < REVERSED
        table.print(light, total, right, wrong)


def main() -> None:
    """Print the table."""
    parser = Parser(__doc__, threads=1)
    parser.add_argument("--lamp", type=int, default=6, metavar="LAMPS", help="of each scene")
    look_under_lamps(parser.parse_args().lamp)


if __name__ == "__main__":
    main()
