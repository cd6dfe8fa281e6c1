"""The camera and the scene of this folder's tests, of the sizes that each file says."""

from __future__ import annotations

import pytest

from cassi.systems import SDCassi
from tests.shared import smooth_scene, uniform


@pytest.fixture(scope="module")
def camera(request):
    """A camera with a random mask."""
    sizes = request.module
    return SDCassi(uniform(sizes.HEIGHT, sizes.WIDTH), sizes.BANDS, step=2)


@pytest.fixture(scope="module")
def scene(request):
    """Smooth spectra, two of them beside an edge."""
    sizes = request.module
    return smooth_scene(sizes.BANDS, sizes.HEIGHT, sizes.WIDTH)
