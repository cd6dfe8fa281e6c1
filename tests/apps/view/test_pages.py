"""The sections of a page, without server and browser: what they say of choices, files and jobs."""

import asyncio
import html
import inspect
import re
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("panel", reason="needs panel")
import panel as pn

from cassi.apps.view import runs
from cassi.apps.view.allowed_paths import AllowedPaths
from cassi.apps.view.cubes import CubeView
from cassi.apps.view.jobs import Job, Jobs
from cassi.apps.view.pages import gallery
from cassi.apps.view.pages.camera import CameraSection
from cassi.apps.view.pages.figures import overlay_mask
from cassi.apps.view.pages.files import FilesSection
from cassi.apps.view.pages.gallery import GallerySection
from cassi.apps.view.pages.look import LookSection
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
            # Panel looks at the function, and not at what it returns.
            assert inspect.iscoroutinefunction(getattr(do, "func", do))
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
    jobs.stop()


def said(place):
    """Return the text of a pane, errors with their kind before it."""
    kind = "error: " if 'class="line error"' in place.object else ""
    return kind + html.unescape(re.sub("<[^>]*>", "", place.object)).strip()


def test_files_of_the_folder_are_taken_and_the_example_gives_way(session):
    gone = session.output / "gone.npy"
    np.save(gone, np.ones((64, 64)))
    taken = []
    files = FilesSection(session, {}, lambda: taken.append(dict(session.values)))
    files._take_example()
    names = files.lists["measurement"].options
    files.lists["measurement"].value = next(v for k, v in names.items() if "snapshot" in k)
    assert said(files.messages["measurement"]).endswith("snapshot.npy")
    assert said(files.messages["mask"]) == "no mask"
    assert taken[0].keys() == {"truth", "mask"}
    assert taken[1].keys() == {"measurement"}
    gone.unlink()
    files.lists["mask"].value = str(gone)
    assert said(files.messages["mask"]).startswith(f"error: {gone}")
    files.lists["mask"].value = "none"
    assert len(taken) == 2


def test_what_is_dropped_is_kept_or_refused(session):
    taken, inboxes = [], {}
    files = FilesSection(session, inboxes, lambda: taken.append(session.values["mask"]))

    def drop(number, name):
        inboxes[files.keys["mask"]].add(number, name, b"data")
        files._receive_drop("mask", SimpleNamespace(data={"drop": number}))
        return said(files.messages["mask"])

    assert drop("1", "mask.exe").startswith("error: expected a file .")
    assert drop("2", "mask.npy") == "mask: mask.npy"
    assert taken[0].endswith("mask.npy'")
    files._receive_drop("mask", SimpleNamespace(data={"error": "the connection was lost"}))
    assert said(files.messages["mask"]) == "error: the connection was lost"
    assert len(inboxes) == 3
    files.remove_inboxes()
    assert inboxes == {}


def test_a_camera_is_drawn_and_calibrated(session, jobs, polls, monkeypatch):
    ready = []
    camera = CameraSection(session, jobs, ready.append)
    camera.band.value = 2  # before there is a frame
    camera.fields["system.step"].value = "2"
    assert said(camera.status) == "the frame is consistent with this camera"
    assert (camera.band.end, ready[-1]) == (8, True)
    assert said(camera.frame_figure.caption) == "Frame: mask in red"
    camera._show(replace(camera.summary, mask=None, offsets=None))
    assert said(camera.frame_figure.caption) == "Frame: as it was read"

    def calibrate(find):
        gate = threading.Event()
        monkeypatch.setattr(
            runs,
            "find_camera_by_settings",
            lambda snapshot, settings: gate.wait(60) and find(settings),
        )
        camera.calibrate_button.clicks += 1
        (poll,) = polls
        poll()
        assert said(camera.calibration_status).endswith(" …")
        gate.set()
        jobs.submit(int).future.exception()
        poll()
        assert not polls
        assert not camera.calibrate_button.disabled
        return said(camera.calibration_status)

    monkeypatch.setattr(runs, "format_estimates", str)
    monkeypatch.setattr(runs, "summarize_calibration", str)

    def find(settings):
        return SimpleNamespace(camera=SimpleNamespace(calibration=f"<{settings.calibrate}>"))

    assert calibrate(find).startswith("calibrated")
    assert said(camera.estimate_table) == "<True>"
    assert calibrate(lambda settings: 1 / 0).startswith("error: ZeroDivisionError")
    camera.fields["wavelengths"].value = "450,460"
    assert said(camera.status).startswith("error: ")
    assert ready[-1] is False
    session.set_further_options("solver.iteration=3")
    camera.calibrate_button.clicks += 1
    assert "did you mean" in said(camera.calibration_status)
    assert not polls


def test_of_many_results_the_page_has_the_first(session, monkeypatch):
    monkeypatch.setattr(gallery, "_PAGE_SIZE", 1)
    session.set_further_options("solver.iterations=1\noutput.pictures=false")
    shown = runs.reconstruct(session.settings(), session.options(), Job())
    for name in ("one", "two"):
        runs.save_result(shown, session.output / name)
    opened = []
    section = GallerySection(session, opened.append, None)
    asyncio.run(section.refresh())
    assert (len(section.cards), section.more_button.visible) == (1, True)
    asyncio.run(section._show_more(None))
    assert (len(section.cards), section.more_button.visible) == (2, False)
    assert said(section.message) == "2 done"
    first, second = section.entries
    (session.output / "one" / "cube.tif").write_bytes(b"damaged")
    asyncio.run(section._open_entry(first, None))
    assert said(section.message).startswith("error: cannot read")
    asyncio.run(section._open_entry(second, None))
    assert [each.cube.shape for each in opened] == [shown.cube.shape]
    with pytest.raises(
        ValueError, match="expected a cube of this tab, got one that was read from a file"
    ):
        runs.save_result(opened[0], session.output / "again")
    monkeypatch.setattr(gallery, "list_results", lambda allowed_paths: 1 / 0)
    asyncio.run(section.refresh())
    assert said(section.message).startswith("error: ZeroDivisionError")


