"""Training of networks: losses, schedules, and the module, data and callbacks for Lightning.

`cassi.training.module`, `.data`, `.callbacks` and `.loggers` import Lightning, which takes seconds.
Only the start of a training imports them; `import cassi` does not.
"""

from cassi.training.losses import RMSE, Charbonnier, LogRMSE, MultiStage
from cassi.training.schedules import PerEpoch, WarmupCosine

__all__ = ["RMSE", "Charbonnier", "LogRMSE", "MultiStage", "PerEpoch", "WarmupCosine"]
