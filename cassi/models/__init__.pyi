from .cassi_net import CassiNet
from .denoisers.dncnn import DnCNN
from .denoisers.drunet import DRUNet
from .denoisers.ffdnet import FFDNet
from .pretrained import shipped_network
from .published.bisrnet import BiSRNet
from .published.cst import CST
from .published.dauhst import DAUHST
from .published.dernn_lnlt import DERNNLNLT
from .published.dgsmp import DGSMP
from .published.dpu import DPU
from .published.gap_net import ADMMNet, GAPNet
from .published.hdnet import HDNet
from .published.lade_dun import LADEDUN
from .published.lambda_net import LambdaNet
from .published.lrdun import LRDUN
from .published.mijun import MiJUN
from .published.mst import MST, MSTPlusPlus
from .published.padut import PADUT
from .published.rdluf_mixs2 import RDLUFMixS2
from .published.saunet import SAUNet
from .published.ssr import SSR
from .published.tsa_net import TSANet

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
