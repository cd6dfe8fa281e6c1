"""Logs of records: appended to, read once, and whole after a kill."""

import warnings

import pytest

from cassi.data.record_log import RecordLog, read_records


def test_the_last_record_of_a_name_counts(tmp_path):
    for writer, value in (("one", 1), ("two", 2), ("one", 3)):
        with RecordLog(tmp_path, writer) as log:
            log.append("a", {"value": value})
            log.append(f"b {writer}", {"value": [None, 0.1, "µ"]})
    found = read_records(tmp_path)
    assert found["a"]["value"] == 3
    assert found["b two"]["value"] == [None, 0.1, "µ"]
    assert len(list(tmp_path.iterdir())) == 2
    assert read_records(tmp_path / "nowhere") == {}


@pytest.mark.parametrize("left", [b'0123abcd {"name": "c"}\n', b"8a", b"\0\0\0", b"\n\n"])
def test_what_a_kill_leaves_is_skipped(tmp_path, left):
    with RecordLog(tmp_path, "one") as log:
        log.append("a", {})
    path = tmp_path / "one.jsonl"
    path.write_bytes(path.read_bytes() + left)
    with RecordLog(tmp_path, "one") as log:
        log.append("b", {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(read_records(tmp_path)) == ["a", "b"]


def test_one_writer_at_a_time(tmp_path):
    with (
        RecordLog(tmp_path, "one"),
        pytest.raises(ValueError, match="another command does this share"),
        RecordLog(tmp_path, "one"),
    ):
        pass
