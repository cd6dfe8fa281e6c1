"""Run many small trials in forks, so that a crash or a hang is blamed on one of them.

A child works through a range of trials and writes into a file which one it begins and how it ended.
Where it dies or falls silent the trial it had begun is a finding, and another child goes
on behind it. Inside a child every trial has an alarm, and memory is limited: by RLIMIT_AS, or under
AddressSanitizer, whose shadow memory needs all addresses, by its largest allocation (set
`max_allocation_size_mb` in ASAN_OPTIONS); the growth of resident memory is measured in both cases.
"""

import argparse
import collections
import json
import multiprocessing
import os
import resource
import signal
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

MIB = 1 << 20
ADDRESSES = 9 << 30
SECONDS = 5
# A loop in C never comes back to Python's alarm. Generous, since other programs slow a child down.
SILENCE = 60
_STARTUP = 300
_FINDINGS = ("crash", "hang", "over budget", "wrong error", "wrong result")
# What numpy, torch and Pillow say when they got no memory for what a file claims. HDF5 is not among
# them: it tries any length, before it looks whether the file has as much.
_NO_MEMORY = ("allocate memory", "unable to allocate", "out of memory")


class Hang(BaseException):
    """The alarm of a trial; not an Exception, which readers turn into their own."""


@dataclass(frozen=True)
class Report:
    """How a trial ended.

    Attributes:
        group: row of the table it is counted in.
        outcome: "accepted", "refused", or one of the findings.
        message: of an error.
    """

    group: str
    outcome: str
    message: str = ""


def judge(
    group: str,
    call: Callable[[], object],
    documented: tuple[type[Exception], ...],
    budget: int,
    *,
    asked: bool = False,
) -> Report:
    """Run one trial under an alarm and a budget of memory.

    Args:
        group: row of the table.
        call: the trial; an AssertionError says that its result is wrong.
        documented: errors it may raise, of one line.
        budget: growth of resident memory that is allowed, bytes.
        asked: whether the caller asked for memory there may not be, so that its lack is an answer.
    """
    _reset_peak()
    before = _peak()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        call()
    except Hang:
        report = Report(group, "hang", f"more than {SECONDS} s of processor time")
    except AssertionError as error:
        report = Report(group, "wrong result", str(error))
    except Exception as error:
        report = Report(group, *_judge_error(error, documented, asked))
    else:
        report = Report(group, "accepted")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    grown = _peak() - before
    if grown > budget and report.outcome in ("accepted", "refused"):
        return Report(group, "over budget", f"grew by {grown // MIB} MiB; {report.message}")
    return report


def _judge_error(
    error: BaseException, documented: tuple[type[Exception], ...], asked: bool
) -> tuple[str, str]:
    text = f"{type(error).__name__}: {error}"
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    starved = any(
        isinstance(link, MemoryError) or any(words in str(link).lower() for words in _NO_MEMORY)
        for link in chain
    )
    if starved:
        return ("refused" if asked else "over budget"), text
    if not isinstance(error, documented):
        return "wrong error", text
    if "\n" in str(error).strip() and not asked:
        return "wrong error", f"several lines: {text}"
    return "refused", text


def limit_addresses() -> None:
    """Let this process map only so much more than it has, unless AddressSanitizer watches it."""
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        return
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


class Trials(Protocol):
    """What a fuzzer tries: trial i is a function of the seed and of i alone."""

    def name(self, index: int) -> str:
        """Return the group of a trial."""

    def show(self, index: int) -> str:
        """Describe a trial."""

    def __call__(self, index: int) -> Report:
        """Run a trial."""


Making = Callable[[], AbstractContextManager[Trials]]


