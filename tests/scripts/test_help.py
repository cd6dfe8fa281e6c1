"""Every script says what it does."""

import sys
from importlib import import_module

import pytest
from shared import ROOT

SCRIPTS = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for file in ROOT.glob("scripts/*/*.py")
    if "argparse" in (text := file.read_text()) or "Parser(__doc__" in text
)


@pytest.mark.parametrize("name", [name for name in SCRIPTS if not name.endswith(".tables")])
def test_help_is_printed(name, monkeypatch, capsys):
    module = import_module(name)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as stop:
        module.main()
    assert stop.value.code == 0
    assert (module.__doc__ or "").split()[0] in capsys.readouterr().out
