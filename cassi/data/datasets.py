"""Load the scenes of a split, and serve them to PyTorch as training crops or whole scenes."""

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

# This number is part of the name of every converted copy. Increase it when a change of the code
# changes the values of copies, so that old copies are no longer used.
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
    """Load all scenes of a split in compact form: 2 bytes per value, see `Scene.compact`.

    Args:
        root: the data root. Without a manifest it is a folder with subfolders `train`, `validation`
            and `test`, or a list of files and folders that all belong to the split.
        split: "train", "validation" or "test".
        wavelengths: bands of the loaded scenes, nm, rising.
        manifest: a manifest, a JSON file with one, or the name of a bundled one, such as "cave".
        cache: folder for converted copies, created if needed. Copies are mapped into memory, so
            processes share them, and a data set may be larger than the memory. A new copy is made
            if the file has changed, or if an argument that changes its values has changed.
        scale: divisor of the values, as for `load_scene`.
        key: name of the array in the files, as for `load_scene`.
        axes: order of the axes of the array, as for `load_scene`.
        workers: threads that read files.

    Returns:
        The scenes, in the manifest's order, or sorted by path.

    Raises:
        OSError: a file or folder is missing.
        TypeError: `root` is a list although there is a manifest.
        ValueError: an unknown split, no scenes, a damaged file, or a scene of a later split.
    """
    if split not in SPLITS:
        raise ValueError(f"split: expected {', '.join(SPLITS)}, got {split!r}")
    if manifest is not None:
        if not isinstance(root, str | os.PathLike):
            raise TypeError(f"root: expected the manifest's data root, one folder, got {root!r}")
        manifest = manifest if isinstance(manifest, Manifest) else read_manifest(manifest)
        checked_split = check_split(manifest, split, root)
        paths = list(checked_split.paths)
        if checked_split.unlisted_files:
            names = ", ".join(path.name for path in checked_split.unlisted_files[:5])
            # This is no log message, because Hydra switches logging off in the commands.
            warnings.warn(
                f"{len(checked_split.unlisted_files)} scenes beside the {split} data are not in "
                f"the manifest and are left out: {names}",
                stacklevel=2,
            )
    else:
        paths = _find_split(root, split)

    def load(path: Path) -> Scene:
        return load_scene(path, wavelengths, scale=scale, key=key, axes=axes).compact()

    value_settings = scale if key is None and axes is None else (scale, key, axes)
    return load_all(paths, load, tuple(map(float, wavelengths)), cache, value_settings, workers)


