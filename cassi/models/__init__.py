"""Networks: denoisers `net(x, sigma) -> x`, with the published names of their weights."""

from cassi.models.dncnn import DnCNN
from cassi.models.drunet import DRUNet
from cassi.models.ffdnet import FFDNet
from cassi.models.hourglass import Hourglass

__all__ = ["DRUNet", "DnCNN", "FFDNet", "Hourglass"]
