"""Training of networks: losses, schedules, and what Lightning's Trainer is given.

`cassi.training.module`, `.data`, `.callbacks` and `.loggers` import Lightning, which takes seconds;
they are imported where a training starts, and by nothing that `import cassi` reaches.
"""

from cassi.training.losses import RMSE, Charbonnier, LogRMSE, MultiStage
from cassi.training.schedules import PerEpoch, WarmupCosine

__all__ = ["RMSE", "Charbonnier", "LogRMSE", "MultiStage", "PerEpoch", "WarmupCosine"]
