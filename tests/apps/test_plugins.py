"""What a user's own file registers, in all commands; and that nobody else can bring one."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose
from safetensors import safe_open

import cassi
from cassi import plugins
from cassi.apps.arguments import read_plugin_options
from cassi.apps.reconstructors import compose_settings, config_search
from cassi.apps.settings import Train
from cassi.apps.view import command as view
from cassi.config import build
from cassi.data.scenes import as_scenes
from cassi.evaluation.tables import format_means
from cassi.models import registry
from cassi.models.load import read_card

pytestmark = pytest.mark.usefixtures("own_plugins")
TINY = (
    *("data.crop=16", "data.validation.crop=16", "data.batch_size=1", "trainer.max_steps=2"),
    *("data.steps_per_epoch=1", "trainer.enable_progress_bar=false", "trainer.accelerator=cpu"),
)
MINE = """
import torch
from subprocess import Popen
from torch import nn
import cassi

@cassi.register_model("own_wide", width=8)
@cassi.register_model("own_net")
class Net(nn.Module):
    def __init__(self, bands, width=4):
        super().__init__()
        self.bands = bands
        self.layer = nn.Conv2d(bands, bands, 1)
        self.width = width

    def forward(self, y, system):
        return self.layer(system.pinv(y))

@cassi.register_loss("own_loss")
def loss(x, truth, weight=1.0):
    return weight * (x - truth).abs().mean()

@cassi.register_loss("own_class")
class Loss(nn.Module):
    def __init__(self, power=1):
        super().__init__()
        self.power = power

    def forward(self, x, truth):
        return ((x - truth).abs() ** self.power).mean()

@cassi.register_prior("own_prior")
def prior(x, sigma, factor=1.0):
    return factor * x

@cassi.register_metric("own_metric", unit="%", digits=1, better="lower")
def metric(x, truth):
    assert x.ndim == truth.ndim == 3
    return 100 * (x - truth).abs().mean()

@cassi.register_dataset("own_data", wavelengths=[450, 550, 650])
def data(split, count=1):
    seed = torch.Generator().manual_seed(len(split))
    return {f"{split}{i}": torch.rand(3, 24, 24, generator=seed) for i in range(count)}
