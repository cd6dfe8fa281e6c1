"""Explain an unknown key: where a setting has moved, or which keys have a similar name."""

from dataclasses import fields
from typing import Any

from omegaconf import DictConfig

from cassi.apps.arguments import options_of, paper_recipes
from cassi.apps.settings.commands import Calibrate, Camera, Evaluate, Export, Train
from cassi.checks import did_you_mean

MOVED_SETTINGS = {
    **{f"experiment={name}": f"it is method={name} now" for name in options_of("method")},
    **{f"experiment=train_{name}": f"it is recipe={name} now" for name in options_of("recipe")},
    **{f"experiment={name}": f"it is recipe={name} now" for name in paper_recipes()},
    "experiment=blurred": "it is system=blurred now",
    "experiment=dual_disperser": "it is system=dd_cassi now",
    "experiment=warped": "it is system=warped now, with system.smile=1.5 system.rotation=0.2 …",
    "experiment=two_shots": "it is 'mask={_target_: cassi.systems.RandomMask, shots: 2}' now",
    "deadline": "it is for cassi-live; in Python: cassi.choose_method",
    "degree": "cassi-calibrate chooses it from the frame",
    "gain": "cassi-calibrate chooses by the standard error of each parameter",
    "photographed": "it is measured_mask now",
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
"""Settings and options of groups that have moved, each with a hint on its new name."""
_COMMANDS = (Export, Camera, Calibrate, Evaluate, Train)
_COMMAND_SETTINGS = {entry.name for command in _COMMANDS for entry in fields(command)}


def moved_hint(key: str) -> str | None:
    """Return a message on a setting that has moved; None for any other."""
    hint = MOVED_SETTINGS.get(key) or MOVED_SETTINGS.get(key.partition(".")[0])
    return None if hint is None else f"no config value {key!r}: {hint}"


def unknown_key(error: Any) -> str:
    """Return the message for OmegaConf's error about an unknown key, with similar keys."""
    key, sibling_keys = str(error.full_key or error.key), list(map(str, error.parent_node or ()))
    if (hint := moved_hint(key)) is not None:
        return hint
    # The likeliest mistake comes first: a part that is null, then a key of another command, then a
    # key in the wrong part, and last a misspelt name.
    prefix, dot, name = key.rpartition(".")
    if prefix and not sibling_keys:
        return f"no config value {key!r}; {prefix} is null here"
    alternatives = (
        f"; there is {', '.join(sibling_keys)}" if prefix else "; names of your own go under vars:"
    )
    if not prefix and key in _COMMAND_SETTINGS:
        return (
            f"no config value {key!r} of this command, another command has it; does the config "
            "begin with the defaults of another command? A file for camera=FILE fits all commands"
        )
    if not prefix and (full_names := _find_key(name, error.parent_node)):
        return f"no config value {key!r}; did you mean {' or '.join(full_names[:3])}?"
    suggestion = did_you_mean(name, sibling_keys, cutoff=0.6, place=prefix + dot)
    return f"no config value {key!r}{suggestion or alternatives}"


def _find_key(name: str, config: Any, prefix: str = "") -> list[str]:
    """Return the full names under which a config has a key, the least nested first."""
    if not isinstance(config, DictConfig) or config._is_none() or config._is_missing():
        return []
    full_names = [f"{prefix}{name}"] if prefix and name in config else []
    for key in map(str, config):
        node = config._get_node(key)
        full_names += _find_key(name, node, f"{prefix}{key}.")
    return sorted(full_names, key=lambda name: name.count("."))
