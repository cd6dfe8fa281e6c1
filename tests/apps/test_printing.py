"""--quiet and --json: what a command prints."""

import json

import pytest

from cassi.apps import printing


def _run(flags, monkeypatch, job):
    monkeypatch.setattr("sys.argv", ["cassi-reconstruct"])
    with printing.printed(flags):
        print("said")
        job()


def test_flags_are_taken_out_of_the_arguments():
    flags, rest = printing.take_flags(["a=1", "--json", "--info", "--quiet"])
    assert flags == {"--json", "--quiet"}
    assert rest == ["a=1", "--info"]


def test_quiet_prints_nothing_and_shows_no_progress(monkeypatch, capsys):
    seen = []
    _run({"--quiet"}, monkeypatch, lambda: seen.append(printing.is_quiet()))
    assert capsys.readouterr().out == ""
    assert seen == [True]
    assert not printing.is_quiet()


def test_json_is_one_line_with_folders_and_numbers(monkeypatch, capsys, tmp_path):
    (tmp_path / "metrics.json").write_text('{"seconds": 1.5}')
    _run({"--json"}, monkeypatch, lambda: printing.note_folder(tmp_path))
    said = json.loads(capsys.readouterr().out)
    run = {"folder": str(tmp_path), "metrics": {"seconds": 1.5}}
    assert said == {"status": 0, "runs": [run]}


def test_json_says_the_error_and_its_status(monkeypatch, capsys):
    def fail():
        raise printing.Failure(2, "no such file")

    with pytest.raises(SystemExit) as end:
        _run({"--json"}, monkeypatch, fail)
    assert end.value.code == 2
    assert json.loads(capsys.readouterr().out) == {"status": 2, "error": "no such file"}


def test_a_defect_keeps_its_traceback(monkeypatch, capsys):
    with pytest.raises(ZeroDivisionError):
        _run({"--json"}, monkeypatch, lambda: 1 / 0)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("flag", ["--info", "--help"])
def test_what_a_flag_shows_is_shown(monkeypatch, capsys, flag):
    monkeypatch.setattr("sys.argv", ["cassi-reconstruct", flag])
    with printing.printed({"--quiet"}):
        print("shown")
    assert capsys.readouterr().out == "shown\n"


def test_colour_only_where_a_terminal_has_it(monkeypatch):
    assert printing.marked("error") == "error:"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert printing.marked("error") == "\033[31merror:\033[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert printing.marked("warning") == "warning:"


def test_the_command_prints_json_alone(reconstruct):
    done = reconstruct("--json", "solver.iterationz=3")
    assert "did you mean solver.iterations" in json.loads(done.out)["error"]
    assert done.refusal.endswith(json.loads(done.out)["error"])
