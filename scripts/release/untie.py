"""Give every stage of a cassi_net its own copy of the shared weights, for further training.

The outputs of the network do not change. It is trained further by `cassi-train
recipe=cassi_net_real model.weights=OUT/untied.safetensors`.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from cassi.models.load import create_model, read_card, save_model
from cassi.models.pretrained import WEIGHTS_FILE


def untie(weights: dict[str, Tensor], names: list[str]) -> dict[str, Tensor]:
    """Return weights with these names; a stage without weights gets those of the first stage.

    Args:
        weights: weights of a network whose stages share them.
        names: names of the weights of a network whose stages have their own.
    """
    # `carry` passes on features of the stage before, so the first stage has none to copy. The
    # weights must contain the `carry` of every later stage.
    untied_weights = {}
    for name in names:
        stage, _, parameter = name.removeprefix("nets.").partition(".")
        is_copied = stage.isdecimal() and name not in weights
        source = f"nets.0.{parameter}" if is_copied else name
        untied_weights[name] = weights[source].float()
    return untied_weights


def write_untied(folder: Path, settings: Any) -> None:
    """Write untied.safetensors into a folder."""
    weights = Path(settings.weights or WEIGHTS_FILE)
    card = read_card(weights)
    card = replace(card, settings={**card.settings, "shared": False})
    names = list(create_model(card.name, bands=card.bands, **card.settings).state_dict())
    save_model(folder / "untied.safetensors", untie(load_file(weights), names), card)
    print(f"{weights} -> {folder / 'untied.safetensors'}")
