"""data.scale reaches every scene of a training."""

import numpy as np
import pytest
from scipy.io import savemat

from cassi.apps.settings import Data, Validation
from cassi.apps.train.inputs import load_scenes

BANDS = (450.0, 500.0, 550.0, 600.0)


@pytest.mark.parametrize(
    ("key", "data", "scales"),
    [
        # MST divides counts by 65536, however bright the scene.
        ("img_expand", {"scale": 65536}, (65536, 65536)),
        # Scenes in [0, 1], as those that MST tests with, beside counts.
        ("img", {"scale": 2.0, "validation": Validation(scale=1.0)}, (2, 1)),
        ("img_expand", {}, (None, None)),  # the maximum of each
    ],
)
def test_a_scale_replaces_the_maximum_of_each_scene(key, data, scales, tmp_path):
    values = np.random.default_rng(0).random((8, 8, 4)) * (9000 if key == "img_expand" else 1)
    savemat(tmp_path / "scene1.mat", {key: values})
    for split, scale in zip(("train", "validation"), scales, strict=True):
        (scene,) = load_scenes(Data(root=[str(tmp_path)], **data), split, BANDS)
        expected = values.transpose(2, 0, 1) / (scale or values.max())
        # A compact scene has steps of 1 / 65535.
        assert np.abs(scene.values().numpy() - expected).max() <= 0.51 / 65535


def test_a_wrong_scale_is_named(tmp_path):
    wrong = Data(root=[str(tmp_path)], validation=Validation(scale=0))
    with pytest.raises(ValueError, match=r"data\.validation\.scale: expected auto, maximum"):
        load_scenes(wrong, "validation", BANDS)
