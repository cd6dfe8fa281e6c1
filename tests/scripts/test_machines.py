"""The table of methods by processor, threads and load."""

import contextlib
import io
import sys
from subprocess import CompletedProcess

import torch

from scripts.benchmarks import machines


def test_a_tiny_table(monkeypatch):
    def call(command, **_):
        monkeypatch.setattr(sys, "argv", command[2:])
        with contextlib.redirect_stdout(io.StringIO()) as said:
            machines.main()
        return CompletedProcess(command, 0, said.getvalue())

    monkeypatch.setattr(machines.subprocess, "run", call)  # the cells, in this process
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    options = ["--methods", "gap_tv", "--size", "32", "--rounds", "1", "--threads", "1"]
    table = call([sys.executable, "-m", "machines", *options]).stdout
    row = next(line for line in table.splitlines() if "gap_tv" in line)
    cells = [cell.strip() for cell in row.split("|") if cell.strip()]
    assert len(cells) == 5
    assert all(float(cell) >= 0 for cell in cells[1:])