"""
EVIL = "import pathlib\npathlib.Path('ran').touch()\n"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with a file of the user's, and one of somebody else, which no test may run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "evil.py").write_text(EVIL)
    yield tmp_path
    assert not (tmp_path / "ran").exists()


def test_every_kind_in_every_command(mine, train, evaluate, reconstruct, results):
    """Each is there by its name; the weights say what they need."""
    told = "plugins=[mine.py]"
    train(
        *TINY, told, "model=own_net", "model.width=3", "loss=own_loss", "loss.weight=2",
        "data=own_data", "data.source.count=2", "noise=shot",
    ).ok()  # fmt: skip
    file = mine / "run" / "model.safetensors"
    assert safe_open(file, "pt").metadata()["plugins"] == '["mine.py"]'
    card = read_card(file)
    assert (card.name, card.settings["width"], card.bands) == ("own_net", 3, 3)
    state = torch.load(mine / "run" / "checkpoints" / "last.ckpt", weights_only=True)
    assert state["plugins"] == ["mine.py"]

    out = evaluate(
        told, "data=own_data", "hydra.run.dir=out", "figures=false", "report=false",
        f"reconstructors=[{{model: {file}}},"
        "{name: p, method: gap_tv, overrides: {prior: own_prior, solver.iterations: 2}}]",
    ).ok()  # fmt: skip
    assert "own_metric (%)" in out.out
    rows = results("results.csv", "out")
    assert all(float(row["own_metric"]) > 0 for row in rows)
    assert {row["scene"] for row in rows} == {"test0", "mean"}

    cassi.write_cube(mine / "truth.npz", torch.rand(1, 3, 20, 20), wavelengths=[450, 550, 650])
    np.save(mine / "mask.npy", np.random.default_rng(0).random((20, 20)).astype(np.float32))
    given = ("truth=truth.npz", "mask=mask.npy", "output.pictures=false", "output.report=false")
    for options in ((f"model={file}",), ("solver=gap", "prior=own_prior", "prior.factor=0.5")):
        reconstruct(told, *options, *given, "hydra.run.dir=rec").ok()
        assert "own_metric" in results("metrics.json", "rec")["metrics"]["unit"]


def test_classes_of_the_file_and_of_no_other(mine, train):
    """`_target_` names what the file defines, not what it imports, nor a module beside it."""
    plugins.load_plugins([str(mine / "mine.py")])
    assert build({"_target_": "mine.Loss", "power": 2}).power == 2
    for target in ("mine.Popen", "mine.loss", "evil.Loss", "subprocess.Popen", "mine.nn.Linear"):
        with pytest.raises(ValueError, match=r"not allowed|not a class of its package"):
            build({"_target_": target})
    told = ("plugins=[mine.py]", "model=own_wide", "loss._target_=mine.Loss", "~loss.batch")
    train(*TINY, *told).ok()


def test_in_the_users_own_config(mine, train):
    (mine / "own.yaml").write_text(
        "defaults: [train, {override model: own_net}, _self_]\nplugins: mine.py\n"
    )
    train(*TINY, "--config-dir", str(mine), "--config-name", "own").ok()


STRANGERS = {
    "a run's config": (
        "stranger/.hydra/own.yaml", "defaults: [train, _self_]\nplugins: [evil.py]\n", "train",
        ("--config-dir", "stranger/.hydra", "--config-name=own"), "lies in the folder of a run",
    ),
    "an experiment": (
        "experiment/theirs.yaml", "# @package _global_\nplugins: [evil.py]\n", "train",
        ("--config-dir", ".", "experiment=theirs"), "'evil.py' is not loaded, because a plugin is",
    ),
    "what a config includes": (
        "theirs.yaml", "plugins: [evil.py]\n", "train",
        ("--config-dir", ".", "--config-name", "own"), "'evil.py' is not loaded",
    ),
    "options of a resumed run": (
        "run/checkpoints/options.yaml", "- plugins=[evil.py]\n", "train", ("ckpt=last",),
        r"started with 'plugins=\[evil.py\]'; a plugin is a program, so give it again",
    ),
    "a camera's file": (
        "camera.yaml", "mask: bundled:mask.tif\nplugins: [evil.py]\n", "reconstruct",
        ("camera=camera.yaml",), "no value 'plugins'",
    ),
    "options of a reconstructor": (
        "nothing", "", "evaluate",
        ("reconstructors=[{method: gap_tv, overrides: {plugins: [evil.py]}}]",), "is not loaded",
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", STRANGERS)
def test_what_came_from_elsewhere_brings_no_plugin(mine, commands, place):
    file, text, name, options, said = STRANGERS[place]
    (mine / "own.yaml").write_text("defaults: [train, _self_, theirs]\n")
    (mine / file).parent.mkdir(parents=True, exist_ok=True)
    (mine / file).write_text(text)
    more = TINY if name == "train" and "ckpt=last" not in options else ()
    assert re.search(said, commands(name)(*more, *options).refusal)


@pytest.mark.parametrize("left", ["checkpoints", "metrics.json"])
def test_a_config_beside_what_a_run_leaves_brings_no_plugin(mine, left):
    (mine / left).mkdir()
    (mine / "own.yaml").write_text("plugins: [evil.py]\n")
    with pytest.raises(ValueError, match="lies in the folder of a run"):
        read_plugin_options(["--config-dir", str(mine), "--config-name=own"])


def test_not_in_the_page_of_the_view(mine, tmp_path):
    from cassi.apps.view.allowed_paths import AllowedPaths
    from cassi.apps.view.session import Session

    session = Session(AllowedPaths([mine]), tmp_path)
    session.use_example()
    session.set_further_options(f"plugins=[{mine / 'evil.py'}]")
    with pytest.raises(ValueError, match="is not loaded"):
        session.settings()


def test_the_view_takes_it_as_a_word(mine, monkeypatch):
    monkeypatch.setattr(view, "serve", lambda given: None)
    view.main(["plugins=[mine.py]", str(mine)])
    assert "own_net" in cassi.list_models()
    assert view.parse(["a"]).folders == [Path("a")]


def test_what_was_trained_names_what_it_needs(mine, train, reconstruct, monkeypatch):
    told = ("plugins=[mine.py]", "model=own_net")
    train(*TINY, *told).ok()
    resumed = ("ckpt=last", f"hydra.run.dir={mine / 'run'}")
    assert "give it again" in train(*resumed).refusal
    assert "going on after step 2" in train(*resumed, told[0], "trainer.max_steps=3").ok().out
    # Under another's options the checkpoint itself says what it needs.
    monkeypatch.setattr(plugins, "_PLUGINS", {})
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    registry._ENTRIES.pop("own_net")
    line = train(*TINY, f"ckpt={mine / 'run' / 'checkpoints' / 'last.ckpt'}", "hydra.run.dir=new")
    assert "this training needs plugins=[mine.py]" in line.refusal
    line = reconstruct(f"model={mine / 'run' / 'model.safetensors'}").refusal
    assert line.endswith("these weights need plugins=[mine.py]; in Python import it first")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["plugins=[none.py]"], "no file"),
        (["plugins=[my-net.py]"], "a Python name"),
        (["plugins=[numpy.py]"], "is that of another module"),
        (["plugins=[mine.py,there/mine.py]"], "is that of another module"),
        (["plugins=[broken.py]"], r"broken.py \(line 2\): ZeroDivisionError"),
        (["plugins=[no_such_module]"], "is its folder in PYTHONPATH"),
        (["plugins={a: b}"], "expected plugins"),
        (["plugins=[clash.py]"], "the name 'rmse' is taken by loss=rmse"),
        (["plugins=[column.py]"], "'psnr' is taken by a column"),
        (["plugins=[mine.py]", "+model._target_=mine.Net"], "register_model"),
        (["plugins=[mine.py]", "model=own_net", "model.wide=3"], "did you mean model.width"),
        (["plugins=[mine.py]", "loss=own_los"], "did you mean own_loss"),
        (["plugins=[mine.py]", "data=own_data", "data.wavelengths=[500,600]"], r"\(2, H, W\)"),
        (["loss._target_=cassi.plugins.make", "+loss.kind=loss", "+loss.name=x"], "no loss named"),
    ],
)
def test_what_does_not_fit(mine, train, options, said):
    (mine / "there").mkdir()
    for name in ("my-net.py", "numpy.py", "there/mine.py"):
        (mine / name).touch()
    (mine / "broken.py").write_text("x = 0\n1 / x\n")
    loss = "import cassi\n@cassi.register_loss('rmse')\ndef f(x, t): ...\n"
    (mine / "clash.py").write_text(loss)
    (mine / "column.py").write_text("import cassi\ncassi.register_metric('psnr')\n")
    assert re.search(said, train(*TINY, *options).refusal)


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("y.matmul(y.new_ones(1))", 1, r"error: RuntimeError: .*\(\S*wrong1\.py:14\)"),
        ("system.pinv(y[0, 0])", 2, r"error: .*\(wrong2\.py, line 14\)"),
    ],
)
def test_an_error_of_a_network_shows_its_own_lines(mine, train, line, status, said):
    (mine / f"wrong{status}.py").write_text(
        f"import torch\nimport cassi\n\n\n@cassi.register_model('own_wrong{status}')\n"
        "class Wrong(torch.nn.Module):\n    def __init__(self, bands):\n"
        "        super().__init__()\n        self.bands = bands\n"
        "        self.a = torch.nn.Conv2d(bands, bands, 1)\n\n"
        f"    def forward(self, y, system):\n        y = y * 1\n        return {line}\n"
    )
    outcome = train(*TINY, f"plugins=[wrong{status}.py]", f"model=own_wrong{status}")
    assert outcome.status == status
    assert re.search(said, outcome.err)
    assert outcome.err.count("File ") == (status == 1)
    assert "lightning" not in outcome.err
    assert (line in outcome.err) == (status == 1)


RETURNING = """import torch
import cassi


