"""Train the weights of the package, with the settings of train.yaml.

python -m scripts.release.train denoiser OUT steps=8500 seed=1
python -m scripts.release.train refiner OUT device=cuda batch=32 seconds=490 workers=15
python -m scripts.release.train untie OUT      # train these weights by recipe=cassi_net_real
"""

import argparse
from pathlib import Path

import torch
from omegaconf import OmegaConf

from scripts.release import train_denoiser, train_refiner, untie

TRAININGS = {
    "denoiser": train_denoiser.train_all,
    "refiner": train_refiner.train_all,
    "untie": untie.write_untied,
}


def main(arguments: list[str] | None = None) -> None:
    """Read the settings of train.yaml and of the command line, and train."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("what", choices=TRAININGS)
    parser.add_argument("out", type=Path, help="folder of the weights")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    settings = OmegaConf.load(Path(__file__).with_suffix(".yaml"))[options.what]
    OmegaConf.set_struct(settings, True)
    settings = OmegaConf.merge(settings, OmegaConf.from_dotlist(options.settings))
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    TRAININGS[options.what](options.out, settings)


if __name__ == "__main__":
    main()
