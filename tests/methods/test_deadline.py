"""A deadline takes the best method that keeps it, by a clock that the test sets."""

import pytest

from cassi.methods.deadline import RUNS, choose_within, parse_deadline


def choose(deadline, **seconds):
    """Choose among methods whose runs take these seconds in turn, the untimed one first.

    A text in place of seconds is an error. Returns the choice and the number of runs of each.
    """
    now, runs = [0.0], dict.fromkeys(seconds, 0)

    def run(name):
        times = seconds[name]
        if isinstance(times, str):
            raise ValueError(times)
        now[0] += times[min(runs[name], len(times) - 1)]
        runs[name] += 1

    candidates = {name: (lambda name=name: name) for name in seconds}
    return choose_within(deadline, candidates, run, lambda: now[0]), runs


def test_the_first_method_that_keeps_the_deadline_is_taken():
    choice, runs = choose(0.1, best=[5.0, 0.2], good=[1.0, 0.05], fast=[0.01])
    assert (choice.name, choice.method, choice.is_kept) == ("good", "good", True)
    assert str(choice) == "good takes 50 ms, expected at most 50 ms, of 100 ms"
    assert choice.rejections == ("best, 200 ms",)
    # A method that is too slow is timed once, a better one is never left for a faster one.
    assert runs == {"best": 2, "good": 1 + RUNS, "fast": 0}


def test_the_longest_time_lies_as_far_above_the_slowest_run_as_that_above_the_median():
    times = [9.0, 0.06, 0.05, 0.09, 0.05, 0.06]
    choice, _ = choose(0.12, varying=times)
    assert choice.seconds == pytest.approx(0.06)
    assert choice.expected == pytest.approx(0.12)
    choice, _ = choose(0.11, varying=times, steady=[0.08])
    assert (choice.name, choice.rejections) == ("steady", ("varying, 120 ms",))


def test_a_method_that_does_not_fit_the_camera_is_left_out():
    choice, _ = choose(0.1, network="two dispersers", fast=[0.01])
    assert (choice.name, choice.rejections) == ("fast", ("network: two dispersers",))
    with pytest.raises(ValueError, match="two dispersers"):
        choose(0.1, network="two dispersers")


def test_without_a_method_that_keeps_it_the_fastest_one_is_taken():
    choice, _ = choose(0.02, slow=[0.3], fast=[0.035], last=[0.05])
    assert (choice.name, choice.is_kept) == ("fast", False)
    assert str(choice) == (
        "the fastest method, fast, takes 35 ms, expected at most 35 ms; this misses the deadline "
        "of 20 ms"
    )


@pytest.mark.parametrize(
    ("value", "seconds"), [("20ms", 0.02), (".5s", 0.5), ("1.5 s", 1.5), (2, 2.0), (1e-5, 1e-5)]
)
def test_a_deadline_has_a_unit_or_is_in_seconds(value, seconds):
    assert parse_deadline(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["20", "0ms", "1min", "-1s", "", 0, -1.0, float("nan"), None])
def test_what_is_no_time_is_refused(value):
    with pytest.raises(ValueError, match="deadline: expected a time such as 20ms or"):
        parse_deadline(value)
