"""Parts that several sections use."""

import asyncio
import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import panel as pn

from cassi.apps.view.jobs import Job, Stopped, explain

STYLE = Path(__file__).with_name("parts.css").read_text(encoding="utf-8")
PENDING = "pending"
"""The kind of a line that says what a reload would lose; `page.html` asks before."""
_PERIOD = 300  # ms from one look at a job to the next


def text(content: str | Sequence[str] = "", kind: str = "") -> pn.pane.HTML:
    """Return a pane for lines that change; see `say`."""
    place = pane(sizing_mode="stretch_width")
    say(place, content, kind)
    return place


def pane(content: str = "", **options: Any) -> pn.pane.HTML:
    """Return a pane of HTML."""
    return pn.pane.HTML(content, stylesheets=[STYLE], margin=(0, 10), **options)


def say(place: pn.pane.HTML, content: str | Sequence[str], kind: str = "") -> None:
    """Show lines of plain text; screen readers speak them.

    Args:
        place: a pane made by `text`.
        content: one line, or several.
        kind: "", "good", "warning", "error" or PENDING.
    """
    lines = [content] if isinstance(content, str) else content
    role = "alert" if kind == "error" else "status"
    shown = "".join(f'<p class="line {kind}">{html.escape(line)}</p>' for line in lines if line)
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
    circle = f"<span>{html.escape(number)}</span> " * bool(number)
    return pane(f"<h2>{circle}{html.escape(name)}</h2>")


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
    return pn.widgets.Button(name=name, width=width, button_type=kind, stylesheets=[STYLE])


def select(
    name: str, options: Sequence[str] | Mapping[str, object], width: int | None
) -> pn.widgets.Select:
    """Return a list of which one entry is chosen; without a width as wide as its section."""
    size = {"sizing_mode": "stretch_width", "max_width": 900} if width is None else {"width": width}
    return pn.widgets.Select(name=name, options=options, stylesheets=[STYLE], **size)
