from . import adapters, metrics, models, ops, uncertainty
from . import calibration as calibration
from . import data as data
from . import evaluation as evaluation
from . import methods as methods
from . import priors as priors
from . import solvers as solvers
from . import systems as systems
from . import training as training
from . import viz as viz
from .calibration.camera_check import check_camera
from .data.io import read_cube, read_mask, read_measurement, write_cube
from .models.load import create_model, load_model, load_published
from .models.registry import list_models, register_model
from .plugins import (
    register_answer,
    register_dataset,
    register_loss,
    register_metric,
    register_prior,
)
from .priors import TV
from .reconstruction import (
    Reconstruction,
    calibrate,
    choose_method,
    read_camera,
    reconstruct,
    simulate,
)
from .solvers import ADMM, GAP, Solver, solve
from .systems import (
    BlurredCassi,
    DDCassi,
    Guide,
    MosaicCassi,
    PsfCassi,
    SDCassi,
    Stacked,
    WarpedCassi,
    dot_test,
)

__version__: str

__all__ = [
    "ADMM",
    "GAP",
    "TV",
    "BlurredCassi",
    "DDCassi",
    "Guide",
    "MosaicCassi",
    "PsfCassi",
    "Reconstruction",
    "SDCassi",
    "Solver",
    "Stacked",
    "WarpedCassi",
    "adapters",
    "calibrate",
    "check_camera",
    "choose_method",
    "create_model",
    "dot_test",
    "list_models",
    "load_model",
    "load_published",
    "metrics",
    "models",
    "ops",
    "read_camera",
    "read_cube",
    "read_mask",
    "read_measurement",
    "reconstruct",
    "register_answer",
    "register_dataset",
    "register_loss",
    "register_metric",
    "register_model",
    "register_prior",
    "simulate",
    "solve",
    "uncertainty",
    "write_cube",
]
