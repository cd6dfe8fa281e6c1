"""Run reconstructors over data sets: jobs, records that survive a stop, tables, sweeps."""

from cassi.data.synthetic.twin import TrueCamera, Twin
from cassi.evaluation.jobs import Job
from cassi.evaluation.problems import Problem, make_problem, scene_generator
from cassi.evaluation.records import Record, RecordFolder
from cassi.evaluation.runner import Runner, View
from cassi.evaluation.sweeps import write_sweep
from cassi.evaluation.tables import write_results

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
    "write_sweep",
]
