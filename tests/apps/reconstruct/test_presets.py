"""system=NAME of the instruments: drawn examples, and files of the user's."""

import numpy as np
import pytest
import torch
from shared import write_scene

from cassi.apps.reconstructors import Recipe, compose_settings
from cassi.apps.snapshot import prepare
from cassi.systems import MosaicCassi, PsfCassi, TurningPsf

PRESETS = {
    "bayer": 22,
    "mosaic": 24,
    "mosaic system.pattern=5": 23,
    "colour_aperture": 24,
    "pmvis": 18,
    "dmd": 24,
    "dd_cassi": 21,
    "diffractive": 18,
}
"""With the least PSNR of the default method on the small scene, dB."""
BANDS, SIZE = 12, 48


@pytest.fixture
def scene(tmp_path):
    return write_scene(tmp_path, SIZE, BANDS, (0.1, 0.5, 0.9))


def _inputs(*options):
    settings = compose_settings(list(options))
    recipe = Recipe(settings, torch.device("cpu"))
    return prepare(settings, recipe)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_reconstructs_a_scene_by_itself(preset, scene, tmp_path):
    options = [f"system={preset.split()[0]}", *preset.split()[1:]]
    needs = options[0] in ("system=bayer", "system=dd_cassi")
    mask = [f"mask={tmp_path / 'mask.npy'}"] * needs
    snapshot, method = _inputs(*options, f"truth={tmp_path / 'truth.tif'}", *mask)
    x = method.run(snapshot.y, snapshot.camera.system).checked().x[0]
    psnr = -10 * torch.log10((x - scene).square().mean() / scene.max() ** 2)
    assert psnr > PRESETS[preset]


def test_a_mask_that_is_given_wins_over_that_of_the_preset(scene, tmp_path):
    given = [f"truth={tmp_path / 'truth.tif'}", f"mask={tmp_path / 'mask.npy'}"]
    snapshot, _ = _inputs("system=diffractive", *given)
    assert type(snapshot.camera.system) is PsfCassi
    assert torch.equal(
        snapshot.camera.system.mask[0, 0], torch.from_numpy(np.load(tmp_path / "mask.npy"))
    )


def test_a_mosaic_is_measured_without_a_mask(scene, tmp_path):
    camera = MosaicCassi(torch.ones(SIZE, SIZE), BANDS, pattern=3)
    np.save(tmp_path / "y.npy", camera(scene[None])[0, 0].numpy())
    given = [f"measurement={tmp_path / 'y.npy'}", f"system.bands={BANDS}", "system.pattern=3"]
    snapshot, _ = _inputs("system=mosaic", *given)
    assert torch.equal(snapshot.camera.system.mask, camera.mask)
    with pytest.raises(ValueError, match=r"system\.bands"):
        _inputs("system=mosaic", given[0])
    with pytest.raises(ValueError, match="masks are drawn for a truth"):
        _inputs("system=pmvis", given[0], given[1])


def test_curves_of_filters_from_a_file(scene, tmp_path):
    nm = np.linspace(450, 650, BANDS)
    curves = np.stack([np.exp(-(((nm - c) / 40) ** 2)) for c in (610, 540, 470)])
    np.savetxt(tmp_path / "bayer.csv", np.column_stack([nm, curves.T]), delimiter=",")
    given = [f"truth={tmp_path / 'truth.tif'}", f"mask={tmp_path / 'mask.npy'}", "system=bayer"]
    snapshot, _ = _inputs(*given, f"system.response={tmp_path / 'bayer.csv'}")
    np.testing.assert_allclose(snapshot.camera.system.response.numpy(), curves, atol=1e-5)
    with pytest.raises(FileNotFoundError, match=r"system\.response: expected a file .*no file"):
        _inputs(*given, f"system.response={tmp_path / 'absent.csv'}")


def test_kernels_from_a_file(scene, tmp_path):
    kernels = TurningPsf(length=3).draw(BANDS)
    np.save(tmp_path / "psf.npy", kernels.numpy())
    given = ["system=diffractive", f"truth={tmp_path / 'truth.tif'}"]
    snapshot, _ = _inputs(*given, f"system.kernels={tmp_path / 'psf.npy'}")
    torch.testing.assert_close(snapshot.camera.system.kernels.double(), kernels, rtol=0, atol=1e-6)


def test_the_camera_file_of_a_preset(scene, tmp_path):
    np.save(tmp_path / "psf.npy", TurningPsf(length=3).draw(BANDS).numpy())
    (tmp_path / "camera.yaml").write_text(
        "mask: mask.npy\nsystem: {_target_: cassi.systems.PsfCassi, step: 0, kernels: psf.npy}\n"
    )
    snapshot, _ = _inputs(f"camera={tmp_path / 'camera.yaml'}", f"truth={tmp_path / 'truth.tif'}")
    assert snapshot.camera.system.kernels.shape[0] == BANDS
    assert snapshot.camera.system.conjugate.iterations == 4  # of the preset
