"""Hooks of MkDocs (see mkdocs.yml) that add pages to the site, and convert links and equations.

Pages that are not in `docs` are added: notebooks become tutorials, the reference is generated, and
the pages and pictures at the root of the repository are copied. On GitHub, the relative links of a
page lead to files of the repository. The hooks change them to links to the pages of these files.
Equations, `$…$` and `$$…$$` as on GitHub, become MathML, which browsers show without a script or a
font.

If CASSI_DOCS_RUN=1, the notebooks are executed, and the tutorials show their outputs.
"""

import html
import os
import posixpath
import re
import sys
import xml.etree.ElementTree
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# MkDocs loads this file by its path, so the package `scripts` is not on the path of modules.
sys.path.insert(0, str(ROOT))

from scripts.docs.notebooks import make_tutorial  # noqa: E402
from scripts.docs.reference import (  # noqa: E402
    COMMANDS,
    OTHER_PARTS,
    PARTS,
    make_command_pages,
    make_config_pages,
    make_python_pages,
)

# Files of the repository outside of docs, and their pages of the site.
DEVELOPMENT = {
    name: f"development/{name.lower()}"
    for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
}
# Pages that come first in the navigation of their folder; the others follow by name.
GUIDES = (
    "how-do-i",
    "snapshot",
    "methods",
    "self-supervised",
    "pretrained",
    "cameras",
    "calibration",
    "sensor",
    "data",
)
EXPLANATION = ("index", "inverses", "algorithms", "measures", "compare")
REFERENCE = ("settings", "outputs", "networks", "model-card", "leaderboard", "operators")
NOTEBOOKS = (
    "your_first_reconstruction",
    "the_first_hour",
    "bring_your_own_camera",
    "train_and_evaluate",
)
TUTORIALS = {f"notebooks/{name}.ipynb": f"tutorials/{name}.md" for name in NOTEBOOKS}
PICTURES = {
    f".github/images/{file.name}": f"images/{file.name}"
    for file in sorted((ROOT / ".github/images").glob("*.png"))
}
PAGE_OF = DEVELOPMENT | TUTORIALS | PICTURES
# The search of the theme needs a worker, but browsers allow none on pages that are opened from a
# folder. This script is a substitute for a worker: its address on a server, and its path in the
# site.
SHIM, LOCAL_SHIM = "https://unpkg.com/iframe-worker/shim", "javascripts/iframe-worker.js"
LINK = re.compile(r"(\]\()([^)\s#]+)([)#])")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Build the navigation from the folders of docs and the generated pages."""
    python = ["reference/python.md"] + [f"reference/{part}.md" for part in PARTS + OTHER_PARTS]
    config.nav = [
        {"Home": "index.md"},
        {"Tutorials": list(TUTORIALS.values())},
        {"Guides": [*list_pages("guides", GUIDES), "examples/index.md"]},
        {"Explanation": list_pages("explanation", EXPLANATION)},
        {"Gallery": "gallery/index.md"},
        {
            "Reference": [
                {"Commands": [f"reference/cassi-{name}.md" for name in COMMANDS]},
                *list_pages("reference", REFERENCE),
                {"Python": python},
                {"Config groups": sorted(make_config_pages())},
            ]
        },
        {
            "Development": [
                *DEVELOPMENT.values(),
                *list_pages("development", ()),
                {"Experiments": list_pages("development/experiments", ("index",))},
            ]
        },
    ]
    return config


def list_pages(folder: str, first: Sequence[str]) -> list[str]:
    """Return the pages of a folder of docs: those of `first`, then the others by name."""
    names = {file.stem for file in (ROOT / "docs" / folder).glob("*.md")}
    return [f"{folder}/{name}.md" for name in (*first, *sorted(names - set(first)))]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs."""
    pages: dict[str, str | bytes] = {}
    pages |= make_python_pages() | make_command_pages() | make_config_pages()
    pages |= {uri: (ROOT / name).read_text() for name, uri in DEVELOPMENT.items()}
    pages |= {uri: (ROOT / name).read_bytes() for name, uri in PICTURES.items()}
    run = os.environ.get("CASSI_DOCS_RUN") == "1"
    # Threads suffice: each notebook is executed in a process of its own.
    with ThreadPoolExecutor() as pool:
        for tutorial_pages in pool.map(
            lambda n: make_tutorial(ROOT / n, TUTORIALS[n], run), TUTORIALS
        ):
            pages |= tutorial_pages
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change the links to files of the repository to the pages of these files."""
    uri = page.file.src_uri
    # The file of the repository from which the page was made.
    source = {page_uri: name for name, page_uri in PAGE_OF.items()}.get(uri, f"docs/{uri}")
    # Links to pictures that a notebook has drawn stay: they are in the site only, beside the
    # tutorial.
    drawn_files = files.src_uris if uri.startswith("tutorials/") else {}

    def relink(match: re.Match[str]) -> str:
        start, target, end = match.groups()
        target_uri = posixpath.normpath(posixpath.join(posixpath.dirname(uri), target))
        if "://" in target or target.startswith("mailto:") or target_uri in drawn_files:
            return match[0]
        name = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        target_uri = PAGE_OF.get(name) or name.removeprefix("docs/")
        return start + posixpath.relpath(target_uri, posixpath.dirname(uri) or ".") + end

    # Generated pages already have links of the site.
    is_generated = uri.startswith("reference/") and not (ROOT / "docs" / uri).is_file()
    return markdown if is_generated else LINK.sub(relink, markdown)


def on_page_content(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    r"""Turn equations, which Arithmatex has marked as \(…\) and \[…\], into MathML."""

    def convert(match: re.Match[str]) -> str:
        tag, tex = match[1], html.unescape(match[2][2:-2])
        return convert_to_mathml(tex, page.file.src_uri, block=tag == "div")

    return re.sub(r'<(span|div) class="arithmatex">(.*?)</\1>', convert, text, flags=re.DOTALL)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Let a page load the script `SHIM` from the site instead of from another server."""
    return output.replace(SHIM, posixpath.relpath(LOCAL_SHIM, posixpath.dirname(page.url) or "."))


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:
    """Replace the link to that script on 404.html, too.

    This page is served for any address, so the link is absolute.
    """
    return output.replace(SHIM, f"/{LOCAL_SHIM}")


def convert_to_mathml(tex: str, page: str, block: bool) -> str:
    """Convert TeX to MathML.

    Raises:
        PluginError: the converter does not know a command, or writes invalid XML.
    """
    from latex2mathml.converter import convert

    result = str(convert(tex, display="block" if block else "inline"))
    try:
        words = "".join(xml.etree.ElementTree.fromstring(result).itertext())
    except xml.etree.ElementTree.ParseError as error:
        raise PluginError(f"{page}: no MathML for {tex!r}: {error}") from None
    # The converter leaves an unknown command in the text as it is.
    if "\\" in words or "&" in words:
        raise PluginError(f"{page}: not understood in {tex!r}: {words!r}")
    return result
