"""How commands with a page begin and end."""

import pytest

pytest.importorskip("panel", reason="needs panel")
from cassi.apps.live.command import main as live
from cassi.apps.view.command import main


@pytest.mark.parametrize("port", ["-1", "65536", "99999"])
@pytest.mark.parametrize("command", [main, live])
def test_a_port_that_there_is_not_is_refused_in_one_line(command, port, capsys):
    with pytest.raises(SystemExit) as stop:
        command(["--no-browser", f"--port={port}"])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--port: expected 0 to 65535, got {port}" in line
