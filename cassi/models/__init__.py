"""Networks `net(y, system) -> x`, and denoisers `net(x, sigma) -> x`, under published names."""

from cassi.models.cassi_net import CassiNet
from cassi.models.denoisers.dncnn import DnCNN
from cassi.models.denoisers.drunet import DRUNet
from cassi.models.denoisers.ffdnet import FFDNet
from cassi.models.pretrained import shipped_network
from cassi.models.published.bisrnet import BiSRNet
from cassi.models.published.cst import CST
from cassi.models.published.dauhst import DAUHST
from cassi.models.published.dernn_lnlt import DERNNLNLT
from cassi.models.published.dgsmp import DGSMP
from cassi.models.published.dpu import DPU
from cassi.models.published.gap_net import ADMMNet, GAPNet
from cassi.models.published.hdnet import HDNet
from cassi.models.published.lade_dun import LADEDUN
from cassi.models.published.lambda_net import LambdaNet
from cassi.models.published.lrdun import LRDUN
from cassi.models.published.mijun import MiJUN
from cassi.models.published.mst import MST, MSTPlusPlus
from cassi.models.published.padut import PADUT
from cassi.models.published.rdluf_mixs2 import RDLUFMixS2
from cassi.models.published.saunet import SAUNet
from cassi.models.published.ssr import SSR
from cassi.models.published.tsa_net import TSANet

__all__ = [
    "CST",
    "DAUHST",
    "DERNNLNLT",
    "DGSMP",
    "DPU",
    "LADEDUN",
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
    "LambdaNet",
    "MSTPlusPlus",
    "MiJUN",
    "RDLUFMixS2",
    "SAUNet",
    "TSANet",
    "shipped_network",
]
