"""Small versions of the registered networks."""

import pytest
import torch
from shared import small_settings

from cassi.models.load import create_model


@pytest.fixture(scope="session")
def make():
    """Makes a small network of five bands, with the same random weights each time."""

    def make(name, bands=5, **settings):
        torch.manual_seed(0)
        return create_model(name, bands=bands, **small_settings(name) | settings)

    return make
