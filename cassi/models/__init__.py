"""Networks: denoisers `net(x, sigma) -> x`, with the published names of their weights."""

from cassi.models.bisrnet import BiSRNet
from cassi.models.cassi_net import CassiNet
from cassi.models.cst import CST
from cassi.models.dauhst import DAUHST
from cassi.models.dernn_lnlt import DERNNLNLT
from cassi.models.dgsmp import DGSMP
from cassi.models.dncnn import DnCNN
from cassi.models.dpu import DPU
from cassi.models.drunet import DRUNet
from cassi.models.ffdnet import FFDNet
from cassi.models.hdnet import HDNet
from cassi.models.hourglass import Hourglass
from cassi.models.lrdun import LRDUN
from cassi.models.mst import MST
from cassi.models.mst_plus_plus import MSTPlusPlus
from cassi.models.padut import PADUT
from cassi.models.rdluf_mixs2 import RDLUFMixS2
from cassi.models.ssr import SSR
from cassi.models.tsa_net import TSANet
from cassi.models.unet_stages import ADMMNet, GAPNet

__all__ = [
    "CST",
    "DAUHST",
    "DERNNLNLT",
    "DGSMP",
    "DPU",
    "LRDUN",
    "MST",
    "PADUT",
    "SSR",
    "ADMMNet",
    "BiSRNet",
    "CassiNet",
    "DRUNet",
    "DnCNN",
    "FFDNet",
    "GAPNet",
    "HDNet",
    "Hourglass",
    "MSTPlusPlus",
    "RDLUFMixS2",
    "TSANet",
]
