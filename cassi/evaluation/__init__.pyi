from .problems import Problem, TrueCamera, Twin, make_problem, scene_generator
from .records import Job, Record, RecordFolder
from .runner import Runner, View
from .tables import write_results

__all__ = [
    "Job",
    "Problem",
    "Record",
    "RecordFolder",
    "Runner",
    "TrueCamera",
    "Twin",
    "View",
    "make_problem",
    "scene_generator",
    "write_results",
]
