"""The table of docs/guides/files.md is what the libraries that are installed find."""

import pytest

from scripts.docs import formats_page as script

TEXT = script.PAGE.read_text(encoding="utf-8")
TABLE = TEXT.split(script.FIRST)[1].split(script.LAST)[0]


def test_the_table_is_what_is_found():
    assert script.make_table(TABLE).strip() == TABLE.strip()


@pytest.mark.parametrize("library", script.LIBRARIES)
def test_wavelengths_go_round(library):
    """Each library that knows wavelengths gives and takes them exactly somewhere."""
    if not script.is_installed(library):
        pytest.skip(f"{library} is not installed")
    row = TABLE.strip().splitlines()[0].strip("| ").split(" | ").index(script.LIBRARIES[library])
    cells = [line.strip("| ").split(" | ")[row] for line in TABLE.strip().splitlines()[2:]]
    assert any("opens cube, nm" in cell for cell in cells)


def test_a_column_that_cannot_be_made_is_kept(monkeypatch):
    monkeypatch.setattr(script, "is_installed", lambda library: False)
    assert script.make_table(TABLE).strip() == TABLE.strip()


def test_the_page_is_made(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(TEXT, encoding="utf-8")
    script.main(["--page", str(page)])
    assert page.read_text(encoding="utf-8") == TEXT


def test_other_values_are_no_round_trip():
    with pytest.raises(ValueError, match="values of the cube"):
        script._compare(script.CUBE + 1, None)
    with pytest.raises(ValueError, match="nm, got"):
        script._compare(script.CUBE, [1, 2])
