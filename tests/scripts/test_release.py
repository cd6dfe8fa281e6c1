"""What `make release` refuses, and what it looks for in the archives."""

import io
import re
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

from scripts.release import archives as release

ROOT = Path(__file__).resolve().parents[2]

WHEEL = [
    *("cassi/__init__.py", "cassi/conf/reconstruct.yaml", "cassi/ops/_cpu.so"),
    *("cassi/bundled/data/scene.tif", "cassi-1.0.dist-info/licenses/LICENSE"),
    "cassi/models/weights/cassi_net.safetensors",
]
SDIST = [
    *("CMakeLists.txt", "pyproject.toml", "PKG-INFO", "README.md", "CHANGELOG.md", "CITATION.cff"),
    *("LICENSE", "constraints.txt", "csrc/ops.cpp", "data/scene.tif", "cassi/__init__.py"),
    "cassi/models/weights/cassi_net.safetensors",
]


def write(folder, names):
    if names[0] == "cassi/__init__.py":
        path = folder / "cassi-1.0-py3-none-linux_x86_64.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for name in names:
                wheel.writestr(name, "")
        return path
    path = folder / "cassi-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"cassi-1.0/{name}"), io.BytesIO())
    return path


@pytest.mark.parametrize("names", [WHEEL, SDIST], ids=["wheel", "source"])
def test_archives_hold_what_they_should(names, tmp_path):
    assert release.check_names(write(tmp_path, names), "1.0") == len(names)
    with pytest.raises(release.ReleaseError, match=re.escape(f"missing ['{names[2]}']")):
        release.check_names(write(tmp_path, [*names[:2], *names[3:]]), "1.0")


@pytest.mark.parametrize(
    ("names", "stray"),
    [
        *((WHEEL, name) for name in ("tests/records/x.npz", "cassi/ops/x.pyc", "outputs/cube.tif")),
        *((SDIST, name) for name in ("tests/conftest.py", "cassi/ops/_cpu.so", "outputs/cube.tif")),
    ],
)
def test_stray_files_are_found(names, stray, tmp_path):
    with pytest.raises(release.ReleaseError, match=re.escape(f"stray ['{stray}']")):
        release.check_names(write(tmp_path, [*names, stray]), "1.0")


def test_a_version_needs_a_dated_entry():
    entry = "# Changelog\n\n## [Unreleased]\n\n## [1.0] - 2026-01-31\n\n- All.\n"
    release.check_changelog(entry, "1.0")
    for text, version in (
        (entry, "1.1"),
        (entry, "1.00"),
        (entry.replace(" - 2026-01-31", ""), "1.0"),
        (entry.replace("- All.", ""), "1.0"),
    ):
        with pytest.raises(release.ReleaseError, match="expected an entry"):
            release.check_changelog(text, version)
    with pytest.raises(release.ReleaseError, match="under Unreleased"):
        release.check_changelog(entry.replace("[Unreleased]\n", "[Unreleased]\n\n- More.\n"), "1.0")


def test_a_changed_tree_is_refused(tmp_path, monkeypatch):
    release.run("git", "init", "-q", cwd=tmp_path)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    release.check_tree()
    (tmp_path / "new.py").touch()
    with pytest.raises(release.ReleaseError, match="1 changes, commit them first"):
        release.check_tree()


def test_citation_names_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert f'license = "{citation["license"]}"' in project
    assert "version" not in citation  # it stands in pyproject.toml alone


def test_the_recipe_of_conda_needs_what_the_package_needs():
    recipe = yaml.safe_load((ROOT / "scripts/release/conda/recipe.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    names = {"torch": "pytorch", "matplotlib": "matplotlib-base", "PyWavelets": "pywavelets"}
    listed = re.search(r"\ndependencies = \[(.*?)\n\]", project, re.DOTALL)[1]
    wanted = re.findall(r'"([\w.-]+)(.*)"', listed)
    needed = {f"{names.get(name, name)} {version}" for name, version in wanted}
    run = [line for line in recipe["requirements"]["run"] if not line.startswith("python ")]
    assert set(run) == needed
    scripts = re.search(r"\[project.scripts\]\n(.*?)\n\n", project, re.DOTALL)[1]
    commands = {line.replace('"', "") for line in scripts.splitlines()}
    assert set(recipe["build"]["python"]["entry_points"]) == commands
    assert f'version = "{recipe["context"]["version"]}"' in project
