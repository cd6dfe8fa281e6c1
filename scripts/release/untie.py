"""Give every stage of a cassi_net weights of its own, for a training that goes on from it.

The network in the file has the outputs of that which is read;
`cassi-train recipe=cassi_net_real model.weights=OUT/untied.safetensors` teaches it further.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from cassi.models.load import create_model, read_card, save_model
from cassi.models.pretrained import FILE


def untie(weights: dict[str, Tensor], names: list[str]) -> dict[str, Tensor]:
    """Return weights by these names; nets that are not there begin as the first.

    The first stage has no earlier features to take: its net alone has no `carry`.
    """
    first = "nets.0."
    found = {}
    for name in names:
        part, _, rest = name.removeprefix("nets.").partition(".")
        source = first + rest if part.isdecimal() and name not in weights else name
        found[name] = weights[source].float()
    return found


def write_untied(out: Path, settings: Any) -> None:
    """Write OUT/untied.safetensors."""
    weights = Path(settings.weights or FILE)
    card = read_card(weights)
    card = replace(card, settings={**card.settings, "shared": False})
    wanted = create_model(card.name, bands=card.bands, **card.settings).state_dict()
    save_model(out / "untied.safetensors", untie(load_file(weights), list(wanted)), card)
    print(f"{weights} -> {out / 'untied.safetensors'}")
