"""From `reconstructors` of the settings to what runs: experiments, registered networks, files."""

from __future__ import annotations

from dataclasses import replace

import torch

from cassi.apps.reconstructors import Recipe, identity_of, settings_of, understand
from cassi.apps.settings import Evaluate
from cassi.checks import raised_here
from cassi.data.store import fingerprint
from cassi.solvers.base import Reconstructor


def make_reconstructors(
    settings: Evaluate, bands: int, device: torch.device
) -> tuple[dict[str, Reconstructor], dict[str, str]]:
    """Make every reconstructor that the settings name.

    Each is a name, or a file, or a mapping: `method` (an experiment, or several) or `model` (a
    registered network, or a file), `weights`, `overrides` (a list as for cassi-reconstruct, or a
    mapping) and the `name` in the tables.

    Args:
        settings: of cassi-evaluate.
        bands: C of the cameras.
        device: where networks go.

    Returns:
        The reconstructors by name; and for each a hash of all that its results depend on.

    Raises:
        OSError: a file is missing.
        ValueError: a name is unknown or taken, or the parts do not fit.
    """
    listed = settings.reconstructors
    if isinstance(listed, str | dict):
        listed = [listed]
    if not isinstance(listed, list) or not listed:
        raise ValueError(f"reconstructors: expected a list of names, got {listed!r}")
    more = settings.data.overrides or []
    made: dict[str, Reconstructor] = {}
    identities: dict[str, str] = {}
    for item in listed:
        spec = understand(item)
        name = spec["name"]
        if name in made:
            raise ValueError(f"reconstructors: two are called {name!r}; write {{name: OTHER, …}}")
        try:
            told = settings_of(spec, more, settings.paths.data_dir)
            # Random weights do not depend on what else is made.
            recipe = Recipe(replace(told, seed=settings.seed), device)
            made[name], _ = recipe.make(bands)
            identities[name] = fingerprint(identity_of(told, bands, device), content=True)
        except (ValueError, TypeError) as error:
            if not raised_here(error):
                raise
            raise ValueError(f"reconstructors: {name}: {error}") from error
    return made, identities
