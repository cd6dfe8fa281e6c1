"""Read the data sets of the MST toolbox as its code does, and draw its training batches.

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

from cassi.data.augment import rotate_or_flip
from cassi.data.datasets import check_scenes, load_all
from cassi.data.formats.listing import describe_left_out, list_folder
from cassi.data.io import load_cube
from cassi.data.manifest import refuse_shared
from cassi.data.scenes import Scene

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Folder:
    """How the toolbox reads the `.mat` files of one of its folders.

    Attributes:
        pattern: regular expression of the files' names, with a group for the number of a file.
        keys: names of the array `(H, W, C)`; the first one that a file has is read.
        full_scale: divisor of the values.
        clip: clip the values to [0, 1].
        max_number: files with a larger number are not read; None reads all.
    """

    pattern: str
    keys: tuple[str, ...]
    full_scale: int = 1
    clip: bool = False
    max_number: int | None = None


FOLDERS = {
    "cave_1024_28": Folder(r"scene(\d+)\.mat", ("img_expand", "img"), 65536, max_number=205),
    "CAVE_512_28": Folder(r".+\.mat", ("data_slice",), 65535, clip=True),
    "KAIST_CVPR2021": Folder(r".+\.mat", ("HSI",), clip=True),
    "TSA_simu_data/Truth": Folder(r".+\.mat", ("img",)),
}
"""The folders of cubes in the folder `datasets` of the toolbox, and how each is read."""
TEST_FOLDER = "TSA_simu_data/Truth"
"""The folder with the ten scenes that the toolbox validates and tests on."""


class Toolbox:
    """The cubes in the folder `datasets` of the toolbox, by split.

    Values have the same bits as in the toolbox if a file holds whole numbers or float32. Counts of
    `cave_1024_28` take two bytes each in memory, all other values four.

    Args:
        root: the folder `datasets`.
        wavelengths: bands of the files, nm; the files do not state them.
        train: folders of training scenes, keys of `FOLDERS`.
        cache: folder for converted copies, see `cassi.data.datasets.load_all`.

    Raises:
        ValueError: no training folder, or an unknown one.
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
        """Load the training scenes for "train", and the test scenes for any other split."""
        names = self.train if split == "train" else (TEST_FOLDER,)
        paths_by_folder = {name: list_scenes(self.root, name) for name in names}
        if split == "train" and (self.root / TEST_FOLDER).is_dir():
            test_paths = list_scenes(self.root, TEST_FOLDER)
            # Checksums of all files would take long. A copy of a test scene has the same size, so
            # only files with the size of a test scene are read.
            sizes = {path.stat().st_size for path in test_paths}
            same_size_paths = [
                p
                for folder_paths in paths_by_folder.values()
                for p in folder_paths
                if p.stat().st_size in sizes
            ]
            refuse_shared(same_size_paths, test_paths, split, "test")
        return [scene for name in names for scene in self._load(name, paths_by_folder[name])]

    def _load(self, name: str, paths: list[Path]) -> list[Scene]:
        folder = FOLDERS[name]

        def load(path: Path) -> Scene:
            return load_toolbox_scene(path, folder, self.wavelengths)

        return load_all(paths, load, self.wavelengths, self.cache, folder)


def list_scenes(root: PathLike, name: str) -> list[Path]:
    """List the scenes in a folder of the toolbox, sorted by name: `scene10` before `scene2`.

    The folder may be a link. Links in it may lead to files below `root`.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it has no scenes.
    """
    folder, folder_path = FOLDERS[name], Path(root).expanduser() / name
    example = "scene01.mat" if name == TEST_FOLDER else "scene1.mat"
    if not folder_path.is_dir():
        raise FileNotFoundError(
            f"no folder {folder_path}; data.root=DIR is the folder datasets of the MST toolbox, in "
            f"which there is {name}/{example}"
        )
    paths = []
    entries, left_out = list_folder(folder_path, Path(root).expanduser())
    left_out = {
        path: reason for path, reason in left_out.items() if re.fullmatch(folder.pattern, path.name)
    }
    for path in sorted(entries, key=lambda path: path.name):
        match = re.fullmatch(folder.pattern, path.name)
        if match is None:
            continue
        if folder.max_number is None or int(match[1]) <= folder.max_number:
            paths.append(path)
    if not paths:
        hint = f"; {describe_left_out(left_out)}" if left_out else ""
        raise ValueError(f"expected scenes such as {example}, found none in {folder_path}{hint}")
    if left_out:
        warnings.warn(f"{folder_path}: {describe_left_out(left_out)}", stacklevel=2)
    return paths


