import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from cassi.apps.command import Run
from cassi.apps.reconstruct.job import reconstruct as command
from cassi.apps.reconstructors import compose_settings, settings_of_file
from cassi.apps.settings import to_dict
from cassi.apps.view import input_summary, runs
from cassi.apps.view.cubes import CubeView
from cassi.apps.view.jobs import Job, Jobs, StopJob, describe_error
from cassi.apps.view.repeat import CONFIG_NAME, write_config
from cassi.apps.view.session import Session
from cassi.calibration import CameraCheck, Finding
from cassi.checks import check_opened_files
from cassi.data.io import read_cube

SHORT = "solver.iterations=4"


def _row(found, name):
    return dict(found.rows)[name]


def test_the_summary_is_said_and_drawn(session):
    found = session.summarize()
    assert _row(found, "Cube") == "8 bands of 64 × 64 pixels"
    assert _row(found, "Dispersion").startswith("2 pixels per band")
    assert found.frame.shape == found.predicted_frame.shape == (64, 78)
    assert found.mask.shape == (64, 64)
    assert found.offsets[1] == 2
    assert found.agreement > 0.9
    assert found.warnings == []


def test_a_wrong_step_is_seen(session):
    session.set("system.step", "1")
    found = session.summarize()
    assert _row(found, "Cube") == "15 bands of 64 × 64 pixels"
    assert [line for line in found.warnings if "set the step to 2" in line]
    assert found.agreement < 0.8
    session.set("system.step", "-1")
    assert "set the step to -2" in " ".join(session.summarize().warnings)
    session.set("system.step", "3")
    with pytest.raises(ValueError, match="step"):
        session.summarize()
    session.set("system.step", None)
    assert _row(session.summarize(), "Cube").startswith("8 bands")


def test_the_camera_check_decides_before_the_agreement(session, monkeypatch):
    checks = [
        CameraCheck((Finding("mask", "the frame shows it mirrored"),), ""),
        CameraCheck((), ""),
    ]
    monkeypatch.setattr(input_summary, "check_camera", lambda *_: checks.pop(0))
    session.set("system.step", "1")
    assert session.summarize().warnings == ["mask: the frame shows it mirrored"]
    assert "set the step to 2" in " ".join(session.summarize().warnings)


def test_ends_of_the_spectrum_become_wavelengths(session):
    session.set_wavelengths("450 - 590")
    found = session.summarize()
    assert found.snapshot.camera.wavelengths == tuple(range(450, 600, 20))
    session.set("system.step", "1")
    assert session.summarize().snapshot.camera.wavelengths[1] == 460
    session.set("system.step", "2")
    session.set_wavelengths("450, 460, 470, 480, 490, 500, 510, 530")
    assert session.summarize().snapshot.camera.wavelengths[-1] == 530
    session.set_wavelengths("")
    assert session.summarize().snapshot.camera.wavelengths is None


