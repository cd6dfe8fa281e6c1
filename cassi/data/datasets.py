"""Data sets of training crops and of whole scenes, and how the scenes get into memory."""

import glob
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from cassi.data.atomic import atomic_path, digest_content
from cassi.data.augment import Augment, augmented_crop
from cassi.data.manifest import SPLITS, Manifest, check_split, read_manifest, refuse_shared
from cassi.data.scenes import Scale, Scene, find_scenes, load_scene

PathLike = str | os.PathLike[str]

# Raised whenever a converted copy would hold other values than before.
_CACHE_VERSION = 3


def load_split(
    root: PathLike | Sequence[PathLike],
    split: str,
    *,
    wavelengths: Sequence[float],
    manifest: Manifest | PathLike | None = None,
    cache: PathLike | None = None,
    scale: Scale = "auto",
    key: str | None = None,
    axes: str | None = None,
    workers: int = 2,
) -> list[Scene]:
    """Load all scenes of a split, compact: 2 bytes a value, see `Scene.compact`.

    Args:
        root: the data root. Without a manifest it has subfolders `train`, `validation` and `test`;
            or it is a list of files and folders, all of which belong to the split.
        split: "train", "validation" or "test".
        wavelengths: wanted bands, nm, rising.
        manifest: from `read_manifest`, a JSON file, or the name of a bundled one, such as "cave".
        cache: folder for converted copies, made if it is not there. They are mapped, not read, so
            several processes share one copy and a set may be larger than the memory. A changed
            file or another list of wavelengths makes a new copy.
        scale: see `load_scene`, as for the next two.
        key: name of the array in the files.
        axes: order of its axes.
        workers: threads that read files.

    Returns:
        The scenes, in the manifest's order, or sorted by path.
    """
    if split not in SPLITS:
        raise ValueError(f"split: expected {', '.join(SPLITS)}, got {split!r}")
    if manifest is not None:
        if not isinstance(root, str | os.PathLike):
            raise TypeError(f"root: expected the manifest's data root, one folder, got {root!r}")
        manifest = manifest if isinstance(manifest, Manifest) else read_manifest(manifest)
        checked = check_split(manifest, split, root)
        paths = list(checked.paths)
        if checked.unlisted:
            names = ", ".join(path.name for path in checked.unlisted[:5])
            # Not by logging, which Hydra switches off in the commands.
            warnings.warn(
                f"{len(checked.unlisted)} scenes beside the {split} data are not in the manifest "
                f"and are left out: {names}",
                stacklevel=2,
            )
    else:
        paths = _unlisted_paths(root, split)

    def load(path: Path) -> Scene:
        return load_scene(path, wavelengths, scale=scale, key=key, axes=axes).compact()

    meaning = scale if key is None and axes is None else (scale, key, axes)
    return load_all(paths, load, tuple(map(float, wavelengths)), cache, meaning, workers)


class TrainingCrops(Dataset[Tensor]):
    """Random samples of scenes; sample i depends on nothing but the seed and i.

    So any number of workers and processes gives the same samples, and training goes on after a
    stop as if there had been none. Every i >= 0 may be asked for, also beyond `length`: a sampler
    that counts on over epochs never repeats a sample.

    `size` is one number of pixels, or (height, width); `length` counts the samples of an epoch.
    """

    def __init__(
        self,
        scenes: Sequence[Scene],
        *,
        size: int | Sequence[int],
        length: int,
        seed: int = 0,
        augment: Augment | None = None,
    ) -> None:
        self.scenes, self.length, self.seed = check_scenes(scenes), int(length), int(seed)
        self.augment = Augment() if augment is None else augment
        self.size = _pair("size", size)
        if self.length < 1:
            raise ValueError(f"length: expected at least 1, got {length}")
        height, width = self.augment.source_size(*self.size)
        for scene in self.scenes:
            _, rows, columns = scene.shape
            if rows < height or columns < width:
                raise ValueError(
                    f"data.crop: {self.size[0]} x {self.size[1]} needs scenes of at least "
                    f"{height} x {width}, {scene.name} is {rows} x {columns}; choose a smaller one"
                )

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        """Draw sample `index`: float32 `(C, height, width)`."""
        if index < 0:
            raise IndexError(f"expected an index >= 0, got {index}")
        state = np.random.SeedSequence([self.seed % 2**64, int(index)]).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(state[0]) >> 1)
        return augmented_crop(self.scenes, *self.size, self.augment, generator)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[index] for index in range(self.length))


