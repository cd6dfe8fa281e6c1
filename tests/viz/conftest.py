from collections import defaultdict
from inspect import signature
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from cassi.data.wavelengths import BENCHMARK_WAVELENGTHS
from cassi.viz.canvas import Canvas

KAIST = np.array(BENCHMARK_WAVELENGTHS)


@pytest.fixture
def wavelengths():
    return KAIST.tolist()


@pytest.fixture
def cube():
    """Four quarters of different smooth spectra and brightness, odd in size."""
    spectra = [
        1 / (1 + np.exp(-(KAIST - 580) / 15)),
        np.exp(-(((KAIST - 530) / 30) ** 2)),
        np.exp(-(((KAIST - 460) / 40) ** 2)),
        np.full(28, 0.7),
    ]
    scene = np.zeros((28, 37, 53), np.float32)
    for spectrum, rows, columns in zip(
        spectra,
        [slice(0, 18), slice(0, 18), slice(18, 37), slice(18, 37)],
        [slice(0, 26), slice(26, 53), slice(0, 26), slice(26, 53)],
        strict=True,
    ):
        scene[:, rows, columns] = spectrum[:, None, None]
    ramp = np.linspace(0.6, 1.0, 53, dtype=np.float32)
    return scene * ramp


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved."""
    saved, save = [], Figure.savefig

    def savefig(figure, *given, **named):
        saved.append(figure)
        save(figure, *given, **named)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return saved


@pytest.fixture
def pages(monkeypatch):
    """What was drawn on each page: the arguments of every call, by the method's name."""
    pages, calls = [], {}

    def record(name, method):
        def call(canvas, *given, **named):
            if id(canvas) not in calls:
                calls[id(canvas)] = canvas, defaultdict(list)
                pages.append(calls[id(canvas)][1])
            arguments = signature(method).bind(canvas, *given, **named).arguments
            calls[id(canvas)][1][name].append(SimpleNamespace(**arguments))
            method(canvas, *given, **named)

        return call

    for name in ("disc", "image", "line", "polygon", "scale", "text"):
        monkeypatch.setattr(Canvas, name, record(name, getattr(Canvas, name)))
    return pages
