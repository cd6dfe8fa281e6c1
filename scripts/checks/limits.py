"""Run commands where something is short, and look at how they end and how they go on.

    python -m scripts.checks.limits --runs 60 --kills 100 --seed 0

Each run has one hindrance, drawn with its size: a full disk (a tmpfs where it may be mounted, else
a limit on the size of a file), a read-only disk, few open files, few addresses, outputs that are
closed or that nobody reads any more, a temporary folder or a working folder that is gone (Linux).
The runs are those of `kills.py`. Each must end with a known status; where that is a failure, in
lines of its own and without a traceback. Every final file must be readable, no temporary one left,
and no process. Then the same command is given again without the hindrance, and must give what an
undisturbed run gives. With `--kills`, runs are killed too, as `kills.py` does. The exit status is 1
where something was not as it should be.
"""

import argparse
import functools
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scripts.checks import kills
from scripts.checks.kills import Case, Checker, await_orphans, find_faults, say, start, wait

STATUSES = {0, 1, 2, 141}
"""Done, in part, refused, and: nobody reads what is printed."""
MB = 1_000_000


@dataclass(frozen=True)
class Hindrance:
    """What a run lacks.

    Attributes:
        begin: done in the process of the command, before it starts.
        speaks: whether what it prints can be read.
        prepare: done before, of the folder of the results; undone by `end`.
        end: lets the folder be as any other.
    """

    begin: Callable[[], object] = lambda: None
    speaks: bool = True
    prepare: Callable[[Path], object] = lambda folder: None
    end: Callable[[Path], object] = lambda folder: None


def limit(kind: int, value: int) -> None:
    """Set a limit of this process."""
    resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))


def _limit_addresses(more: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit(resource.RLIMIT_AS, pages * os.sysconf("SC_PAGE_SIZE") + more)


def _close(*numbers: int) -> None:
    """Let a command start with outputs closed, as `>&-` in a shell does."""
    for number in numbers:
        with suppress(OSError):
            os.close(number)
        setattr(sys, ("stdin", "stdout", "stderr")[number], None)


def _break(number: int, lines: int) -> None:
    """Let an output be a pipe whose reader takes so many lines, and goes."""
    reader = subprocess.Popen(
        ["head", "-n", str(lines)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert reader.stdin is not None
    os.dup2(reader.stdin.fileno(), number)
    reader.stdin.close()
    if lines == 0:
        reader.wait()


def _lose_folder() -> None:
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)


def _mount(folder: Path, options: str) -> None:
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)


def _remount(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,rw,size=64m,nr_inodes=0", folder], check=True)


def can_mount(folder: Path) -> bool:
    """Tell whether this user may mount a tmpfs."""
    try:
        _mount(folder, "size=1m")
    except (OSError, subprocess.CalledProcessError):
        return False
    subprocess.run(["umount", folder], check=True)
    return True


def draw_hindrance(draw: random.Random, size: int, mounts: bool) -> tuple[str, Hindrance]:
    """Draw one.

    Args:
        draw: the random numbers.
        size: bytes that the undisturbed run has written.
        mounts: whether a tmpfs can be mounted.
    """
    room, files = draw.randint(4096, size), draw.randint(3, 40)
    more, lines, entries = draw.randint(0, 600) * MB, draw.randint(0, 3), draw.randint(2, 30)
    numbers = draw.choice([(0,), (1,), (2,), (1, 2), (0, 1, 2)])
    found = {
        f"files of {room // 2} bytes": Hindrance(lambda: limit(resource.RLIMIT_FSIZE, room // 2)),
        f"{files} open files": Hindrance(lambda: limit(resource.RLIMIT_NOFILE, files)),
        f"{more // MB} MB of addresses": Hindrance(lambda: _limit_addresses(more)),
        f"closed {numbers}": Hindrance(lambda: _close(*numbers), not {1, 2} & {*numbers}),
        f"{lines} lines of stdout read": Hindrance(lambda: _break(1, lines)),
        f"{lines} lines of stderr read": Hindrance(lambda: _break(2, lines), False),
        "a working folder that is gone": Hindrance(_lose_folder),
        "no temporary folder": Hindrance(lambda: os.environ.update(TMPDIR="/proc/none")),
    }
    if mounts:
        for name, options in {
            f"a disk of {room} bytes": f"size={room}",
            f"a disk of {entries} files": f"size=64m,nr_inodes={entries}",
            "a read-only disk": "ro",
        }.items():
            found[name] = Hindrance(
                prepare=functools.partial(_mount, options=options), end=_remount
            )
    return draw.choice(list(found.items()))


def judge(status: int, speaks: bool, said: str) -> list[str]:
    """Say what is wrong with how a command ended."""
    faults = [f"a traceback: {said[-1500:]}"] if "Traceback" in said else []
    if status not in STATUSES:
        faults.append(f"exit status {status}: {said[-500:]}")
    errors = [line for line in said.splitlines() if ": error: " in line]
    if status == 2 and speaks and len(errors) != 1:
        faults.append(f"{len(errors)} lines of the error: {said[-500:]}")
    return faults


def run_once(checker: Checker, name: str, folder: Path, kind: str, hindrance: Hindrance) -> None:
    """Run a command with a hindrance, and again without."""
    case: Case = checker.cases[name]
    hindrance.prepare(folder)
    status = wait(start(case, folder, hindrance.begin))
    said = folder.with_suffix(".log").read_text(errors="replace")
    faults = judge(status, hindrance.speaks, said) + await_orphans() + find_faults(folder)
    faults += [f"{file}: was left" for file in folder.rglob(".cassi-*")]
    checker.counts.update({"runs": 1, f"status {status}": 1, "faults": bool(faults)})
    last = said.strip().rpartition("\n")[2][:150]
    say(f"{name}, {kind}: status {status}: {'; '.join(faults) or f'right: {last}'}")
    hindrance.end(folder)
    checker.judge_whole(name, folder, wait(start(case, folder)))
    if folder.is_mount():
        subprocess.run(["umount", folder], check=True)


def main() -> None:
    """Read the options, and check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    kills.prepare()
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="cassi-limits-") as place:
        root = Path(place)
        (root / "data").mkdir()
        checker = Checker(kills.make_cases(root / "data"), root, Counter(faults=0))
        sizes, seconds = {}, {}
        for name in checker.cases:
            seconds[name] = checker.run_undisturbed(name)
            files = (root / f"whole-{name}").rglob("*")
            sizes[name] = sum(file.stat().st_size for file in files if file.is_file())
        mounts = can_mount(root / "mount")
        names = sorted(checker.cases)
        for number in range(arguments.runs):
            name = names[number % len(names)]
            kind, hindrance = draw_hindrance(draw, sizes[name], mounts)
            run_once(checker, name, root / f"{name}-limited-{number}", kind, hindrance)
        checker.kill_many(arguments.kills, arguments.seed, seconds)
    checker.conclude("runs")


if __name__ == "__main__":
    main()
