"""Make the rows of an evaluation: each is a reconstructor with one kind of camera."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from cassi.apps.reconstructors import Recipe, identity_of, parse_item, settings_of
from cassi.apps.settings import KNOWLEDGE, Evaluate, Reconstruct
from cassi.camera.displaced_camera import displaced_camera
from cassi.checks import raised_here
from cassi.data.store import fingerprint
from cassi.evaluation import Problem, View
from cassi.guide_search import place_guide, takes_guide
from cassi.pipeline.find import align_snapshot, calibrate_snapshot, find_camera
from cassi.pipeline.snapshot import Snapshot
from cassi.systems import SDCassi

NOMINAL = KNOWLEDGE[0]


@dataclass(frozen=True)
class CameraView:
    """The camera that a row of the table gets, as a view of a problem.

    Attributes:
        knowledge: one of `KNOWLEDGE`. "nominal", "calibrated" and "told" (the true camera) choose
            the camera for the frame. "ideal" replaces the frame by an ideal one of the nominal
            camera.
        align: move the mask of the nominal camera to its estimated alignment.
    """

    knowledge: str = NOMINAL
    align: bool = False

    def __call__(self, problem: Problem) -> Problem:
        """Return the problem with the camera of this row, and with the guide beside it."""
        problem = _VIEWS[self.knowledge](problem)
        step = align_snapshot if self.align and self.knowledge == NOMINAL else None
        guide = None if problem.guide is None else partial(_with_guide, problem.guide)
        return replace(problem, snapshot=find_camera(problem.snapshot, step, guide))


def _view_calibrated(problem: Problem) -> Problem:
    """Return the same frame with the camera that a calibration estimates from it."""
    snapshot = calibrate_snapshot(problem.snapshot)
    nominal, calibration = problem.system, snapshot.camera.calibration
    # A snapshot does not show whether the mask alone has moved, or mask and scene together. So the
    # cube may be displaced against the truth. A twin knows the point around which its mask moved.
    # The estimates around this point give the cube in the coordinates of the truth.
    if problem.true is not None and calibration is not None and type(nominal) is SDCassi:
        moved_system = displaced_camera(nominal, calibration.calibration.taken, problem.true.pivot)
        snapshot = snapshot.with_camera(system=moved_system)
    return replace(problem, snapshot=snapshot)


def _view_true(problem: Problem) -> Problem:
    """Return the corrected frame with the true camera of a twin."""
    if problem.true is None:
        raise ValueError(
            f"{problem.name}: expected a twin, the true camera of this frame is unknown"
        )
    y = problem.true.correct(problem.y)
    snapshot = problem.snapshot.with_camera(system=problem.true.camera.to(y.device))
    return replace(problem, snapshot=replace(snapshot, y=y))


def _view_ideal(problem: Problem) -> Problem:
    """Return a frame of the truth through the nominal camera, without noise and defects."""
    if problem.truth is None:
        raise ValueError(f"{problem.name}: expected a truth to measure, got none")
    y = problem.system(problem.truth[None].to(problem.y))
    return replace(problem, snapshot=replace(problem.snapshot, y=y))


_VIEWS: dict[str, View] = {
    "nominal": lambda problem: problem,
    "calibrated": _view_calibrated,
    "told": _view_true,
    "ideal": _view_ideal,
}


def _with_guide(guide: tuple[Tensor, Tensor, float], snapshot: Snapshot) -> Snapshot:
    """Return a snapshot whose camera has the guide, if the guide fits the frame."""
    picture, response, noise = guide
    placement = place_guide(snapshot.y, snapshot.camera.system, picture, response, noise)
    return snapshot.with_camera(system=placement.system)


def row_name(name: str, suffix: str) -> str:
    """Return the name of a row: "NAME", "NAME (told)", "NAME (CASE)", …."""
    return name if suffix in ("", NOMINAL) else f"{name} ({suffix})"


def make_rows(
    recipes: Mapping[str, Recipe],
    identities: Mapping[str, str],
    knowledge: Sequence[str],
    align: bool,
    has_guide: bool,
) -> tuple[dict[str, Recipe], dict[str, str], dict[str, View]]:
    """Return recipe, hash and view of each row, by its name.

    There is a row for each reconstructor and each kind of knowledge of the camera.
    """
    rows: dict[str, Recipe] = {}
    hashes: dict[str, str] = {}
    views: dict[str, View] = {}
    for name, recipe in recipes.items():
        for row_knowledge in knowledge:
            row = row_name(name, row_knowledge)
            if row in rows:
                raise ValueError(f"reconstructors: two rows are called {row!r}; choose other names")
            rows[row], views[row] = recipe, CameraView(row_knowledge, align)
            # The hashes of stored records were made with these keys. If the keys were changed, such
            # records would not count as finished.
            view = {"known": row_knowledge, "align": align}
            hashes[row] = fingerprint(
                {"method": identities[name], "view": view, "guide": has_guide}
            )
    return rows, hashes, views


def read_reconstructors(settings: Evaluate) -> dict[str, Reconstruct]:
    """Return the settings of every reconstructor that the settings name, by name.

    A reconstructor is a name, a file, or a mapping with these keys: `method` (a name) or `model` (a
    registered network, or a file), `weights`, `overrides` (a list as for cassi-reconstruct, or a
    mapping), and `name`, which stands in the tables.

    Raises:
        ValueError: there is no reconstructor, or two have the same name.
    """
    items = settings.reconstructors
    if isinstance(items, str | dict):
        items = [items]
    if not isinstance(items, list) or not items:
        raise ValueError(f"reconstructors: expected a list of names, got {items!r}")
    overrides = settings.data.overrides or []
    settings_by_name: dict[str, Reconstruct] = {}
    for item in items:
        spec = parse_item(item)
        name = spec["name"]
        if name in settings_by_name:
            raise ValueError(f"reconstructors: two are called {name!r}; write {{name: OTHER, …}}")
        with _name_in_errors(name):
            # All get the same seed, so that random weights do not depend on the other
            # reconstructors.
            settings_by_name[name] = replace(
                settings_of(spec, overrides, settings.paths.data_dir), seed=settings.seed
            )
    return settings_by_name


def make_recipes(
    settings_by_name: Mapping[str, Reconstruct],
    bands: int,
    device: torch.device,
    has_guide: bool = False,
) -> tuple[dict[str, Recipe], dict[str, str]]:
    """Return a recipe for each reconstructor, and a hash of all that its results depend on."""
    recipes: dict[str, Recipe] = {}
    identities: dict[str, str] = {}
    for name, settings in settings_by_name.items():
        with _name_in_errors(name):
            recipes[name] = Recipe(settings, device, may_change=False)
            method, _ = recipes[name].make(bands)
            identities[name] = fingerprint(identity_of(settings, bands, device), content=True)
        # A method that ignores the guide would have a row that looks as if the guide had no effect.
        if has_guide and not takes_guide(method):
            raise ValueError(f"guide.response: expected null with {name}, which takes no guide")
    return recipes, identities


@contextmanager
def _name_in_errors(name: str) -> Iterator[None]:
    """Put the name of a reconstructor before the message of a user's mistake."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if not raised_here(error):
            raise
        raise ValueError(f"reconstructors: {name}: {error}") from error
