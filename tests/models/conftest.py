"""Small versions of the registered networks."""

import inspect

import pytest
import torch

from cassi.models.load import create_model
from cassi.models.registry import find_model

SMALL = {
    "stages": 2,
    "size": (64, 64),
    "start": 3,
    "training_start": 3,
    "channels": 8,
}


@pytest.fixture(scope="session")
def small():
    """The settings that make a network small, of those that it knows."""

    def settings(name):
        known = inspect.signature(find_model(name).make).parameters
        return {key: value for key, value in SMALL.items() if key in known}

    return settings


@pytest.fixture(scope="session")
def make(small):
    """Makes a small network of five bands, with the same random weights each time."""

    def make(name, bands=5, **settings):
        torch.manual_seed(0)
        return create_model(name, bands=bands, **small(name) | settings)

    return make