def serve(make: Making, first: int, last: int, answers: Path, said: Path) -> None:
    """Be a child: work through trials, and write a line when each begins and when it ends."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise Hang

    for output in (1, 2):
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), output)
    with make() as trials, answers.open("w") as stream:
        limit_addresses()
        signal.signal(signal.SIGPROF, ring)
        for index in range(first, last):
            print(json.dumps([index, trials.name(index)]), file=stream, flush=True)
            report = trials(index)
            answer = [index, report.group, report.outcome, report.message[:2000]]
            print(json.dumps(answer), file=stream, flush=True)


def run(make: Making, count: int, batch: int, out: Path) -> dict[int, Report]:
    """Be the parent: run all trials in forks, `batch` to each; itself it computes nothing.

    Args:
        make: returns the trials.
        count: number of trials.
        batch: trials of one child.
        out: folder for what dying children print.
    """
    reports: dict[int, Report] = {}
    first = 0
    while first < count:
        last = min(first + batch, count)
        with tempfile.TemporaryDirectory() as folder:
            answers, said = Path(folder, "answers"), Path(folder, "said")
            status = _watch(make, first, last, answers, said)
            lines = [json.loads(text) for text in answers.read_text().splitlines()]
            words = said.read_text(errors="replace")[-20000:]
        reports |= {index: Report(*rest) for index, *rest in lines if len(rest) == 3}
        begun, group = max((line[:2] for line in lines), default=(-1, ""))
        if status == 0 and begun == last - 1 and begun in reports:
            first = last
            continue
        if begun < first:
            raise RuntimeError(f"a child did not start: {words[-2000:]}")
        if begun not in reports:
            out.mkdir(parents=True, exist_ok=True)
            (out / f"{begun}.txt").write_text(words, encoding="utf-8")
            how = "hang" if status is None else "crash"
            ending = words.strip().splitlines()[-1:] or [""]
            reports[begun] = Report(group, how, f"status {status}; {ending[0]}")
        first = begun + 1
    return reports


def _watch(make: Making, first: int, last: int, answers: Path, said: Path) -> int | None:
    """Run a child until it ends, and return its status; None where it fell silent."""
    answers.touch()
    said.touch()
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=serve, args=(make, first, last, answers, said))
    child.start()
    size, since = 0, time.monotonic()
    while child.exitcode is None:
        time.sleep(0.02)
        if (grown := answers.stat().st_size) != size:
            size, since = grown, time.monotonic()
        elif time.monotonic() - since > (SILENCE if size else _STARTUP):
            child.kill()
            child.join()
            return None
    return child.exitcode


def print_table(reports: dict[int, Report], heading: str) -> int:
    """Print how many trials of each group ended how, and every finding.

    Returns:
        Number of findings.
    """
    outcomes = ("accepted", "refused", *_FINDINGS)
    table: dict[str, collections.Counter[str]] = {}
    for report in reports.values():
        table.setdefault(report.group, collections.Counter())[report.outcome] += 1
    table["all"] = sum(table.values(), collections.Counter())
    width = max(len(heading), *map(len, table))
    print(f"{heading:{width}} " + " ".join(f"{text:>12}" for text in outcomes))
    for group, counted in table.items():
        print(f"{group:{width}} " + " ".join(f"{counted[text]:12}" for text in outcomes))
    found = {i: r for i, r in sorted(reports.items()) if r.outcome in _FINDINGS}
    for index, report in found.items():
        print(f"finding {index}: {report.group}: {report.outcome}: {report.message[:300]}")
    return len(found)


def fuzz(
    description: str | None,
    counted: str,
    make: Callable[[argparse.Namespace], AbstractContextManager[Trials]],
) -> int:
    """Be the command of a fuzzer: all trials in forks, or one trial in this process.

    Args:
        description: of the command, in the first line.
        counted: what its trials are called.
        make: returns its trials, for the parsed options.

    Returns:
        The exit status: 1 where there are findings.
    """
    options = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    options.add_argument(f"--{counted}", dest="count", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--budget-mib", type=int, default=512, help="memory of one trial")
    options.add_argument("--batch", type=int, default=500, help="trials of one child")
    options.add_argument("--out", type=Path, default=Path("outputs/fuzz"), help="for findings")
    options.add_argument("--only", type=int, help="repeat one trial in this process")
    given = options.parse_args()
    warnings.simplefilter("ignore")
    if given.only is not None:
        with make(given) as trials:
            print(trials.show(given.only), trials(given.only), sep="\n")
        return 0
    reports = run(lambda: make(given), given.count, given.batch, given.out)
    return 1 if print_table(reports, counted) else 0


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmHWM in /proc/self/status")
