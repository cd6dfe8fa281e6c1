"""The rows of an evaluation: reconstructors, and what each is told of the camera of a frame."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch
from torch import Tensor

from cassi.apps.reconstructors import Recipe, identity_of, settings_of, understand
from cassi.apps.settings import KNOWLEDGE, Evaluate, Reconstruct
from cassi.camera.moved import moved_camera
from cassi.checks import raised_here
from cassi.data.store import fingerprint
from cassi.evaluation import Problem, View
from cassi.guide_search import place_guide, takes_guide
from cassi.pipeline.find import aligned, calibrated, find_camera
from cassi.pipeline.snapshot import Snapshot
from cassi.systems import SDCassi

NOMINAL = KNOWLEDGE[0]


@dataclass(frozen=True)
class Knowledge:
    """What a row of the table knows of the camera, as a view of a problem.

    With `align` the mask of the nominal camera is moved to where the frame is sure that it lies.
    """

    known: str = NOMINAL
    align: bool = False

    def __call__(self, problem: Problem) -> Problem:
        """Return the problem by the camera that the row has, and the guide beside it."""
        problem = _SEEN[self.known](problem)
        step = aligned if self.align and self.known == NOMINAL else None
        guide = None if problem.guide is None else partial(_with_guide, problem.guide)
        return replace(problem, snapshot=find_camera(problem.snapshot, step, guide))


def _see_calibrated(problem: Problem) -> Problem:
    """Return the same frame with the camera that is found in it, in the scene's coordinates.

    No snapshot tells a shift of the mask alone from one of mask and scene, so that a cube may come
    out displaced; of a twin it is known.
    """
    snapshot = calibrated(problem.snapshot)
    nominal, made = problem.system, snapshot.camera.calibration
    if problem.true is not None and made is not None and type(nominal) is SDCassi:
        found = moved_camera(nominal, made.found.taken, problem.true.pivot)
        snapshot = snapshot.by(system=found)
    return replace(problem, snapshot=snapshot)


def _see_true(problem: Problem) -> Problem:
    """Return the corrected frame with the camera that took it."""
    if problem.true is None:
        raise ValueError(f"{problem.name}: expected a twin, got a camera of which nothing is known")
    y = problem.true.correct(problem.y)
    snapshot = problem.snapshot.by(system=problem.true.camera.to(y.device))
    return replace(problem, snapshot=replace(snapshot, y=y))


def _see_ideal(problem: Problem) -> Problem:
    """Return what the nominal camera measures of the scene, without noise."""
    if problem.truth is None:
        raise ValueError(f"{problem.name}: expected a truth to measure, got none")
    y = problem.system(problem.truth[None].to(problem.y))
    return replace(problem, snapshot=replace(problem.snapshot, y=y))


_SEEN: dict[str, View] = {
    "nominal": lambda problem: problem,
    "calibrated": _see_calibrated,
    "told": _see_true,
    "ideal": _see_ideal,
}


def _with_guide(guide: tuple[Tensor, Tensor, float], snapshot: Snapshot) -> Snapshot:
    """Return a snapshot with a guide beside its camera, where it is believed."""
    picture, response, noise = guide
    found = place_guide(snapshot.y, snapshot.camera.system, picture, response, noise)
    return snapshot.by(system=found.system)


def row_name(name: str, known: str) -> str:
    """Return what a row is called: "NAME", or "NAME (told)", or "NAME (CASE)", …."""
    return name if known in ("", NOMINAL) else f"{name} ({known})"


def make_rows(
    recipes: Mapping[str, Recipe],
    identities: Mapping[str, str],
    knowledge: Sequence[str],
    align: bool,
    guide: bool,
) -> tuple[dict[str, Recipe], dict[str, str], dict[str, View]]:
    """Give each reconstructor a row for each state of knowledge, a hash and a view of problems."""
    rows: dict[str, Recipe] = {}
    hashes: dict[str, str] = {}
    views: dict[str, View] = {}
    for name, recipe in recipes.items():
        for known in knowledge:
            row = row_name(name, known)
            if row in rows:
                raise ValueError(f"reconstructors: two rows are called {row!r}; choose other names")
            rows[row], views[row] = recipe, (view := Knowledge(known, align))
            hashes[row] = fingerprint(
                {"method": identities[name], "view": asdict(view), "guide": guide}
            )
    return rows, hashes, views


def read_reconstructors(settings: Evaluate) -> dict[str, Reconstruct]:
    """Return the settings of every reconstructor that the settings name, by name.

    Each is a name, or a file, or a mapping: `method` (its name) or `model` (a
    registered network, or a file), `weights`, `overrides` (a list as for cassi-reconstruct, or a
    mapping) and the `name` in the tables.
    """
    listed = settings.reconstructors
    if isinstance(listed, str | dict):
        listed = [listed]
    if not isinstance(listed, list) or not listed:
        raise ValueError(f"reconstructors: expected a list of names, got {listed!r}")
    more = settings.data.overrides or []
    told: dict[str, Reconstruct] = {}
    for item in listed:
        spec = understand(item)
        name = spec["name"]
        if name in told:
            raise ValueError(f"reconstructors: two are called {name!r}; write {{name: OTHER, …}}")
        with _naming(name):
            # Random weights do not depend on what else is made.
            told[name] = replace(
                settings_of(spec, more, settings.paths.data_dir), seed=settings.seed
            )
    return told


def make_recipes(
    told: Mapping[str, Reconstruct], bands: int, device: torch.device, guide: bool = False
) -> tuple[dict[str, Recipe], dict[str, str]]:
    """Return what makes each reconstructor; and a hash of all that its results depend on."""
    recipes: dict[str, Recipe] = {}
    identities: dict[str, str] = {}
    for name, settings in told.items():
        with _naming(name):
            recipes[name] = Recipe(settings, device, may_change=False)
            method, _ = recipes[name].make(bands)
            identities[name] = fingerprint(identity_of(settings, bands, device), content=True)
        if guide and not takes_guide(method):
            raise ValueError(f"guide.response: expected null with {name}, which takes no guide")
    return recipes, identities


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Let an error that is the user's say which reconstructor it is about."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if not raised_here(error):
            raise
        raise ValueError(f"reconstructors: {name}: {error}") from error
