"""Manifests: lists of the files of each split, with checksums that prove which files were used."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cassi.checks import read_regular
from cassi.data.atomic import digest, digest_content
from cassi.data.bundled import bundled_path
from cassi.data.scenes import find_scenes, scene_name
from cassi.data.wavelengths import checked_wavelengths

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Manifest:
    """The files of each split with their checksums.

    Attributes:
        wavelengths: bands to which all scenes are interpolated, nm, rising.
        train: checksum (SHA-256, hexadecimal) of each file or PNG folder by its path relative to
            the data root, with forward slashes.
        validation: checksums of the scenes that are used to select weights.
        test: checksums of the scenes that are used to select nothing.
        aliases: by path, the name of the scene in other data sets if its file has another name.
    """

    wavelengths: tuple[float, ...]
    train: Mapping[str, str] = field(default_factory=dict)
    validation: Mapping[str, str] = field(default_factory=dict)
    test: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def files(self, split: str) -> Mapping[str, str]:
        """Return the checksums of one split by path."""
        if split not in SPLITS:
            raise ValueError(f"split: expected {', '.join(SPLITS)}, got {split!r}")
        return {"train": self.train, "validation": self.validation, "test": self.test}[split]

    def scene_name(self, path: str) -> str:
        """Return the name of a listed scene: its alias, else the name of its file."""
        return scene_name(self.aliases.get(path, path))


class CheckedSplit(NamedTuple):
    """The scenes of a split that were checked.

    Attributes:
        paths: files and PNG folders in the manifest's order.
        unlisted_files: scenes in the same folders that the manifest does not list.
    """

    paths: tuple[Path, ...]
    unlisted_files: tuple[Path, ...]


def checksum(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file, or of the names and contents of the PNGs in a folder.

    Other files in the folder, such as thumbnails and texts, do not count.
    """
    path = Path(path)
    if not path.is_dir():
        return digest(path)
    pages = sorted(path.iterdir(), key=lambda file: file.name)
    return digest_content(
        f"{page.name}\0{digest(page)}\n"
        for page in pages
        if page.suffix.lower() == ".png" and not page.name.startswith(".")
    )


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Read a manifest: a JSON file, or a bundled one by its name, such as "cave".

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no manifest.
    """
    file = Path(path).expanduser()
    bundled_file = bundled_path(f"manifests/{file.name}.json")
    if not file.is_file() and file.parent == Path() and bundled_file.is_file():
        file = bundled_file
    if not file.is_file():
        raise FileNotFoundError(f"no manifest {file}; write one with scripts/data/manifest.py")
    text = read_regular(file)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: expected a manifest in JSON: {error}") from error
    try:
        return _parse_manifest(content)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def check_split(manifest: Manifest, split: str, root: str | os.PathLike[str]) -> CheckedSplit:
    """Check that all files of a split exist unchanged, and that none is a scene of a later split.

    The order of the splits is train, validation, test. Two scenes are the same if their checksums
    are equal, or their names apart from suffix, case and `_ms`. All scenes in the folders of the
    split are compared, also those that the manifest does not list.

    Raises:
        FileNotFoundError: a listed file is missing.
        ValueError: the split is empty, a file has changed, or a scene is in a later split too.
    """
    root = Path(root).expanduser()
    checksums = manifest.files(split)
    if not checksums:
        raise ValueError(f"the manifest names no {split} scenes")
    missing = [name for name in checksums if not (root / name).exists()]
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} of {len(checksums)} {split} scenes are missing in {root}: "
            f"{first_names(missing)}; is this the data root?"
        )
    # Listed names are checked first: reading all files for their checksums takes long.
    listed_scenes = [(name, manifest.scene_name(name)) for name in checksums]
    _refuse_later_scenes(manifest, split, listed_scenes, checksums)
    listed_files = {
        (root / name).resolve() for split_name in SPLITS for name in manifest.files(split_name)
    }
    folders = {root / name.split("/")[0] if "/" in name else root for name in checksums}
    scenes_beside = sorted({path for folder in folders for path in find_scenes(folder)})
    unlisted_files = [path for path in scenes_beside if path.resolve() not in listed_files]
    unlisted_scenes = [
        (path.relative_to(root).as_posix(), scene_name(path)) for path in unlisted_files
    ]
    digests = {
        name: checksum(root / name) for name in [*checksums, *(name for name, _ in unlisted_scenes)]
    }
    changed_names = [name for name, digest in checksums.items() if digests[name] != digest]
    if changed_names:
        raise ValueError(
            f"{len(changed_names)} of {len(checksums)} {split} scenes have another checksum than "
            f"the manifest: {first_names(changed_names)}; get the original files or write a new "
            "manifest"
        )
    _refuse_later_scenes(manifest, split, unlisted_scenes, digests)
    return CheckedSplit(tuple(root / name for name in checksums), tuple(unlisted_files))


def refuse_shared(
    paths: Iterable[Path], later_paths: Iterable[Path], split: str, later_split: str
) -> None:
    """Raise ValueError if a scene of a split is also in a later split.

    This check is for data without a manifest. Two scenes are the same if their contents or their
    names are equal. Names such as `scene01` do not count, because every data set uses them.
    """
    digests, names = {}, {}
    for path in later_paths:
        digests[checksum(path)] = path
        if any(letter.isalpha() for letter in scene_name(path).removeprefix("scene")):
            names[scene_name(path)] = path
    for path in paths:
        later_path = names.get(scene_name(path)) or digests.get(checksum(path))
        if later_path is not None:
            raise ValueError(
                f"{path} is the {later_split} scene {later_path}; take it out of the {split} data, "
                f"or the {later_split} figures mean nothing"
            )


def _refuse_later_scenes(
    manifest: Manifest, split: str, scenes: Iterable[tuple[str, str]], digests: Mapping[str, str]
) -> None:
    """Raise ValueError if a scene (path, name) of a split is in a later split of the manifest."""
    for later_split in SPLITS[: SPLITS.index(split) : -1]:
        scene_names = {manifest.scene_name(path): path for path in manifest.files(later_split)}
        contents = {digest: path for path, digest in manifest.files(later_split).items()}
        shared_scenes = [
            f"{path} (is {scene_names.get(name) or contents[digests[path]]})"
            for path, name in scenes
            if name in scene_names or digests.get(path) in contents
        ]
        if shared_scenes:
            raise ValueError(
                f"{len(shared_scenes)} {later_split} scenes lie in the {split} data: "
                f"{first_names(shared_scenes)}; take them out, or the {later_split} figures mean "
                "nothing"
            )


def _parse_manifest(content: object) -> Manifest:
    """Return the manifest of a JSON object; ValueError if its form is not that of a manifest."""
    if not isinstance(content, dict):
        raise ValueError(f"expected a JSON object, got {type(content).__name__}")
    unknown = set(content) - {"wavelengths", "aliases", *SPLITS}
    if unknown or "wavelengths" not in content:
        raise ValueError(
            f"expected wavelengths, {', '.join(SPLITS)} and aliases, got {sorted(content)}"
        )
    tables: dict[str, dict[str, str]] = {}
    for name in (*SPLITS, "aliases"):
        table = content.get(name, {})
        if not isinstance(table, dict) or not all(isinstance(text, str) for text in table.values()):
            raise ValueError(f"{name}: expected an object of texts")
        # A manifest of somebody else must not lead to other files of the machine.
        outside_paths = [
            path for path in table if Path(path).is_absolute() or ".." in Path(path).parts
        ]
        if outside_paths:
            raise ValueError(
                f"{name}: expected paths inside the data root, got {first_names(outside_paths)}"
            )
        tables[name] = table
    wavelengths = content["wavelengths"]
    try:
        values = checked_wavelengths(wavelengths, len(wavelengths))
    except (TypeError, OverflowError):
        raise ValueError(f"wavelengths: expected a list of nm, got {wavelengths!r}") from None
    return Manifest(values, **tables)


def first_names(names: Sequence[str], count: int = 3) -> str:
    """Return the first `count` names and the number of the others, for a message."""
    ending = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + ending
