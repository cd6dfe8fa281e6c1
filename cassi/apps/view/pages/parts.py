"""Parts that several sections use."""

import asyncio
import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import panel as pn

from cassi.apps.view.jobs import Job, Stopped, explain

TABLE = """
table { border-collapse: collapse }
th, td { text-align: left; vertical-align: top; padding: 3px 14px 3px 0; font-size: 14px;
  overflow-wrap: anywhere }
th { font-weight: 600; white-space: nowrap; color: var(--soft) }
summary { margin-top: 8px; font-size: 14px; color: var(--accent); cursor: pointer }
"""
CHOSEN = """
p { margin: 6px 0; font-size: 14px; overflow-wrap: anywhere }
p.good::before { content: "✓ "; color: var(--good); font-weight: 700 }
p.warning, p.error { padding: 6px 10px; border-radius: 6px; border-left: 4px solid var(--warn);
  background: var(--warn-page) }
p.pending { color: var(--soft) }
p.error { border-color: var(--bad); background: var(--bad-page); font-weight: 600 }
"""
BUTTON = """
.bk-btn.bk-btn { font-size: 14px; border-radius: 6px; border: 1px solid var(--line) !important }
.bk-btn.bk-btn-primary { color: var(--raised) !important; border-color: var(--accent) !important }
"""
WRAPPED = """
.bk-btn.bk-btn { font-size: 14px; border-radius: 6px; border: 1px solid var(--line) !important;
  white-space: normal; overflow-wrap: anywhere; text-align: left; color: var(--accent) }
"""
"""A button that shows its whole name."""
THUMBNAIL = """
img { object-fit: contain }
"""
OUTLINE = {"border": "1px solid var(--line)", "border-radius": "8px", "background": "var(--page)"}
SELECT = """
select.bk-input.bk-input { appearance: auto; background-image: none }
"""
"""The arrow of the browser: Bokeh's own is black in dark mode too."""
BARS = """
progress[value]::-webkit-progress-value { background: var(--accent) !important }
progress[value]::-moz-progress-bar { background: var(--accent) !important }
progress[value], progress[value]::-webkit-progress-bar, .noUi-target.noUi-target {
  background: var(--page); border-color: var(--line); box-shadow: inset 0 0 0 1px var(--line) }
"""
"""Of progress and sliders, where nothing is yet."""
CARD = """
:host(.card) { box-shadow: none; border: 1px solid var(--line); border-radius: 6px;
  background: none }
.card-header { background: none; color: var(--ink) }
"""
PENDING = "pending"
"""The kind of a line that says what a reload would lose; `page.html` asks before."""
_PERIOD = 300  # ms from one look at a job to the next
DROP = """
.zone { position: relative; display: block; padding: 22px 14px; border: 2px dashed var(--line);
  border-radius: 10px; background: var(--page); color: var(--ink); font-size: 14px;
  text-align: center; cursor: pointer }
.zone::before { content: "⤓"; display: block; font-size: 24px; line-height: 1;
  color: var(--accent) }
.zone:focus-within, .zone:hover, .zone.over { border-color: var(--accent);
  background: var(--chosen) }
.zone input { position: absolute; inset: 0; width: 100%; height: 100%; opacity: 0; cursor: pointer }
.zone progress { display: block; width: 100%; margin-top: 8px; accent-color: var(--accent) }
.zone progress[hidden] { display: none }
"""
"""Colours are those of the page, `page.html`, light or dark."""


def text(content: str | Sequence[str] = "", kind: str = "") -> pn.pane.HTML:
    """Return a pane for lines that change; see `say`."""
    place = pn.pane.HTML("", stylesheets=[CHOSEN], sizing_mode="stretch_width", margin=(0, 10))
    say(place, content, kind)
    return place


def say(place: pn.pane.HTML, content: str | Sequence[str], kind: str = "") -> None:
    """Show lines of plain text; screen readers speak them.

    Args:
        place: a pane made by `text`.
        content: one line, or several.
        kind: "", "good", "warning", "error" or PENDING.
    """
    lines = [content] if isinstance(content, str) else content
    role = "alert" if kind == "error" else "status"
    shown = "".join(f'<p class="{kind}">{html.escape(line)}</p>' for line in lines if line)
    place.object = f'<div role="{role}">{shown}</div>'


def later(do: Callable[[], object]) -> None:
    """Call a function when the page may be changed; a coroutine must, after it has waited."""
    pn.state.execute(do, schedule=True)


async def attempt(
    place: pn.pane.HTML,
    work: Callable[[], Any],
    done: Callable[[Any], object],
    failed: Callable[[str], object] | None = None,
) -> None:
    """Do work in a thread, and hand what it returns to `done`.

    Where it fails, the reason is said in `place`, or handed to `failed`.
    """
    try:
        result = await asyncio.to_thread(work)
    except Exception as error:
        later(partial(failed or partial(say, place, kind="error"), explain(error)))
    else:
        later(partial(done, result))


def follow(
    job: Job,
    place: pn.pane.HTML,
    progress: Callable[[], object],
    end: Callable[[], object],
    done: Callable[[Any], object],
) -> None:
    """Look at a job until it is over.

    Args:
        job: that runs, or waits.
        place: for the reason why it failed or stopped.
        progress: called at every look, also at the last one.
        end: called when it is over.
        done: called then with its value, if there is one.
    """

    def poll() -> None:
        progress()
        if not job.future.done():
            return
        polling.stop()
        end()
        try:
            value = job.future.result()
        except Stopped:
            say(place, "stopped")
        except BaseException as error:  # the page goes on
            say(place, explain(error), "error")
        else:
            done(value)

    polling = pn.state.add_periodic_callback(poll, period=_PERIOD)


def heading(title: str) -> pn.pane.HTML:
    """Return the heading of a section."""
    number, _, name = title.rpartition(" ")
    style = """
    h2 { display: flex; align-items: center; gap: 10px; font-size: 19px; margin: 10px 0 6px }
    span { width: 26px; font-size: 14px; line-height: 26px; text-align: center;
      border-radius: 50%; background: var(--accent); color: var(--raised) }
    """
    circle = f"<span>{html.escape(number)}</span> " * bool(number)
    shown = f"<h2>{circle}{html.escape(name)}</h2>"
    return pn.pane.HTML(shown, stylesheets=[style], margin=(0, 10))


def table(rows: Iterable[tuple[str, str]], more: Iterable[tuple[str, str]] = ()) -> str:
    """Return a table of names and values as HTML; `more` unfolds below it."""
    hidden = list(more)
    rest = f"<details><summary>What was read</summary>{table(hidden)}</details>" if hidden else ""
    body = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table><tbody>{body}</tbody></table>{rest}"


def field(name: str, hint: str = "", width: int = 150, value: str = "") -> pn.widgets.TextInput:
    """Return a field of one line; its value is read when the field loses the focus."""
    return pn.widgets.TextInput(name=name, placeholder=hint, width=width, value=value)


def button(name: str, width: int = 150, primary: bool = False) -> pn.widgets.Button:
    """Return a button."""
    kind = "primary" if primary else "default"
    return pn.widgets.Button(name=name, width=width, button_type=kind, stylesheets=[BUTTON])


def select(
    name: str, options: Sequence[str] | Mapping[str, object], width: int | None
) -> pn.widgets.Select:
    """Return a list of which one entry is chosen; without a width as wide as its section."""
    size = {"sizing_mode": "stretch_width", "max_width": 900} if width is None else {"width": width}
    return pn.widgets.Select(name=name, options=options, stylesheets=[SELECT], **size)
