"""Build the wheel and the source archive of a release, and test both in empty environments.

The version is that of pyproject.toml. Nothing is built from a tree with changes, of a version that
has no dated entry in CHANGELOG.md, or while entries stand under Unreleased. The source archive is
made from what git has, the wheel out of the source archive. Each is installed in a virtual
environment of its own, with the versions of constraints.txt, and reconstructs the bundled scene
from an unrelated folder. Only then do they come into dist/. Prints one line for each archive.

    python -m scripts.release.archives            # make release
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
# What a build needs, and what its reader does; tests, scripts and pages are the repository's.
SOURCES = {
    *("cassi", "conf", "csrc", "data", "CMakeLists.txt", "pyproject.toml", "PKG-INFO"),
    *("README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "constraints.txt"),
}
TOOLS = ("scikit-build-core", "cmake", "ninja")


class Refused(Exception):
    """A release that must not be made, with the reason."""


def check_changelog(text: str, version: str) -> None:
    """Check that a version has a dated entry with content, and that nothing is left unreleased.

    Raises:
        Refused: With what is missing.
    """
    parts = re.split(r"^## +", text, flags=re.MULTILINE)[1:]
    entries = {part.partition("\n")[0].strip(): part.partition("\n")[2].strip() for part in parts}
    dated = re.compile(rf"\[?{re.escape(version)}\]? - \d{{4}}-\d{{2}}-\d{{2}}")
    if not any(dated.fullmatch(title) and content for title, content in entries.items()):
        raise Refused(f"CHANGELOG.md: expected an entry '## [{version}] - YYYY-MM-DD', found none")
    if any(title.strip("[]") == "Unreleased" and content for title, content in entries.items()):
        raise Refused(f"CHANGELOG.md: entries stand under Unreleased; move them to {version}")


def check_tree() -> None:
    """Check that the working tree is what git has.

    Raises:
        Refused: Files are changed or not committed.
    """
    changed = run("git", "status", "--porcelain", cwd=ROOT).splitlines()
    if changed:
        raise Refused(f"the tree has {len(changed)} changes, commit them first: {changed[0]} …")


def check_names(archive: Path, version: str) -> int:
    """Check that an archive holds what it should, and nothing else; return the number of files.

    Raises:
        Refused: With the files that are missing, or too many.
    """
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            names = [PurePosixPath(name) for name in wheel.namelist() if not name.endswith("/")]
        tops = {"cassi", f"cassi-{version}.dist-info"}
        needed = {"cassi/__init__.py", "cassi/conf/reconstruct.yaml", "cassi/ops/_cpu.so"}
        needed |= {"cassi/bundled/data/scene.tif", f"cassi-{version}.dist-info/licenses/LICENSE"}
        unwanted = {".cpp", ".cu", ".h", ".pyc"}
    else:
        with tarfile.open(archive) as source:
            members = [PurePosixPath(member.name) for member in source if member.isfile()]
        if {name.parts[0] for name in members} != {f"cassi-{version}"}:
            raise Refused(f"{archive.name}: expected one folder cassi-{version}")
        names = [name.relative_to(f"cassi-{version}") for name in members]
        tops, unwanted = SOURCES, {".so", ".pyc"}
        needed = SOURCES - {"cassi", "conf", "csrc", "data"} | {"csrc/ops.cpp", "data/scene.tif"}
    needed.add("cassi/models/weights/cassi_net.safetensors")
    stray = [name for name in names if name.parts[0] not in tops or name.suffix in unwanted]
    missing = needed - {str(name) for name in names}
    if stray or missing:
        raise Refused(f"{archive.name}: stray {list(map(str, stray))}, missing {sorted(missing)}")
    return len(names)


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command and return what it printed.

    Raises:
        Refused: It failed; with the end of what it printed.
    """
    # Neither the developer's tree nor its folder of libraries may help.
    hidden = ("PYTHONPATH", "CASSI_LIBRARY_DIR", "CASSI_COMPILED", "CASSI_DATA")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"{' '.join(words)}: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def build(folder: Path) -> list[Path]:
    """Build the source archive from what git has, and the wheel from the source archive."""
    tree = folder / "tree"
    content = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(content.stdout)) as archive:
        archive.extractall(tree, filter="data")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", cwd=tree)
    return sorted((folder / "dist").iterdir())


def test(archive: Path, version: str, folder: Path) -> str:
    """Install an archive in an empty environment and reconstruct with it from an empty folder.

    Returns:
        A line about the archive.

    Raises:
        Refused: It cannot be installed, is another version, or does not work.
    """
    start = time.perf_counter()
    count = check_names(archive, version)
    folder.mkdir()
    run(sys.executable, "-m", "venv", folder / "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "-q")
    pinned = ("-c", ROOT / "constraints.txt")
    run(*pip, *pinned, "torch", cwd=folder)
    if archive.suffix != ".whl":
        run(*pip, *pinned, *TOOLS, cwd=folder)
    run(*pip, *pinned, "--no-build-isolation", archive, cwd=folder)
    run(python, "-m", "pip", "--disable-pip-version-check", "check", cwd=folder)
    code = "import cassi, torch; print(cassi.__version__, cassi.ops.backend(torch.device('cpu')))"
    answer = run(python, "-c", code, cwd=folder).strip()
    if answer != f"{version} compiled":
        raise Refused(f"{archive.name}: expected '{version} compiled', got '{answer}'")
    run(folder / "env/bin/cassi-reconstruct", "hydra.run.dir=out", cwd=folder)
    results = json.loads((folder / "out" / "metrics.json").read_text())
    psnr = results["metrics"]["matlab-uint8"]["psnr"]
    if not psnr > 25:  # the bundled scene reaches 30 dB and more
        raise Refused(f"{archive.name}: expected more than 25 dB of the bundled scene, got {psnr}")
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
            lines = [one.result() for one in tests]
            (ROOT / "dist").mkdir(exist_ok=True)
            for archive in archives:
                (ROOT / "dist" / archive.name).write_bytes(archive.read_bytes())
    except Refused as reason:
        print(f"release: {reason}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
