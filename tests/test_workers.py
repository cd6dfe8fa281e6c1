"""Where the system lets no more processes or threads start, it is said and nothing waits."""

import threading

import pytest

from cassi import workers

SAID = "the system lets no more processes start"


def test_too_few_threads_are_said_before_a_process_starts(monkeypatch):
    running, start = [], threading.Thread.start

    def start_some(thread):
        if len(running) == 3:
            raise RuntimeError("can't start new thread")
        running.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    monkeypatch.setattr(workers, "_prepare", lambda: pytest.fail("it starts processes"))
    with pytest.raises(OSError, match=SAID):
        workers.LocalWorkers(2)
    for thread in running:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("error", [EOFError(), BlockingIOError(11, ""), RuntimeError("thread")])
def test_a_process_that_does_not_start_is_said(monkeypatch, error):
    class Pool(workers.ProcessPoolExecutor):
        def submit(self, *_):
            raise error

    monkeypatch.setattr(workers, "_prepare", lambda: None)
    monkeypatch.setattr(workers, "ProcessPoolExecutor", Pool)
    with workers.LocalWorkers(1) as pools, pytest.raises(OSError, match=SAID):
        pools.submit(int).result(20)
