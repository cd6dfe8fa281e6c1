"""Keys that there are not: where a setting has moved, and which keys are near."""

from dataclasses import fields
from typing import Any

from omegaconf import DictConfig

from cassi.apps.arguments import options_of, paper_recipes
from cassi.apps.settings.commands import Calibrate, Camera, Evaluate, Export, Train
from cassi.checks import did_you_mean

RENAMED = {
    **{f"experiment={name}": f"it is method={name} now" for name in options_of("method")},
    **{f"experiment=train_{name}": f"it is recipe={name} now" for name in options_of("recipe")},
    **{f"experiment={name}": f"it is recipe={name} now" for name in paper_recipes()},
    "experiment=blurred": "it is system=blurred now",
    "experiment=dual_disperser": "it is system=dd_cassi now",
    "experiment=warped": "it is system=warped now, with system.smile=1.5 system.rotation=0.2 …",
    "experiment=two_shots": "it is 'mask={_target_: cassi.systems.RandomMask, shots: 2}' now",
    "degree": "cassi-calibrate takes what the frame tells",
    "gain": "cassi-calibrate takes what is surer than two standard errors",
    "hot_pixels": "it is bad_pixels now: bad_pixels=8, bad_pixels=[8,FILE,[3,4]]",
    "mismatch": "it is twin now: twin=none twin.shift=[0.6,-0.4]",
    "model.align": "it is align=true or align=false now",
    "solver.visible": "solver=self_supervised has it, cassi.methods.NoiseThreshold",
    "solver.again": "in Python: cassi.methods.Restarts, with a solver for each pass",
    "solver.passes": "it is for solver=self_supervised; in Python: cassi.methods.Restarts",
    "solver.start": "it is for solver=self_supervised; in Python: cassi.methods.Started",
    "solver.blend": "it is for solver=self_supervised; in Python: cassi.methods.Blended",
    "solver.time_limit": "it is for solver=self_supervised and solver=lctc; in Python: "
    "cassi.methods.TimeLimit",
    "solver.sigma": "solver=auto has solver.strength, the last value; other schedules: solver=admm",
    "solver.sigma.start": "solver=auto has solver.strength, the last value",
    "solver.sigma.end": "it is solver.strength with solver=auto",
    "solver.algorithm": "solver=auto is ADMM; for another choose solver=admm, gap, …",
    "prior.settled": "it is 0.4 now, for every scene",
    "prior.balance": "it is solver.balance with solver=auto",
}
"""Settings and options of groups that have moved, and where they are now."""
_COMMANDS = (Export, Camera, Calibrate, Evaluate, Train)
_OF_COMMANDS = {entry.name for command in _COMMANDS for entry in fields(command)}


def renamed(key: str) -> str | None:
    """Say where a setting that has moved is now; None for any other."""
    found = RENAMED.get(key) or RENAMED.get(key.partition(".")[0])
    return None if found is None else f"no config value {key!r}: {found}"


def unknown_key(error: Any) -> str:
    """Say what OmegaConf's error about a key means, with the nearest keys that there are."""
    key, known = str(error.full_key or error.key), list(map(str, error.parent_node or ()))
    if (said := renamed(key)) is not None:
        return said
    place, dot, name = key.rpartition(".")
    if place and not known:
        return f"no config value {key!r}; {place} is null here"
    rest = f"; there is {', '.join(known)}" if place else "; names of your own go under vars:"
    if not place and key in _OF_COMMANDS:
        return (
            f"no config value {key!r} of this command, it is another's; does the config begin with "
            "the defaults of another? A camera for all commands is a file for camera=FILE"
        )
    if not place and (inside := _places_of(name, error.parent_node)):
        return f"no config value {key!r}; did you mean {' or '.join(inside[:3])}?"
    near = did_you_mean(name, known, cutoff=0.6, place=place + dot)
    return f"no config value {key!r}{near or rest}"


def _places_of(name: str, config: Any, place: str = "") -> list[str]:
    """Return where a key stands inside of a config, by full names, the shortest first."""
    if not isinstance(config, DictConfig) or config._is_none() or config._is_missing():
        return []
    found = [f"{place}{name}"] if place and name in config else []
    for key in map(str, config):
        node = config._get_node(key)
        found += _places_of(name, node, f"{place}{key}.")
    return sorted(found, key=lambda full: full.count("."))
