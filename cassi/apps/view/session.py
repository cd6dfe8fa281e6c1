"""The state of one tab of the browser: options of cassi-reconstruct, and results."""

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
from cassi.apps.view.cubes import Shown
from cassi.apps.view.input_summary import InputSummary, summarize_inputs
from cassi.config import verbatim
from cassi.pipeline.snapshot import Snapshot

FILES = ("measurement", "mask", "truth", "camera", "dark", "flat", "bad_pixels")
"""Options that name files."""
DEFAULT, TRAINED = "auto", "pretrained"
SUFFIX = ".safetensors"
METHODS = {
    "auto: the default, for any camera": DEFAULT,
    "pretrained: the network of the package, with one disperser": TRAINED,
    "gap_tv: of the literature": "gap_tv",
}
"""Methods offered first: label, and value of the option."""


class Session:
    """Options of cassi-reconstruct, and the cubes of this tab.

    Args:
        allowed: files that may be read.
        output: folder of the results.

    Attributes:
        values: text behind `=` on the command line, by dotted name.
        more: further options as on the command line.
        results: cubes by name, the oldest first.
    """

    def __init__(self, allowed: AllowedPaths, output: Path) -> None:
        self.allowed, self.output = allowed, output
        self.values: dict[str, str] = {}
        self.more: list[str] = []
        self.results: dict[str, Shown] = {}
        self._span: tuple[float, float] | None = None

    def set(self, name: str, value: str | None) -> None:
        """Set an option as on the command line; None and blanks choose its default."""
        text = (value or "").strip()
        if text:
            self.values[name] = text
        else:
            self.values.pop(name, None)

    def set_file(self, name: str, path: Path | str | None) -> None:
        """Set an option that names a file, which is there and may be read."""
        if path is None:
            self.set(name, None)
            return
        text = str(path)
        if not text.startswith("bundled:"):
            place = self.allowed.resolve(text)
            place.stat()
            text = str(place)
        self.set(name, quoted(text))

    def say_wavelengths(self, text: str) -> None:
        """Take a list of wavelengths in nm, or the first and the last, `450-650`.

        `summarize` then spaces the bands evenly between the two.
        """
        ends = re.fullmatch(r"\s*(\d+\.?\d*)\s*[-–]\s*(\d+\.?\d*)\s*", text)
        self._span = None if ends is None else (float(ends[1]), float(ends[2]))
        listed = text.strip().strip("[]").replace(";", ",")
        self.set("wavelengths", f"[{listed}]" if listed and ends is None else None)

    def use_example(self) -> None:
        """Use the scene and the mask of the package."""
        for name in FILES:
            self.set(name, None)
        self.set_file("truth", "bundled:scene.tif")
        self.set_file("mask", "bundled:mask.tif")

    def use_method(self, method: str) -> None:
        """Choose a method by its name or that of a network, or the file of a network."""
        self.set("model", None)
        self.set("method", None)
        if method.endswith(SUFFIX):
            self.set_file("model", method)
        elif method == TRAINED:
            self.set("model", method)
        elif method != DEFAULT:
            self.set("method", method)

    def say_more(self, text: str) -> None:
        """Set further options, one a line; lines that begin with # are ignored.

        They refer to nothing: `${` in the name of a file is a part of the name.
        """
        lines = (line.strip() for line in text.splitlines())
        self.more = [line for line in lines if line and not line.startswith("#")]

    def options(self) -> list[str]:
        """Return all options, as on the command line."""
        return [f"{name}={value}" for name, value in self.values.items()] + verbatim(self.more)

    def settings(self) -> Reconstruct:
        """Return the settings that the options make.

        Raises:
            OSError: a camera's file is missing, or not below the folders that may be read.
            ValueError: an option does not fit; there is no snapshot, or several.
        """
        for option in self.more:
            key = option.lstrip("+~").partition("=")[0]
            if key.split(".")[0].split("@")[0] == "hydra":
                raise ValueError(f"{key}: expected settings of cassi-reconstruct alone")
        settings: Reconstruct = compose_settings(self.options())
        if settings.measurement is None and settings.truth is None:
            raise ValueError("choose a snapshot, or take the example")
        if is_many(settings.measurement):
            raise ValueError("measurement: expected one file; cassi-reconstruct takes folders")
        if settings.memory_budget is not None:
            raise ValueError("memory_budget: expected none here; cassi-reconstruct takes it")
        return settings

    def summarize(self) -> InputSummary:
        """Read the files and summarize them."""
        if self._span is not None:
            self.set("wavelengths", None)
            bands = self._load().camera.system.cube_shape[0]
            between = np.linspace(*self._span, bands)
            self.set("wavelengths", f"[{', '.join(f'{each:.6g}' for each in between)}]")
        return summarize_inputs(self._load())

    def _load(self) -> Snapshot:
        settings = self.settings()
        return load_snapshot(settings, torch.device("cpu"), settings.bands)

    def add(self, shown: Shown) -> Shown:
        """Keep a result, and return it by its name, with a number where another one has it.

        One that has been opened before is not kept again.
        """
        name, number = shown.name, 2
        while (other := self.results.get(name)) is not None:
            was_read = other.made is None and shown.made is None
            is_same = was_read and other.numbers == shown.numbers
            if is_same and np.array_equal(other.cube, shown.cube):  # it may be written again since
                return other
            name, number = f"{shown.name} ({number})", number + 1
        shown = replace(shown, name=name)
        self.results[name] = shown
        return shown


def list_methods() -> dict[str, str]:
    """Return the value of each method by its label."""
    return METHODS | {name: name for name in named_methods() if name not in METHODS.values()}
