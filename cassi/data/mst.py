"""The data sets of the MST toolbox as its code reads them, and the batches that it trains on.

Source: https://github.com/caiyuanhao1998/MST (Cai et al., "Mask-guided spectral-wise transformer
for efficient hyperspectral image reconstruction", CVPR 2022), `simulation/train_code/utils.py` and
`real/train_code/utils.py`.
"""

import os
import random
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cassi.data.augment import turn
from cassi.data.datasets import check_scenes, load_all
from cassi.data.formats.listing import list_folder, say_left_out
from cassi.data.io import load_cube
from cassi.data.manifest import refuse_shared
from cassi.data.scenes import Scene

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Folder:
    """How the toolbox reads the `.mat` files of one of its folders.

    Attributes:
        pattern: of the files' names; a number in it is at most `most`.
        keys: names of the array `(H, W, C)`; the first that a file has counts.
        full_scale: what the values are divided by.
        clip: bring them to [0, 1].
        most: the largest number of a file, or None.
    """

    pattern: str
    keys: tuple[str, ...]
    full_scale: int = 1
    clip: bool = False
    most: int | None = None


FOLDERS = {
    "cave_1024_28": Folder(r"scene(\d+)\.mat", ("img_expand", "img"), 65536, most=205),
    "CAVE_512_28": Folder(r".+\.mat", ("data_slice",), 65535, clip=True),
    "KAIST_CVPR2021": Folder(r".+\.mat", ("HSI",), clip=True),
    "TSA_simu_data/Truth": Folder(r".+\.mat", ("img",)),
}
"""The folders of cubes in `datasets` of the toolbox."""
TEST = "TSA_simu_data/Truth"
"""The ten scenes that it validates and tests on."""


class Toolbox:
    """The cubes in the folder `datasets` of the toolbox, by split.

    Values are those of the toolbox, to the last bit of float32 where a file holds whole numbers or
    float32. Counts of `cave_1024_28` take two bytes each in memory, all else four.

    Args:
        root: the folder `datasets`.
        wavelengths: of the files' bands, nm; they do not state them.
        train: folders of training scenes, names of `FOLDERS`.
        cache: folder for converted copies, see `cassi.data.datasets.load_all`.
    """

    def __init__(
        self,
        root: PathLike,
        wavelengths: Sequence[float],
        train: Sequence[str] = ("cave_1024_28",),
        cache: PathLike | None = None,
    ) -> None:
        if not train or (unknown := [name for name in train if name not in FOLDERS]):
            raise ValueError(
                f"train: expected folders among {', '.join(FOLDERS)}, got {unknown or train}"
            )
        self.root, self.train, self.cache = Path(root).expanduser(), tuple(train), cache
        self.wavelengths = tuple(map(float, wavelengths))

    def __call__(self, split: str) -> list[Scene]:
        """Load the scenes of "train"; of any other split those that the toolbox tests on."""
        names = self.train if split == "train" else (TEST,)
        listed = {name: list_scenes(self.root, name) for name in names}
        if split == "train" and (self.root / TEST).is_dir():
            tests = list_scenes(self.root, TEST)
            # A copy has the same size, and most files need not be read for that.
            sizes = {path.stat().st_size for path in tests}
            paths = [p for part in listed.values() for p in part if p.stat().st_size in sizes]
            refuse_shared(paths, tests, split, "test")
        return [scene for name in names for scene in self._load(name, listed[name])]

    def _load(self, name: str, paths: list[Path]) -> list[Scene]:
        folder = FOLDERS[name]

        def load(path: Path) -> Scene:
            return load_toolbox_scene(path, folder, self.wavelengths)

        return load_all(paths, load, self.wavelengths, self.cache, folder)


def list_scenes(root: PathLike, name: str) -> list[Path]:
    """List the scenes in a folder of the toolbox, sorted by name: `scene10` before `scene2`.

    The folder may be a link; links in it may lead to files below `root`.
    """
    folder, place = FOLDERS[name], Path(root).expanduser() / name
    first = "scene01.mat" if name == TEST else "scene1.mat"
    if not place.is_dir():
        raise FileNotFoundError(
            f"no folder {place}; data.root=DIR is the folder datasets of the MST toolbox, in which "
            f"there is {name}/{first}"
        )
    paths = []
    entries, left_out = list_folder(place, Path(root).expanduser())
    left_out = {
        path: why for path, why in left_out.items() if re.fullmatch(folder.pattern, path.name)
    }
    for path in sorted(entries, key=lambda path: path.name):
        found = re.fullmatch(folder.pattern, path.name)
        if found is None:
            continue
        if folder.most is None or int(found[1]) <= folder.most:
            paths.append(path)
    if not paths:
        more = f"; {say_left_out(left_out)}" if left_out else ""
        raise ValueError(f"expected scenes such as {first}, found none in {place}{more}")
    if left_out:
        warnings.warn(f"{place}: {say_left_out(left_out)}", stacklevel=2)
    return paths


