"""Networks: denoisers `net(x, sigma) -> x`, with the published names of their weights."""

from cassi.models.dauhst import DAUHST
from cassi.models.dncnn import DnCNN
from cassi.models.drunet import DRUNet
from cassi.models.ffdnet import FFDNet
from cassi.models.hourglass import Hourglass
from cassi.models.unet_stages import ADMMNet, GAPNet

__all__ = ["DAUHST", "ADMMNet", "DRUNet", "DnCNN", "FFDNet", "GAPNet", "Hourglass"]