class TrainingCrops(Dataset[Tensor]):
    """Random training samples of scenes; sample i depends only on the seed and on i.

    So the samples do not depend on the number of workers or processes, and a resumed training gets
    the same samples as one without interruption. Every i >= 0 is allowed, also beyond `length`. A
    sampler that continues to count over the epochs never repeats a sample.

    Args:
        scenes: all with the same number of bands.
        size: size of the samples, one number of pixels or (height, width).
        length: number of samples in an epoch.
        seed: seed of all samples.
        augment: the random variations; by default `Augment()`.

    Raises:
        ValueError: no scenes, a scene that is too small, or a length below 1.
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
        self.size = _as_pair("size", size)
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
    """Scenes without variations, for validation and tests: float32 `(C, H, W)`.

    Args:
        scenes: all with the same number of bands.
        crop: size of the central part that is kept, pixels of the scene, one number or (height,
            width); None keeps all.
        downsample: side of the blocks of pixels that are averaged after the crop. Rows and columns
            that do not fill a block are cut off.

    Raises:
        ValueError: no scenes, or a crop or a block that is larger than a scene.
    """

    def __init__(
        self,
        scenes: Sequence[Scene],
        *,
        crop: int | Sequence[int] | None = None,
        downsample: int = 1,
    ) -> None:
        self.scenes, self.downsample = check_scenes(scenes), int(downsample)
        self.crop = None if crop is None else _as_pair("crop", crop)
        if self.downsample < 1:
            raise ValueError(f"downsample: expected at least 1, got {downsample}")
        for scene in self.scenes:
            _, rows, columns = scene.shape
            height, width = self.crop or (rows, columns)
            if height > rows or width > columns:
                raise ValueError(
                    f"crop: expected at most {rows} x {columns}, the size of {scene.name}, got "
                    f"{height} x {width}"
                )
            if self.downsample > min(height, width):
                raise ValueError(
                    f"downsample: expected at most {min(height, width)}, the size of "
                    f"{scene.name}, got {downsample}"
                )

    @property
    def names(self) -> list[str]:
        """Name of each scene."""
        return [scene.name for scene in self.scenes]

    @property
    def scales(self) -> list[float]:
        """For each scene, the value in its file that becomes 1 in the scene; see `Scene.scale`."""
        return [scene.scale for scene in self.scenes]

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, index: int) -> Tensor:
        """Return scene `index`, `(C, H, W)`."""
        scene = self.scenes[index]
        rows, columns = scene.shape[1:]
        height, width = self.crop or (rows, columns)
        cube = scene.values((rows - height) // 2, (columns - width) // 2, height, width)
        return functional.avg_pool2d(cube, self.downsample) if self.downsample > 1 else cube


def _find_split(root: PathLike | Sequence[PathLike], split: str) -> list[Path]:
    """List the scenes of a split without a manifest; ValueError if one is in a later split too."""
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
    paths = find_scenes(folders[split], tree=root)
    if not paths:
        raise ValueError(f"expected scenes, found none in {folders[split]}")
    for later_split in SPLITS[SPLITS.index(split) + 1 :]:
        if folders[later_split].is_dir():
            refuse_shared(paths, find_scenes(folders[later_split], tree=root), split, later_split)
    return paths


def load_all(
    paths: Sequence[Path],
    load: Callable[[Path], Scene],
    wavelengths: tuple[float, ...],
    cache: PathLike | None = None,
    value_settings: object = None,
    workers: int = 2,
) -> list[Scene]:
    """Load scenes in threads, with converted copies of them in `cache`.

    The first call writes the copies. Later calls map the copies into memory.

    Args:
        paths: files or folders of the scenes.
        load: function that reads one scene from its path.
        wavelengths: bands of the loaded scenes, nm.
        cache: folder for converted copies; None reads the files each time.
        value_settings: settings of `load` that change the values; they are part of a copy's name.
        workers: number of threads.
    """
    if cache is None:
        load_or_map = load
    else:
        folder = Path(cache).expanduser()
        folder.mkdir(parents=True, exist_ok=True)

        def load_or_map(path: Path) -> Scene:
            return _load_cached(path, load, wavelengths, folder, value_settings)

    with ThreadPoolExecutor(max(workers, 1)) as pool:
        return list(pool.map(load_or_map, paths))


def _load_cached(
    path: Path,
    load: Callable[[Path], Scene],
    wavelengths: tuple[float, ...],
    cache: Path,
    value_settings: object,
) -> Scene:
    """Map the converted copy of a scene, or load the scene and write the copy first."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    stamps = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    key = repr((_CACHE_VERSION, str(path.resolve()), stamps, wavelengths, value_settings))
    copy_name = f"{path.stem[:60]}-{digest_content([key])[:16]}"
    copy_path = next(cache.glob(f"{glob.escape(copy_name)}-*.npy"), None)
    if copy_path is None:
        scene = load(path)
        copy_path = cache / f"{copy_name}-{scene.scale!r}-{scene.full_scale}.npy"
        with atomic_path(copy_path) as temporary:
            np.save(temporary, scene.cube.numpy())
    # torch warns of read-only memory, so mode "c" maps the file copy-on-write: writing to the
    # tensor does not change the file.
    cube = torch.from_numpy(np.load(copy_path, mmap_mode="c", allow_pickle=False))
    scale, full_scale = copy_path.stem.rsplit("-", 2)[1:]
    scene_name, note = path.stem.removesuffix("_ms"), f"{path.name}: from {copy_path.name}"
    return Scene(scene_name, cube, wavelengths, note, float(scale), int(full_scale))


def check_scenes(scenes: Sequence[Scene]) -> list[Scene]:
    """Return scenes as a list; ValueError if there are none or their numbers of bands differ."""
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


def _as_pair(name: str, size: int | Sequence[int]) -> tuple[int, int]:
    """Return a setting of one number or (height, width) as a pair; ValueError if it is neither."""
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(n, int) and n > 0 for n in pair):
        raise ValueError(f"{name}: expected a positive number or (height, width), got {size!r}")
    return pair[0], pair[1]
