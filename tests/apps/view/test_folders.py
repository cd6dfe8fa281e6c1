import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from cassi.apps.view import runs
from cassi.apps.view.allowed_paths import AllowedPaths
from cassi.apps.view.cubes import report_on
from cassi.apps.view.folders import DEVIATION, list_results, open_result, thumbnail
from cassi.apps.view.jobs import Job
from cassi.apps.view.pages.save import place
from cassi.data.io import write_cube


@pytest.fixture
def result(session):
    session.say_wavelengths("450-520")
    session.summarize()
    session.say_more("solver.iterations=3\noutput.report=false")
    shown = runs.reconstruct(session.settings(), session.options(), Job())
    runs.save(shown, session.output / "day" / "one")
    return shown, session.output / "day"


def test_results_are_listed_opened_and_become_more(result):
    shown, day = result
    entry, *others = list_results(AllowedPaths([day]))
    assert (entry.name, others) == ("one", [])
    assert entry.said.startswith("3 iterations")
    assert thumbnail(entry).size == (64, 64)
    opened = open_result(entry)
    np.testing.assert_array_equal(opened.cube, shown.cube)
    assert opened.wavelengths == tuple(range(450, 530, 10))
    assert opened.made is None
    write_cube(day / "one" / DEVIATION, np.full_like(shown.cube, 0.5))
    assert open_result(entry).deviation.max() == 0.5
    runs.save(shown, day / "two")
    assert [entry.name for entry in list_results(AllowedPaths([day]))] == ["one", "two"]
    assert list_results(AllowedPaths([day / "one"]))[0].name == "one"


def test_what_failed_and_what_is_damaged(result):
    _, day = result
    rows = [{"name": "one", "status": "done"}, {"name": "bad", "status": "failed", "error": "why"}]
    with (day / "results.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ["name", "status", "error"])
        writer.writeheader()
        writer.writerows(rows)
    (day / "other").mkdir()
    (day / "other" / "metrics.json").write_text("[]")
    (day / "worse").mkdir()
    (day / "worse" / "metrics.json").write_text("{")
    bad, one = list_results(AllowedPaths([day]))
    assert (bad.name, bad.folder, bad.said) == ("bad", None, "failed: why")
    assert thumbnail(bad) is None
    with pytest.raises(ValueError, match="no result"):
        open_result(bad)
    numbers = json.loads((day / "one" / "metrics.json").read_text())
    (day / "one" / "metrics.json").write_text(json.dumps(numbers | {"files": []}))
    with pytest.raises(ValueError, match="expected a cube"):
        open_result(one)
    (day / "one" / "rgb.png").write_bytes(b"no picture")
    assert thumbnail(one) is None


def test_names_of_results(tmp_path):
    assert place(tmp_path, " day/one ") == tmp_path / "day" / "one"
    for name in ("", "/etc", "../one", ".one", "a/../../b"):
        with pytest.raises(ValueError, match="expected one below"):
            place(tmp_path, name)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "metrics.json").write_text("{}")
    with pytest.raises(FileExistsError, match="another name"):
        place(tmp_path, "there")


def test_a_report_has_the_cubes_of_one_shape(result):
    shown, _ = result
    less = replace(shown, name="cropped", cube=shown.cube[:, 1:])
    more = replace(shown, name="sure", deviation=np.full_like(shown.cube, 0.1))
    written = report_on(shown, [shown, less, more]).decode()
    page = json.loads(re.search(r'class="scene">(.*?)</script>', written)[1])
    assert [name for name, _ in page["methods"]] == [shown.name, "sure"]
    assert [name for name, _ in page["bars"]] == ["sure"]
    assert dict(dict(page["metrics"])[shown.name])["seconds"] == shown.numbers["seconds"]
