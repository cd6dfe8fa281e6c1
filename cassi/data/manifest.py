"""Which files a network is trained, selected and tested on, and proof that they are those."""

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
        wavelengths: bands that everything is brought to, nm, rising.
        train: checksum (SHA-256, hexadecimal) of each file or PNG folder by its path relative to
            the data root, with forward slashes.
        validation: the same; weights are selected by these.
        test: the same; nothing is selected by these.
        aliases: path → what the scene is called elsewhere, where its file name does not tell.
    """

    wavelengths: tuple[float, ...]
    train: Mapping[str, str] = field(default_factory=dict)
    validation: Mapping[str, str] = field(default_factory=dict)
    test: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def files(self, split: str) -> Mapping[str, str]:
        """Path → checksum of one split."""
        if split not in SPLITS:
            raise ValueError(f"split: expected {', '.join(SPLITS)}, got {split!r}")
        return {"train": self.train, "validation": self.validation, "test": self.test}[split]

    def scene_name(self, path: str) -> str:
        """What a listed scene is called: its alias, else by its file name."""
        return scene_name(self.aliases.get(path, path))


class CheckedSplit(NamedTuple):
    """The scenes of a split, in the manifest's order, and what lies unlisted beside them."""

    paths: tuple[Path, ...]
    unlisted: tuple[Path, ...]


def checksum(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file, or of the names and contents of the PNGs in a folder.

    Thumbnails and texts that lie in the folder do not count.
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
    """Read a manifest: a JSON file, or a bundled one by its name, such as "cave"."""
    file = Path(path).expanduser()
    bundled = bundled_path(f"manifests/{file.name}.json")
    if not file.is_file() and file.parent == Path() and bundled.is_file():
        file = bundled
    if not file.is_file():
        raise FileNotFoundError(f"no manifest {file}; write one with scripts/data/manifest.py")
    text = read_regular(file)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: expected a manifest in JSON: {error}") from error
    try:
        return _manifest(content)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def check_split(manifest: Manifest, split: str, root: str | os.PathLike[str]) -> CheckedSplit:
    """Verify that the files of a split are there, are the ones named, and hold no test scene.

    A scene counts as a test scene if it has a test file's checksum, or its name once suffix, case
    and `_ms` are dropped. That is asked of every scene that lies in the folders of the training
    and validation splits, listed or not; in the training split of validation scenes too.
    """
    root = Path(root).expanduser()
    listed = manifest.files(split)
    if not listed:
        raise ValueError(f"the manifest names no {split} scenes")
    missing = [name for name in listed if not (root / name).exists()]
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} of {len(listed)} {split} scenes are missing in {root}: "
            f"{some(missing)}; is this the data root?"
        )
    _refuse_judges(manifest, split, [(n, manifest.scene_name(n)) for n in listed], listed)
    known = {(root / name).resolve() for part in SPLITS for name in manifest.files(part)}
    folders = {root / name.split("/")[0] if "/" in name else root for name in listed}
    beside = sorted({path for folder in folders for path in find_scenes(folder)})
    unlisted = [path for path in beside if path.resolve() not in known]
    names = [(path.relative_to(root).as_posix(), scene_name(path)) for path in unlisted]
    found = {name: checksum(root / name) for name in [*listed, *(name for name, _ in names)]}
    changed = [name for name, digest in listed.items() if found[name] != digest]
    if changed:
        raise ValueError(
            f"{len(changed)} of {len(listed)} {split} scenes have another checksum than the "
            f"manifest: {some(changed)}; get the original files or write a new manifest"
        )
    _refuse_judges(manifest, split, names, found)
    return CheckedSplit(tuple(root / name for name in listed), tuple(unlisted))


def refuse_shared(paths: Iterable[Path], judges: Iterable[Path], split: str, judge: str) -> None:
    """Raise if a scene of a split lies in a later one that judges it, where there is no manifest.

    Equal content is refused, and equal names, except numbers such as `scene01`, which every data
    set uses.
    """
    digests, names = {}, {}
    for path in judges:
        digests[checksum(path)] = path
        if any(letter.isalpha() for letter in scene_name(path).removeprefix("scene")):
            names[scene_name(path)] = path
    for path in paths:
        twin = names.get(scene_name(path)) or digests.get(checksum(path))
        if twin is not None:
            raise ValueError(
                f"{path} is the {judge} scene {twin}; take it out of the {split} data, or the "
                f"{judge} figures mean nothing"
            )


def _refuse_judges(
    manifest: Manifest, split: str, names: Iterable[tuple[str, str]], digests: Mapping[str, str]
) -> None:
    # Later splits judge earlier ones: the test all, the validation split the training.
    for judge in SPLITS[: SPLITS.index(split) : -1]:
        twins = {manifest.scene_name(path): path for path in manifest.files(judge)}
        contents = {digest: path for path, digest in manifest.files(judge).items()}
        leaked = [
            f"{path} (is {twins.get(name) or contents[digests[path]]})"
            for path, name in names
            if name in twins or digests.get(path) in contents
        ]
        if leaked:
            raise ValueError(
                f"{len(leaked)} {judge} scenes lie in the {split} data: {some(leaked)}; take "
                f"them out, or the {judge} figures mean nothing"
            )


def _manifest(content: object) -> Manifest:
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
        if not isinstance(table, dict) or not all(isinstance(v, str) for v in table.values()):
            raise ValueError(f"{name}: expected an object of texts")
        outside = [path for path in table if Path(path).is_absolute() or ".." in Path(path).parts]
        if outside:
            raise ValueError(f"{name}: expected paths inside the data root, got {some(outside)}")
        tables[name] = table
    wavelengths = content["wavelengths"]
    try:
        values = checked_wavelengths(wavelengths, len(wavelengths))
    except (TypeError, OverflowError):
        raise ValueError(f"wavelengths: expected a list of nm, got {wavelengths!r}") from None
    return Manifest(values, **tables)


def some(names: Sequence[str], shown: int = 3) -> str:
    """Return the first of several names, for a message."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
