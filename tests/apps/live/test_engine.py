"""Frames in, cubes out: broken ones are skipped, old ones dropped, the rest recorded."""

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import cassi
from cassi.apps.live.command import make_settings, parse, read_deadline
from cassi.apps.live.engine import LiveReconstruction
from cassi.apps.live.sources import Frame
from cassi.apps.reconstructors import deadline
from cassi.apps.reconstructors.deadline import SEQUENCE_ITERATIONS
from cassi.apps.snapshot import make_recipe, prepare, reconstruct_and_judge
from cassi.data.bundled import bundled_path
from cassi.data.day_store import FrameRecorder, prepare_store
from cassi.methods import Choice


class Still:
    def poll(self):
        return []

    def close(self):
        pass


@pytest.fixture(scope="module")
def camera(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    cube = cassi.read_cube(bundled_path("scene.tif")).float()[..., :64, :64]
    mask = (torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    y = cassi.SDCassi(mask, bands=cube.shape[1], step=1)(cube)
    np.save(folder / "mask.npy", mask.numpy())
    np.save(folder / "y.npy", y[0, 0].numpy())
    np.save(folder / "small.npy", y[0, 0, :32].numpy())
    (folder / "broken.npy").write_bytes(b"\x93NUMPY no")
    words = [f"mask={folder}/mask.npy", "system.step=1", f"system.bands={cube.shape[1]}"]
    return folder, ["source=x", *words]


def frame(folder, name, came=None):
    return Frame(name, folder / f"{name}.npy", time.time() if came is None else came)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of panel
def test_a_page_follows_the_frames(camera, monkeypatch):
    pn = pytest.importorskip("panel", reason="needs panel")
    from cassi.apps.live.page import LiveSection

    monkeypatch.setattr(pn.state, "execute", lambda do, schedule=None: do())
    monkeypatch.setattr(pn.state, "add_periodic_callback", lambda do, period: None)
    monkeypatch.setattr(pn.state, "onload", lambda do: None)
    folder, words = camera
    live = LiveReconstruction(
        make_settings(parse([*words, "solver.iterations=2", "method=gap_tv"])),
        Still(),
        say=lambda line: None,
    )
    page = LiveSection(live)
    page._toggle_region(1, 1)  # before there is a frame
    page.region_field.value = "1, 1"
    page.refresh()
    assert "waits for the first frame" in page.state.object
    assert not page.content.visible
    live.reconstruct_newest([frame(folder, "broken"), frame(folder, "y", time.time() - 3661)])
    page.region_field.value = ""
    page.refresh()
    assert "1 done, 1 dropped, 0 broken" in page.fact_list.object
    assert "<dd>1 h " in page.fact_list.object
    assert "Spectra of 3 regions" in page.caption.object
    page.region_field.value = "10, 10; 20, 30; 99, 1"
    assert page.region_field.value == "10, 10; 20, 30"
    for place, count in (((50, 50), 3), ((51, 49), 2), ((-1, 5), 2)):
        page._toggle_region(*place)
        assert len(page.regions) == count
    assert page.legend.object.count("<tr>") == 3
    live.choice = Choice("gap_tv", live._method, 0.3, 0.35, 0.5)
    page.refresh()
    assert "at most 350 ms, of 500 ms; 0 of 1 frames took longer" in page.fact_list.object
    page.band.value = 1
    assert "Band: 1 of 28" in page.band_picture.caption.object
    live.reconstruct_newest([frame(folder, "small")])
    page._pause(None)
    page.refresh()
    assert ('"state paused"' in page.state.object, page.pause_button.name) == (True, "Resume")
    assert "skipped small" in page.message.object


def test_frames_are_reconstructed_skipped_dropped_and_recorded(camera, tmp_path):
    pytest.importorskip("zarr")
    folder, words = camera
    said = []
    store = tmp_path / "day.zarr"
    record = FrameRecorder(store)
    live = LiveReconstruction(make_settings(parse(words)), Still(), record, said.append)
    live.reconstruct_newest([frame(folder, "y")])
    assert live.view.number == 1
    live.reconstruct_newest([frame(folder, "broken")])
    live.reconstruct_newest([frame(folder, "small")])
    assert live.n_broken == 2
    assert any("skipped broken" in line for line in said)
    assert any("skipped small" in line for line in said)
    live.reconstruct_newest([frame(folder, "y"), frame(folder, "y"), frame(folder, "y")])
    assert (live.n_done, live.n_dropped) == (2, 2)
    assert any("dropped 2" in line for line in said)
    import zarr

    group = zarr.open_group(store, mode="r")
    assert np.array_equal(group["frame"][1, 0], np.load(folder / "y.npy"))
    assert np.array_equal(group["cube"][1], live.view.cube)


@pytest.mark.parametrize(("kind", "unit"), [("white", "reflectance"), ("patch", "null")])
def test_every_frame_has_the_cube_and_the_unit_of_cassi_reconstruct(camera, kind, unit):
    folder, words = camera
    mask = torch.from_numpy(np.load(folder / "mask.npy"))
    y = np.load(folder / "y.npy")
    light = torch.linspace(0.5, 1.5, 28)[:, None, None].expand(28, 64, 64)[None]
    white = cassi.SDCassi(mask, bands=28, step=1)(light)[0, 0].numpy()
    pixels = 1 + 0.05 * np.random.default_rng(0).standard_normal(y.shape).astype(np.float32)
    np.save(folder / "white.npy", white * pixels)
    for name, level in (("bright", 1.0), ("dim", 0.3)):
        np.save(folder / f"{name}.npy", level * y * pixels)
    response = {"white": f"{{white: {folder}/white.npy}}", "patch": "{patch: [8, 8, 16, 16]}"}[kind]
    short = ["method=gap_tv", "solver.iterations=3", "align=false", "output.progress=false"]
    nm = f"wavelengths={list(range(450, 730, 10))}"
    more = [nm, *short, f"response={response}", f"output.unit={unit}", "bad_pixels=[[3,4]]"]
    live = LiveReconstruction(make_settings(parse([*words, *more])), Still(), say=lambda line: None)
    for name in ("bright", "dim"):
        live.reconstruct_newest([frame(folder, name)])
        settings = replace(live.settings, measurement=f"{folder}/{name}.npy")
        alone = (
            reconstruct_and_judge(*prepare(settings, make_recipe(settings)), 0, False)
            .cube[0]
            .numpy()
        )
        np.testing.assert_allclose(live.view.cube, alone, rtol=1e-4, atol=1e-5)


def test_a_run_ends_when_it_is_told(camera):
    """Its method is none of sequences, one frame came broken, and a pixel of the others is bad."""
    folder, words = camera
    lost = Frame("lost", None, time.time(), "expected a header")
    coming = [[lost], [frame(folder, "small"), frame(folder, "y")], []]

    def poll():
        if len(coming) == 1:
            live.stop()
        return coming.pop(0)

    said = []
    short = ("method=gap_tv", "solver.iterations=2", "bad_pixels=[[3,4]]")
    source = SimpleNamespace(poll=poll)
    live = LiveReconstruction(make_settings(parse([*words, *short])), source, say=said.append)
    live.run()
    assert live.state == "stopped: the command ends"
    assert (live.n_done, live.n_dropped, live.n_broken) == (1, 1, 1)
    assert "skipped lost: expected a header" in said
    assert (live.view.name, live.view.method) == ("y", "Solver")
    assert np.isfinite(live.view.cube).all()


def test_it_takes_a_faster_method_to_keep_up_and_a_better_one_again(camera):
    folder, words = camera
    live = LiveReconstruction(make_settings(parse(words)), Still(), say=lambda line: None)
    live.reconstruct_newest([frame(folder, "y", 1.0)])
    for number in range(8):
        live.reconstruct_newest([frame(folder, "y", 1.0 + 0.001 * (number + 1))])
    assert live.view.method == f"sequence, {SEQUENCE_ITERATIONS[-1]} iterations"
    for number in range(30):
        live.reconstruct_newest([frame(folder, "y", 100.0 * (number + 1))])
    assert live.view.method == f"sequence, {SEQUENCE_ITERATIONS[0]} iterations"


def offer(monkeypatch, *beginnings):
    """Leave those methods alone whose names begin like this, as the others take long."""
    list_all = deadline.list_candidates

    def list_some(*arguments):
        candidates = list_all(*arguments)
        return {name: make for name, make in candidates.items() if name.startswith(beginnings)}

    monkeypatch.setattr(deadline, "list_candidates", list_some)


def test_a_deadline_takes_the_best_method_that_keeps_it(camera, monkeypatch):
    folder, words = camera
    offer(monkeypatch, "sequence", "minimum")
    said = []
    live = LiveReconstruction(make_settings(parse(words)), Still(), say=said.append, deadline=600.0)
    live.reconstruct_newest([frame(folder, "y")])
    assert said[-1] == f"deadline: {live.choice}"
    assert live.choice.name == f"sequence, {SEQUENCE_ITERATIONS[0]} iterations"
    for _ in range(2):
        live.reconstruct_newest([frame(folder, "y")])
    assert (live.view.method, live.n_late) == (live.choice.name, 0)
    # Later frames get fewer iterations if they take too long.
    live.deadline = 1e-9
    live.reconstruct_newest([frame(folder, "y")])
    live.reconstruct_newest([frame(folder, "y")])
    assert live.view.method == f"sequence, {SEQUENCE_ITERATIONS[1]} iterations"
    assert live.n_late == 2


def test_a_deadline_that_no_method_keeps_is_said(camera, monkeypatch):
    folder, words = camera
    offer(monkeypatch, "minimum")
    said = []
    live = LiveReconstruction(make_settings(parse(words)), Still(), say=said.append, deadline=1e-9)
    live.reconstruct_newest([frame(folder, "y"), frame(folder, "y")])
    assert said[-1].startswith(f"deadline: the fastest method, {deadline.MINIMUM_NORM}, takes ")
    assert live.view.method == deadline.MINIMUM_NORM
    assert np.isfinite(live.view.cube).all()


@pytest.mark.parametrize("name", ["method", "model.size", "solver.noise", "prior@denoiser"])
def test_a_deadline_beside_a_method_is_refused(camera, name):
    _, words = camera
    assert read_deadline(parse(words)) is None
    assert read_deadline(parse([*words, "deadline=20ms"])) == pytest.approx(0.02)
    with pytest.raises(ValueError, match=f"deadline: expected none with {name}, it"):
        read_deadline(parse([*words, "deadline=20ms", f"+{name}=x"]))


def test_settings_that_do_not_fit_are_refused(camera):
    _, words = camera
    for more, said in ((["measurement=a.npy"], "measurement"), (["--record", "a.tif"], "zarr")):
        with pytest.raises(ValueError, match=said):
            make_settings(parse([*words, *more]))
    with pytest.raises(ValueError, match="source"):
        make_settings(parse(words[1:]))


def test_a_second_recording_goes_on_after_the_first(camera, tmp_path):
    zarr = pytest.importorskip("zarr")
    folder, words = camera
    settings = make_settings(parse(words))
    for _ in range(2):
        record = FrameRecorder(tmp_path / "day.zarr")
        live = LiveReconstruction(settings, Still(), record, say=lambda line: None)
        live.reconstruct_newest([frame(folder, "y")])
        live.reconstruct_newest([frame(folder, "y")])
        with pytest.raises(ValueError, match="another command records into"):
            FrameRecorder(tmp_path / "day.zarr")
        record.close()
    group = zarr.open_group(tmp_path / "day.zarr", mode="r")
    assert list(group["name"][:]) == ["000001 y", "000002 y", "000003 y", "000004 y"]
    assert np.isfinite(group["cube"][:]).all()


def test_a_store_without_frames_is_left_alone(tmp_path):
    pytest.importorskip("zarr")
    prepare_store(tmp_path / "day.zarr", ["a"], [0.0], (2, 3, 4), None)
    with pytest.raises(ValueError, match="keeps no frames"):
        FrameRecorder(tmp_path / "day.zarr")


@pytest.mark.parametrize("error", [FileNotFoundError(2, "gone", "in"), ZeroDivisionError("why")])
def test_what_ends_the_thread_is_said(camera, capsys, error):
    def poll():
        raise error

    _, words = camera
    said = []
    live = LiveReconstruction(
        make_settings(parse(words)), SimpleNamespace(poll=poll), say=said.append
    )
    live.run()
    assert live.state.startswith("stopped: ")
    assert str(error.args[-1]) in live.state
    assert said == [live.state]
    assert ("Traceback" in capsys.readouterr().err) == isinstance(error, ZeroDivisionError)


def test_a_recording_that_fails_ends_the_run(camera):
    """A frame that is not kept is no broken frame."""
    folder, words = camera

    def append(*values):
        raise OSError(28, "no space left", "day.zarr")

    source = SimpleNamespace(poll=lambda: [frame(folder, "y")])
    live = LiveReconstruction(
        make_settings(parse(words)), source, SimpleNamespace(append=append), lambda line: 0
    )
    live.run()
    assert "no space left" in live.state
    assert live.n_broken == 0


def test_lines_of_a_kind_are_counted(camera, monkeypatch):
    _, words = camera
    said, now = [], [100.0]
    monkeypatch.setattr("cassi.apps.live.engine.time.monotonic", lambda: now[0])
    live = LiveReconstruction(make_settings(parse(words)), Still(), say=said.append)
    for number in range(4001):
        problem = f"message: expected 4 bytes for this shape, got {number + 5}"
        live.reconstruct_newest([Frame(f"{number:06d}", None, now[0], problem)])
    assert said == ["skipped 000000: message: expected 4 bytes for this shape, got 5"]
    now[0] += 6
    live.notices.flush()
    assert said[1:] == [
        "skipped 4,000 frames: message: expected 4 bytes for this shape, got 4005",
    ]
    now[0] += 600
    for kind in "abcdefghijklmnopqrstuvwxyz":
        live.reconstruct_newest([Frame("x", None, now[0], kind)] * 2)
    assert len(said) < 30
    assert live.n_broken == 4001 + 52


def test_no_frame_is_asked_for_in_a_pause(camera):
    _, words = camera
    live = LiveReconstruction(make_settings(parse(words)), Still(), say=lambda line: None)
    live.source = SimpleNamespace(poll=lambda: pytest.fail("it was asked"))
    live.paused.set()
    thread = threading.Thread(target=live.run)
    thread.start()
    assert live.state == "paused"
    live.stop()
    thread.join()
    assert live.state == "stopped: the command ends"
