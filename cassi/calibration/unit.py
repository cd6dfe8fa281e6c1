"""The unit in which a cube is written: reflectance, radiance, or the unit of the camera."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from cassi.calibration.response import Patch, Response, White, WhiteFrame
from cassi.systems import System
from cassi.systems.grid import SpectralGrid

Source = Response | Patch
"""A response that does not depend on the cube, or a patch of the cube that shows the response."""


@dataclass(frozen=True)
class Unit:
    """The unit in which a cube is written.

    Attributes:
        name: reflectance, radiance, or None for the unit of the camera.
        source: the source of the response.
        wavelengths: wavelengths of the bands, nm; None: not known.
        white: result of the white frame; None before `measured` has fitted it.
        note: one line on the file or setting from which the response comes.
    """

    name: str | None
    source: Source | WhiteFrame
    wavelengths: Sequence[float] | None = None
    white: White | None = None
    note: str = ""

    def measured(
        self,
        y: Tensor,
        system: System,
        reconstruct: Callable[[Tensor, System], Tensor],
        grid: SpectralGrid | None = None,
    ) -> tuple[Tensor, Unit, str]:
        """Fit a white frame through the camera with which a snapshot is reconstructed.

        Args:
            y: the snapshot `(B, K, H', W')`.
            system: the camera.
            reconstruct: (y, camera) → cube, the method for the scenes.
            grid: spectral grid on which cubes are computed; None: there is no grid.

        Returns:
            The snapshot corrected by the white frame, the unit with the fitted response, and a
            note. Without a white frame the snapshot and the unit do not change.
        """
        if not isinstance(self.source, WhiteFrame):
            return y, self, ""
        white = self.source.fit(y, system, reconstruct, grid)
        unit = replace(self, source=white.response, white=white)
        return unit.corrected(y, system), unit, str(white)

    def corrected(self, y: Tensor, system: System) -> Tensor:
        """Return a snapshot `(B, K, H', W')`, corrected by the fitted white frame."""
        if self.white is None:
            return y
        return system.without_bad_pixels(self.white.corrected(y, system.good_pixels))

    def response(self, x: Tensor) -> Response:
        """Return the response; a `Patch` takes it from the cube `(1, C, H, W)`.

        Raises:
            ValueError: the patch is not within the cube, or a band has no light in it.
        """
        # `measured` replaces a white frame by the response that it shows.
        assert not isinstance(self.source, WhiteFrame)
        return self.source.of(x)

    def scene(self, x: Tensor, response: Response) -> Tensor:
        """Convert a cube `(…, C, H, W)` into the unit."""
        return response.scene(x, self._reflectance_wavelengths)

    def errors(
        self, x: Tensor, std: Tensor, pattern: Tensor, response: Response
    ) -> tuple[Tensor, Tensor]:
        """Return standard errors of a cube in the unit, and an error pattern in units of them.

        Args:
            x: the cube in the unit of the camera, `(…, C, H, W)`.
            std: standard errors of x, of the same shape.
            pattern: an error of x in units of `std`, of the same shape.
            response: the response.
        """
        std_in_unit = response.scene_std(x, std, self._reflectance_wavelengths)
        return std_in_unit, response.scene_pattern(
            x, pattern, std, std_in_unit, self._reflectance_wavelengths
        )

    @property
    def _reflectance_wavelengths(self) -> Sequence[float] | None:
        return self.wavelengths if self.name == "reflectance" else None
