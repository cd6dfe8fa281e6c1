"""data.scale reaches every scene of a training."""

import numpy as np
import pytest
from scipy.io import savemat

from cassi.apps.settings import Data, Validation
from cassi.apps.train.inputs import load_scenes


def test_a_full_scale_replaces_the_maximum_of_each_scene(tmp_path):
    """MST divides counts by 65536, however bright the scene."""
    counts = np.random.default_rng(0).integers(0, 9000, (8, 8, 4)).astype(np.float64)
    savemat(tmp_path / "scene1.mat", {"img_expand": counts})
    bands = (450.0, 500.0, 550.0, 600.0)
    (scene,) = load_scenes(Data(root=[str(tmp_path)], scale=65536), "train", bands)
    expected = counts.transpose(2, 0, 1) / 65536
    # A compact scene has steps of 1 / 65535.
    assert np.abs(scene.values().numpy() - expected).max() <= 0.51 / 65535
    (scene,) = load_scenes(Data(root=[str(tmp_path)]), "train", bands)
    assert scene.values().max() == 1


def test_validation_scenes_may_have_a_scale_of_their_own(tmp_path):
    """Scenes in [0, 1], as those that MST tests with, beside counts."""
    values = np.random.default_rng(0).random((8, 8, 4))
    savemat(tmp_path / "scene01.mat", {"img": values})
    bands = (450.0, 500.0, 550.0, 600.0)
    data = Data(root=[str(tmp_path)], scale=2.0, validation=Validation(scale=1.0))
    for split, scale in (("train", 2.0), ("validation", 1.0)):
        (scene,) = load_scenes(data, split, bands)
        expected = values.transpose(2, 0, 1) / scale
        assert np.abs(scene.values().numpy() - expected).max() <= 0.51 / 65535
    wrong = Data(root=[str(tmp_path)], validation=Validation(scale=0))
    with pytest.raises(ValueError, match=r"data\.validation\.scale: expected auto, maximum"):
        load_scenes(wrong, "validation", bands)
