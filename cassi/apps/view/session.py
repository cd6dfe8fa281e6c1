"""The state of one browser tab: options of cassi-reconstruct, and results."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from cassi.apps.arguments import quoted
from cassi.apps.inputs import load_snapshot
from cassi.apps.reconstruct.snapshots import is_many
from cassi.apps.reconstructors import compose_settings
from cassi.apps.reconstructors import list_methods as named_methods
from cassi.apps.settings import Reconstruct
from cassi.apps.view.allowed_paths import AllowedPaths
from cassi.apps.view.cubes import CubeView
from cassi.apps.view.input_summary import InputSummary, summarize_inputs
from cassi.config import verbatim
from cassi.pipeline.snapshot import Snapshot

FILE_OPTIONS = ("measurement", "mask", "truth", "camera", "dark", "flat", "bad_pixels")
"""Options that name files."""
DEFAULT_METHOD, PRETRAINED = "auto", "pretrained"
WEIGHTS_SUFFIX = ".safetensors"
METHODS = {
    "auto: the default, for any camera": DEFAULT_METHOD,
    "pretrained: the network of the package, with one disperser": PRETRAINED,
    "gap_tv: of the literature": "gap_tv",
}
"""Methods that the page offers first: the value of the option, by the label on the page."""


class Session:
    """Options of cassi-reconstruct, and the cubes of this tab.

    Args:
        allowed_paths: the files that may be read.
        output: folder of the results.

    Attributes:
        values: text of each option after `=`, by dotted name.
        further_options: options that the user typed, as on the command line.
        results: cubes by name, the oldest first.
    """

    def __init__(self, allowed_paths: AllowedPaths, output: Path) -> None:
        self.allowed_paths, self.output = allowed_paths, output
        self.values: dict[str, str] = {}
        self.further_options: list[str] = []
        self.results: dict[str, CubeView] = {}
        self._wavelength_range: tuple[float, float] | None = None

    def set(self, name: str, value: str | None) -> None:
        """Set an option as on the command line; None and blanks choose its default."""
        text = (value or "").strip()
        if text:
            self.values[name] = text
        else:
            self.values.pop(name, None)

    def set_file(self, name: str, path: Path | str | None) -> None:
        """Set an option that names a file; OSError if it is missing or must not be read."""
        if path is None:
            self.set(name, None)
            return
        text = str(path)
        if not text.startswith("bundled:"):
            real_path = self.allowed_paths.resolve(text)
            real_path.stat()
            text = str(real_path)
        self.set(name, quoted(text))

    def set_wavelengths(self, text: str) -> None:
        """Set the wavelengths: a list in nm, or the first and the last one as `450-650`.

        A range has no number of bands. `summarize` takes the number from the camera, and spaces the
        bands evenly.
        """
        range_match = re.fullmatch(r"\s*(\d+\.?\d*)\s*[-–]\s*(\d+\.?\d*)\s*", text)
        self._wavelength_range = (
            None if range_match is None else (float(range_match[1]), float(range_match[2]))
        )
        numbers = text.strip().strip("[]").replace(";", ",")
        self.set("wavelengths", f"[{numbers}]" if numbers and range_match is None else None)

    def use_example(self) -> None:
        """Use the scene and the mask of the package."""
        for name in FILE_OPTIONS:
            self.set(name, None)
        self.set_file("truth", "bundled:scene.tif")
        self.set_file("mask", "bundled:mask.tif")

    def use_method(self, method: str) -> None:
        """Choose a method: the name of a method or a network, or the file of a network."""
        # The last choice may have set either option, so both are removed first.
        self.set("model", None)
        self.set("method", None)
        if method.endswith(WEIGHTS_SUFFIX):
            self.set_file("model", method)
        elif method == PRETRAINED:
            self.set("model", method)
        elif method != DEFAULT_METHOD:
            self.set("method", method)

    def set_further_options(self, text: str) -> None:
        """Set further options, one a line; lines that begin with # are ignored.

        Interpolation is off: `${` in the name of a file is part of the name.
        """
        lines = (line.strip() for line in text.splitlines())
        self.further_options = [line for line in lines if line and not line.startswith("#")]

    def options(self) -> list[str]:
        """Return all options, as on the command line."""
        return [f"{name}={value}" for name, value in self.values.items()] + verbatim(
            self.further_options
        )

    def settings(self) -> Reconstruct:
        """Return the settings of all options.

        Raises:
            OSError: a camera's file is missing, or not below the allowed folders.
            ValueError: an option does not fit, no snapshot is chosen, or several are.
        """
        # Settings of Hydra itself could name another search path or any class, and so run a
        # stranger's program.
        for option in self.further_options:
            key = option.lstrip("+~").partition("=")[0]
            if key.split(".")[0].split("@")[0] == "hydra":
                raise ValueError(f"{key}: expected settings of cassi-reconstruct alone")
        settings: Reconstruct = compose_settings(self.options())
        if settings.measurement is None and settings.truth is None:
            raise ValueError("choose a snapshot, or take the example")
        # The page shows one cube. Runs on folders or in blocks write files, and need no page.
        if is_many(settings.measurement):
            raise ValueError("measurement: expected one file; cassi-reconstruct takes folders")
        if settings.memory_budget is not None:
            raise ValueError("memory_budget: expected none here; cassi-reconstruct takes it")
        return settings

    def summarize(self) -> InputSummary:
        """Read the files and summarize them."""
        if self._wavelength_range is not None:
            # Without wavelengths, the number of bands follows from the sizes of the files.
            self.set("wavelengths", None)
            bands = self._load().camera.system.cube_shape[0]
            wavelengths = np.linspace(*self._wavelength_range, bands)
            self.set("wavelengths", f"[{', '.join(f'{value:.6g}' for value in wavelengths)}]")
        return summarize_inputs(self._load())

    def _load(self) -> Snapshot:
        settings = self.settings()
        return load_snapshot(settings, torch.device("cpu"), settings.bands)

    def add(self, cube_view: CubeView) -> CubeView:
        """Add a result, and return it; its name gets a number if another result has the name.

        A file that was opened before is not added again.
        """
        name, number = cube_view.name, 2
        while (known_view := self.results.get(name)) is not None:
            are_files = known_view.origin is None and cube_view.origin is None
            has_same_numbers = are_files and known_view.numbers == cube_view.numbers
            # The cubes are compared, too, because the file may have been written again since.
            if has_same_numbers and np.array_equal(known_view.cube, cube_view.cube):
                return known_view
            name, number = f"{cube_view.name} ({number})", number + 1
        cube_view = replace(cube_view, name=name)
        self.results[name] = cube_view
        return cube_view


def list_methods() -> dict[str, str]:
    """Return the value of each method by its label."""
    return METHODS | {name: name for name in named_methods() if name not in METHODS.values()}
