"""Write the manifest of a data set: the files of each split, with their checksums.

For example, this command writes the manifest of the package:

    python -m scripts.data.manifest $CASSI_DATA --train cave_train --validation cave_raw \
        --test cave_test --alias cave_test/scene01.mat=flowers … --output data/manifests/cave.json

A split without an option takes the folder with its name in ROOT, if there is one.
"""

import argparse
import json
import sys
from pathlib import Path

from cassi.data.atomic import atomic_path
from cassi.data.manifest import SPLITS, checksum, read_manifest
from cassi.data.scenes import find_scenes
from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS


def main() -> int:
    """Write the manifest, and print the number of scenes of each split."""
    parser = argparse.ArgumentParser(description="Write a manifest of training data.")
    parser.add_argument("root", type=Path, metavar="ROOT", help="the data root")
    for split in SPLITS:
        parser.add_argument(f"--{split}", nargs="*", metavar="FOLDER", help="relative to ROOT")
    parser.add_argument("--alias", nargs="*", default=[], metavar="PATH=NAME")
    parser.add_argument("--wavelengths", nargs="*", type=float, default=BENCHMARK_WAVELENGTHS)
    parser.add_argument("--output", type=Path, help="default: ROOT/manifest.json")
    arguments = parser.parse_args()
    root = arguments.root.expanduser()
    content: dict[str, object] = {"wavelengths": list(arguments.wavelengths)}
    for split in SPLITS:
        folders = getattr(arguments, split)
        if folders is None:
            folders = [split] if (root / split).is_dir() else []
        scenes = [path for folder in folders for path in find_scenes(root / folder)]
        content[split] = {path.relative_to(root).as_posix(): checksum(path) for path in scenes}
        print(f"{split}: {len(scenes)} scenes", file=sys.stderr)
    content["aliases"] = dict(pair.split("=", 1) for pair in arguments.alias)
    output = arguments.output or root / "manifest.json"
    # The manifest is read before it gets its final name, so that an invalid one is never used.
    with atomic_path(output) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        read_manifest(temporary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