NAMES = ["${oc.env:HOME}", "${seed}", "a${", r"\${seed}", r"a\b'", "it's, (1)"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_a_name(name, session, files, tmp_path):
    """What Hydra and OmegaConf take for a reference, a quote or an end is a part of it."""
    folder = session.output / name
    folder.mkdir()
    for role in ("mask", "snapshot"):
        (folder / f"{role}{name}.npy").write_bytes((files / f"{role}.npy").read_bytes())
    (folder / "camera.yaml").write_text(CAMERA)
    (folder / "mask.npy").write_bytes((files / "mask.npy").read_bytes())
    snapshot, mask = (str(folder / f"{role}{name}.npy") for role in ("snapshot", "mask"))
    session.set_file("measurement", snapshot)
    session.set_file("mask", mask)
    assert session.summarize().frame.shape == (64, 78)
    (folder / f"net{name}.safetensors").touch()
    session.use_method(str(folder / f"net{name}.safetensors"))
    session.set_further_options(f"dark='{folder}/x${{seed}}.npy'" if "'" not in name else "")
    settings = session.settings()
    assert (settings.measurement, settings.mask) == (snapshot, mask)
    assert settings.model == {"path": f"{folder}/net{name}.safetensors"}
    assert runs.name_method(settings, session.options()) == f"net{name}"
    assert settings.dark == (f"{folder}/x${{seed}}.npy" if "'" not in name else 0.0)
    session.set_file("mask", None)
    session.set_file("camera", folder / "camera.yaml")
    settings = session.settings()
    assert settings.mask == str(folder / "mask.npy")
    write_config(tmp_path, settings, session.options())
    again = settings_of_file(tmp_path / f"{CONFIG_NAME}.yaml")
    assert (again.measurement, again.model, again.dark) == (
        *(settings.measurement, settings.model, settings.dark),
    )
    assert again.mask == settings.mask


def test_summarizing_draws_no_random_number(session):
    before = torch.random.get_rng_state()
    session.summarize()
    assert torch.equal(before, torch.random.get_rng_state())


def test_only_files_that_may_be_read(session, tmp_path):
    outside = tmp_path / "outside.npy"
    np.save(outside, np.ones((64, 64)))
    camera = tmp_path / "camera.yaml"
    camera.write_text("mask: outside.npy\n")
    with pytest.raises(PermissionError, match="not below"):
        session.set_file("mask", outside)
    with pytest.raises(PermissionError, match="not below"):
        session.use_method(str(tmp_path / "model.safetensors"))
    with check_opened_files(session.allowed_paths.check_opened):
        for line in (f"camera={camera}", f"mask='{outside}'", f"dark='{outside}'"):
            session.set_further_options(line)
            with pytest.raises(PermissionError, match="not below"):
                session.summarize()
    session.set_further_options("hydra.searchpath=[/]")
    with pytest.raises(ValueError, match="settings of cassi-reconstruct alone"):
        session.settings()


def test_what_is_missing_is_said(session):
    empty = Session(session.allowed_paths, session.output)
    with pytest.raises(ValueError, match="choose a snapshot"):
        empty.settings()
    session.set_further_options("solver.iteration=3")
    with pytest.raises(ValueError, match=r"solver\.iterations"):
        session.settings()
    session.set_further_options("memory_budget=1GiB")
    with pytest.raises(ValueError, match="memory_budget"):
        session.settings()


def test_the_example_needs_no_file(session):
    session.use_example()
    assert _row(session.summarize(), "Cube") == "28 bands of 256 × 256 pixels"


CAMERA = (
    "mask: mask.npy\nsystem: {step: -2}\nwavelengths: [1e2, 2e2, 3e2, 4e2, 5e2, 6e2, 7e2, 8e2]\n"
)


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["method=gap_tv", "solver.iterations=7", "seed=3"],
        ["model=pretrained", "system.step=1.5", "heldout=0.05"],
        ["model=pretrained", "refine=null", "dark=auto", "bits=12"],
        ["solver=admm", "prior=low_rank", "solver.sigma.start=0.3"],
        ["system=blurred", "wavelengths=[450,460.5]", "calibrate=true", "output.report=false"],
        ["dispersion@system.offsets=linear", "system.bands=8", "window=[0,0,8,8]"],
        ["camera=CAMERA", "system.step=2"],
        ["camera=CAMERA", "method=admm_tv", "bad_pixels=null"],
    ],
    ids=" ".join,
)
def test_a_config_says_what_options_say(options, tmp_path, files):
    (tmp_path / "camera.yaml").write_text(CAMERA)
    (tmp_path / "mask.npy").write_bytes((files / "mask.npy").read_bytes())
    options = [each.replace("CAMERA", str(tmp_path / "camera.yaml")) for each in options]
    options += [f"measurement='{files / 'snapshot.npy'}'"]
    settings = compose_settings(options)
    write_config(tmp_path, settings, options)
    again = to_dict(settings_of_file(tmp_path / f"{CONFIG_NAME}.yaml"))
    wanted = to_dict(settings) | {"camera": None}
    assert {**again.pop("system")} == {"detector": None} | wanted.pop("system")
    assert again == wanted