def test_the_next_file_is_asked_for(session, jobs):
    camera = CameraSection(session, jobs, lambda summary: None)
    mask = session.values.pop("mask")
    asyncio.run(camera.refresh())
    assert said(camera.status) == "Now choose its mask, or a camera file."
    snapshot = session.values.pop("measurement")
    session.values["mask"] = mask
    asyncio.run(camera.refresh())
    assert said(camera.status) == "Now choose the snapshot."
    session.values["measurement"] = snapshot
    asyncio.run(camera.refresh())
    assert "the frame is consistent with" in said(camera.status)


def _made(name):
    cube = np.ones((2, 8, 8), np.float32)
    return CubeView(name, cube, numbers={"iterations": 1}, origin=(None, [], None))


def test_cubes_are_told_apart_and_count_as_unsaved_until_they_are(session, monkeypatch):
    reports = {}
    look = LookSection(session, reports)
    names = [f"2026-11-28 a lamp and filters, {method}" for method in ("auto", "gap_tv")]
    first, second = (session.add(_made(name)) for name in names)
    look.open_cube(first)
    look.open_cube(second)
    assert list(look.cube_list.options) == ["…auto", "…gap_tv"]
    assert said(look.message) == names[1]
    assert '<p class="line pending">not saved yet: ' in look.unsaved_line.object
    assert look.save_view.visible
    monkeypatch.setattr(
        "cassi.apps.view.pages.look.save_result", lambda shown, folder: "the command"
    )
    look.folder_name.value = "../second"
    look.save_button.clicks += 1
    assert said(look.save_status).startswith("error: name: expected one below")
    look.folder_name.value = "second"
    look.save_button.clicks += 1
    assert said(look.save_status) == f"saved in {session.output}/secondto repeat it: the command"
    assert said(look.unsaved_line) == f"not saved yet: {names[0]}"
    look.open_evaluation("table", b"<h1>table</h1>")
    assert not look.save_view.visible
    look.save_button.clicks += 1  # nothing is chosen
    (page,) = reports.values()
    assert page.startswith(b"<h1>table</h1>")
    look.open_evaluation("table", b"<h1>newer</h1>")
    (page,) = reports.values()
    assert page.startswith(b"<h1>newer</h1>")


def test_the_gallery_opens_an_evaluation(session):
    folder = session.output / "evaluated"
    folder.mkdir()
    (folder / "results.json").write_text('{"preset": "unit", "metrics": {}}')
    (folder / "report.html").write_text("<h1>report</h1>")
    shown = []
    section = GallerySection(session, None, lambda name, page: shown.append((name, page)))
    asyncio.run(section.refresh())
    asyncio.run(section._open_entry(section.entries[0], None))
    ((name, page),) = shown
    assert (name, page.endswith(b"<h1>report</h1>")) == ("output/evaluated", True)


def test_a_run_says_what_the_camera_check_found_in_its_cube(session, jobs, polls, monkeypatch):
    warned = {"iterations": 1, "seconds": 1.0, "relative_residual": 0.1}
    warned["warnings"] = [{"about": "direction", "message": "set system.step=-2"}]
    shown, gate = replace(_made("scene"), numbers=warned), threading.Event()

    def reconstruct(settings, options, job):
        job.progress, job.picture = 0.5, np.zeros((4, 4, 3), np.uint8)
        gate.wait(60)
        return shown

    monkeypatch.setattr("cassi.apps.view.pages.run.reconstruct", reconstruct)
    opened = []
    run = RunSection(session, jobs, opened.append)
    run.start_button.clicks += 1
    (poll,) = polls
    poll()
    assert '<p class="line pending">' in run.status.object
    gate.set()
    jobs.submit(int).future.exception()
    poll()
    assert "pending" not in run.status.object
    assert run.picture.object.size == (4, 4)
    assert said(run.warnings) == "direction: set system.step=-2"
    assert opened == [shown]


def test_a_run_that_is_stopped_or_never_begins(session, jobs, polls):
    run = RunSection(session, jobs, lambda shown: None)
    asyncio.run(run.list_methods())
    assert "admm_tv" in run.method_list.options
    run.options_field.value = "solver.iteration=3"
    run.start_button.clicks += 1
    assert said(run.status).startswith("error: ")
    run.options_field.value = "solver.iterations=100000"
    run.start_button.clicks += 1
    run.stop_button.clicks += 1
    jobs.submit(int).future.exception()
    (poll,) = polls
    poll()
    assert said(run.status) == "stopped"
    assert (run.start_button.disabled, run.stop_button.disabled, polls) == (False, True, [])
    run.set_ready(False)
    assert run.start_button.disabled
    empty = RunSection(Session(AllowedPaths([]), session.output), jobs, lambda shown: None)
    empty.start_button.clicks += 1
    assert said(empty.status) == "error: choose a snapshot, or take the example"


def test_a_mask_lies_where_its_band_falls():
    frame, mask = np.ones((6, 10), np.float32), np.ones((6, 4), np.float32)
    for offset, reached in ((3, range(3, 7)), (-2, range(2)), (8, range(8, 10)), (20, ())):
        picture = overlay_mask(frame, mask, offset, -1)
        red = [k for k in range(10) if picture[0, k, 0] != picture[0, k, 1]]
        assert red == list(reached)
    turned = overlay_mask(frame.T, mask.T, 3, -2)
    np.testing.assert_array_equal(turned, overlay_mask(frame, mask, 3, -1).transpose(1, 0, 2))
