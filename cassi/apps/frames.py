"""Frames of a sensor: real ones on their way to a measurement, simulated ones from a truth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from cassi.config import build, plain
from cassi.data.frames import STEPS, Preprocessing, describe
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


class Frames:
    """Makes measurements of the frames that a config reads or simulates.

    Attributes:
        notes: what was done, one line each.
        done: what was done to the frame, by step; None where it was simulated without noise.

    Raises:
        OSError: a file is missing.
        ValueError: a value is outside its range, or a file cannot be read.
    """

    def __init__(self, config: DictConfig) -> None:
        self.config = config
        self.chain = make_preprocessing(config, config.system)
        self.notes: list[str] = []
        self.done: dict[str, Any] | None = None

    def preprocess(self, frame: Tensor) -> Tensor:
        """Make a measurement of a frame `(B, K, H', W')` from a file.

        Raises:
            ValueError: the frame does not fit the chain or holds no light, or noise is asked for.
        """
        if self.config.get("noise") is not None:
            raise ValueError("noise: expected none, the measurement is not simulated")
        return self._preprocess(frame)

    @torch.no_grad()
    def simulate(self, system: System, truth: Tensor, scene: str) -> Tensor:
        """Measure a truth `(1, C, H, W)` by the camera and, where there is noise, the sensor.

        Noise depends on `config.seed` and the scene's name, as in cassi-evaluate.
        """
        y: Tensor = system(truth)
        self.notes.append(f"measurement: simulated from the truth, {tuple(y.shape)}")
        node = self.config.get("noise")
        if node is None:
            return y
        noise, settings = build(node), plain(node)
        name = settings.pop("_target_").rpartition(".")[2]
        said = ", ".join(f"{key} {value}" for key, value in settings.items() if value)
        self.notes.append(f"measurement: {name} with {said}")
        random = scene_generator(self.config.seed, scene)
        return self._preprocess(noise(y, truth.shape[1], random))

    def _preprocess(self, frame: Tensor) -> Tensor:
        measurement, self.done = self.chain.apply(frame)
        if said := describe(self.done):
            self.notes.append(f"measurement: {said}")
        if not measurement.any():
            raise ValueError("measurement: expected light, got only zeros")
        return measurement
