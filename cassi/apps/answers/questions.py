"""Read questions from the file of `answers=`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from cassi.checks import did_you_mean
from cassi.data.formats.curves import read_library
from cassi.data.io import read_mask
from cassi.plugins import parts
from cassi.uncertainty.questions import (
    Abundance,
    Area,
    ColorDifference,
    Function,
    Index,
    Question,
    RegionMean,
    Target,
)

# A file of questions takes a few kilobytes. A larger one is something else and is not read.
_MAX_BYTES = 1 << 20


class Questions:
    """Makes questions of the nodes of a file, for a cube.

    Args:
        file: the file, for messages and for paths beside it.
        cube: the cube `(C, H, W)`.
        wavelengths: wavelengths of its bands, nm; None: not known.
        unit: unit of the cube; None: the camera's.
    """

    def __init__(
        self, file: Path, cube: Tensor, wavelengths: Sequence[float] | None, unit: str | None
    ) -> None:
        self.file, self.cube, self.unit = file, cube, unit
        self._wavelengths = wavelengths

    @property
    def wavelengths(self) -> Sequence[float]:
        """Wavelengths of the bands, nm."""
        if self._wavelengths is None:
            raise ValueError("expected wavelengths=[…] in nm, one per band, with it")
        return self._wavelengths

    def make(self, kind: str, **settings: Any) -> Question:
        """Make a question of a kind, with the settings of its node.

        Raises:
            OSError: a file is missing.
            ValueError: there is no such kind, or it does not take the settings.
        """
        kinds: dict[str, Callable[..., Question]] = {
            "index": self._index,
            "abundance": self._abundance,
            "target": self._target,
            "region": self._region,
            "area": self._area,
            "color": self._color,
            "function": self._function,
        }
        if kind not in kinds:
            names = ", ".join(kinds)
            raise ValueError(f"kind: expected {names}, got {kind!r}{did_you_mean(kind, kinds)}")
        try:
            inspect.signature(kinds[kind]).bind(**settings)
        except TypeError as error:
            names = ", ".join(inspect.signature(kinds[kind]).parameters)
            raise ValueError(f"expected {names} for kind {kind}: {error}") from None
        return kinds[kind](**settings)

    def _index(self, formula: str) -> Question:
        return Index(str(formula), self.wavelengths)

    def _abundance(
        self, library: str, spectra: Sequence[str] | None = None, sum_to_one: bool = False
    ) -> Question:
        names, curves = self._read_library(library)
        indices = [self._find(name, names, library) for name in spectra or names]
        labels = tuple(names[index] for index in indices)
        return Abundance(torch.from_numpy(curves[indices]), labels, sum_to_one)

    def _target(self, library: str, spectrum: str, detector: str = "matched_filter") -> Question:
        names, curves = self._read_library(library)
        return Target(torch.from_numpy(curves[self._find(spectrum, names, library)]), detector)

    def _region(self, window: Sequence[int] | None = None, mask: str | None = None) -> Question:
        nm = self._wavelengths
        bands = range(1, len(self.cube) + 1)
        labels = [f"band {band}" for band in bands] if nm is None else [f"{x:g} nm" for x in nm]
        return RegionMean(self._read_region(window, mask), tuple(labels), self.unit or "")

    def _area(
        self,
        formula: str,
        above: float,
        window: Sequence[int] | None = None,
        mask: str | None = None,
    ) -> Question:
        region = self._read_region(
            window or [0, 0, *self.cube.shape[1:]] if mask is None else None, mask
        )
        return Area(Index(str(formula), self.wavelengths), float(above), region)

    def _color(
        self, reference: Sequence[float], white: float | None = None, illuminant: str | None = "D65"
    ) -> Question:
        from cassi.viz.color import exposure_of, rendering_matrix, xyz_of_srgb

        if len(reference) != 3:
            raise ValueError(f"reference: expected [L, a, b], got {list(reference)}")
        to_srgb = rendering_matrix(self.wavelengths, illuminant=illuminant)
        matrix = torch.from_numpy(xyz_of_srgb(to_srgb, is_encoded=False))
        if white is None:
            # Only a reflectance has a white of its own. In another unit the picture's white is it.
            exposure = exposure_of(self.cube.numpy(), self.wavelengths, illuminant)
            white = 1.0 if self.unit == "reflectance" else 1 / exposure
        lightness, a, b = map(float, reference)
        return ColorDifference(matrix, (lightness, a, b), float(white))

    def _function(self, name: str) -> Question:
        registered_parts = parts("answer")
        if name not in registered_parts:
            hint = did_you_mean(name, registered_parts)
            hint = hint or "; name the file that registers it, plugins=[FILE.py]"
            raise ValueError(f"name: expected a registered answer, got {name!r}{hint}")
        part = registered_parts[name]
        return Function(part.make, part.properties["labels"], part.properties["unit"])

    def _read_region(self, window: Sequence[int] | None, mask: str | None) -> Tensor:
        """Return the pixels of a region, `(H, W)`, from a window or a file."""
        height, width = self.cube.shape[1:]
        if (window is None) == (mask is None):
            raise ValueError("expected window=[top, left, height, width] or mask: FILE")
        if mask is not None:
            image = read_mask(self._path(mask)).squeeze()
            if tuple(image.shape) != (height, width):
                shape = tuple(image.shape)
                raise ValueError(f"mask: expected {height} × {width} pixels, got {shape}")
            return image != 0
        assert window is not None
        if len(window) != 4:
            raise ValueError(f"window: expected [top, left, height, width], got {list(window)}")
        is_inside = torch.zeros(height, width, dtype=torch.bool)
        top, left, rows, columns = map(int, window)
        if min(top, left) < 0 or top + rows > height or left + columns > width:
            raise ValueError(
                f"window: expected [top, left, height, width] within {height} × {width}, "
                f"got {list(window)}"
            )
        is_inside[top : top + rows, left : left + columns] = True
        return is_inside

    def _read_library(self, library: str) -> tuple[tuple[str, ...], np.ndarray]:
        return read_library(self._path(library), "library", self.wavelengths)

    def _find(self, name: str, names: Sequence[str], library: str) -> int:
        if name not in names:
            hint = did_you_mean(str(name), names)
            raise ValueError(f"expected a spectrum of {library}, got {name!r}{hint}")
        return names.index(name)

    def _path(self, name: str) -> Path:
        """Return a path; it is looked for beside the file of questions first."""
        neighbour = self.file.parent / name
        return neighbour if neighbour.exists() else Path(name)


def read_questions(
    file: Path, cube: Tensor, wavelengths: Sequence[float] | None, unit: str | None
) -> dict[str, Question]:
    """Read the questions of a file, for a cube `(C, H, W)`.

    Raises:
        OSError: a file is missing.
        ValueError: the file is not a list of questions by name, or a question is not valid.
    """
    if not file.is_file():
        raise FileNotFoundError(f"answers: no file {file}")
    if file.stat().st_size > _MAX_BYTES:
        raise ValueError(f"answers: {file} is larger than {_MAX_BYTES} bytes")
    try:
        nodes = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"answers: {file} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(nodes, dict) or not nodes:
        raise ValueError(f"answers: expected NAME: {{kind: …}} for each question in {file}")
    maker = Questions(file, cube, wavelengths, unit)
    questions = {}
    for name, node in nodes.items():
        if not isinstance(node, dict) or "kind" not in node:
            raise ValueError(f"answers.{name}: expected {{kind: …}} in {file}, got {node!r}")
        if not isinstance(name, str) or not name.replace("-", "_").isidentifier():
            raise ValueError(f"answers: expected a name of letters, digits, - and _, got {name!r}")
        try:
            questions[name] = maker.make(**node)
        except (ValueError, TypeError) as error:
            raise ValueError(f"answers.{name}: {error}") from None
    return questions
