"""Which files a folder or a pattern of snapshots means."""

import time

import pytest

from cassi.apps.reconstruct.snapshots import _match


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("day/1.npy", "day/a/2.npy", "day/a/b/3.npy", "day/.old/4.npy", "day/a/.5.npy"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("day/*.npy", "1"),
        ("day/**/*.npy", "1 2 3"),
        ("**/b/*.npy", "3"),
        ("day/**/[23].npy", "2 3"),
        ("day/.old/*.npy", "4"),
        ("day/.old/**/*.npy", "4"),
        ("day/a/**", "2 3 b"),
        ("none/**/*.npy", ""),
    ],
)
def test_patterns(tree, pattern, names):
    for place in (tree / pattern, type(tree)(pattern)):
        assert " ".join(sorted(path.stem for path in _match(place))) == names


def test_links_that_lead_back_are_not_followed(tree):
    for name in ("x", "y", "z"):
        (tree / "day" / name).symlink_to(".")
    start = time.process_time()
    assert len(_match(tree / "day/**/*.npy")) == 3
    assert time.process_time() - start < 1
