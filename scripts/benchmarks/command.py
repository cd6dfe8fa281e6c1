"""Measure whole commands in fresh processes: processor seconds and elapsed seconds.

    python -m scripts.benchmarks.command                            # starts and the bundled scene
    python -m scripts.benchmarks.command --rounds 9 --processors native avx2
    python -m scripts.benchmarks.command --python ../other/.venv/bin/python .venv/bin/python

Processor seconds are those of the process and of all its children, in the program and in the
system. Each command runs once before it is measured, so that Python's bytecode is written. The
rounds of all rows are interleaved: a busy minute of the machine hits every row. The table has the
median and the least processor seconds, and the median of the elapsed seconds.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median

from scripts.benchmarks.methods import PROCESSORS
from scripts.benchmarks.tables import Parser, Table, write_json

_RECONSTRUCT = ("-m", "cassi", "reconstruct", "output.progress=false", "hydra.run.dir={folder}")
# Arguments of Python. Each run has a new folder, which replaces `{folder}`.
COMMANDS: dict[str, Sequence[str]] = {
    "import torch": ("-c", "import torch"),
    "help": ("-m", "cassi", "reconstruct", "--help"),
    "bundled scene": _RECONSTRUCT,
    "bundled scene, no pictures": (*_RECONSTRUCT, "output.pictures=false"),
}


@dataclass
class Row:
    """The measured rounds of a command."""

    python: str
    command: str
    processor: str
    cpu_seconds: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def measure(self, threads: int) -> None:
        """Run the command once, and add its numbers.

        Raises:
            subprocess.CalledProcessError: the command fails.
        """
        environment = os.environ | PROCESSORS[self.processor] | {"OMP_NUM_THREADS": str(threads)}
        environment["PYTHONDONTWRITEBYTECODE"] = ""
        with tempfile.TemporaryDirectory() as folder:
            words = [word.format(folder=folder) for word in COMMANDS[self.command]]
            start = time.perf_counter()
            process = subprocess.Popen(
                [self.python, *words], env=environment, cwd=folder, stdout=subprocess.DEVNULL
            )
            # The usage of one process, and of those that it has waited for.
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            seconds = time.perf_counter() - start
        if process.returncode != 0:
            raise subprocess.CalledProcessError(process.returncode, process.args)
        self.cpu_seconds.append(usage.ru_utime + usage.ru_stime)
        self.seconds.append(seconds)


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = Parser(__doc__, threads=1)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--processors", nargs="+", choices=PROCESSORS, default=["native"])
    parser.add_argument("--python", nargs="+", default=[sys.executable], metavar="FILE")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    pythons = [str(Path(python).absolute()) for python in options.python]
    rows = [Row(*axes) for axes in product(pythons, options.commands, options.processors)]
    for row in rows:
        Row(row.python, row.command, row.processor).measure(options.threads)
    for _ in range(options.rounds):
        for row in rows:
            row.measure(options.threads)
    # Several Pythons have their packages in different environments, which the table names.
    names = {python: [Path(python).parents[2].name] * (len(pythons) > 1) for python in pythons}
    columns = ["environment"] * (len(pythons) > 1)
    columns += ["command", "processor", "processor s", "least", "elapsed s"]
    table = Table(*columns)
    for row in rows:
        key = [*names[row.python], row.command, row.processor]
        cpu_seconds = [median(row.cpu_seconds), min(row.cpu_seconds)]
        table.print(*key, *cpu_seconds, median(row.seconds))
    write_json(options.json, "commands", table.rows)


if __name__ == "__main__":
    main()
