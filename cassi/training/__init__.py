"""Training of networks: losses, schedules, and the Lightning module, data and callbacks.

`cassi.training.module`, `.data`, `.callbacks` and `.loggers` import Lightning, which takes seconds.
Only a training imports them; `import cassi` does not.
"""

from cassi.training.losses import RMSE, Charbonnier, LogRMSE, MultiStage
from cassi.training.schedules import PerEpoch, WarmupCosine

__all__ = ["RMSE", "Charbonnier", "LogRMSE", "MultiStage", "PerEpoch", "WarmupCosine"]
