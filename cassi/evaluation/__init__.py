"""Run reconstructors over data sets: jobs, records that survive a stop, tables, sweeps."""

from cassi.data.synthetic.twin import TrueCamera, Twin
from cassi.evaluation.jobs import Job, Queue, join_processes
from cassi.evaluation.problems import Problem, make_problem, scene_generator
from cassi.evaluation.records import Record, RecordFolder
from cassi.evaluation.runner import View, run_jobs
from cassi.evaluation.sweeps import write_sweep
from cassi.evaluation.tables import write_results

__all__ = [
    "Job",
    "Problem",
    "Queue",
    "Record",
    "RecordFolder",
    "TrueCamera",
    "Twin",
    "View",
    "join_processes",
    "make_problem",
    "run_jobs",
    "scene_generator",
    "write_results",
    "write_sweep",
]