def load_toolbox_scene(path: Path, folder: Folder, wavelengths: tuple[float, ...]) -> Scene:
    """Read a cube `(H, W, C)` as the toolbox does."""
    bands, full_scale = len(wavelengths), folder.full_scale
    for key in folder.keys:
        try:
            loaded = load_cube(path, key=key, axes="HWC", bands=bands)
            break
        except ValueError as error:
            if key == folder.keys[-1] or "no array" not in str(error):
                raise
    cube = loaded.data[0]
    if len(cube) != bands:
        raise ValueError(f"{path}: expected {bands} bands, got {len(cube)}")
    note = f"{loaded.note}, divided by {full_scale}" if full_scale != 1 else loaded.note
    # Counts of two bytes give the same bits where 1 / full_scale is a number of float32.
    whole = (cube >= 0) & (cube < 65536) & (cube == cube.round())
    if full_scale == 65536 and bool(whole.all()):
        return Scene(path.stem, cube.to(torch.uint16), wavelengths, note, full_scale=full_scale)
    cube = cube.div_(full_scale)
    return Scene(path.stem, cube.clamp_(0, 1) if folder.clip else cube, wavelengths, note)


@dataclass(frozen=True)
class Draw:
    """One sample of a batch: what is cut where, and how it is turned.

    Attributes:
        windows: scene, top and left of one crop, or of the four quarters of a spliced sample: top
            left, top right, bottom left, bottom right.
        turns: by right angles, counterclockwise.
        flip_columns: mirror the columns after that.
        flip_rows: then mirror the rows.
    """

    windows: tuple[tuple[int, int, int], ...]
    turns: int = 0
    flip_columns: bool = False
    flip_rows: bool = False


def draw_batch(
    scenes: int,
    rows: int,
    columns: int,
    size: int,
    batch_size: int,
    places: np.random.RandomState,
    turns: random.Random,
) -> list[Draw]:
    """Draw a batch by the rule of the toolbox, with the random numbers in its order.

    Of B samples the first ⌊B/2⌋ are crops, turned and mirrored. The others are spliced of four
    quarters, each of a scene drawn anew, neither turned nor mirrored. A place below the last one is
    drawn: `randint(0, rows − size)` excludes its upper bound. `places` is what the toolbox draws
    from `numpy.random`, `turns` what it draws from `random`.
    """
    crops = []
    for scene in places.choice(range(scenes), batch_size // 2):
        top = places.randint(0, rows - size)
        crops.append((int(scene), top, places.randint(0, columns - size)))
    draws = [
        Draw((crop,), turns.randint(0, 3), bool(turns.randint(0, 1)), bool(turns.randint(0, 1)))
        for crop in crops
    ]
    for _ in range(batch_size - batch_size // 2):
        quarters = []
        for scene in places.randint(0, scenes, 4):
            top = places.randint(0, rows - size // 2)
            quarters.append((int(scene), top, places.randint(0, columns - size // 2)))
        draws.append(Draw(tuple(quarters)))
    return draws


def cut(scenes: Sequence[Scene], size: int, draw: Draw) -> Tensor:
    """Cut a sample out of scenes: float32 `(C, size, size)`."""
    side = size if len(draw.windows) == 1 else size // 2
    parts = [scenes[scene].values(top, left, side, side) for scene, top, left in draw.windows]
    if len(parts) == 1:
        return turn(parts[0], draw.turns, draw.flip_rows, draw.flip_columns)
    return torch.cat([torch.cat(parts[:2], -1), torch.cat(parts[2:], -1)], -2)


class ToolboxBatches(Dataset[Tensor]):
    """Training samples by the rule of the toolbox: of every batch ⌊B/2⌋ crops, the rest spliced.

    Sample i is the one at place i mod B of batch ⌊i/B⌋, which depends on nothing but the seed and
    its number; so any number of workers and processes gives the same samples.

    Args:
        scenes: all of one size, larger than the samples.
        size: of the samples, rows and columns, even.
        length: number of samples of an epoch.
        batch_size: B.
        seed: of all samples.
    """

    def __init__(
        self, scenes: Sequence[Scene], *, size: int, length: int, batch_size: int, seed: int = 0
    ) -> None:
        self.scenes, self.length, self.seed = check_scenes(scenes), int(length), int(seed)
        self.size, self.batch_size = size, int(batch_size)
        if not isinstance(size, int) or size < 2 or size % 2:
            raise ValueError(f"size: expected an even number of rows and columns, got {size!r}")
        _, self.rows, self.columns = self.scenes[0].shape
        for scene in self.scenes:
            if scene.shape != self.scenes[0].shape:
                raise ValueError(
                    f"scenes: expected one size, which the toolbox takes from the last crop, got "
                    f"{self.rows} x {self.columns} in {self.scenes[0].name} and "
                    f"{scene.shape[1]} x {scene.shape[2]} in {scene.name}"
                )
        if min(self.rows, self.columns) <= size:
            raise ValueError(
                f"size: expected less than {min(self.rows, self.columns)}, the size of the scenes, "
                f"because the last place is never drawn, got {size}"
            )

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        """Draw sample `index`: float32 `(C, size, size)`."""
        if index < 0:
            raise IndexError(f"expected an index >= 0, got {index}")
        batch, place = divmod(index, self.batch_size)
        seeds = np.random.SeedSequence([self.seed % 2**64, batch]).generate_state(8)
        draws = draw_batch(
            len(self.scenes),
            self.rows,
            self.columns,
            self.size,
            self.batch_size,
            np.random.RandomState(seeds[:4]),
            random.Random(seeds[4:].tobytes()),
        )
        return cut(self.scenes, self.size, draws[place])
