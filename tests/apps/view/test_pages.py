"""The sections of a page, without server and browser: what they say of choices, files and jobs."""

import asyncio
import html
import inspect
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("panel", reason="needs panel")
import panel as pn

from cassi.apps.view import runs
from cassi.apps.view.allowed_paths import AllowedPaths
from cassi.apps.view.jobs import Job, Jobs
from cassi.apps.view.pages import gallery
from cassi.apps.view.pages.camera import CameraSection
from cassi.apps.view.pages.files import FilesSection
from cassi.apps.view.pages.gallery import GallerySection
from cassi.apps.view.pages.run import RunSection
from cassi.apps.view.session import Session

pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of panel


@pytest.fixture(autouse=True)
def polls(monkeypatch):
    """Do at once what a server would do for a page; return what it would call every moment."""
    polls = []

    def execute(do, schedule=None):
        found = do()
        if inspect.isawaitable(found):
            asyncio.run(found)

    def poll(do, period):
        polls.append(do)
        return SimpleNamespace(stop=lambda: polls.remove(do))

    monkeypatch.setattr(pn.state, "execute", execute)
    monkeypatch.setattr(pn.state, "add_periodic_callback", poll)
    return polls


@pytest.fixture
def jobs():
    jobs = Jobs()
    yield jobs
    jobs.close()


def said(place):
    """Return the text of a pane, errors with their kind before it."""
    kind = "error: " if 'class="error"' in place.object else ""
    return kind + html.unescape(re.sub("<[^>]*>", "", place.object)).strip()


def test_files_of_the_folder_are_taken_and_the_example_gives_way(session):
    gone = session.output / "gone.npy"
    np.save(gone, np.ones((64, 64)))
    taken = []
    files = FilesSection(session, {}, lambda: taken.append(dict(session.values)))
    files._example()
    names = files.lists["measurement"].options
    files.lists["measurement"].value = next(v for k, v in names.items() if "snapshot" in k)
    assert said(files.said["measurement"]).endswith("snapshot.npy")
    assert said(files.said["mask"]) == "no mask"
    assert taken[0].keys() == {"truth", "mask"}
    assert taken[1].keys() == {"measurement"}
    gone.unlink()
    files.lists["mask"].value = str(gone)
    assert said(files.said["mask"]).startswith(f"error: {gone}")
    files.lists["mask"].value = "none"
    assert len(taken) == 2


def test_what_is_dropped_is_kept_or_refused(session):
    taken, inboxes = [], {}
    files = FilesSection(session, inboxes, lambda: taken.append(session.values["mask"]))

    def drop(number, name):
        files.own["mask"].begin(number, name, 4).write(b"data")
        files._hear("mask", SimpleNamespace(data={"drop": number}))
        return said(files.said["mask"])

    assert drop("1", "mask.exe").startswith("error: expected a file .")
    assert drop("2", "mask.npy") == "mask: mask.npy"
    assert taken[0].endswith("mask.npy'")
    files._hear("mask", SimpleNamespace(data={"error": "the connection was lost"}))
    assert said(files.said["mask"]) == "error: the connection was lost"
    assert len(inboxes) == 3
    files.close()
    assert inboxes == {}


def test_a_camera_is_drawn_and_calibrated(session, jobs, polls, monkeypatch):
    ready = []
    camera = CameraSection(session, jobs, ready.append)
    camera.band.value = 2  # before there is a frame
    camera.fields["system.step"].value = "2"
    assert said(camera.message) == "nothing speaks against this camera"
    assert (camera.band.end, ready[-1]) == (8, camera.summary)
    assert said(camera.frame.caption) == "Frame: mask in red"
    camera._show(replace(camera.summary, mask=None, offsets=None))
    assert said(camera.frame.caption) == "Frame: as it was read"

    def calibrate(wanted):
        monkeypatch.setattr(runs, "find_camera", lambda inputs, settings: wanted(settings))
        camera.calibrate.clicks += 1
        (poll,) = polls
        camera._job.stage = "calibrating the camera"
        jobs._thread.submit(int).result()
        status, camera._job.status = camera._job.status, "running"
        poll()
        assert said(camera.estimates) == "calibrating the camera …"
        camera._job.status = status
        poll()
        poll()  # once more, before the server notices
        assert not polls
        return said(camera.estimates)

    monkeypatch.setattr(runs, "say_estimates", str)
    found = calibrate(lambda settings: SimpleNamespace(calibration=f"<{settings.calibrate}>"))
    assert found.startswith("found")
    assert said(camera.table_of_estimates) == "<True>"
    assert calibrate(lambda settings: 1 / 0).startswith("error: ZeroDivisionError")
    camera.fields["wavelengths"].value = "450,460"
    assert said(camera.message).startswith("error: ")
    assert ready[-1] is None
    session.say_more("solver.iteration=3")
    camera.calibrate.clicks += 1
    assert "did you mean" in said(camera.estimates)
    assert not polls


def test_of_many_results_the_page_has_the_first(session, monkeypatch):
    monkeypatch.setattr(gallery, "_PAGE", 1)
    session.say_more("solver.iterations=1\noutput.pictures=false")
    shown = runs.reconstruct(session.settings(), session.options(), Job())
    for name in ("one", "two"):
        runs.save(shown, session.output / name)
    opened = []
    section = GallerySection(session, opened.append)
    asyncio.run(section.refresh())
    assert (len(section.cards), section.more.visible) == (1, True)
    asyncio.run(section._more(None))
    assert (len(section.cards), section.more.visible) == (2, False)
    assert said(section.message) == "2 done"
    first, second = section.known.values()
    (session.output / "one" / "cube.tif").write_bytes(b"damaged")
    asyncio.run(section._open(first, None))
    assert said(section.message).startswith("error: cannot read")
    asyncio.run(section._open(second, None))
    assert [each.cube.shape for each in opened] == [shown.cube.shape]
    with pytest.raises(ValueError, match="expected a cube made here; this one lies in its folder"):
        runs.save(opened[0], session.output / "again")
    monkeypatch.setattr(gallery, "list_results", lambda allowed: 1 / 0)
    asyncio.run(section.refresh())
    assert said(section.message).startswith("error: ZeroDivisionError")


def test_a_run_that_is_stopped_or_never_begins(session, jobs, polls):
    run = RunSection(session, jobs, lambda shown: None)
    run.more.value = "solver.iteration=3"
    run.start.clicks += 1
    assert said(run.message).startswith("error: ")
    run.more.value = "solver.iterations=100000"
    run.start.clicks += 1
    run.stop.clicks += 1
    run.close()
    jobs._thread.submit(int).result()
    (poll,) = polls
    poll()
    poll()
    assert said(run.message) == "stopped"
    assert (run.start.disabled, run.stop.disabled, polls) == (False, True, [])
    empty = RunSection(Session(AllowedPaths([]), session.output), jobs, lambda shown: None)
    empty.start.clicks += 1
    assert said(empty.message) == "error: choose a snapshot, or take the example"
