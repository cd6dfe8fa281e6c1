"""cassi-reconstruct by a network."""

import numpy as np
import pytest
import torch

from cassi import SDCassi
from cassi.data import io
from cassi.models.load import Card, create_model, save_model

TINY = ("output.pictures=false",)
NANOMETRES = (450.0, 500.0, 550.0, 600.0, 650.0)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return create_model("gap_net", bands=5, stages=1)


@pytest.fixture
def exported(network, tmp_path):
    (tmp_path / "a folder").mkdir()
    path = tmp_path / "a folder" / "model.safetensors"
    card = Card("gap_net", 5, {"stages": 1}, NANOMETRES, {"step": 3})
    save_model(path, network.state_dict(), card)
    return path


def test_an_exported_network_recovers_a_scene(
    reconstruct, camera, network, exported, results, tmp_path
):
    files = camera.given("measurement", "mask", "truth")
    reconstruct(f"model={exported}", *files).ok()
    cube = io.load_cube(tmp_path / "run" / "cube.tif")
    with torch.no_grad():
        expected = network.eval()(camera.system(camera.cube), camera.system)
    torch.testing.assert_close(cube.data, expected, atol=1e-4, rtol=1e-4)
    assert cube.wavelengths == NANOMETRES
    assert (tmp_path / "run" / "rgb.png").exists()
    assert [row["iteration"] for row in results("convergence.csv")] == ["1"]
    assert results()["iterations"] == 1
    assert any("gap_net" in note for note in results()["inputs"])


def test_its_wavelengths_stand_in_for_those_of_the_files(reconstruct, camera, exported, tmp_path):
    reconstruct(f"model={exported}", *camera.given(), *TINY).ok()
    assert io.load_cube(tmp_path / "run" / "cube.tif").wavelengths == NANOMETRES


def test_weights_for_a_network_by_name(reconstruct, camera, network, tmp_path):
    torch.save(network.state_dict(), tmp_path / "w.pth")
    options = ("model=gap_net", "model.stages=1", "model.weights=w.pth")
    reconstruct(*options, *camera.given(), *TINY).ok()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model=gap_net"], "model.weights: expected a file, got none"),
        (["model=gap_ned"], "did you mean gap_net"),
        (["model=none.safetensors"], "no file none.safetensors"),
        (["model=w.safetensors"], "does not say what network it holds"),
        (["model=words.safetensors"], "not a safetensors file"),
        (["model=other.safetensors"], "made for 7 bands, but the camera has 5"),
        (["model=infinite.safetensors"], "the weights are not finite, first in "),
        (["model=nan.safetensors"], "nan.safetensors: the weights hold NaN, first in "),
        (["model=best.ckpt"], "or FILE.safetensors; give model=NAME model.weights=best.ckpt"),
        (["model=run/checkpoints/best.ckpt"], "; give model=run/model.safetensors"),
        (
            ["model=gap_net", "model.stages=1", "model.weights=other.pth"],
            "weights other.pth: made for 7 bands, but the camera has 5",
        ),
    ],
)
def test_refusals(reconstruct, camera, network, tmp_path, overrides, said):
    from safetensors.torch import save_file

    state = network.state_dict()
    save_file({"a": torch.ones(1)}, tmp_path / "w.safetensors")
    (tmp_path / "words.safetensors").write_text("words")
    save_model(tmp_path / "other.safetensors", state, Card("gap_net", 7, {"stages": 1}))
    torch.save(create_model("gap_net", bands=7, stages=1).state_dict(), tmp_path / "other.pth")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "model.safetensors").touch()
    broken = {key: torch.full_like(value, torch.nan) for key, value in state.items()}
    save_model(tmp_path / "nan.safetensors", broken, Card("gap_net", 5, {"stages": 1}))
    broken = {key: torch.full_like(value, torch.inf) for key, value in state.items()}
    save_model(tmp_path / "infinite.safetensors", broken, Card("gap_net", 5, {"stages": 1}))
    outcome = reconstruct(*overrides, *camera.given(), *TINY, "wavelengths=[450,500,550,600,650]")
    assert said in outcome.refusal


def simulated(tmp_path, bands=6, size=48):
    system = SDCassi((torch.rand(size, size) < 0.5).float(), bands, step=1)
    at = torch.linspace(0.2, 1, bands).view(1, -1, 1, 1)
    np.save(tmp_path / "y.npy", system(at.expand(-1, -1, size, size))[0, 0].numpy())
    np.save(tmp_path / "mask.npy", system.mask[0, 0].numpy())
    return ("measurement=y.npy", "mask=mask.npy", f"system.bands={bands}", "system.step=1")


@pytest.mark.parametrize(
    ("options", "explained"),
    [((), True), (("refine=false",), False), (("precision=bf16-mixed", "model.size=small"), True)],
)
def test_the_weights_of_the_package_need_no_file(
    reconstruct, results, tmp_path, options, explained
):
    files = simulated(tmp_path)
    reconstruct("model=pretrained", *files, "output.pictures=false", *options).ok()
    residual = results()["relative_residual"]
    assert (residual <= 1e-3) == explained
    assert residual < 0.1


def test_what_the_weights_of_the_package_refuse(reconstruct, tmp_path):
    given = ("model=pretrained", *simulated(tmp_path))
    assert "expected large or small" in reconstruct(*given, "model.size=huge").refusal
    # A camera that no weights fit is sent to the best solver.
    few = reconstruct("model=pretrained", *simulated(tmp_path, bands=2))
    assert "solver=auto" in few.refusal


def test_any_network_may_be_refined(reconstruct, camera, exported, results):
    reconstruct(f"model={exported}", *camera.given(), *TINY, "refine=true").ok()
    assert results()["relative_residual"] <= 1e-3
