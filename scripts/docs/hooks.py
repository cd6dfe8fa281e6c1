"""What the documentation site is made of besides `docs`: hooks of MkDocs, named in mkdocs.yml.

Notebooks become tutorials, the reference is generated, and the pages at the root of the repository
and its pictures are taken in. Every page is a file of the repository first: its relative links lead
to files, as GitHub shows them, and are turned to the pages that these files became. Equations,
`$…$` and `$$…$$` as on GitHub, become MathML, which browsers show without a script or a font.

With CASSI_DOCS_RUN=1 the notebooks are executed, and the tutorials show their outputs.
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
sys.path.insert(0, str(ROOT))  # MkDocs loads this file by its path

from scripts.docs.notebooks import tutorial  # noqa: E402
from scripts.docs.reference import (  # noqa: E402
    COMMANDS,
    FURTHER,
    PARTS,
    command_pages,
    config_pages,
    python_pages,
)

# Files of the repository outside of docs, and where they are in the site.
DEVELOPMENT = {
    name: f"development/{name.lower()}"
    for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
}
# Pages that stand first in their folder; the others follow by name.
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
PLACES = DEVELOPMENT | TUTORIALS | PICTURES
# With it the search works where pages are opened from a folder, where browsers allow no workers.
SHIM, LOCAL_SHIM = "https://unpkg.com/iframe-worker/shim", "javascripts/iframe-worker.js"
LINK = re.compile(r"(\]\()([^)\s#]+)([)#])")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Build the navigation out of the folders of docs and the pages that are made."""
    python = ["reference/python.md"] + [f"reference/{part}.md" for part in PARTS + FURTHER]
    config.nav = [
        {"Home": "index.md"},
        {"Tutorials": list(TUTORIALS.values())},
        {"Guides": [*pages_in("guides", GUIDES), "examples/index.md"]},
        {"Explanation": pages_in("explanation", EXPLANATION)},
        {"Gallery": "gallery/index.md"},
        {
            "Reference": [
                {"Commands": [f"reference/cassi-{name}.md" for name in COMMANDS]},
                *pages_in("reference", REFERENCE),
                {"Python": python},
                {"Config groups": sorted(config_pages())},
            ]
        },
        {
            "Development": [
                *DEVELOPMENT.values(),
                *pages_in("development", ()),
                {"Experiments": pages_in("development/experiments", ("index",))},
            ]
        },
    ]
    return config


def pages_in(folder: str, first: Sequence[str]) -> list[str]:
    """Return the pages of a folder of docs: those named first, then the others by name."""
    names = {file.stem for file in (ROOT / "docs" / folder).glob("*.md")}
    ordered = [*first, *sorted(names - set(first))]
    return [f"{folder}/{name}.md" for name in ordered]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is not in docs."""
    pages: dict[str, str | bytes] = {}
    pages |= python_pages() | command_pages() | config_pages()
    pages |= {place: (ROOT / name).read_text() for name, place in DEVELOPMENT.items()}
    pages |= {place: (ROOT / name).read_bytes() for name, place in PICTURES.items()}
    run = os.environ.get("CASSI_DOCS_RUN") == "1"
    with ThreadPoolExecutor() as pool:  # each has a process of its own
        for made in pool.map(lambda n: tutorial(ROOT / n, TUTORIALS[n], run), TUTORIALS):
            pages |= made
    for place, content in pages.items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository to their places in the site."""
    here = page.file.src_uri
    made = files.src_uris if here.startswith("tutorials/") else {}  # pictures that a notebook drew
    origin = {place: name for name, place in PLACES.items()}.get(here, f"docs/{here}")

    def turned(match: re.Match[str]) -> str:
        start, target, end = match.groups()
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        if "://" in target or target.startswith("mailto:") or beside in made:
            return match[0]
        name = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
        place = PLACES.get(name) or name.removeprefix("docs/")
        return start + posixpath.relpath(place, posixpath.dirname(here) or ".") + end

    generated = here.startswith("reference/") and not (ROOT / "docs" / here).is_file()
    return markdown if generated else LINK.sub(turned, markdown)


def on_page_content(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    r"""Turn the equations that Arithmatex has found, \(…\) and \[…\], into MathML."""

    def converted(match: re.Match[str]) -> str:
        tag, tex = match[1], html.unescape(match[2][2:-2])
        return mathml(tex, page.file.src_uri, block=tag == "div")

    return re.sub(r'<(span|div) class="arithmatex">(.*?)</\1>', converted, text, flags=re.DOTALL)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Load from the site what the theme would load from elsewhere."""
    return output.replace(SHIM, posixpath.relpath(LOCAL_SHIM, posixpath.dirname(page.url) or "."))


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:
    """Do the same on pages that are served from any place: 404.html."""
    return output.replace(SHIM, f"/{LOCAL_SHIM}")


def mathml(tex: str, where: str, block: bool) -> str:
    """Convert TeX to MathML.

    Raises:
        PluginError: The converter left a command of TeX as it was, or wrote what is not XML.
    """
    from latex2mathml.converter import convert

    result = str(convert(tex, display="block" if block else "inline"))
    try:
        words = "".join(xml.etree.ElementTree.fromstring(result).itertext())
    except xml.etree.ElementTree.ParseError as error:
        raise PluginError(f"{where}: no MathML for {tex!r}: {error}") from None
    if "\\" in words or "&" in words:
        raise PluginError(f"{where}: not understood in {tex!r}: {words!r}")
    return result
