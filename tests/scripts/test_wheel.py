"""The wheel: built, installed somewhere else and imported, with compiled operators and without."""

import os
import shutil
import sysconfig
import zipfile
from pathlib import Path

import pytest
from shared import ROOT, python

pytestmark = pytest.mark.release

PROBE = """
import sys, torch, cassi
from importlib.resources import files
assert cassi.__file__.startswith(sys.argv[1]), cassi.__file__
assert files("cassi.conf").joinpath("reconstruct.yaml").is_file()
x, mask = torch.rand(2, 3, 4, 5), torch.rand(4, 5)
y = cassi.ops.forward(x, mask, 2)
expected = cassi.ops._reference.forward(x, mask[None, None, None], 2)
torch.testing.assert_close(y, expected)
print(cassi.ops.backend(torch.device("cpu")))
"""


def _build(native, folder):
    """Build, of the kernels that `make install` has compiled."""
    if native and shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("no C++ compiler")
    build = () if native else ("-C", f"build-dir={ROOT / 'build' / 'test_wheel_pure'}")
    pip = ("-m", "pip", "--disable-pip-version-check", "-q")
    options = ("--no-deps", "--no-build-isolation", *build, "-w", folder)
    switches = {"CASSI_BUILD_NATIVE": str(int(native)), "CASSI_SANITIZE": ""}
    python(*pip, "wheel", *options, ROOT, **switches)
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    python(*pip, "install", "--no-deps", "--target", site, wheel)
    return wheel


def _import(folder):
    """Import the installed package alone: no finder of an editable install (-S), another folder."""
    site = folder / "site"
    path = os.pathsep.join([str(site), sysconfig.get_paths()["purelib"]])
    switches = {"PYTHONPATH": path, "CASSI_COMPILED": "1", "CASSI_LIBRARY_DIR": ""}
    return python("-S", "-c", PROBE, site, cwd=folder, **switches).strip()


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "reference"])
def test_wheel_installs_and_works(native, tmp_path):
    wheel = _build(native, tmp_path)
    assert "-py3-none-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("cassi/__init__.py", "cassi/conf/reconstruct.yaml", "cassi/conf/solver/gap.yaml"):
        assert name in names
    assert any(name.startswith("cassi/bundled/data/") for name in names)
    libraries = {Path(name).stem for name in names if name.endswith(".so")}
    assert libraries - {"_cuda"} == ({"_cpu"} if native else set())
    tops = {Path(name).parts[0] for name in names}
    assert all(top == "cassi" or top.endswith(".dist-info") for top in tops), tops
    assert not [n for n in names if n.endswith((".cpp", ".cu", ".cuh", ".h", ".pyc"))]
    assert _import(tmp_path) == ("compiled" if native else "reference")
