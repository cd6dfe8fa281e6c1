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
    """Build in a folder that is kept, apart from the developer's: a second run compiles nothing."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if native and compiler is None:
        pytest.skip("no C++ compiler")
    build = ROOT / "build" / ("test_wheel_native" if native else "test_wheel_pure")
    # What is tested is the packing: without optimization the kernels compile ten times as fast.
    quick = ROOT / "build" / "c++"
    quick.parent.mkdir(exist_ok=True)
    quick.write_text(f'#!/bin/sh\nexec "{compiler}" "$@" -O0\n')
    quick.chmod(0o755)
    pip = ("-m", "pip", "--disable-pip-version-check", "-q")
    options = ("--no-deps", "--no-build-isolation", "-C", f"build-dir={build}", "-w", folder)
    switches = {"CASSI_BUILD_NATIVE": str(int(native)), "FORCE_CUDA": "0", "CASSI_SANITIZE": ""}
    switches["CXX"] = str(quick)
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
    libraries = ["cassi/ops/_cpu.so"] if native else []
    assert [name for name in names if name.endswith(".so")] == libraries
    tops = {Path(name).parts[0] for name in names}
    assert all(top == "cassi" or top.endswith(".dist-info") for top in tops), tops
    assert not [n for n in names if n.endswith((".cpp", ".cu", ".cuh", ".h", ".pyc"))]
    assert _import(tmp_path) == ("compiled" if native else "reference")
