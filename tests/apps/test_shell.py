"""What a shell sees: one name for all commands, versions, completion."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

import cassi
from cassi import __main__ as command_line


@pytest.fixture
def call(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["cassi", *arguments])
        try:
            command_line.main()
            status = 0
        except SystemExit as stop:
            status = stop.code
        return status, capsys.readouterr()

    return call


@pytest.mark.parametrize("name", ["", *command_line.COMMANDS])
def test_every_command_says_its_version(call, name):
    status, said = call(*name.split(), "--version")
    assert (status or 0, said.out) == (0, f"cassi {cassi.__version__}\n")


def test_help_lists_every_command(call):
    for arguments in ((), ("--help",), ("help",)):
        status, said = call(*arguments)
        assert status == 0
        assert all(f"  {name} " in said.out for name in command_line.COMMANDS)


def test_an_unknown_command_is_one_line(call):
    status, said = call("reconstuct", "a=1")
    assert status == 2
    assert said.err == "cassi: error: no command 'reconstuct'; did you mean reconstruct?\n"
    assert "there is reconstruct, train" in call("xyz")[1].err


def test_every_command_has_both_names():
    scripts = {script.name: script.value for script in entry_points(group="console_scripts")}
    ours = {name: value for name, value in scripts.items() if value.startswith("cassi.")}
    modules = {
        f"cassi-{name}": f"{module}:main" for name, (module, _) in command_line.COMMANDS.items()
    }
    assert ours == modules | {"cassi": "cassi.__main__:main"}


def test_a_command_behind_the_one_name_gets_its_own(call, monkeypatch):
    seen = []
    monkeypatch.setattr("cassi.apps.camera.command.main", lambda: seen.append(sys.argv))
    assert call("camera", "--help", "a=1")[0] == 0
    assert seen == [["cassi-camera", "--help", "a=1"]]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("solver=", {"solver=gap", "solver=auto"}),
        ("solver=gap prior=t", {"prior=tv"}),
        ("model=pre", {"model=pretrained"}),
        ("output.p", {"output.pictures=", "output.points=", "output.progress="}),
    ],
)
def test_completion(reconstruct, monkeypatch, typed, offered):
    """What bash and zsh are told when Tab is pressed behind these words."""
    line = f"cassi-reconstruct {typed}"
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    assert offered <= set(reconstruct("-sc", "query=bash").out.split())


def test_the_script_for_bash_is_installed(reconstruct):
    script = reconstruct("-sc", "install=bash").out
    assert "complete -o nospace -o default -F hydra_bash_completion" in script
    checked = subprocess.run(["bash", "-n"], input=script, text=True, check=False)
    assert checked.returncode == 0
