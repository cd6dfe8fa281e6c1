import numpy as np
import pytest

# fmt: off
KAIST = [
    453.5, 457.5, 462.0, 466.0, 471.5, 476.5, 481.5, 487.0, 492.5, 498.0, 504.0, 510.0, 516.0,
    522.5, 529.5, 536.5, 544.0, 551.5, 558.5, 567.5, 575.5, 584.5, 594.5, 604.0, 614.5, 625.0,
    636.5, 648.0,
]
# fmt: on


@pytest.fixture
def wavelengths() -> list[float]:
    return list(KAIST)


@pytest.fixture
def cube() -> np.ndarray:
    """Four quarters of different smooth spectra and brightness, odd in size."""
    spectra = [
        1 / (1 + np.exp(-(np.array(KAIST) - 580) / 15)),
        np.exp(-(((np.array(KAIST) - 530) / 30) ** 2)),
        np.exp(-(((np.array(KAIST) - 460) / 40) ** 2)),
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
