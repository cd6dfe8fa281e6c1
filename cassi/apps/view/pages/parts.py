"""Widgets, messages and background work that several sections use."""

import asyncio
import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import panel as pn

from cassi.apps.view.jobs import Job, StopJob, describe_error

STYLE = Path(__file__).with_name("parts.css").read_text(encoding="utf-8")
UNSAVED_KIND = "pending"
"""Kind of a message about work that a reload would lose. `page.html` then asks before a reload."""
_POLL_MS = 300  # time between two checks of a job


def make_message_pane(content: str | Sequence[str] = "", kind: str = "") -> pn.pane.HTML:
    """Return a pane for lines that change; see `show_message`."""
    pane = make_html_pane(sizing_mode="stretch_width")
    show_message(pane, content, kind)
    return pane


def make_html_pane(content: str = "", **options: Any) -> pn.pane.HTML:
    """Return a pane of HTML with the style of the page."""
    return pn.pane.HTML(content, stylesheets=[STYLE], margin=(0, 10), **options)


def show_message(pane: pn.pane.HTML, content: str | Sequence[str], kind: str = "") -> None:
    """Show lines of plain text in a pane; screen readers speak them.

    Args:
        pane: made by `make_message_pane`.
        content: one line, or several.
        kind: "", "good", "warning", "error" or UNSAVED_KIND.
    """
    lines = [content] if isinstance(content, str) else content
    role = "alert" if kind == "error" else "status"
    paragraphs = "".join(
        f'<p class="line {kind}">{html.escape(line)}</p>' for line in lines if line
    )
    pane.object = f'<div role="{role}">{paragraphs}</div>'


def schedule(function: Callable[[], object]) -> None:
    """Call a function when Bokeh allows changes of the page.

    After an `await`, a coroutine may change the page in this way only.
    """
    pn.state.execute(function, schedule=True)


async def run_in_thread(
    pane: pn.pane.HTML,
    work: Callable[[], Any],
    on_success: Callable[[Any], object],
    on_failure: Callable[[str], object] | None = None,
) -> None:
    """Call `work` in a thread, and then `on_success` with its result.

    If it fails, the reason is shown in the pane, or given to `on_failure`.
    """
    try:
        result = await asyncio.to_thread(work)
    except Exception as error:
        schedule(
            partial(on_failure or partial(show_message, pane, kind="error"), describe_error(error))
        )
    else:
        schedule(partial(on_success, result))


def follow_job(
    job: Job,
    pane: pn.pane.HTML,
    on_progress: Callable[[], object],
    on_end: Callable[[], object],
    on_success: Callable[[Any], object],
) -> None:
    """Check a job again and again until it has ended.

    Args:
        job: runs, or waits for another one.
        pane: shows why the job failed or stopped.
        on_progress: called at every check, including the last one.
        on_end: called when the job has ended.
        on_success: called after `on_end` with the result, if there is one.
    """

    def check_job() -> None:
        on_progress()
        if not job.future.done():
            return
        callback.stop()
        on_end()
        try:
            value = job.future.result()
        except StopJob:
            show_message(pane, "stopped")
        except BaseException as error:  # a failed job must not end the page
            show_message(pane, describe_error(error), "error")
        else:
            on_success(value)

    callback = pn.state.add_periodic_callback(check_job, period=_POLL_MS)


def make_heading(title: str) -> pn.pane.HTML:
    """Return the heading of a section; the number of `1 Files` stands in a circle."""
    number, _, name = title.rpartition(" ")
    circle = f"<span>{html.escape(number)}</span> " if number else ""
    return make_html_pane(f"<h2>{circle}{html.escape(name)}</h2>")


def make_table(rows: Iterable[tuple[str, str]], hidden_rows: Iterable[tuple[str, str]] = ()) -> str:
    """Return a table of names and values as HTML. A click below it shows `hidden_rows`."""
    folded_rows = list(hidden_rows)
    details = ""
    if folded_rows:
        details = f"<details><summary>What was read</summary>{make_table(folded_rows)}</details>"
    body = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table><tbody>{body}</tbody></table>{details}"


def make_field(
    name: str, hint: str = "", width: int = 150, value: str = ""
) -> pn.widgets.TextInput:
    """Return a field for one line; its value is read when the field loses the focus."""
    return pn.widgets.TextInput(name=name, placeholder=hint, width=width, value=value)


def make_button(name: str, width: int = 150, primary: bool = False) -> pn.widgets.Button:
    """Return a button."""
    kind = "primary" if primary else "default"
    return pn.widgets.Button(name=name, width=width, button_type=kind, stylesheets=[STYLE])


def make_select(
    name: str, options: Sequence[str] | Mapping[str, object], width: int | None
) -> pn.widgets.Select:
    """Return a list for one choice; without a width it is as wide as its section."""
    size = {"sizing_mode": "stretch_width", "max_width": 900} if width is None else {"width": width}
    return pn.widgets.Select(name=name, options=options, stylesheets=[STYLE], **size)
