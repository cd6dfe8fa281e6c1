"""The documentation: links that lead somewhere, and a site that builds and needs no network."""

import importlib
import re
import zlib
from types import SimpleNamespace

import pytest
from shared import ROOT, python

from scripts.docs.reference import COMMANDS, OTHER_PARTS, PARTS

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "data/README.md"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(path):
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", text):
        assert "://" in target or (path.parent / target).exists(), target


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site; strictly, as mkdocs.yml says: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    build = ("-m", "mkdocs", "build", "--site-dir", folder)
    python(*build, NO_MKDOCS_2_WARNING="1", CASSI_DOCS_RUN="")
    return folder


def _public(name):
    return getattr(importlib.import_module(name), "__all__", ())


@pytest.mark.release
def test_site_has_every_public_name(site):
    content = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    listed = {line.split(" ")[0] for line in zlib.decompress(content).decode().splitlines()}
    modules = ["cassi", *(f"cassi.{part}" for part in PARTS + OTHER_PARTS)]
    names = {f"{name}.{n}" for name in modules for n in _public(name)}
    assert sorted(names - listed) == []


@pytest.mark.release
def test_site_loads_nothing_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text()
        loaded = re.findall(r'<(?:script|img|iframe)[^>]*\ssrc="?(https?:[^" >]*)', text)
        loaded += re.findall(r'<link[^>]*\shref="?(https?:[^" >]*)', text)
        assert not loaded, page


@pytest.mark.release
def test_site_shows_equations_without_scripts(site):
    text = (site / "explanation/index.html").read_text()
    assert text.count("<math ") > 20
    assert "arithmatex" not in text


@pytest.mark.release
def test_site_has_every_command_and_config_file(site):
    for group in (path for path in (ROOT / "conf").iterdir() if path.is_dir()):
        if group.name in ("hydra", "__pycache__"):
            continue
        text = (site / f"reference/config_{group.name}.html").read_text()
        assert all(f">{file.stem}</code>" in text for file in group.glob("*.yaml"))
    for command in COMMANDS:
        assert (site / f"reference/cassi-{command}.html").is_file()


def test_pictures_that_a_notebook_draws_are_found_beside_it():
    from scripts.docs.hooks import on_page_markdown

    page = SimpleNamespace(file=SimpleNamespace(src_uri="tutorials/train_and_evaluate.md"))
    files = SimpleNamespace(src_uris={"tutorials/train_1.png": None})
    text = "![](train_1.png) [cameras](../docs/guides/cameras.md)"
    turned = "![](train_1.png) [cameras](../guides/cameras.md)"
    assert on_page_markdown(text, page, None, files) == turned
