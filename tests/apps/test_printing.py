"""What a command prints: whole lines, all of them or few, or one JSON object."""

import io
import json
import socket
import sys

import pytest

from cassi.apps import printing
from cassi.apps.command import write_whole_lines


def _run(flags, monkeypatch, job):
    monkeypatch.setattr("sys.argv", ["cassi-reconstruct"])
    with printing.filter_output(flags):
        print("said")
        job()


def test_flags_are_taken_out_of_the_arguments():
    flags, rest = printing.take_flags(["a=1", "--json", "--info", "--quiet"])
    assert (flags, rest) == ({"--json", "--quiet"}, ["a=1", "--info"])


def test_quiet_prints_nothing_and_shows_no_progress(monkeypatch, capsys):
    seen = []
    _run({"--quiet"}, monkeypatch, lambda: seen.append(printing.is_quiet()))
    assert (capsys.readouterr().out, seen, printing.is_quiet()) == ("", [True], False)


def _fail():
    raise printing.Failure(2, "no such file")


def test_json_is_one_line_with_numbers_or_the_error(monkeypatch, capsys, tmp_path):
    """A defect keeps its traceback, and says nothing else."""
    (tmp_path / "metrics.json").write_text('{"seconds": 1.5}')
    _run({"--json"}, monkeypatch, lambda: printing.note_folder(tmp_path))
    run = {"folder": str(tmp_path), "metrics": {"seconds": 1.5}}
    assert json.loads(capsys.readouterr().out) == {"status": 0, "runs": [run]}
    with pytest.raises(SystemExit):
        _run({"--json"}, monkeypatch, _fail)
    assert json.loads(capsys.readouterr().out) == {"status": 2, "error": "no such file"}
    with pytest.raises(ZeroDivisionError):
        _run({"--json"}, monkeypatch, lambda: 1 / 0)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("flag", ["--info", "--help"])
def test_what_a_flag_shows_is_shown(monkeypatch, capsys, flag):
    monkeypatch.setattr("sys.argv", ["cassi-reconstruct", flag])
    with printing.filter_output({"--quiet"}):
        print("shown")
    assert capsys.readouterr().out == "shown\n"


def test_colour_only_where_a_terminal_has_it(monkeypatch):
    assert printing.color_label("error") == "error:"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert printing.color_label("error") == "\033[31merror:\033[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert printing.color_label("warning") == "warning:"


def test_the_command_prints_json_alone(reconstruct):
    done = reconstruct("--json", "solver.iterationz=3")
    assert "did you mean solver.iterations" in json.loads(done.out)["error"]
    assert done.refusal.endswith(json.loads(done.out)["error"])


@pytest.mark.skipif(sys.platform != "linux", reason="needs sockets that keep writes apart")
def test_a_line_and_its_end_are_one_write(monkeypatch):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        for name in ("stdout", "stderr"):  # as of `python -u`, which torchrun starts
            file = io.FileIO(theirs.fileno(), "w", closefd=False)
            monkeypatch.setattr(sys, name, io.TextIOWrapper(file, write_through=True))
        write_whole_lines()
        print("one", 1, flush=True)
        print("two", file=sys.stderr)
        monkeypatch.undo()
        assert [ours.recv(100), ours.recv(100)] == [b"one 1\n", b"two\n"]
