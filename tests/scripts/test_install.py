"""Only training needs Lightning and TensorBoard."""

import ast
import re

from shared import ROOT

TRAINING = {"lightning", "tensorboard", "torchmetrics"}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def test_only_training_imports_its_libraries():
    files = {
        path.relative_to(ROOT / "cassi").as_posix(): path for path in ROOT.glob("cassi/**/*.py")
    }
    plain = {name for name in files if not name.startswith(("training/", "apps/train"))}
    assert 100 < len(plain) < len(files)
    assert not {name for name in plain if TRAINING & set(imports(files[name]))}


def test_the_extra_train_has_them():
    text = (ROOT / "pyproject.toml").read_text()
    lists = dict(re.findall(r"^(\w+) = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL))
    named = {
        key: set(re.findall(r'"([\w-]+(?:\[[\w,]+\])?)', value)) for key, value in lists.items()
    }
    assert named["train"] == {"lightning", "tensorboard"}
    assert not named["train"] & named["dependencies"]
    assert "cassi[train]" in named["docs"]
    assert any("train" in re.split(r"[\[,\]]", name) for name in named["dev"])
