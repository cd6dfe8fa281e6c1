"""The rows of an evaluation: reconstructors, and what each is told of the camera of a frame."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from cassi.apps.reconstructors import Recipe, identity_of, settings_of, understand
from cassi.apps.settings import KNOWLEDGE, Evaluate, Reconstruct
from cassi.camera.moved import moved_camera
from cassi.checks import raised_here
from cassi.data.store import fingerprint
from cassi.evaluation import Problem, View
from cassi.guide_search import place_guide, takes_guide
from cassi.pipeline.align import align
from cassi.pipeline.calibrate import calibrate_on
from cassi.solvers.base import Reconstructor
from cassi.systems import SDCassi

NOMINAL = KNOWLEDGE[0]


def see_calibrated(problem: Problem) -> Problem:
    """Return the same frame with the camera that is found in it, in the scene's coordinates.

    No snapshot tells a shift of the mask alone from one of mask and scene, so that a cube may come
    out displaced; of a twin it is known.
    """
    found = calibrate_on(problem.y, problem.system)
    if problem.true is None or type(problem.system) is not SDCassi:
        return replace(problem, system=found.system)
    system = moved_camera(problem.system, found.taken, problem.true.pivot)
    return replace(problem, system=system)


def see_true(problem: Problem) -> Problem:
    """Return the corrected frame with the camera that took it."""
    if problem.true is None:
        raise ValueError(f"{problem.name}: expected a twin, got a camera of which nothing is known")
    y = problem.true.correct(problem.y)
    return replace(problem, y=y, system=problem.true.camera.to(y.device))


def see_ideal(problem: Problem) -> Problem:
    """Return what the nominal camera measures of the scene, without noise."""
    if problem.truth is None:
        raise ValueError(f"{problem.name}: expected a truth to measure, got none")
    truth = problem.truth[None].to(problem.y)
    return replace(problem, y=problem.system(truth))


def see_aligned(problem: Problem) -> Problem:
    """Return the same frame with the mask moved to where the frame is sure that it lies."""
    found = align(problem.y, problem.system)
    return problem if found is None else replace(problem, system=found.system)


VIEWS: dict[str, View | None] = dict(
    zip(KNOWLEDGE, (None, see_calibrated, see_true, see_ideal), strict=True)
)
"""What a row of a twin's table knows, by name."""


def row_name(name: str, known: str) -> str:
    """Return what a row is called: "NAME", or "NAME (told)", or "NAME (CASE)", …."""
    return name if known == NOMINAL else f"{name} ({known})"


def add_rows(
    made: Mapping[str, Reconstructor], identities: Mapping[str, str], knowledge: list[str]
) -> tuple[dict[str, Reconstructor], dict[str, str], dict[str, View]]:
    """Give each reconstructor a row for each state of knowledge.

    Args:
        made: reconstructors by name.
        identities: of each, a hash of all that its results depend on.
        knowledge: keys of `VIEWS`, in the order of the rows.

    Returns:
        The same for the rows of `row_name`; and the views of those that have one.

    Raises:
        ValueError: two rows have the same name.
    """
    rows: dict[str, Reconstructor] = {}
    hashes: dict[str, str] = {}
    views: dict[str, View] = {}
    for name, reconstructor in made.items():
        for known in knowledge:
            row = row_name(name, known)
            if row in rows:
                raise ValueError(f"reconstructors: two rows are called {row!r}; choose other names")
            rows[row], hashes[row] = reconstructor, identities[name]
            view = VIEWS[known]
            if view is not None:
                views[row] = view
                hashes[row] = fingerprint({"method": identities[name], "knows": known})
    return rows, hashes, views


def align_rows(
    identities: Mapping[str, str], views: Mapping[str, View]
) -> tuple[dict[str, str], dict[str, View]]:
    """Let every row that knows of no defect start from the aligned camera.

    Args:
        identities: of each row, a hash of all that its results depend on.
        views: of rows that know more.

    Returns:
        Both for all rows.
    """
    plain = [row for row in identities if row not in views]
    hashes = {row: fingerprint({"method": identities[row], "aligned": True}) for row in plain}
    return {**identities, **hashes}, {**views, **dict.fromkeys(plain, see_aligned)}


@dataclass(frozen=True)
class Guided:
    """What a row sees with a guide camera, which is placed, and taken or refused."""

    view: View | None

    def __call__(self, problem: Problem) -> Problem:
        """Return the same problem with the guide beside its camera."""
        problem = problem if self.view is None else self.view(problem)
        if problem.guide is None:
            return problem
        picture, response, noise = problem.guide
        found = place_guide(problem.y, problem.system, picture, response, noise)
        return replace(problem, system=found.system)


def guide_rows(
    made: Mapping[str, Reconstructor], identities: Mapping[str, str], views: Mapping[str, View]
) -> tuple[dict[str, str], dict[str, View]]:
    """Let every row use the guide of a problem that has one.

    Args:
        made: reconstructors by the names of their rows.
        identities: of each row, a hash of all that its results depend on.
        views: of rows that know more of the camera.

    Returns:
        Hashes and views of all rows.

    Raises:
        ValueError: a method takes no guide.
    """
    for name, method in made.items():
        if not takes_guide(method):
            raise ValueError(f"guide.response: expected null with {name}, which takes no guide")
    hashes = {row: fingerprint({"method": identities[row], "guide": True}) for row in made}
    return hashes, {row: Guided(views.get(row)) for row in made}


def read_reconstructors(settings: Evaluate) -> dict[str, Reconstruct]:
    """Return the settings of every reconstructor that the settings name, by name.

    Each is a name, or a file, or a mapping: `method` (an experiment, or several) or `model` (a
    registered network, or a file), `weights`, `overrides` (a list as for cassi-reconstruct, or a
    mapping) and the `name` in the tables.

    Raises:
        ValueError: a name is unknown or taken, or the parts do not fit.
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


def make_reconstructors(
    told: Mapping[str, Reconstruct], bands: int, device: torch.device
) -> tuple[dict[str, Reconstructor], dict[str, str]]:
    """Make reconstructors of their settings, both by name.

    Returns:
        The reconstructors; and for each a hash of all that its results depend on.

    Raises:
        OSError: a file is missing.
        ValueError: the parts do not fit.
    """
    made: dict[str, Reconstructor] = {}
    identities: dict[str, str] = {}
    for name, settings in told.items():
        with _naming(name):
            made[name], _ = Recipe(settings, device).make(bands)
            identities[name] = fingerprint(identity_of(settings, bands, device), content=True)
    return made, identities


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Let an error that is the user's say which reconstructor it is about."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if not raised_here(error):
            raise
        raise ValueError(f"reconstructors: {name}: {error}") from error
