"""Synthetic scenes and cameras with defects: reproducible, and with true parameters."""

import pytest
import torch
from scipy.io import savemat
from shared import seeded, uniform

from cassi.data.augment import Augment, augmented_crop
from cassi.data.scenes import Scene
from cassi.data.simulation import Simulator
from cassi.data.synthetic.cameras import RealCameras
from cassi.data.synthetic.patterns import PATTERNS, draw_pattern
from cassi.data.synthetic.spectra import MeasuredSpectra, metamer, observer
from cassi.data.synthetic.twin import Twin
from cassi.viz.color import cie_response

SIZE = (5, 24, 30)
NM = torch.linspace(450, 650, 5)
NO_VARIATIONS = {"flip": False, "rotate": False, "splice": 0.0}


@pytest.fixture
def spectra_folder(tmp_path):
    """Two reflectances, a light, and a file that covers too little, as of the Psychtoolbox."""
    first, second = torch.linspace(0.1, 0.9, 31), torch.linspace(0.6, 0.2, 31)
    sets = {
        "sur_papers": (torch.stack([first, second], 1), [400, 10, 31]),
        "sur_narrow": (torch.full((4, 3), 0.99), [500, 10, 4]),
        "spd_lamp": (torch.full((31, 1), 50.0), [400, 10, 31]),
    }
    for name, (values, sampling) in sets.items():
        samples = {name: values.numpy(), f"S_{name.partition('_')[2]}": [sampling]}
        savemat(tmp_path / f"{name}.mat", samples)
    return tmp_path


@pytest.mark.parametrize("kind", PATTERNS)
def test_patterns(kind):
    cubes = [draw_pattern(kind, *SIZE, seeded(seed)) for seed in (0, 0, 1)]
    assert cubes[0].shape == SIZE
    assert cubes[0].dtype == torch.float32
    assert cubes[0].min() >= 0
    assert cubes[0].max() == 1
    assert torch.equal(cubes[0], cubes[1])
    assert not torch.equal(cubes[0], cubes[2])
    assert cubes[0].std() > 0.01


def test_samples_are_drawn_as_often_as_asked():
    scene = Scene("a", torch.full((4, 16, 16), 0.5), (450.0, 480.0, 520.0, 550.0))
    augment = Augment(**NO_VARIATIONS, patterns=0.5)
    samples = [augmented_crop([scene], 16, 16, augment, seeded(seed)) for seed in range(60)]
    n_patterns = sum(not torch.equal(cube, scene.values(0, 0, 16, 16)) for cube in samples)
    assert 15 <= n_patterns <= 45


def test_materials_are_mixtures_of_measured_reflectances(spectra_folder):
    spectra_source = MeasuredSpectra(spectra_folder, NM, metamers=0, peaks=0)
    torch.testing.assert_close(spectra_source.reflectances[:, 0], torch.tensor([7 / 30, 16 / 30]))
    scenes = [
        (spectra_source.draw_light(seeded(k)), spectra_source(40, 5, seeded(k))) for k in range(8)
    ]
    assert any(bool((light == 1).all()) for light, _ in scenes)
    for light, spectra in scenes:
        band = light.argmax()
        first, second = spectra_source.reflectances[:, band]
        share = (spectra[:, band] / light[band] - first) / (second - first)
        expected = torch.lerp(*spectra_source.reflectances, share[:, None])
        torch.testing.assert_close(spectra, expected * light, atol=1e-5, rtol=1e-4)
        assert share.min() > -1e-4
        assert share.max() < 1 + 1e-4
    assert torch.equal(spectra_source(3, 5, seeded(1)), spectra_source(3, 5, seeded(1)))


def test_metamers_have_one_colour_and_several_spectra(spectra_folder):
    spectra_source = MeasuredSpectra(
        spectra_folder, torch.linspace(450, 650, 9), metamers=1, peaks=0
    )
    samples = spectra_source(40, 9, seeded(2))
    colours = samples @ observer(spectra_source.nm).T
    torch.testing.assert_close(colours[::2], colours[1::2], atol=1e-4, rtol=1e-3)
    r, q, light = uniform(6, 9), uniform(6, 9, seed=1), uniform(9, seed=2)
    metamers = metamer(r, q, spectra_source.nm, light)
    assert metamers.min() >= 0
    assert metamers.max() <= 1
    # The longest step ends where a reflectance becomes 0 or 1.
    torch.testing.assert_close(torch.minimum(metamers, 1 - metamers).amin(1), torch.zeros(6))
    colour_matrix = observer(spectra_source.nm) * light
    torch.testing.assert_close(
        metamers @ colour_matrix.T, r @ colour_matrix.T, atol=1e-4, rtol=1e-4
    )
    assert ((metamers - r).norm(dim=1) > 0.1).all()


