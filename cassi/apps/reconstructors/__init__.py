"""Make reconstructors from settings.

`compose` makes settings from options, by Hydra. `parts` lets Hydra find registered networks,
priors and so on. `names` finds the method, network or file that has a name. `networks` makes the
network of a node `model`. `recipe` makes the reconstructor that settings describe. `identity` makes
fingerprints of everything that results depend on. Each of them is imported when it is used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
