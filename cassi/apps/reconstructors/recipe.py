"""Make the reconstructor of settings: a solver, a network, or a solver after a network."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from cassi.apps.reconstructors.compose import compose_settings
from cassi.apps.reconstructors.names import parse_item, settings_of
from cassi.apps.reconstructors.networks import build_network, check_model
from cassi.apps.settings import Reconstruct
from cassi.config import build, check_node
from cassi.models.camera_adapters import require_shapes
from cassi.models.inference import prepare
from cassi.models.pretrained import BAND_RANGE
from cassi.models.registry import Card, find_model, is_shipped
from cassi.solvers import Solution, Solver
from cassi.solvers.base import HasRun, Options, Reconstructor
from cassi.solvers.linear_system import LinearSystem
from cassi.systems.grid import SpectralGrid

ADAPT_OPTIONS = ("method=self_supervised",)
"""Options of the method that `adapt=true` adds to a network.

This method trains a prior on patches of the scene itself, for a minute.
"""


class Recipe:
    """Makes the reconstructor that settings describe; a network is made for each number of bands.

    If the settings have a network and a method with a start, the network makes the method's first
    cube. If `adapt` is true, this method is the one of `ADAPT_OPTIONS`.

    Attributes:
        may_change: see `cassi.pipeline.fit.Recipe`.
        bands: number of bands that a file of weights was made for; None if any number is possible.

    Raises:
        ValueError: the settings describe no reconstructor.
    """

    def __init__(
        self, settings: Reconstruct, device: torch.device, *, may_change: bool = True
    ) -> None:
        settings, self.may_change = adapted(settings), may_change
        self.settings, self.device = settings, device
        self.bands: int | None = None
        self._networks: dict[int, tuple[Reconstructor, Card]] = {}
        self._method: Reconstructor | None = None
        if settings.model is not None and (card := check_model(settings.model)) is not None:
            self.bands = None if find_model(card.name).any_bands else card.bands
        if settings.model is None:
            self._method = build_method(settings)
        elif has_start(settings):
            if settings.solver["start"] != "auto":
                raise ValueError(
                    f"solver.start: expected auto beside model=…, whose cube is the first one, got "
                    f"{settings.solver['start']!r}"
                )
            network_settings = replace(settings, solver=settings.solver | {"start": None})
            # On the CPU at first: `NamedNetwork` makes it again on the device of the measurement.
            network = NamedNetwork(network_settings, Recipe(network_settings, torch.device("cpu")))
            self._method = build_method(settings, network=network)

    @property
    def is_network(self) -> bool:
        """Whether the reconstructor is a network alone, without a solver."""
        return self._method is None

    def grid(self, grid: SpectralGrid | None) -> SpectralGrid | None:
        """Return the spectral grid that the method can use, given the grid that suits the frame."""
        if grid is None or (self.settings.model is None and not has_start(self.settings)):
            return grid
        # A file of weights for one number of bands can only take the bands of the camera.
        if self.bands is not None:
            return replace(grid, offsets=grid.band_offsets)
        # The network that comes with the package has a largest number of bands, `BAND_RANGE[1]`.
        return grid.coarser(BAND_RANGE[1])

    def make(self, bands: int) -> tuple[Reconstructor, Card | None]:
        """Return the reconstructor for C bands, and the card of a network."""
        if self._method is not None:
            return self._method, None
        if bands not in self._networks:
            torch.manual_seed(self.settings.seed)  # random weights depend on the seed
            network, card = build_network(self.settings.model, bands)
            prepared_network = prepare(network, self.settings.refine, self.settings.precision)
            self._networks[bands] = prepared_network.to(self.device), card
        return self._networks[bands]


def adapted(settings: Any) -> Any:
    """Return settings with the method of `ADAPT_OPTIONS` beside the network, if `adapt` is true.

    The method gets the noise level of these settings. If the settings have a method with a start of
    its own, it stays.
    """
    if not settings.adapt or has_start(settings):
        return replace(settings, adapt=False)
    method_settings = compose_settings(ADAPT_OPTIONS)
    noise = (settings.solver or {}).get("noise", "auto")
    solver = method_settings.solver | {"noise": noise}
    return replace(settings, solver=solver, prior=method_settings.prior, adapt=False)


def has_start(settings: Any) -> bool:
    """Tell whether the method starts from the cube of another reconstructor."""
    return settings.solver is not None and settings.solver.get("start") is not None


def build_method(settings: Any, **parts: Reconstructor) -> Reconstructor:
    """Make the method that the nodes `solver` and `prior` describe.

    Args:
        settings: settings of a command.
        parts: further reconstructors that the method takes, such as `network`.

    Raises:
        ValueError: the prior is missing, or the node describes no reconstructor.
    """
    node, prior = dict(settings.solver), None
    if settings.prior is not None:
        check_node(settings.prior, "prior", complete=True)
        prior = build(settings.prior)
    # Methods of this package choose a prior themselves; solvers need one.
    elif not node["_target_"].startswith("cassi.methods."):
        raise ValueError("prior: expected one with this solver, such as prior=tv, got null")
    start = node.pop("start", None)
    if start is not None and "network" not in parts:
        start_method = _build_start(start, node.get("noise", "auto"))
        parts["network" if isinstance(start_method, NamedNetwork) else "start"] = start_method
    method: Reconstructor = build(node, prior=prior, **parts)
    if not isinstance(method, HasRun):
        raise ValueError(f"solver: expected a reconstructor, got {type(method).__name__}")
    return method


def build_solver(settings: Any) -> Solver:
    """Make the solver that settings describe.

    Raises:
        ValueError: the settings describe another kind of method.
    """
    solver = build_method(settings)
    if not isinstance(solver, Solver):
        raise ValueError(
            f"solver: expected one solver, such as solver=auto, got a {type(solver).__name__}"
        )
    return solver


def _build_start(name: Any, noise: Any) -> Reconstructor:
    """Make the method or network that a solver starts from, with the noise level of the solver."""
    if not isinstance(name, str):
        raise ValueError(f"solver.start: expected the name of a method or network, got {name!r}")
    spec = parse_item(name, "solver.start")
    if noise != "auto":
        is_shipped_network = is_shipped(spec.get("model"))
        noise_option = (
            "solver.noise" if "method" in spec else "model.noise" if is_shipped_network else None
        )
        spec = spec if noise_option is None else spec | {"overrides": {noise_option: noise}}
    settings = settings_of(spec)
    recipe = Recipe(settings, torch.device("cpu"))
    return NamedNetwork(settings, recipe) if recipe.is_network else recipe.make(0)[0]


class NamedNetwork:
    """A network as a part of a method; it is made for the bands and device of a measurement."""

    # The halo of all networks is 96 rows, see `cassi.models.inference`.
    iterations, halo, shares_batch, network = 1, 96, False, None

    def __init__(self, settings: Reconstruct, recipe: Recipe) -> None:
        self.settings, self.recipe = settings, recipe

    def run(self, y: Tensor, system: LinearSystem, **options: Unpack[Options]) -> Solution:
        """Reconstruct y; see `cassi.solvers.base.Reconstructor`."""
        if self.recipe.device != y.device:
            self.recipe = Recipe(self.settings, y.device)
        network, _ = self.recipe.make(require_shapes(system).cube_shape[0])
        return network.run(y, system, **options)