def load_toolbox_scene(path: Path, folder: Folder, wavelengths: tuple[float, ...]) -> Scene:
    """Read a cube `(H, W, C)` as the toolbox does; ValueError for another number of bands."""
    bands, full_scale = len(wavelengths), folder.full_scale
    # If a file has no array of this name, only the message of the error says so. Then the next name
    # is tried. All other errors are raised, as is any error for the last name.
    for key in folder.keys:
        try:
            loaded_cube = load_cube(path, key=key, axes="HWC", bands=bands)
            break
        except ValueError as error:
            if key == folder.keys[-1] or "no array" not in str(error):
                raise
    cube = loaded_cube.data[0]
    if len(cube) != bands:
        raise ValueError(f"{path}: expected {bands} bands, got {len(cube)}")
    note = f"{loaded_cube.note}, divided by {full_scale}" if full_scale != 1 else loaded_cube.note
    # Counts are kept in two bytes only if `Scene.values` gives the same bits as the toolbox.
    # `Scene.values` multiplies by 1 / full_scale, which is exact for a power of two.
    is_count = (cube >= 0) & (cube < 65536) & (cube == cube.round())
    if full_scale == 65536 and bool(is_count.all()):
        return Scene(path.stem, cube.to(torch.uint16), wavelengths, note, full_scale=full_scale)
    cube = cube.div_(full_scale)
    return Scene(path.stem, cube.clamp_(0, 1) if folder.clip else cube, wavelengths, note)


@dataclass(frozen=True)
class SampleDraw:
    """How one sample of a batch is made: the windows of scenes that it is cut from, and its turns.

    Attributes:
        windows: (scene, top, left) of one crop, or of the four quarters of a spliced sample: top
            left, top right, bottom left, bottom right.
        turns: number of right angles, counterclockwise.
        flip_columns: mirror the columns after the turns.
        flip_rows: mirror the rows at the end.
    """

    windows: tuple[tuple[int, int, int], ...]
    turns: int = 0
    flip_columns: bool = False
    flip_rows: bool = False


def draw_batch(
    n_scenes: int,
    rows: int,
    columns: int,
    size: int,
    batch_size: int,
    position_random: np.random.RandomState,
    turn_random: random.Random,
) -> list[SampleDraw]:
    """Draw a batch by the rule of the toolbox, with the random numbers in its order.

    The first ⌊B/2⌋ of B samples are crops, turned and mirrored. Each other sample is joined from
    four quarters of random scenes and is neither turned nor mirrored. The last position of a window
    is never drawn, because `randint(0, rows − size)` excludes its upper bound.

    Args:
        n_scenes: number of scenes.
        rows: number of rows of every scene.
        columns: number of columns of every scene.
        size: rows and columns of a sample.
        batch_size: B.
        position_random: generator of positions, in place of the toolbox's `numpy.random`.
        turn_random: generator of turns and mirrors, in place of the toolbox's `random`.

    Returns:
        How to make each of the B samples.
    """
    crops = []
    for scene in position_random.choice(range(n_scenes), batch_size // 2):
        top = position_random.randint(0, rows - size)
        crops.append((int(scene), top, position_random.randint(0, columns - size)))
    draws = []
    for crop in crops:
        turns = turn_random.randint(0, 3)
        flip_columns = bool(turn_random.randint(0, 1))
        flip_rows = bool(turn_random.randint(0, 1))
        draws.append(SampleDraw((crop,), turns, flip_columns, flip_rows))
    for _ in range(batch_size - batch_size // 2):
        quarters = []
        for scene in position_random.randint(0, n_scenes, 4):
            top = position_random.randint(0, rows - size // 2)
            quarters.append((int(scene), top, position_random.randint(0, columns - size // 2)))
        draws.append(SampleDraw(tuple(quarters)))
    return draws


def cut_sample(scenes: Sequence[Scene], size: int, draw: SampleDraw) -> Tensor:
    """Cut a sample out of scenes: float32 `(C, size, size)`."""
    side = size if len(draw.windows) == 1 else size // 2
    windows = [scenes[scene].values(top, left, side, side) for scene, top, left in draw.windows]
    if len(windows) == 1:
        return rotate_or_flip(windows[0], draw.turns, draw.flip_rows, draw.flip_columns)
    return torch.cat([torch.cat(windows[:2], -1), torch.cat(windows[2:], -1)], -2)


class ToolboxBatches(Dataset[Tensor]):
    """Training samples by the rule of the toolbox: each batch has ⌊B/2⌋ crops, the rest is spliced.

    Sample i is number i mod B of batch ⌊i/B⌋. A batch depends only on the seed and on its number,
    so the samples do not depend on the number of workers or processes.

    Args:
        scenes: scenes of one size, larger than the samples.
        size: rows and columns of the samples, even.
        length: number of samples in an epoch.
        batch_size: B.
        seed: seed of all samples.

    Raises:
        ValueError: the size is odd, or the scenes have several sizes or are not larger than the
            samples.
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
                f"because the last position is never drawn, got {size}"
            )

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        """Draw sample `index`: float32 `(C, size, size)`."""
        if index < 0:
            raise IndexError(f"expected an index >= 0, got {index}")
        batch, position = divmod(index, self.batch_size)
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
        return cut_sample(self.scenes, self.size, draws[position])