@cassi.register_loss('own_vector')
def own_vector(x, truth):
    return (x - truth).abs().mean((1, 2))


@cassi.register_loss('own_int')
class OwnInt(torch.nn.Module):
    def forward(self, x, truth):
        return 1


@cassi.register_model('own_returned')
class Own_returned(torch.nn.Module):
    def __init__(self, bands):
        super().__init__()
        self.bands, self.a = bands, torch.nn.Conv2d(bands, bands, 1)

    def forward(self, y, system):
        x = self.a(system.pinv(y))
        return {}
"""


@pytest.mark.parametrize(
    ("options", "returned", "said"),
    [
        ([], "[x, x]", r"Own_returned.forward \(mymod.py, line 22\).*got list; stages"),
        ([], "x.detach()", r"\(mymod.py, line 22\): expected .*got a detached tensor"),
        ([], "x[:, :1]", r"\(mymod.py, line 22\): .*got \(1, 1, 16, 16\)$"),
        (["loss=own_vector"], "x", r"own_vector \(mymod.py, line 5\): .* got \(1, 16\); .*mean"),
        (["loss=own_int"], "x", r"OwnInt.forward \(mymod.py, line 12\): .* got int$"),
        (["loss=multi_stage", "+loss.base={_target_: mymod.OwnInt}"], "x", "got int"),
    ],
)  # fmt: skip
def test_what_a_network_or_loss_returns_is_named_with_its_line(
    mine, train, options, returned, said
):
    (mine / "mymod.py").write_text(RETURNING.format(returned))
    line = train(*TINY, "plugins=[mymod.py]", "model=own_returned", *options).refusal
    assert re.search(said, line)
    assert not (mine / "run" / "model.safetensors").exists()


def test_what_a_network_returns_in_a_reconstruction_is_named(mine, reconstruct):
    (mine / "mymod.py").write_text(RETURNING.format("[x] * 2"))
    told = ("plugins=[mymod.py]", "model=own_returned", "model.weights=random")
    line = reconstruct(*told).refusal
    assert "forward (mymod.py, line 22): expected the network to return a tensor" in line


def test_a_data_set_is_a_class_too():
    """Whose objects are splits, or are called with the name of one."""
    cube = torch.full((3, 8, 8), 0.5)

    @cassi.register_dataset("own_split")
    class Split:
        def __init__(self, split, count=1):
            self.cubes = [cube] * count

        def __len__(self):
            return len(self.cubes)

        def __getitem__(self, index):
            return self.cubes[index]

    @cassi.register_dataset("own_called")
    class Called:
        def __init__(self, count=1):
            self.count = count

        def __call__(self, split):
            return [cube] * self.count

    for name in ("own_split", "own_called"):
        made = plugins.make("dataset", name, count=2)("train")
        assert [scene.name for scene in as_scenes(made, [450, 550, 650])] == ["0", "1"]
    with pytest.raises(ValueError, match=r"expected 0 as an array \(C, H, W\), got tuple"):
        as_scenes([(cube, "a label")], [450, 550, 650])


def test_a_cell_may_run_again():
    for _ in range(2):

        @cassi.register_metric("again")
        def again(x, truth):
            return 0.0

    cube = torch.rand(3, 16, 16)
    assert cassi.metrics.evaluate(cube, cube, "unit")["again"] == 0
    scores = cassi.metrics.MetricSet("unit")
    scores.update(cube, cube)
    assert scores.compute()["again"] == 0
    with pytest.raises(ValueError, match="is taken by"):
        cassi.register_metric("again")(lambda x, truth: 1.0)


def test_an_error_of_a_metric_names_its_file_and_line(mine):
    """Also in Python, where no command describes errors."""
    cube = torch.rand(3, 16, 16)
    start = "import cassi\n\n@cassi.register_metric('own_error')\n"
    for number, (body, said) in enumerate([
        ("(x, truth):\n    y = x\n    return y.matmul(y[0, 0, :1])", ", line 6): RuntimeError: "),
        ("(x, truth):\n    return cassi.metrics.psnr(x[0, 0], truth)", ", line 5): ValueError: "),
        ("(x, truth):\n    return x", ", line 3): expected one number, got "),
        ("(x):\n    return 0.0", ", line 3): TypeError: "),
    ]):  # fmt: skip
        file = mine / f"own_{number}.py"
        file.write_text(f"{start}def measure{body}\n")
        plugins._PARTS_BY_KIND["metric"].clear()
        plugins.load_plugins([str(file)])
        with pytest.raises(ValueError, match=r"^metric own_error \(") as refused:
            cassi.metrics.evaluate(cube, cube, "unit")
        assert f"({file}{said}" in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("better", ["higher", "lower", None])
def test_tables_mark_the_best_by_the_direction_of_a_metric(better):
    cassi.register_metric("own", better=better)(lambda x, truth: 0.0)
    table = format_means({"a": {"own": 1.0}, "b": {"own": 2.0}}, "unit", mark_best=True)
    best = {"higher": "**2.0000**", "lower": "**1.0000**"}.get(better)
    assert ("**" in table) == (best is not None)
    assert best is None or best in table
    with pytest.raises(ValueError, match="better: expected higher or lower, got 'max'"):
        cassi.register_metric("other", better="max")


@pytest.mark.parametrize("command", ["train", "evaluate", "reconstruct"])
def test_what_help_lists_can_be_chosen(commands, command):
    """Every group that is listed takes its options, or leaves one out."""
    out = commands(command)("--help").ok().out
    listed = out.partition("==")[2].partition("== Values")[0].splitlines()[1:]
    groups = {line.partition(": ")[0]: line.partition(": ")[2].split(", ") for line in listed}
    groups.pop("", None)
    assert "noise" in groups
    with config_search():
        for place in (0, -1):
            compose(command, overrides=[f"{group}={each[place]}" for group, each in groups.items()])
    if command == "train":
        found = compose_settings(["noise=shot", "folder=here"], kind=Train)
        assert found.data.simulator["noise"]["bits"] == 11
        assert {"bundled", "folder"} <= set(groups["data"])
        assert not {"kaist", "_simulated"} & set(groups["data"])


def test_a_network_is_no_method_and_a_camera_neither(evaluate):
    assert "no method, network or" in evaluate("reconstructors=[two_shots]").refusal
    line = evaluate("reconstructors=[{method: lrdun_3stg}]").refusal
    assert "is a network: write {model: lrdun_3stg" in line
    line = evaluate("reconstructors=[{model: gap_tv}]").refusal
    assert "is a method: write {method: gap_tv}" in line
