"""Frames of a sensor: real ones on their way to a measurement, simulated ones from a truth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from cassi.config import build, plain
from cassi.data.preprocessing import STEPS, Preprocessing, describe
from cassi.evaluation.problems import scene_generator
from cassi.systems import System


def make_preprocessing(steps: Mapping[str, Any], system: DictConfig) -> Preprocessing:
    """Make the chain that a config names.

    Args:
        steps: settings by name; those that are missing are left out, as are other names.
        system: the camera's node, for its dispersion.

    Raises:
        OSError: a file is missing.
        ValueError: a value is outside its range, or a file cannot be read.
    """
    step, axis = system.get("step", 1), system.get("axis", -1)
    known = isinstance(step, int | float) and not isinstance(step, bool)
    return Preprocessing(
        **{name: plain(steps[name]) for name in STEPS if name in steps},
        step=step if known else 1,
        axis=axis if axis in (-1, -2) else -1,  # what else it may be is for the camera to refuse
    )


def preprocess(chain: Preprocessing, frame: Tensor, notes: list[str]) -> tuple[Tensor, Any]:
    """Make a measurement of a frame `(B, K, H', W')`, note what was done, and return both.

    Raises:
        ValueError: the frame does not fit the chain, or holds no light.
    """
    measurement, done = chain.apply(frame)
    if said := describe(done):
        notes.append(f"measurement: {said}")
    if not measurement.any():
        raise ValueError("measurement: expected light, got only zeros")
    return measurement, done


@torch.no_grad()
def simulate(
    config: DictConfig, system: System, truth: Tensor, scene: str, notes: list[str]
) -> Tensor:
    """Measure a truth `(1, C, H, W)` by the camera and, where there is noise, the sensor.

    Noise depends on `config.seed` and the scene's name, as in cassi-evaluate.
    """
    y: Tensor = system(truth)
    notes.append(f"measurement: simulated from the truth, {tuple(y.shape)}")
    node = config.get("noise")
    if node is None:
        return y
    noise, settings = build(node), plain(node)
    name = settings.pop("_target_").rpartition(".")[2]
    said = ", ".join(f"{key} {value}" for key, value in settings.items() if value)
    notes.append(f"measurement: {name} with {said}")
    noisy: Tensor = noise(y, truth.shape[1], scene_generator(config.seed, scene))
    return noisy
