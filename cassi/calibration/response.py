"""The response of a camera: what it makes of white, band by band."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

from cassi.systems import System
from cassi.systems.grid import Grid, InAllLight

_STRIPS = 8
"""Parts of a frame that are fitted by themselves: their scatter is the error."""
_WEAK = 0.04
"""Of the diagonal of the normal matrix: spectra that make less of a difference on the detector are
what makes up for an unsharp mask, not the light's. Of six cameras drawn by `lab.py` (20 to 25) four
have none, and the light of the other two is up to twice as close to the truth."""
_LINES, _EDGE = 128, 8
"""Lines of a white frame for a method, and pixels at the edges of its cube that do not count."""
_WHITE = 0.1
"""Share of a white frame that a camera may have wrong, if pixels are to be scaled. Cameras drawn by
`lab.py` have 6 % at most; a mask of other rows has 20 to 50 %."""
_GAINS = (0.5, 2.0)  # least and most
_FAILED = 0.2  # of the response; cubes of 32 true cameras are 5 % off at most
_TOGETHER = 25  # neighbouring pixels of a cube err together
_SURE = 2.0  # standard errors
_BESIDE = 2  # bands, into which a method puts light of a band
_COLOUR, _REACH = 1.5, 300.0
"""Of reflectances, relative to grey ones of the same mean square: variance of what is not grey, and
over how many nanometres it changes. Of 838 measured surfaces (Munsell, Macbeth, Vrhel, Krinov) 0.5
and 120 nm are likeliest. But errors of neighbouring bands go together, and look like such colours:
smoother ones are nearer to the truth on cameras drawn by `lab.py` (20 to 31)."""
_GREY = 1e5  # variance of grey: it is free
_SHARPER = 1 / 3
"""Of ε, for the scene whose smoothing the error bars hold. With 1 they held 4 % of the pixels of a
band with strong colours. Without any ε they are twice as wide in weak light as they need be."""
_WRONG = 0.24  # of the root mean square light of the bands: the error of one of them in a cube


@dataclass(frozen=True)
class Response:
    r"""What the cube of a scene is that has the value 1 in every band.

    The camera counts x_c = r_c·s_c, where s is the scene in the unit that is asked for. So s = x/r,
    and with standard errors σ of x and ε of r, that of s is √(σ²/r² + x²ε²/r⁴).

    Args:
        values: r, `(C,)`, above 0. Of a white surface under the lamp of the scene it holds lamp,
            optics and sensor, and s is a reflectance. Of a source of known radiance it holds optics
            and sensor, and s is a radiance.
        errors: ε, `(C,)`, standard errors.

    Raises:
        ValueError: a value is not a finite number above 0, or shapes differ.

    >>> response = Response(torch.tensor([2.0, 4.0]), torch.zeros(2))
    >>> response.scene(torch.full((1, 2, 1, 1), 2.0)).flatten()
    tensor([1.0000, 0.5000])
    """

    values: Tensor
    errors: Tensor

    def __post_init__(self) -> None:
        """Check that every band has light."""
        if self.values.ndim != 1 or self.errors.shape != self.values.shape:
            raise ValueError(
                f"response: expected (C,) and (C,), got {tuple(self.values.shape)} and "
                f"{tuple(self.errors.shape)}"
            )
        dark = ~(self.values.isfinite() & (self.values > 0) & self.errors.isfinite())
        if bool(dark.any()):
            band = int(dark.nonzero()[0])
            raise ValueError(
                f"response: expected numbers above 0, got {float(self.values[band]):g} in band "
                f"{band + 1} of {len(self.values)}: there is no light in it; leave it out of the "
                "camera, or give response= of a brighter frame"
            )

    def of(self, _: Tensor) -> Response:
        """Return itself: it needs no cube."""
        return self

    def scene(self, x: Tensor, wavelengths: Sequence[float] | None = None) -> Tensor:
        r"""Return the scene of a cube `(…, C, H, W)`: s = x/r, or the likeliest reflectance.

            s = Hx,   H = K R (R K R + ε² I)⁻¹,   R = diag r

        Lamp and sensor may be weak in a band, and then x/r is mostly the error of the method. But
        reflectances are grey and a part that changes slowly over wavelengths. Their covariance is
        K = g 11ᵀ + 1.5 (1 + d) e^(−d) with d = √3 Δλ/300 nm, of a Matérn process; ε is 24 % of the
        root mean square of r. Grey is free (g = 10⁵), so white stays what it is.

        Args:
            x: the cube.
            wavelengths: nm, one per band, where s is a reflectance; None: x/r.
        """
        return self._apply(self._inverse(wavelengths), x)

    def scene_std(
        self, x: Tensor, std: Tensor, wavelengths: Sequence[float] | None = None
    ) -> Tensor:
        """Return the standard error of `scene(x)`, for that of x; both `(…, C, H, W)`.

        Methods put light into a band beside its own. Where lamp and sensor are weak, that is much
        of what is there, and σ of x is too small. So σ is at least that of two bands either way.
        Of reflectances H does that: errors of bands go together, so they are added, not squared.
        So is what H smooths away of a colour: as much as it takes of the scene that is found with
        a third of ε. Of the scene that H found it takes less, since that is smooth already.
        """
        inverse = self._inverse(wavelengths)
        found = self._apply(inverse, x)
        if wavelengths is None:
            bands = std.movedim(-3, -1)
            most = max_pool1d(bands.flatten(0, -2), 2 * _BESIDE + 1, 1, _BESIDE)
            std = most.view(bands.shape).movedim(-1, -3)
        share = self._like(self.errors / self.values, x)
        spread = self._apply(inverse.abs(), std) + self._smoothed(inverse, x, wavelengths).abs()
        return torch.hypot(spread, found * share)

    def scene_pattern(
        self,
        x: Tensor,
        pattern: Tensor,
        std: Tensor,
        there: Tensor,
        wavelengths: Sequence[float] | None,
    ) -> Tensor:
        """Return an error of the scene in units of its σ, mean square 1, of such an error of x.

        Where a band lies between pixels, a cube has other errors than beside it. H mixes bands.

        Args:
            x: the cube.
            pattern: error of x, in units of σ.
            std: σ of x.
            there: σ of the scene, `scene_std`.
            wavelengths: as for `scene`.
        """
        inverse = self._inverse(wavelengths)
        error = self._apply(inverse, pattern * std)
        error = (error + self._smoothed(inverse, x, wavelengths)) / there
        return error / error.square().mean().sqrt().clamp_min(torch.finfo(error.dtype).tiny)

    def _smoothed(self, inverse: Tensor, x: Tensor, wavelengths: Sequence[float] | None) -> Tensor:
        """Return what H changes of a scene by itself, (HR − I)s."""
        scene = self._apply(self._inverse(wavelengths, _WRONG * _SHARPER), x)
        return self._apply(inverse * self.values.to(inverse), scene) - scene

    def _inverse(self, wavelengths: Sequence[float] | None, wrong: float = _WRONG) -> Tensor:
        """Return H `(C, C)`."""
        r = self.values.double().cpu()
        if wavelengths is None:
            return torch.diag(1 / r)
        at = torch.tensor([float(each) for each in wavelengths], dtype=r.dtype)
        away = 3**0.5 * (at[:, None] - at).abs() / _REACH
        known = (_GREY + _COLOUR * (1 + away) * (-away).exp()) * r
        unsure = wrong**2 * r.square().mean() * torch.eye(len(r), dtype=r.dtype)
        return torch.linalg.solve(r[:, None] * known + unsure, known.mT).mT

    @staticmethod
    def _apply(matrix: Tensor, x: Tensor) -> Tensor:
        return torch.einsum("ij,...jhw->...ihw", matrix.to(x), x)

    @staticmethod
    def _like(value: Tensor, x: Tensor) -> Tensor:
        return value.to(x)[:, None, None]


@dataclass(frozen=True)
class White:
    """What a frame of an even white surface shows of a camera: see `find_white`.

    Attributes:
        response: what the camera makes of white, band by band.
        stray: light on every pixel of a frame, a share of the frame's mean.
        gain: of every pixel, `(1, K, H', W')`, by which a white frame becomes that of the camera's
            model; None: 1.
    """

    response: Response
    stray: float = 0.0
    gain: Tensor | None = None

    def __str__(self) -> str:
        """Say what `corrected` does to a snapshot."""
        said = f"; stray light of {self.stray:.1%} of the mean taken out of the snapshot"
        said = said if self.stray > 0 else ""
        if self.gain is not None:
            away = float((self.gain - 1).square().mean().sqrt())
            said += f"; its pixels scaled by the white frame, by {away:.1%} in the mean"
        return said

    def corrected(self, y: Tensor, good: Tensor | None) -> Tensor:
        """Return measurements `(B, K, H', W')` without stray light, times the gain.

        Args:
            y: measurements; the mean of each says how much light is stray.
            good: pixels that count; None: all.
        """
        good = torch.ones_like(y, dtype=torch.bool) if good is None else good.expand_as(y)
        mean = torch.stack([one[there].mean() for one, there in zip(y, good, strict=True)])
        y = y - self.stray * mean.view(-1, 1, 1, 1)
        return y if self.gain is None else y * self.gain


@dataclass(frozen=True)
class WhiteFrame:
    """A measured frame of an even white surface; what it shows depends on the camera."""

    y: Tensor
    good: Tensor
    reflectance: float | Tensor = 1.0

    def fit(
        self,
        like: Tensor,
        system: System,
        reconstruct: Callable[[Tensor, System], Tensor],
        grid: Grid | None = None,
    ) -> White:
        """Return what the frame shows of a camera; see `find_white`."""
        good, known = self.good.to(like.device), system.good_pixels
        good = good if known is None else good & known
        camera = system.unweighted.weighted(bad_pixels=~good)
        y = camera.without_bad_pixels(self.y.to(like))
        return find_white(y, camera, self.reflectance, reconstruct, grid)


@dataclass(frozen=True)
class Patch:
    """A white reference within the scene: its mean spectrum in the cube is the response.

    Args:
        place: top, left, height, width, pixels of the cube.
        reflectance: of the reference, a number or one per band, in the unit that is asked for.
    """

    place: tuple[int, int, int, int]
    reflectance: float | Tensor = 1.0

    def check(self, rows: int, columns: int) -> None:
        """Raise ValueError unless the patch is within a cube of so many rows and columns."""
        top, left, height, width = self.place
        if min(top, left) < 0 or top + height > rows or left + width > columns:
            raise ValueError(
                f"response: expected a patch [top, left, height, width] within "
                f"{rows} x {columns} pixels, got {list(self.place)}"
            )

    def of(self, x: Tensor) -> Response:
        """Return the response that a cube `(1, C, H, W)` shows.

        Raises:
            ValueError: the patch is not within the cube, or a band has no light in it.
        """
        top, left, height, width = self.place
        self.check(*x.shape[-2:])
        part = x[0, :, top : top + height, left : left + width].flatten(1).double().cpu()
        free = max(part.shape[1] / _TOGETHER, 1.0)
        spread = part.std(1, correction=0) / free**0.5
        known = torch.as_tensor(self.reflectance, dtype=torch.float64)
        return Response((part.mean(1) / known).float(), (spread / known).float())


@torch.no_grad()
def find_white(
    y: Tensor,
    system: System,
    reflectance: float | Sequence[float] | Tensor = 1.0,
    reconstruct: Callable[[Tensor, System], Tensor] | None = None,
    grid: Grid | None = None,
) -> White:
    r"""Find the response in a frame of an even white surface that fills the field.

        min_r ‖y − Σ_c r_c ρ_c A e_c − b‖²

    by least squares, with the even scene e_c of band c, the reflectance ρ of the surface, and stray
    light b, the same on all pixels. The frame has some ten thousand pixels, and the light C
    numbers. Spectra that hardly show on the detector, as differences of bands closer than an
    unsharp mask resolves, are as smooth as they can be. Strips of the frame are fitted by
    themselves. Their mean is the response, and their scatter gives its standard errors. Stray light
    counts from two standard errors on.

    A camera whose mask and bands are not quite those of its model has errors in white as in other
    scenes. The gain g = Σ_c r_c ρ_c A e_c / (y − b) takes them out of the frame of a grey scene,
    and part of them out of others. Where they are more than a tenth of the frame, the camera is
    another one, and there is no gain.

    A method has errors too. With `reconstruct` r is the median spectrum of the cube that it makes
    of g·(y − b), over ρ: in s = x/r errors that both share cancel. A mean would follow the few
    pixels beside the outermost band, of which next to no light says what they are.

    Args:
        y: measurement `(1, K, H', W')`, of the same exposure as the scenes. With another one the
            shape of the spectrum is right, and the level is off by the ratio of the exposures.
        system: the camera; its bad pixels are left out.
        reflectance: of the surface, a number or one per band.
        reconstruct: (y, camera) → cube, the method for the scenes; it is given at most 128 lines.
        grid: along the dispersion, on which cubes are computed. Even scenes are then measured in
            the light between bands too, and r is that of least squares: a cube of a white frame on
            a grid has light of strong bands in weak ones, which cubes of scenes have not.

    Raises:
        ValueError: y does not fit the camera, or the frame shows no light in a band.
    """
    if tuple(y.shape) != (1, *system.measurement_shape):
        raise ValueError(
            f"response: expected a frame (1, K, H', W') of {system.measurement_shape}, got "
            f"{tuple(y.shape)}"
        )
    known = torch.as_tensor(reflectance, dtype=torch.float64).expand(system.cube_shape[0])
    there = torch.ones_like(y[0]) if system.good_pixels is None else system.good_pixels[0].to(y)
    even = _even_scenes(y, system if grid is None else InAllLight(system, grid))
    each, stray = _fit_strips(y[0], there, even, system.part_axis)
    white = (y - stray) * there
    gain = _gain(torch.einsum("c,c...->...", each.mean(0).to(y), even) * there, white)
    each = each / known
    if reconstruct is not None and grid is None:
        made = _median_spectra(white if gain is None else white * gain, system, reconstruct) / known
        # Scaled, the frame is that of `each`: a method that finds another spectrum has failed.
        away = float((made.mean(0) - each.mean(0)).norm() / each.mean(0).norm())
        if gain is None or away < _FAILED:
            each = made
    mean = float((y[0] * there).sum() / there.sum().clamp_min(1))
    return White(_mean_response(each), stray / mean, gain)


def _even_scenes(y: Tensor, system: System) -> Tensor:
    """Return what the camera makes of a scene that is 1 in one band, of each, `(C, K, H', W')`."""
    shape = (1, *system.cube_shape)
    bands = torch.eye(shape[1], dtype=y.dtype, device=y.device)[:, None, :, None, None]
    return torch.stack([system(band.expand(shape).contiguous())[0] for band in bands])


def _fit_strips(
    frame: Tensor, there: Tensor, even: Tensor, part_axis: int | None
) -> tuple[Tensor, float]:
    """Return the light of bands `(_STRIPS, C)` in strips of a frame, and stray light if it is sure.

    The frame `(K, H', W')` is a sum of even scenes `(C, K, H', W')`, and of stray light on all
    pixels that are `there`.
    """
    axis, found = -2 if part_axis is None else part_axis, []
    images = torch.cat([even, there[None]]).tensor_split(_STRIPS, axis)
    for part, light in zip(images, (frame * there).tensor_split(_STRIPS, axis), strict=True):
        design = part.flatten(1).double().cpu()
        found.append(_smoothest(design @ design.mT, design @ light.flatten().double().cpu()))
    each = torch.stack(found)
    stray, error = float(each[:, -1].mean()), float(each[:, -1].std()) / _STRIPS**0.5
    return each[:, :-1], stray if stray > _SURE * error else 0.0


def _median_spectra(
    y: Tensor, camera: System, reconstruct: Callable[[Tensor, System], Tensor]
) -> Tensor:
    """Return the median spectra that a method finds in strips of a frame, `(_STRIPS, C)`."""
    axis = -2
    if camera.part_axis is not None:
        axis, length = camera.part_axis, y.shape[camera.part_axis]
        first = max(length - _LINES, 0) // 2
        y = y.narrow(axis, first, length - 2 * first)
        camera = camera.part(first, length - first)
    x = reconstruct(y, camera)[0].double().cpu()
    inner = [slice(_EDGE, -_EDGE) if size > 4 * _EDGE else slice(None) for size in x.shape[1:]]
    strips = x[(slice(None), *inner)].tensor_split(_STRIPS, axis)
    return torch.stack([strip.flatten(1).median(1).values for strip in strips])


def _mean_response(strips: Tensor) -> Response:
    """Return the mean of responses `(_STRIPS, C)`, 0 where it is no surer than chance."""
    errors, values = strips.std(0) / _STRIPS**0.5, strips.mean(0)
    values = torch.where(values > _SURE * errors, values, 0)
    return Response(values.float(), errors.float())


def _gain(model: Tensor, white: Tensor) -> Tensor | None:
    """Return what pixels of a white frame are to be multiplied by, if the model is nearly right."""
    if not float((model - white).norm()) < _WHITE * float(white.norm()):
        return None
    lit = (white > 0) & (model > 0)
    return torch.where(lit, model / white.where(lit, 1), 1).clamp(*_GAINS)


def _smoothest(normal: Tensor, image: Tensor) -> Tensor:
    """Solve normal equations `(C + 1, C + 1)`, in which `_WEAK` spectra are as smooth as can be."""
    scale = normal.diagonal().mean()
    values, vectors = torch.linalg.eigh(normal / scale)
    weak = values < _WEAK
    strong = vectors[:, ~weak]
    found = strong @ (strong.mT @ (image / scale) / values[~weak])
    if not bool(weak.any()):
        return found
    bands = torch.eye(len(found) - 1, len(found), dtype=found.dtype)  # without b, the last
    bent = bands.diff(n=2, dim=0)
    free = vectors[:, weak]
    return found - free @ (torch.linalg.pinv(bent @ free) @ (bent @ found))


Source = Response | Patch
"""Where a response comes from: known before there is a cube, or found in it."""


@dataclass(frozen=True)
class Unit:
    """In which unit a cube is written.

    Attributes:
        name: reflectance, radiance, or None for what the camera counts.
        source: the response.
        wavelengths: nm, one per band, if known.
        white: what a white frame showed, once `measured` has fitted it.
        note: how the response was understood.
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
        grid: Grid | None = None,
    ) -> tuple[Tensor, Unit, str]:
        """Fit a white frame through the camera that a snapshot is reconstructed with.

        Returns:
            The snapshot as the frame corrects it, the unit with its response, and what was done.
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
        """Return the response, of a cube `(1, C, H, W)` where a patch of it is white."""
        assert not isinstance(self.source, WhiteFrame)  # `measured` comes first
        return self.source.of(x)

    def scene(self, x: Tensor, response: Response) -> Tensor:
        """Return a cube in the unit."""
        return response.scene(x, self._surfaces)

    def errors(
        self, x: Tensor, std: Tensor, pattern: Tensor, response: Response
    ) -> tuple[Tensor, Tensor]:
        """Return standard errors of a cube in the unit, and their pattern."""
        scaled = response.scene_std(x, std, self._surfaces)
        return scaled, response.scene_pattern(x, pattern, std, scaled, self._surfaces)

    @property
    def _surfaces(self) -> Sequence[float] | None:
        return self.wavelengths if self.name == "reflectance" else None


def describe(response: Response) -> dict[str, list[float]]:
    """Return a response as metrics.json has it."""
    return {"values": response.values.tolist(), "standard_errors": response.errors.tolist()}
