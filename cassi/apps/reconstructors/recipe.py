"""What settings reconstruct with: a solver, a network, or a network that begins a method."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from cassi.apps.reconstructors.compose import compose_settings
from cassi.apps.reconstructors.names import settings_of, understand
from cassi.apps.reconstructors.networks import build_network, check_model
from cassi.apps.settings import Reconstruct
from cassi.config import build, check_node
from cassi.models.grid import shaped
from cassi.models.inference import prepare
from cassi.models.pretrained import BANDS
from cassi.models.registry import Card, find_model, list_models
from cassi.solvers import Solution, Solver
from cassi.solvers.base import Options, Reconstructor, Runs
from cassi.solvers.linear_system import LinearSystem
from cassi.systems.grid import Grid

ADAPT = ("method=self_supervised",)
"""What `adapt=true` puts a network beside: patches of the scene itself, for a minute."""


class Recipe:
    """What settings describe: a solver, or a network that is made for each number of bands.

    A network beside a method with a start makes its first cube; with `adapt`, that of `ADAPT`.

    Attributes:
        may_change: see `cassi.pipeline.Recipe`.
        bands: the number that a file of weights was made for, if it says one.
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
            alone = replace(settings, solver=settings.solver | {"start": None})
            network = NamedNetwork(alone, Recipe(alone, torch.device("cpu")))
            self._method = build_method(settings, network=network)

    @property
    def is_network(self) -> bool:
        """Tell whether it is a network."""
        return self._method is None

    def grid(self, grid: Grid | None) -> Grid | None:
        """Return the grid along the dispersion that suits the method, of one that suits the frame.

        Bands are as wide as they are apart. The network that comes with the package takes so many
        at most; a file of weights may be for those of the camera alone.
        """
        if grid is None or (self.settings.model is None and not has_start(self.settings)):
            return grid
        if self.bands is not None:
            return replace(grid, offsets=grid.named)
        return grid.coarser(BANDS[1])

    def make(self, bands: int) -> tuple[Reconstructor, Card | None]:
        """Return the reconstructor for C bands, and what a network says of itself."""
        if self._method is not None:
            return self._method, None
        if bands not in self._networks:
            torch.manual_seed(self.settings.seed)  # random weights are those of the seed
            network, card = build_network(self.settings.model, bands)
            ready = prepare(network, self.settings.refine, self.settings.precision)
            self._networks[bands] = ready.to(self.device), card
        return self._networks[bands]


def adapted(settings: Any) -> Any:
    """Return settings with the method that fits a network's cube to the snapshot, if they ask so.

    It is told the noise of theirs; a method with a start of its own stays.
    """
    if not settings.adapt or has_start(settings):
        return replace(settings, adapt=False)
    passes, told = compose_settings(ADAPT), (settings.solver or {}).get("noise", "auto")
    solver = passes.solver | {"noise": told}
    return replace(settings, solver=solver, prior=passes.prior, adapt=False)


def has_start(settings: Any) -> bool:
    """Tell whether the method begins at another's cube: a network's then, where there is one."""
    return settings.solver is not None and settings.solver.get("start") is not None


def build_method(settings: Any, **parts: Reconstructor) -> Reconstructor:
    """Make the method that the nodes `solver` and `prior` describe.

    `parts` are further reconstructors that the method takes, such as `network`.
    """
    node, prior = dict(settings.solver), None
    if settings.prior is not None:
        check_node(settings.prior, "prior", complete=True)
        prior = build(settings.prior)
    elif not node["_target_"].startswith("cassi.methods."):
        raise ValueError("prior: expected one with this solver, such as prior=tv, got null")
    start = node.pop("start", None)
    if start is not None and "network" not in parts:
        made = _build_start(start, node.get("noise", "auto"))
        parts["network" if isinstance(made, NamedNetwork) else "start"] = made
    method: Reconstructor = build(node, prior=prior, **parts)
    if not isinstance(method, Runs):
        raise ValueError(f"solver: expected a reconstructor, got {type(method).__name__}")
    return method


def build_solver(settings: Any) -> Solver:
    """Make the solver that settings describe; ValueError where it is another kind of method."""
    solver = build_method(settings)
    if not isinstance(solver, Solver):
        raise ValueError(
            f"solver: expected one solver, such as solver=auto, got a {type(solver).__name__}"
        )
    return solver


def _build_start(name: Any, noise: Any) -> Reconstructor:
    """Make what a solver starts from: a method or network by its name, told the same noise."""
    if not isinstance(name, str):
        raise ValueError(f"solver.start: expected the name of a method or network, got {name!r}")
    spec = understand(name, "solver.start")
    if noise != "auto":
        shipped = "model" in spec and spec["model"] in list_models(shipped=True)
        told = "solver.noise" if "method" in spec else "model.noise" if shipped else None
        spec = spec if told is None else spec | {"overrides": {told: noise}}
    settings = settings_of(spec)
    recipe = Recipe(settings, torch.device("cpu"))
    return NamedNetwork(settings, recipe) if recipe.is_network else recipe.make(0)[0]


class NamedNetwork:
    """A network as a part of a method, made for a measurement's bands and device."""

    iterations, halo, shares_batch, network = 1, 96, False, None

    def __init__(self, settings: Reconstruct, recipe: Recipe) -> None:
        self.settings, self.recipe = settings, recipe

    def run(self, y: Tensor, system: LinearSystem, **more: Unpack[Options]) -> Solution:
        """Reconstruct y; see `cassi.solvers.base.Reconstructor`."""
        if self.recipe.device != y.device:
            self.recipe = Recipe(self.settings, y.device)
        return self.recipe.make(shaped(system).cube_shape[0])[0].run(y, system, **more)
