"""How commands with a page begin and end."""

import signal

import numpy as np
import pytest
from shared import wait_until

pytest.importorskip("panel", reason="needs panel")
from cassi.apps.live.command import main as live
from cassi.apps.view import launch
from cassi.apps.view.command import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port=-1"], "--port: expected 0 to 65535, got -1"),
        (["--port=65536"], "--port: expected 0 to 65535, got 65536"),
        (["--port", "abc"], "--port: expected 0 to 65535, got abc"),
        (["--port"], "--port: expected one argument"),
        (["--prt=1"], "unrecognized arguments: --prt=1"),
        (["--output"], "--output: expected one argument"),
    ],
)
@pytest.mark.parametrize("command", [main, live])
def test_a_mistake_on_the_command_line_is_one_line(command, words, said, capsys):
    with pytest.raises(SystemExit) as stop:
        command(["--no-browser", *words])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize("command", [main, live])
def test_a_current_folder_without_room_for_results_is_named(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs").write_bytes(b"")
    np.save("mask.npy", np.eye(8, dtype=np.float32))
    with pytest.raises(SystemExit) as stop:
        command(["--no-browser", *(["source=.", "mask=mask.npy"] if command is live else [])])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--output: cannot make outputs" in line
    assert line.endswith("; give --output DIR")


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("view", number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)),
        pytest.param("live", signal.SIGTERM, marks=pytest.mark.slow),
        # What makes an end of a signal is one function for both commands.
        pytest.param("live", signal.SIGINT, marks=pytest.mark.thorough),
        pytest.param("live", signal.SIGHUP, marks=pytest.mark.thorough),
    ],
)
def test_a_signal_ends_the_command_and_its_files(name, number, tmp_path, start):
    output = tmp_path / "out"
    np.save(tmp_path / "mask.npy", np.eye(8, dtype=np.float32))
    words = [f"source={tmp_path}", f"mask={tmp_path}/mask.npy"] if name == "live" else [tmp_path]
    words = [*map(str, words), "--output", str(output)]
    command = start(name, *words, fork=False, BROWSER="sleep 100 %s")  # which nobody waits for
    wait_until(lambda: list(output.glob(f".open-*/cassi-{name}.html")), seconds=60)
    command.send_signal(number)
    assert command.communicate(timeout=200)[0].splitlines()[-1] == f"cassi-{name}: ended"
    assert command.returncode == 0
    assert list(output.iterdir()) == []


def test_what_was_ignored_stays_so_and_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    ended = []

    def command():
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)  # a second one does not end the clean-up
            ended.append(True)

    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        launch.run_until_interrupted("cassi-view", command)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGHUP), before, strict=True):
            signal.signal(number, handler)
    assert ended
