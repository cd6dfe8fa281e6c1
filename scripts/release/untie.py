"""Give every stage of a cassi_net weights of its own, for a training that goes on from it.

    python -m scripts.release.untie DIR/untied.safetensors

The network in the file has the outputs of that which is read, by default the one of the package;
`cassi-train recipe=cassi_net_real model.weights=DIR/untied.safetensors` teaches it
further.
"""

import argparse
from dataclasses import replace
from pathlib import Path

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


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="is written")
    parser.add_argument("--weights", type=Path, default=FILE, help="a cassi_net, one net for all")
    arguments = parser.parse_args()
    card = read_card(arguments.weights)
    card = replace(card, settings={**card.settings, "shared": False})
    wanted = create_model(card.name, bands=card.bands, **card.settings).state_dict()
    save_model(arguments.file, untie(load_file(arguments.weights), list(wanted)), card)
    print(f"{arguments.weights} -> {arguments.file}")


if __name__ == "__main__":
    main()
