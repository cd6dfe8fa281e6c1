"""Full disks, damaged files, signals, lost processes: one line, the right status, a way on."""

import os
import resource
import shutil
import signal
import stat
import time
from pathlib import Path

import pytest
import torch
from shared import python

from cassi.apps.command import (
    TerminationSignal,
    compile_privately,
    end_at_once,
    find_signal,
    leave_to_lightning,
    raise_terminated,
)
from cassi.apps.train.files import read_checkpoint
from cassi.data import sandboxed_reader
from cassi.models.load import Card, create_model, load_model, save_model
from cassi.training.callbacks import AtomicCheckpoints
from cassi.training.first_cubes import FirstCubeCache

TRAIN = (
    *("model=gap_net", "model.stages=1", "data.crop=16", "data.validation.crop=16", "threads=1"),
    *("data.batch_size=1", "data.steps_per_epoch=3", "trainer.max_steps=6", "logger=csv"),
    *("trainer.enable_progress_bar=false", "trainer.accelerator=cpu"),
)
RECONSTRUCT = ("solver.iterations=3", "output.pictures=false")


def damage(file):
    """Change bytes in the middle, where the numbers are."""
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 200] = (byte ^ 1 for byte in content[middle : middle + 200])
    file.write_bytes(content)


def hidden(folder):
    return list(folder.rglob(".*cassi-*"))


def test_sigterm_raises_and_is_given_back():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(TerminationSignal), raise_terminated():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


class Signalled:
    """Sends a signal to this process while it is collected, as a weak reference's callback may."""

    def __init__(self, number):
        self.number = number

    def __del__(self):
        signal.raise_signal(self.number)


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGTERM, TerminationSignal), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_in_a_finalizer_is_not_lost(number, kind):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # workers of pytest ignore it
    with pytest.raises(kind), raise_terminated():  # noqa: PT012
        Signalled(number)
        time.sleep(10)
    signal.signal(signal.SIGINT, before)


def test_a_signal_is_found_behind_what_failed_after_it():
    def fail_to_clean_up():
        try:
            raise TerminationSignal("soon")
        finally:
            getattr(None, "flags")  # noqa: B009

    with pytest.raises(AttributeError) as caught:
        fail_to_clean_up()
    assert str(find_signal(caught.value)) == "soon"
    assert find_signal(ValueError("alone")) is None


class Trainer:
    """What the handlers ask of Lightning's."""

    received_sigterm = False

    def __init__(self, world_size=1):
        self.world_size, self.killed = world_size, []
        self.strategy = self.launcher = self
        self.kill = self.killed.append


def test_sigterm_is_left_to_lightning_once_it_has_noted_it():
    trainer = Trainer()
    with leave_to_lightning(trainer):
        trainer.received_sigterm = True
        signal.raise_signal(signal.SIGTERM)
        trainer.received_sigterm = False
        with pytest.raises(TerminationSignal):
            signal.raise_signal(signal.SIGTERM)


def test_of_several_processes_each_ends_at_once():
    before = signal.getsignal(signal.SIGTERM)
    end_at_once(Trainer(), None)
    assert signal.getsignal(signal.SIGTERM) is before
    trainer = Trainer(world_size=2)
    try:
        end_at_once(trainer, None)
        with pytest.raises(TerminationSignal):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert trainer.killed == [signal.SIGTERM]


