"""Build the wheel and the source archive of a release, and test both in empty environments.

    python -m scripts.release.archives            # make release

The version is that of pyproject.toml. The release is refused if the working tree has changes, if
CHANGELOG.md has no dated entry of the version, or if it has entries under Unreleased. The source
archive is made from the commit, and the wheel from the source archive. Each archive is installed in
a virtual environment of its own, with the versions of constraints.txt, and reconstructs the bundled
scene from an unrelated folder. If both pass, they are copied to dist/. One line is printed per
archive.
"""

import argparse
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
# Files and folders of the source archive: all that a build needs, and texts for the reader. Tests,
# scripts and pages are only in the repository.
SOURCES = {
    *("cassi", "conf", "csrc", "data", "CMakeLists.txt", "pyproject.toml", "PKG-INFO"),
    *("README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "constraints.txt"),
}
TOOLS = ("scikit-build-core", "cmake", "ninja")


class ReleaseError(Exception):
    """The reason why a release must not be made."""


def check_changelog(text: str, version: str) -> None:
    """Check that a version has a dated entry with content, and that Unreleased is empty.

    Raises:
        ReleaseError: the version has no such entry, or there are entries under Unreleased.
    """
    parts = re.split(r"^## +", text, flags=re.MULTILINE)[1:]
    entries = {part.partition("\n")[0].strip(): part.partition("\n")[2].strip() for part in parts}
    dated_title = re.compile(rf"\[?{re.escape(version)}\]? - \d{{4}}-\d{{2}}-\d{{2}}")
    if not any(dated_title.fullmatch(title) and content for title, content in entries.items()):
        raise ReleaseError(
            f"CHANGELOG.md: expected an entry '## [{version}] - YYYY-MM-DD', found none"
        )
    if any(title.strip("[]") == "Unreleased" and content for title, content in entries.items()):
        raise ReleaseError(f"CHANGELOG.md: entries are under Unreleased; move them to {version}")


def check_tree() -> None:
    """Check that the working tree equals the commit.

    Raises:
        ReleaseError: files are changed or not committed.
    """
    changes = run("git", "status", "--porcelain", cwd=ROOT).splitlines()
    if changes:
        raise ReleaseError(
            f"the tree has {len(changes)} changes, commit them first: {changes[0]} …"
        )


def check_names(archive: Path, version: str) -> int:
    """Check the names of the files of an archive; return their number.

    Raises:
        ReleaseError: files are missing, or there are files that do not belong in the archive.
    """
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            names = [PurePosixPath(name) for name in wheel.namelist() if not name.endswith("/")]
        tops = {"cassi", f"cassi-{version}.dist-info"}
        required_files = {"cassi/__init__.py", "cassi/conf/reconstruct.yaml", "cassi/ops/_cpu.so"}
        required_files |= {
            "cassi/bundled/data/scene.tif",
            f"cassi-{version}.dist-info/licenses/LICENSE",
        }
        forbidden_suffixes = {".cpp", ".cu", ".h", ".pyc"}
    else:
        with tarfile.open(archive) as source:
            members = [PurePosixPath(member.name) for member in source if member.isfile()]
        if {name.parts[0] for name in members} != {f"cassi-{version}"}:
            raise ReleaseError(f"{archive.name}: expected one folder cassi-{version}")
        names = [name.relative_to(f"cassi-{version}") for name in members]
        tops, forbidden_suffixes = SOURCES, {".so", ".pyc"}
        required_files = SOURCES - {"cassi", "conf", "csrc", "data"} | {
            "csrc/ops.cpp",
            "data/scene.tif",
        }
    required_files.add("cassi/models/weights/cassi_net.safetensors")
    stray_files = [
        str(name)
        for name in names
        if name.parts[0] not in tops or name.suffix in forbidden_suffixes
    ]
    missing = required_files - {str(name) for name in names}
    if stray_files or missing:
        raise ReleaseError(f"{archive.name}: stray {stray_files}, missing {sorted(missing)}")
    return len(names)


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command and return its output.

    Raises:
        ReleaseError: the command fails; the message has the end of its output.
    """
    # An archive must work without the developer's tree, its libraries and its data.
    variables = ("PYTHONPATH", "CASSI_LIBRARY_DIR", "CASSI_COMPILED", "CASSI_DATA")
    environment = {name: value for name, value in os.environ.items() if name not in variables}
    words = [str(word) for word in command]
    process = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True)
    if process.returncode:
        raise ReleaseError(f"{' '.join(words)}: {(process.stdout + process.stderr)[-2000:]}")
    return process.stdout


def build(folder: Path) -> list[Path]:
    """Build the source archive from the commit, and the wheel from the source archive."""
    tree = folder / "tree"
    content = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(content.stdout)) as archive:
        archive.extractall(tree, filter="data")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", cwd=tree)
    return sorted((folder / "dist").iterdir())


def test(archive: Path, version: str, folder: Path) -> str:
    """Install an archive in an empty environment and reconstruct with it from an empty folder.

    Returns:
        A line with its size, checksum and result.

    Raises:
        ReleaseError: the archive cannot be installed, has another version, or does not work.
    """
    start = time.perf_counter()
    count = check_names(archive, version)
    folder.mkdir()
    run(sys.executable, "-m", "venv", folder / "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "-q")
    constraints = ("-c", ROOT / "constraints.txt")
    # torch first, or a dependency could pull in another build of it.
    run(*pip, *constraints, "torch", cwd=folder)
    if archive.suffix != ".whl":
        run(*pip, *constraints, *TOOLS, cwd=folder)
    run(*pip, *constraints, "--no-build-isolation", archive, cwd=folder)
    run(python, "-m", "pip", "--disable-pip-version-check", "check", cwd=folder)
    code = "import cassi, torch; print(cassi.__version__, cassi.ops.backend(torch.device('cpu')))"
    answer = run(python, "-c", code, cwd=folder).strip()
    if answer != f"{version} compiled":
        raise ReleaseError(f"{archive.name}: expected '{version} compiled', got '{answer}'")
    run(folder / "env/bin/cassi-reconstruct", "hydra.run.dir=out", cwd=folder)
    results = json.loads((folder / "out" / "metrics.json").read_text())
    psnr = results["metrics"]["matlab-uint8"]["psnr"]
    # The bundled scene reaches 30 dB and more. `not >` also refuses NaN.
    if not psnr > 25:
        raise ReleaseError(
            f"{archive.name}: expected more than 25 dB on the bundled scene, got {psnr}"
        )
    content = archive.read_bytes()
    return (
        f"{archive.name}: {count} files, {len(content) / 1e6:.1f} MB, "
        f"sha256 {hashlib.sha256(content).hexdigest()}, "
        f"{psnr:.2f} dB, tested in {time.perf_counter() - start:.0f} s"
    )


def main() -> int:
    """Make a release; return the exit status."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    version = re.findall('^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)[0]
    try:
        check_tree()
        check_changelog((ROOT / "CHANGELOG.md").read_text(), version)
        with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor() as pool:
            folder = Path(name)
            archives = build(folder)
            tests = [
                pool.submit(test, archive, version, folder / f"test_{archive.name}")
                for archive in archives
            ]
            lines = [future.result() for future in tests]
            (ROOT / "dist").mkdir(exist_ok=True)
            for archive in archives:
                (ROOT / "dist" / archive.name).write_bytes(archive.read_bytes())
    except ReleaseError as reason:
        print(f"release: {reason}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
