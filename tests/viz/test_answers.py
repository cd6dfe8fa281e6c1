"""Pictures of answers, and how answers are packed for the report."""

import base64
import gzip
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cassi import viz
from cassi.viz.report import encode_answers, encode_scene, make_report


@pytest.fixture
def answer():
    """A map (20, 30) from 0 to 0.95, cut at 0, without an answer in its first two columns."""
    value = torch.linspace(0, 0.95, 600).reshape(20, 30)
    half = torch.stack([torch.full_like(value, 0.1), torch.full_like(value, 0.2)])
    abstained = torch.zeros_like(value, dtype=torch.bool)
    abstained[:, :2] = True
    low, high = (value - half).clamp_min(0), value + half
    high[:, :, 0] = torch.inf
    return SimpleNamespace(
        value=value, low=low, high=high, abstained=abstained, labels=(), unit="g", reason="why"
    )


def _unpack(packed):
    """Unpacks values and half widths as the page does."""
    levels = np.frombuffer(gzip.decompress(base64.b64decode(packed["levels"])), "<i2")
    levels = levels.reshape(2, *packed["shape"])
    hidden = levels[0] == -(2**15)
    return packed["origin"] + packed["step"] * levels[0], packed["step"] * levels[1], hidden


def _pack_one(answer):
    (packed,) = json.loads(encode_answers({"a": answer}))["maps"]
    return packed


def test_a_packed_map_has_the_values_and_intervals(answer):
    packed = _pack_one(answer)
    value, half, hidden = _unpack(packed)
    np.testing.assert_array_equal(hidden, answer.abstained)
    shown = ~hidden
    np.testing.assert_allclose(value[shown], answer.value[shown], atol=1e-3)
    low, high = np.maximum(value - half, packed["least"]), value + half
    np.testing.assert_allclose(low[shown], answer.low[1][shown], atol=3e-3)
    np.testing.assert_allclose(high[shown], answer.high[1][shown], atol=3e-3)
    assert (packed["name"], packed["unit"], packed["reason"]) == ("a", "g", "why")
    assert packed["share"] == pytest.approx(2 / 30)


def test_large_maps_are_averaged_over_the_answers_of_a_block(answer):
    for key in ("value", "low", "high", "abstained"):
        setattr(answer, key, getattr(answer, key).repeat_interleave(25, -2)[..., :500, :])
        setattr(answer, key, getattr(answer, key).repeat_interleave(30, -1))
    answer.value[1::2] += 0.1
    answer.abstained[::2, 100] = True
    packed = _pack_one(answer)
    assert (packed["block"], packed["full"], packed["shape"]) == (2, [500, 900], [250, 450])
    value, _, hidden = _unpack(packed)
    assert hidden[:, :30].all()
    assert not hidden[:, 30:].any()
    expected = answer.value[:2].mean(0)[200]
    assert value[0, 100] == pytest.approx(float(expected), abs=2e-3)


def test_maps_and_numbers_have_their_labels():
    value = torch.tensor([1.0, 2.0, 3.0])
    low, high = torch.stack([value - 1, value - 2]), torch.stack([value + 1, value + 2])
    hidden = torch.tensor([False, True, False])
    parts = {"labels": ("red", "blue"), "unit": "", "reason": "why"}
    numbers = SimpleNamespace(value=value, low=low, high=high, abstained=hidden, **parts)
    maps = SimpleNamespace(
        value=value.view(3, 1, 1).expand(3, 4, 5),
        low=low.view(2, 3, 1, 1).expand(2, 3, 4, 5),
        high=high.view(2, 3, 1, 1).expand(2, 3, 4, 5),
        abstained=hidden.view(3, 1, 1).expand(3, 4, 5),
        **parts,
    )
    one = SimpleNamespace(
        value=value[0],
        low=low[:, 0],
        high=high[:, 0],
        abstained=hidden[0],
        **parts | {"labels": ()},
    )
    page = json.loads(encode_answers({"m": maps, "n": numbers, "one": one}))
    assert [packed["name"] for packed in page["maps"]] == ["m: red", "m: blue", "m: 3"]
    assert [packed["share"] for packed in page["maps"]] == [0, 1, 0]
    first, second = page["numbers"]
    assert first["rows"][:2] == [["red", 1.0, [[0, 2], [-1, 3]]], ["blue", None, None]]
    assert second["rows"] == [["", 1.0, [[0, 2], [-1, 3]]]]


def test_answers_do_not_become_markup_and_may_be_missing(answer):
    answer.reason = "</script><img src=x>"
    scene = encode_scene("a", {"x": np.zeros((2, 4, 4))}, None, {})
    page = make_report([scene], None, title="a", answers=encode_answers({"<img>": answer}))
    assert b"<img" not in page
    assert b'{"maps":[],"numbers":[]}</script>' in make_report([scene], None, title="a")


@pytest.mark.parametrize("truth", [False, True])
def test_pixels_without_an_answer_are_grey_and_scales_hold_the_rest(answer, truth, tmp_path, pages):
    half = (answer.high - answer.low)[1] / 2
    true_map = answer.value + 1 if truth else None
    viz.save_answer(
        tmp_path / "a.png", "$a", answer.value, half, answer.abstained, answer.unit, true_map
    )
    (page,) = pages
    pictures = [call.picture for call in page["image"] if call.picture.ndim == 3]
    assert len(pictures) == 2 + truth
    for picture in (pictures[0], pictures[-1]):
        spread = np.ptp(picture.astype(int), axis=-1)
        assert not spread[:, : picture.shape[1] // 15].any()
        assert spread[:, picture.shape[1] // 15 :].mean() > 30
    assert page["scale"][0].scale.high == pytest.approx(1.945 if truth else 0.945, abs=0.02)
    assert [call.label for call in page["scale"]] == ["g", "g"]
    assert "stripes: no answer, 6.67 % of the pixels" in [text.content for text in page["text"]]


def test_what_does_not_fit_is_said(answer, tmp_path):
    args = (tmp_path / "a.png", "a", answer.value, answer.value, answer.abstained)
    with pytest.raises(ValueError, match="a truth of the map's shape"):
        viz.save_answer(*args, truth=answer.value[1:])
    with pytest.raises(ValueError, match="a: expected a map"):
        viz.save_answer(*args[:3], answer.value[1:], answer.abstained)
    answer.low = answer.low[:1]
    with pytest.raises(ValueError, match="a: expected a map"):
        encode_answers({"a": answer})