@pytest.mark.parametrize("method", ["auto", "gap_tv", "pretrained"])
def test_the_saved_config_gives_the_same_bits(method, session, tmp_path):
    session.use_method(method)
    session.set_further_options(
        "seed=5\noutput.pictures=false" + ("" if method == "pretrained" else f"\n{SHORT}")
    )
    settings, options = session.settings(), session.options()
    pictures, job = [], Job()
    shown = runs.reconstruct(settings, options, job)
    pictures.append(job.picture)
    assert job.progress == 1
    assert pictures[0].shape == (64, 64, 3)
    said = runs.save_result(shown, tmp_path / "saved")
    assert said.startswith(f"cassi-reconstruct --config-dir {tmp_path / 'saved'}")
    again = settings_of_file(tmp_path / "saved" / f"{CONFIG_NAME}.yaml")
    command(again, Run(tmp_path / "again", is_multirun=False))
    first, second = (read_cube(tmp_path / each / "cube.tif") for each in ("saved", "again"))
    assert torch.equal(first, second)
    assert torch.equal(first[0], torch.from_numpy(shown.cube))


def test_of_two_that_save_under_one_name_one_is_refused(session, tmp_path, monkeypatch):
    session.set_further_options(f"{SHORT}\nsolver=gap\noutput.pictures=false")
    one, two = (
        runs.reconstruct(session.settings(), [*session.options(), f"seed={seed}"], Job())
        for seed in (1, 2)
    )
    folder, write = tmp_path / "day" / "a name", runs.write_results
    begun, refused = threading.Event(), threading.Event()

    def fail(*_, **__):
        begun.set()
        refused.wait(60)
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(runs, "write_results", fail)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(runs.save_result, one, folder)
        begun.wait(60)
        with pytest.raises(FileExistsError, match="a name: it is there already; give another name"):
            runs.save_result(two, folder)
        refused.set()
        with pytest.raises(OSError, match="no room"):
            first.result()
    assert not folder.exists()  # what failed does not keep the name
    monkeypatch.setattr(runs, "write_results", write)
    assert f"--config-dir '{folder}'" in runs.save_result(one, folder)
    before = (folder / f"{CONFIG_NAME}.yaml").read_bytes()
    with pytest.raises(FileExistsError, match="give another name"):
        runs.save_result(two, folder)
    assert (folder / f"{CONFIG_NAME}.yaml").read_bytes() == before


def test_closing_stops_the_job_that_runs():
    jobs, begun = Jobs(), threading.Event()

    def run(job):
        begun.set()
        while True:
            job.raise_if_stopped()

    job = jobs.submit(run)
    begun.wait(60)
    jobs.stop()
    with pytest.raises(StopJob):
        job.future.result(60)


def test_jobs_wait_for_each_other_and_fail_alone():
    jobs, gate = Jobs(), threading.Event()
    jobs.submit(lambda job: gate.wait(10))
    stopped, failed = jobs.submit(lambda job: 1), jobs.submit(lambda job: int("none"))
    last = jobs.submit(lambda job: os.getpid())
    stopped.stop()
    assert not last.future.done()
    gate.set()
    assert last.future.result(60) == os.getpid()
    assert isinstance(stopped.future.exception(), StopJob)
    assert "defect of the program" in describe_error(failed.future.exception())
    jobs.stop()


def test_a_reconstruction_stops_when_it_is_told(session):
    job = Job()
    job.stop()
    settings = session.settings()
    with pytest.raises(StopJob):
        runs.reconstruct(settings, session.options(), job)


def test_results_of_one_name_stay_apart(session):
    """One that is opened again is listed once, unless its files have been written again since."""
    cube = np.ones((2, 3, 4), np.float32)
    read, made = (
        CubeView("one", cube, numbers={"psnr": 1.0}),
        CubeView("one", cube, origin=(None, [], None)),
    )
    first, other = session.add(read), session.add(replace(read, cube=2 * cube))
    assert session.add(replace(read, cube=cube.copy())) is first
    assert session.add(replace(read, cube=2 * cube)) is other
    assert [session.add(made).name for _ in range(2)] == ["one (3)", "one (4)"]
    assert list(session.results) == ["one", "one (2)", "one (3)", "one (4)"]
