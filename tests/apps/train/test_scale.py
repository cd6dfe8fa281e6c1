"""data.scale reaches every scene of a training."""

import numpy as np
from scipy.io import savemat

from cassi.apps.settings import Data
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
