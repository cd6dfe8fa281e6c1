"""cassi-export: what it writes runs without this package and gives the same cube."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from shared import ROOT, before_a_push

import cassi
from cassi.methods import auto

BANDS, HEIGHT, WIDTH = 6, 48, 40
CAMERA = ("mask=mask.npy", f"system.bands={BANDS}", "threads=1")
CLOSE = {"rtol": 0, "atol": 1e-4}
pytestmark = pytest.mark.filterwarnings("ignore")


def _scene(seed):
    coarse = torch.rand(1, BANDS, 6, 5, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(coarse, (HEIGHT, WIDTH), mode="bilinear")


@pytest.fixture
def camera(tmp_path):
    """A mask, and two snapshots through it: an example, and another."""
    mask = (torch.rand(HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    system = cassi.SDCassi(mask, BANDS)
    np.save(tmp_path / "mask.npy", mask.numpy())
    for name, seed, bright in (("first", 0, 1), ("second", 1, 3)):
        np.save(tmp_path / f"{name}.npy", bright * system(_scene(seed))[0, 0].numpy())
    return system


def _run(folder, *command):
    """Run a program of the folder, which finds this package nowhere."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "frames/s" in done.stdout
    return np.fromfile(folder / "x.f32", np.float32)


PYTHON = (sys.executable, "-S", "-c")
ALONE = """
import sys
sys.path[:] = [p for p in {path!r} if not p.startswith({root!r} + "/cassi")]
sys.modules["cassi"] = None
sys.argv = ["run.py", *{given!r}]
__file__ = {file!r}
exec(open(__file__).read())
"""


def _run_python(folder, snapshot):
    path = [p for p in sys.path if p not in ("", str(ROOT))]
    file = str(folder / "run.py")
    given = [str(folder / snapshot), "x.f32"]
    code = ALONE.format(path=path, root=str(ROOT), given=given, file=file)
    return _run(folder, *PYTHON, code)


@pytest.mark.parametrize("kind", ["onnx", "torch_export", "torch_operators"])
def test_a_network(kind, export, results, camera, tmp_path):
    if kind == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    model = ("model=gap_net", "model.weights=random", "model.stages=2")
    done = export(*CAMERA, "measurement=first.npy", f"format={kind}", *model).ok()
    assert "ours: " in done.out
    assert "exported: " in done.out
    numbers = results("export.json")
    assert numbers["largest_difference"] <= 1e-4
    assert numbers["frames_per_second"]["exported"] > 0
    folder = tmp_path / "run"
    cube = np.fromfile(folder / "cube.f32", np.float32)
    np.testing.assert_allclose(_run_python(folder, "snapshot.f32"), cube, **CLOSE)


NETWORK = {"start": 2, "stages": 1, "widths": (4, 4, 4)}
METHODS = {
    "solver=auto": ["solver.iterations=2"],
    "model=cassi_net": ["model.weights=random", *(f"model.{k}={v}" for k, v in NETWORK.items())],
}


@pytest.mark.release
@pytest.mark.parametrize("method", before_a_push(METHODS, ["solver=auto"], "thorough"))
def test_a_method_that_decides_by_values(method, export, camera, tmp_path):
    """The exported one has the noise of the example, and the signal level of every snapshot."""
    options = [option.replace("(", "[").replace(")", "]") for option in METHODS[method]]
    more = ("measurement=first.npy", "format=torch_export", "align=false")
    export(*CAMERA, *more, method, *options).ok()
    folder = tmp_path / "run"
    np.load(tmp_path / "second.npy").tofile(folder / "second.f32")
    y = torch.from_numpy(np.load(tmp_path / "second.npy"))[None, None]
    program = torch.export.load(folder / "network.pt2", extra_files=(extra := {"about.json": ""}))
    assert json.loads(extra["about.json"])["measurement_shape"] == f"1 1 {HEIGHT} {WIDTH + 10}"
    assert not [n for n in program.graph.nodes if getattr(n.target, "namespace", "") == "cassi"]
    torch.manual_seed(0)
    network = cassi.create_model("cassi_net", bands=BANDS, **NETWORK).eval()
    with torch.no_grad():
        ours = network(y, camera) if "model" in method else auto(iterations=2)(y, camera)
    got = _run_python(folder, "second.f32")
    np.testing.assert_allclose(got / 3, ours.numpy().ravel() / 3, **CLOSE)


@pytest.mark.thorough
def test_a_compiled_network_in_cpp(export, camera, tmp_path):
    model = ("model=gap_net", "model.stages=1", "model.weights=random")
    export(*CAMERA, "measurement=first.npy", "format=aotinductor", *model).ok()
    folder, torch_ = tmp_path / "run", torch.__path__[0]
    cube = np.fromfile(folder / "cube.f32", np.float32)
    np.testing.assert_allclose(_run_python(folder, "snapshot.f32"), cube, **CLOSE)
    # As the head of run.cpp says.
    where = [f"-I{torch_}/include", f"-L{torch_}/lib", f"-Wl,-rpath,{torch_}/lib"]
    libraries = ["-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"]
    build = ["g++", "-std=c++20", "-O1", "run.cpp", "-o", "run", *where, *libraries]
    subprocess.run(build, cwd=folder, check=True)
    (folder / "x.f32").unlink()
    got = _run(folder, "./run", "network.pt2", "snapshot.f32", "x.f32")
    np.testing.assert_allclose(got, cube, **CLOSE)


def test_an_unknown_format_is_refused(export, camera):
    refusal = export(*CAMERA, "measurement=first.npy", "format=onx", "model=pretrained").refusal
    assert "format: there is no 'onx'; did you mean onnx?" in refusal


def test_eigenvectors_are_not_for_onnx(export, camera, tmp_path):
    pytest.importorskip("onnxscript")
    options = ("measurement=first.npy", "align=false", "model=pretrained", "model.size=small")
    assert "finds eigenvectors, which ONNX cannot" in export(*CAMERA, *options).refusal
    assert not (tmp_path / "run" / "export.json").exists()


@pytest.mark.release
def test_bands_between_pixels_need_our_operators(export, camera, tmp_path):
    other = cassi.SDCassi(camera.mask[0, 0], BANDS, 1.5)
    np.save(tmp_path / "first.npy", other(_scene(0))[0, 0].numpy())
    options = ("measurement=first.npy", "system.step=1.5", "align=false")
    options += ("model=gap_net", "model.weights=random", "model.stages=1")
    refusal = export(*CAMERA, *options, "format=torch_export").refusal
    assert "bands on whole pixels" in refusal
    assert "format=torch_operators" in refusal
    export(*CAMERA, *options, "format=torch_operators").ok()