def test_sigterm_ends_a_command_in_one_line(reconstruct, camera, tmp_path, monkeypatch):
    stop = staticmethod(lambda *_: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr("cassi.priors.TV.__call__", stop)
    outcome = reconstruct(*camera.given(), *RECONSTRUCT, "solver=gap", "output.progress=false")
    assert outcome.status == 143
    said = f"terminated; go on with the same command and hydra.run.dir={tmp_path / 'run'}"
    assert outcome.err.splitlines() == [f"cassi-reconstruct: error: {said}"]
    assert {file.name for file in (tmp_path / "run").iterdir()} == {".hydra"}


def test_an_interrupt_ends_a_process_in_one_line(start, camera, tmp_path):
    folder = tmp_path / "run"
    endless = ("solver.iterations=100000000", "output.progress=false")
    given = (*camera.given(), *RECONSTRUCT, "solver=gap", *endless)
    process = start("reconstruct", *given, f"hydra.run.dir={folder}", fork=False)
    # What it understood is printed before it computes; while it imports, an interrupt may be lost.
    assert any(line.startswith("system: ") for line in process.stdout), process.communicate()[1]
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    go_on = f"go on with the same command and hydra.run.dir={folder}"
    assert err.splitlines() == [f"cassi-reconstruct: error: interrupted; {go_on}"]
    assert {file.name for file in folder.iterdir()} == {".hydra"}


@pytest.fixture
def file_limit():
    """Let no file grow beyond a size: what a full disk does, without one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    sandboxed_reader.start()  # what reads files keeps the limit that it is started under

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size or before[0], before[1]))

    yield limit
    limit(None)


def test_a_disk_that_is_full_and_then_is_not(reconstruct, train, camera, tmp_path, file_limit):
    options = (*camera.given(), *RECONSTRUCT, "output.pictures=true")
    file_limit(6000)  # Hydra's own files are smaller
    outcome = reconstruct(*options)
    file_limit(None)
    assert f"error: {tmp_path / 'run'}{os.sep}" in outcome.refusal
    assert outcome.refusal.endswith(".png: File too large")
    assert {file.name for file in (tmp_path / "run").iterdir()} == {".hydra"}
    reconstruct(*options).ok()
    assert {file.name for file in (tmp_path / "run").iterdir()} >= {"cube.tif", "rgb.png"}

    folder = tmp_path / "train"
    file_limit(20000)
    outcome = train(*TRAIN, "ckpt=last", f"hydra.run.dir={folder}")
    file_limit(None)
    assert "ckpt: File too large" in outcome.refusal
    assert not list(folder.rglob("*.ckpt"))
    assert not hidden(folder)
    train(*TRAIN, "ckpt=last", f"hydra.run.dir={folder}").ok()


def test_a_killed_loader_is_one_line(train, tmp_path, monkeypatch):
    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    from cassi.data.datasets import TrainingCrops

    monkeypatch.setattr(TrainingCrops, "__getitem__", die)
    outcome = train(*TRAIN, "data.workers=1")
    assert "a process that loads data was killed" in outcome.refusal


def test_a_damaged_checkpoint_gives_way_to_the_one_before(train, tmp_path):
    options = (*TRAIN, "callbacks.last.every_minutes=null", "callbacks.last.every_n_train_steps=2")
    whole, hurt = tmp_path / "whole", tmp_path / "hurt"
    train(*options, f"hydra.run.dir={whole}").ok()
    shutil.copytree(whole, hurt)
    last = hurt / "checkpoints" / "last.ckpt"
    before = read_checkpoint(last.with_name("previous.ckpt"))["global_step"]
    assert before < 6
    damage(last)
    damage(last.with_name("best.ckpt"))
    with pytest.warns(UserWarning, match="damaged; going on from the checkpoint before it"):
        outcome = train(*options, "ckpt=last", f"hydra.run.dir={hurt}")
    assert outcome.status == 0, outcome.err
    assert f"going on after step {before}" in outcome.out
    a, b = (read_checkpoint(folder / "checkpoints" / "last.ckpt") for folder in (whole, hurt))
    assert a["state_dict"].keys() == b["state_dict"].keys()
    assert all(torch.equal(a["state_dict"][key], b["state_dict"][key]) for key in a["state_dict"])
    assert (whole / "metrics.csv").read_bytes() == (hurt / "metrics.csv").read_bytes()

    for name in ("last.ckpt", "previous.ckpt"):
        damage(last.with_name(name))
    outcome = train("ckpt=last", f"hydra.run.dir={hurt}")
    assert "previous.ckpt is no checkpoint of cassi-train, or damaged" in outcome.refusal


def test_a_kill_right_behind_a_checkpoint_loses_no_row(train, tmp_path, monkeypatch):
    """Lightning logs the numbers of a step after the checkpoint behind it (3 ends an epoch)."""
    options = (*TRAIN, "callbacks.last.every_minutes=null", "callbacks.last.every_n_train_steps=1")
    options += ("trainer.log_every_n_steps=1",)
    train(*options, f"hydra.run.dir={tmp_path / 'whole'}").ok()
    whole = (tmp_path / "whole" / "metrics.csv").read_text()
    save, left = AtomicCheckpoints.save_checkpoint, {}

    def save_and_die(self, checkpoint, path, storage_options=None):
        save(self, checkpoint, path, storage_options)
        if path.endswith("last.ckpt") and checkpoint["global_step"] == killed_after:
            left["rows"] = (killed / "metrics.csv").read_bytes()
            raise TerminationSignal("killed")

    for killed_after in (2, 3, 4):
        killed = tmp_path / f"killed{killed_after}"
        with monkeypatch.context() as context:
            context.setattr(AtomicCheckpoints, "save_checkpoint", save_and_die)
            assert train(*options, f"hydra.run.dir={killed}").status == 143
        (killed / "metrics.csv").write_bytes(left["rows"])  # what Lightning added as it went
        train("ckpt=last", f"hydra.run.dir={killed}").ok()
        assert (killed / "metrics.csv").read_text() == whole


def test_a_damaged_start_is_computed_again(tmp_path):
    found = torch.rand(2, 8, 8), torch.rand(1)
    starts = FirstCubeCache(tmp_path)
    cube, noise = starts("0-0", lambda: found)
    assert torch.equal(noise, found[1])
    damage(tmp_path / "0-0.pt")
    with pytest.warns(UserWarning, match="damaged"):
        again = starts("0-0", lambda: found)
    kept = starts("0-0", lambda: pytest.fail("it is computed again"))
    for x, n in (again, kept):
        assert torch.equal(x, cube)
        assert torch.equal(n, noise)


def test_damaged_weights_are_refused(tmp_path):
    file = tmp_path / "model.safetensors"
    net = create_model("gap_net", bands=4, stages=1)
    save_model(file, net.state_dict(), Card("gap_net", 4, {"stages": 1}))
    load_model(file)
    torch.save(net.state_dict(), old := tmp_path / "model.pth")
    for path in (file, old):
        damage(path)
        with pytest.raises(ValueError, match="it is damaged"):
            create_model("gap_net", bands=4, stages=1, weights=path)
    with pytest.raises(ValueError, match="it is damaged"):
        load_model(file)


@pytest.mark.release
@pytest.mark.parametrize(
    ("kills", "seed"),
    [
        (6, 268),  # each command once, by either signal, and a training that goes on once more
        pytest.param(12, 1, marks=pytest.mark.thorough),
    ],
)
def test_random_kills_lose_nothing(kills, seed):
    printed = python("-m", "scripts.checks.kills", "--kills", kills, "--seed", seed)
    assert printed.splitlines()[-1] == f"{kills} kills, 0 faults"


def test_programs_are_compiled_in_a_folder_of_the_users_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "own")
    compile_privately()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "own"
    assert not (tmp_path / "cache").exists()
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    compile_privately()
    folder = Path(os.environ.pop("TORCHINDUCTOR_CACHE_DIR"))
    assert folder.parent == tmp_path / "cache"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="alone can write to; set TORCHINDUCTOR_CACHE_DIR"):
        compile_privately()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="alone can write to"):
        compile_privately()