def test_peaks_add_light(spectra_folder):
    dull, with_peaks = (MeasuredSpectra(spectra_folder, NM, 0, peaks) for peaks in (0, 1))
    peaks_added = with_peaks(20, 5, seeded(3)) - dull(20, 5, seeded(3))
    assert peaks_added.min() > -1e-6
    assert peaks_added.amax() > 0.1


def test_the_observer_is_that_of_the_cie():
    nm = torch.arange(400.0, 701.0, 5.0)
    expected = torch.as_tensor(cie_response(nm.tolist())).float()
    curves = observer(nm)
    curves = curves / curves.sum(1, keepdim=True) * expected.sum(1, keepdim=True)
    assert (curves - expected).abs().max() < 0.03 * expected.max()


def test_crops_get_other_materials():
    cube = uniform(4, 16, 16)
    scene = Scene("a", cube, (450.0, 480.0, 520.0, 550.0))
    grey_materials = Augment(
        **NO_VARIATIONS, patterns=1.0, spectra=lambda count, bands, _: torch.ones(count, bands)
    )
    samples = [augmented_crop([scene], 16, 16, grey_materials, seeded(seed)) for seed in range(60)]
    brightness = scene.values().mean(0)
    recoloured_crops = [x for x in samples if float((x / brightness).std()) < 1e-4]
    assert 2 <= len(recoloured_crops) <= 20


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"wavelengths": [300, 500]}, r"expected a file sur_NAME.mat that covers 300 to 500 nm"),
        ({"metamers": 2}, "metamers: expected 0 to 1, got 2"),
        ({"peaks": -1}, "peaks: expected 0 to 1, got -1"),
    ],
)
def test_spectra_refused(spectra_folder, settings, message):
    with pytest.raises(ValueError, match=message):
        MeasuredSpectra(**{"folder": spectra_folder, "wavelengths": NM, **settings})


def test_ideal_cameras_are_those_of_the_simulator():
    x, mask = uniform(3, 4, 12, 14), uniform(12, 14, seed=1)
    expected, nominal = Simulator(mask, step=1)(x, seeded())
    for settings in ({"ideal": 1.0}, {"ideal": 0.0, "chance": 0.0}):
        y, camera = RealCameras(mask, {"shift": [1, 2]}, step=1, **settings)(x, seeded())
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(camera(x), nominal(x))


def test_each_sample_has_a_camera_of_its_own():
    x, mask = uniform(1, 4, 12, 14).repeat(2, 1, 1, 1), uniform(12, 14, seed=1)
    cameras = RealCameras(mask, {"mask_blur": [0.2, 0.8]}, step=1.5, chance=1.0, ideal=0.0)
    y, camera = cameras(x, seeded())
    assert torch.equal(y, cameras(x, seeded())[0])
    assert not torch.equal(y[0], y[1])
    assert torch.equal(camera.mask, mask[None, None])
    sharp_frame, blurred_frame = (
        Twin(mask_blur=b).measure(x[:1], camera.system, seeded()) for b in (0.2, 0.8)
    )
    distance = (blurred_frame - sharp_frame).norm()
    assert all((frame - sharp_frame).norm() <= distance for frame in y)


def test_what_is_known_of_a_camera_is_told():
    x, mask = 0.3 + 0.1 * uniform(2, 8, 32, 32), uniform(32, 32, seed=1)
    defects = {"bits": [8, 8], "dark": [0.02, 0.02], "dead": [0.01, 0.01]}
    cameras = RealCameras(mask, defects, chance=1.0, ideal=0.0)
    measurements = [cameras(x, seeded(seed)) for seed in range(6)]
    assert all(
        (~camera.is_good).flatten(1).sum(1).tolist() == [15, 15] for _, camera in measurements
    )
    # The dark level is gone: on average the frames are those of the nominal camera.
    left = torch.stack(
        [camera.without_bad_pixels(y - camera.system(x)).mean() for y, camera in measurements]
    )
    assert left.abs().mean() < 0.02
    spreads = torch.stack(
        [camera.variance.flatten(1).std(1) for _, camera in measurements]
    ).flatten()
    means = torch.stack(
        [camera.variance.flatten(1).mean(1) for _, camera in measurements]
    ).flatten()
    assert 0 < int((spreads > 0).sum()) < len(spreads)
    torch.testing.assert_close(means, torch.ones_like(means))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"defects": {"blur": [0, 1]}}, "expected values of a twin, got 'blur'"),
        ({"defects": {"dark": [0.2, 0.1]}}, r"defects.dark: expected \(low, high\)"),
        ({"defects": {}, "chance": 2}, "chance: expected 0 to 1"),
        ({"defects": {}, "ideal": -1}, "ideal: expected 0 to 1"),
    ],
)
def test_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        RealCameras(uniform(4, 4), **settings)
