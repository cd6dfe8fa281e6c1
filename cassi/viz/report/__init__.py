"""The HTML report of reconstructions: one file with table, pictures and spectra."""

from cassi.viz.report.answers import encode_answers
from cassi.viz.report.page import encode_scene, make_report

__all__ = ["encode_answers", "encode_scene", "make_report"]