class WholeScenes(Dataset[Tensor]):
    """Scenes as they are, for validation and tests: float32 `(C, H, W)`.

    Args:
        scenes: all with the same number of bands.
        crop: size of the part in the centre that is kept, pixels of the scene, one number or
            (height, width); None keeps all.
        downsample: side of the blocks that are then averaged; rows and columns that fill no block
            are cut off.
    """

    def __init__(
        self,
        scenes: Sequence[Scene],
        *,
        crop: int | Sequence[int] | None = None,
        downsample: int = 1,
    ) -> None:
        self.scenes, self.downsample = check_scenes(scenes), int(downsample)
        self.crop = None if crop is None else _pair("crop", crop)
        if self.downsample < 1:
            raise ValueError(f"downsample: expected at least 1, got {downsample}")
        for scene in self.scenes:
            _, rows, columns = scene.shape
            height, width = self.crop or (rows, columns)
            most, least = f"{rows} x {columns}, the size of {scene.name}", min(height, width)
            if height > rows or width > columns:
                raise ValueError(f"crop: expected at most {most}, got {height} x {width}")
            if self.downsample > least:
                name = scene.name
                raise ValueError(
                    f"downsample: expected at most {least}, the size of {name}, got {downsample}"
                )

    @property
    def names(self) -> list[str]:
        """Name of each scene."""
        return [scene.name for scene in self.scenes]

    @property
    def scales(self) -> list[float]:
        """Values of its file for 1 of each scene, see `Scene.scale`."""
        return [scene.scale for scene in self.scenes]

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, index: int) -> Tensor:
        """Read scene `index`."""
        scene = self.scenes[index]
        rows, columns = scene.shape[1:]
        height, width = self.crop or (rows, columns)
        cube = scene.values((rows - height) // 2, (columns - width) // 2, height, width)
        return functional.avg_pool2d(cube, self.downsample) if self.downsample > 1 else cube


def _unlisted_paths(root: PathLike | Sequence[PathLike], split: str) -> list[Path]:
    if not isinstance(root, str | os.PathLike):
        paths = [path for item in root for path in find_scenes(item)]
        if not paths:
            raise ValueError(f"expected scenes for {split}, found none in {list(map(str, root))}")
        return paths
    folders = {name: Path(root).expanduser() / name for name in SPLITS}
    if not folders[split].is_dir():
        raise FileNotFoundError(
            f"no folder {folders[split]}; expected {', '.join(SPLITS)} in the data root, or give a "
            "manifest or a list of folders"
        )
    paths = find_scenes(folders[split], within=root)
    if not paths:
        raise ValueError(f"expected scenes, found none in {folders[split]}")
    for judge in SPLITS[SPLITS.index(split) + 1 :]:
        if folders[judge].is_dir():
            refuse_shared(paths, find_scenes(folders[judge], within=root), split, judge)
    return paths


def load_all(
    paths: Sequence[Path],
    load: Callable[[Path], Scene],
    wavelengths: tuple[float, ...],
    cache: PathLike | None = None,
    meaning: object = None,
    workers: int = 2,
) -> list[Scene]:
    """Load scenes in threads, or map the converted copies that the first call writes into `cache`.

    `meaning` is what the values of a copy depend on beside file and wavelengths.
    """
    if cache is None:
        once = load
    else:
        folder = Path(cache).expanduser()
        folder.mkdir(parents=True, exist_ok=True)

        def once(path: Path) -> Scene:
            return _load_cached(path, load, wavelengths, folder, meaning)

    with ThreadPoolExecutor(max(workers, 1)) as pool:
        return list(pool.map(once, paths))


def _load_cached(
    path: Path,
    load: Callable[[Path], Scene],
    wavelengths: tuple[float, ...],
    cache: Path,
    meaning: object,
) -> Scene:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    stamps = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    told = repr((_CACHE_VERSION, str(path.resolve()), stamps, wavelengths, meaning))
    name = f"{path.stem[:60]}-{digest_content([told])[:16]}"
    copy = next(cache.glob(f"{glob.escape(name)}-*.npy"), None)
    if copy is None:
        scene = load(path)
        copy = cache / f"{name}-{scene.scale!r}-{scene.full_scale}.npy"
        with atomic_path(copy) as temporary:
            np.save(temporary, scene.cube.numpy())
    # Copy on write: torch takes no read-only memory, and nobody can harm the file.
    cube = torch.from_numpy(np.load(copy, mmap_mode="c", allow_pickle=False))
    scale, full_scale = copy.stem.rsplit("-", 2)[1:]
    name, note = path.stem.removesuffix("_ms"), f"{path.name}: from {copy.name}"
    return Scene(name, cube, wavelengths, note, float(scale), int(full_scale))


def check_scenes(scenes: Sequence[Scene]) -> list[Scene]:
    """Return scenes as a list; ValueError unless there are some, all of one number of bands."""
    scenes = list(scenes)
    if not scenes:
        raise ValueError("scenes: expected at least one, got none")
    for scene in scenes:
        if scene.shape[0] != scenes[0].shape[0]:
            raise ValueError(
                f"scenes: expected one number of bands, got {scenes[0].shape[0]} in "
                f"{scenes[0].name} and {scene.shape[0]} in {scene.name}"
            )
    return scenes


def _pair(name: str, size: int | Sequence[int]) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(n, int) and n > 0 for n in pair):
        raise ValueError(f"{name}: expected a positive number or (height, width), got {size!r}")
    return pair[0], pair[1]
