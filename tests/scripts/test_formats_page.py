"""The table of docs/guides/files.md is what the libraries that are installed find."""

from scripts.docs import formats_page as script

TEXT = script.PAGE.read_text(encoding="utf-8")
TABLE = TEXT.split(script.FIRST)[1].split(script.LAST)[0]


def test_the_table_is_what_is_found():
    assert script.make_table(TABLE).strip() == TABLE.strip()


def test_a_column_that_cannot_be_made_is_kept(monkeypatch):
    monkeypatch.setattr(script, "is_installed", lambda library: False)
    assert script.make_table(TABLE).strip() == TABLE.strip()


def test_the_page_is_made(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(TEXT, encoding="utf-8")
    script.main(["--page", str(page)])
    assert page.read_text(encoding="utf-8") == TEXT
