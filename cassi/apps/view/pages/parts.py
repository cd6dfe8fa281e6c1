"""Parts that several sections use."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import panel as pn

TABLE = """
table { border-collapse: collapse }
th, td { text-align: left; vertical-align: top; padding: 2px 14px 2px 0; font-size: 14px }
th { font-weight: 600; white-space: nowrap }
"""
CHOSEN = """
p { margin: 4px 0; font-size: 14px; overflow-wrap: anywhere }
p.warning { border-left: 4px solid #b25e00; padding-left: 8px }
p.error { border-left: 4px solid #b00020; padding-left: 8px; color: #8c001a; font-weight: 600 }
code { background: #eef1f4; padding: 1px 4px }
"""
DROP = """
.zone { display: block; padding: 14px 12px; border: 2px dashed #8a94a0; background: #f6f8fa;
  font-size: 14px; cursor: pointer }
.zone:focus-within, .zone:hover { border-color: #1c2126 }
.zone input { display: block; margin-top: 8px; max-width: 100% }
.zone progress { display: block; width: 100%; margin-top: 8px }
.zone progress[hidden] { display: none }
"""


def text(content: str = "", kind: str = "") -> Any:
    """Return a pane for lines that change; see `say`."""
    place = pn.pane.HTML("", stylesheets=[CHOSEN], sizing_mode="stretch_width", margin=(0, 10))
    say(place, content, kind)
    return place


def say(place: Any, content: str | Sequence[str], kind: str = "") -> None:
    """Show lines of plain text; screen readers speak them.

    Args:
        place: a pane made by `text`.
        content: one line, or several.
        kind: "", "warning" or "error".
    """
    lines = [content] if isinstance(content, str) else content
    role = "alert" if kind == "error" else "status"
    shown = "".join(f'<p class="{kind}">{html.escape(line)}</p>' for line in lines if line)
    place.object = f'<div role="{role}">{shown}</div>'


def later(do: Callable[[], Any]) -> None:
    """Call a function when the page may be changed; a coroutine must, after it has waited."""
    pn.state.execute(do, schedule=True)


def heading(title: str) -> Any:
    """Return the heading of a section."""
    style = "h2 { font-size: 20px; margin: 22px 0 4px }"
    return pn.pane.HTML(f"<h2>{html.escape(title)}</h2>", stylesheets=[style], margin=(0, 10))


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and values as HTML."""
    body = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table><tbody>{body}</tbody></table>"


def field(name: str, hint: str = "", width: int = 150, value: str = "") -> Any:
    """Return a field of one line; its value is read when the field loses the focus."""
    return pn.widgets.TextInput(name=name, placeholder=hint, width=width, value=value)


def button(name: str, width: int = 150, primary: bool = False) -> Any:
    """Return a button."""
    return pn.widgets.Button(
        name=name, width=width, button_type="primary" if primary else "default"
    )
