"""Damage valid files at random and read them: a result, or one line of a documented error.

Every reader of cassi is tried: cubes in all formats, PNG pages, manifests, weights, checkpoints,
options and records of earlier runs, curves, config nodes. A crash, another error, one of several
lines, more than 5 s, or more memory than the budget is a finding; its damaged files are kept under
`--out`. Prints a table, one row a kind of file, and exits with status 1 where there are findings.

    python scripts/checks/fuzz_readers.py --files 10000 --seed 0
    python scripts/checks/fuzz_readers.py --only 4711
"""

from __future__ import annotations

import argparse
import io
import shutil
import struct
import sys
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2]))  # the scripts, as scripts.*

from scripts.checks import fuzz_batches
from scripts.checks.fuzz_batches import MIB, Report
from scripts.checks.fuzz_seeds import kinds

Random = np.random.Generator

# What a count, a size or an offset is replaced by.
_NUMBERS = (0, 1, 2, 255, 256, 65535, 1 << 20, 1 << 24, *((1 << bits) for bits in (30, 40, 62)))
_NUMBERS += (*(n - 1 for n in (1 << 31, 1 << 32, 1 << 63)), -1, -2, -(1 << 31), -(1 << 63))
_TEXTS = (*(str(n).encode() for n in _NUMBERS), b"9" * 400, b"1e400", b"nan", b"", b"[[", b"{")
_HEAD = 2048  # headers lie here, or at the end


def _place(random: Random, size: int) -> int:
    """Somewhere in a file, mostly near its beginning or its end."""
    where = random.random()
    if where < 0.5:
        return int(random.integers(min(size, _HEAD)))
    if where < 0.7:
        return size - 1 - int(random.integers(min(size, _HEAD)))
    return int(random.integers(size))


def flip_bits(random: Random, content: bytearray) -> None:
    """Turn over up to 16 bits."""
    for _ in range(int(random.integers(1, 17))):
        content[_place(random, len(content))] ^= 1 << int(random.integers(8))


def cut(random: Random, content: bytearray) -> None:
    """Cut the end off."""
    del content[_place(random, len(content)) :]


def splice(random: Random, content: bytearray) -> None:
    """Copy a stretch over another, or insert it, or take it out."""
    start, to = _place(random, len(content)), _place(random, len(content))
    stretch = content[start : start + int(random.integers(1, 200))]
    how = random.integers(3)
    if how == 0:
        content[to : to + len(stretch)] = stretch
    elif how == 1:
        content[to:to] = stretch * int(random.integers(1, 20))
    else:
        del content[to : to + len(stretch)]


def change_number(random: Random, content: bytearray) -> None:
    """Replace an integer of 1 to 8 bytes by a huge, a negative or another telling one."""
    size = int(random.choice([1, 2, 4, 4, 8]))
    order = "<" if random.random() < 0.7 else ">"
    value = int(random.choice(np.array(_NUMBERS, object))) % (1 << 8 * size)
    code = {1: "B", 2: "H", 4: "I", 8: "Q"}[size]
    at = _place(random, len(content))
    at -= at % size if random.random() < 0.7 else 0
    content[at : at + size] = struct.pack(order + code, value)


def change_text(random: Random, content: bytearray) -> None:
    """Replace a number that is written in digits."""
    at = _place(random, len(content))
    digits = b"0123456789."
    start = next((i for i in range(at, len(content)) if content[i] in digits), None)
    if start is None:
        return
    end = start
    while end < len(content) and content[end] in digits:
        end += 1
    content[start:end] = _TEXTS[int(random.integers(len(_TEXTS)))]


def blank(random: Random, content: bytearray) -> None:
    """Fill a stretch with one value."""
    at, size = _place(random, len(content)), int(random.integers(1, 64))
    content[at : at + size] = bytes([int(random.choice([0, 255, 32]))]) * size


MUTATIONS: tuple[Callable[[Random, bytearray], None], ...] = (
    *(flip_bits, cut, splice, change_number, change_number, change_text, blank),
)


def mutate(random: Random, content: bytes) -> bytes:
    """Damage the content of a file in one to four ways."""
    damaged = bytearray(content)
    for _ in range(int(random.choice([1, 1, 2, 3, 4]))):
        if not damaged:
            break
        MUTATIONS[int(random.integers(len(MUTATIONS)))](random, damaged)
    return bytes(damaged)


def mutate_inside(random: Random, content: bytes) -> bytes:
    """Damage what a check sum protects, and make the sum right again."""
    if content.startswith(b"PK"):
        return _mutate_zip(random, content)
    if content.startswith(b"\x89PNG"):
        return _mutate_png(random, content)
    return mutate(random, content)


def _mutate_zip(random: Random, content: bytes) -> bytes:
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(result, "w") as new:
        chosen = int(random.integers(len(old.infolist())))
        method = zipfile.ZIP_DEFLATED if random.random() < 0.5 else None
        for number, info in enumerate(old.infolist()):
            member = old.read(info)
            member = mutate(random, member) if number == chosen else member
            new.writestr(info, member, compress_type=method)
    return result.getvalue()


def _mutate_png(random: Random, content: bytes) -> bytes:
    parts, at = [content[:8]], 8
    while at < len(content):
        size = struct.unpack(">I", content[at : at + 4])[0]
        kind, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + size]
        if random.random() < 0.5:
            data = mutate(random, data)
        parts += [struct.pack(">I", len(data)), kind, data]
        parts.append(struct.pack(">I", zlib.crc32(kind + data)))
        at += size + 12
    return b"".join(parts)


class Trials:
    """Trial number i damages one file of one kind.

    Args:
        seed: of everything random; a trial depends on it and on its number only.
        budget: of memory, bytes.
        out: folder for the files of findings.
    """

    def __init__(self, seed: int, budget: int, out: Path) -> None:
        self.seed, self.budget, self.out = seed, budget, out
        self.kinds = kinds()
        self.names = list(self.kinds)
        self.root = Path(tempfile.mkdtemp(prefix="cassi-fuzz-"))
        for name, kind in self.kinds.items():
            (self.root / "seeds" / name).mkdir(parents=True)
            kind.make(self.root / "seeds" / name)
            kind.read(self.root / "seeds" / name)  # imports what it needs, and must succeed

    def name(self, index: int) -> str:
        """Kind of file that a trial damages."""
        return self.names[index % len(self.names)]

    def __call__(self, index: int) -> Report:
        """Run a trial."""
        name = self.name(index)
        random = np.random.default_rng([self.seed, index])
        folder = self.root / "trial"
        shutil.copytree(self.root / "seeds" / name, folder)
        try:
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            file = files[int(random.integers(len(files)))]
            damage = mutate_inside if random.random() < 0.4 else mutate
            file.write_bytes(damage(random, file.read_bytes()))
            kept = self.out / "files" / f"{index}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(folder, kept)  # a crash leaves no time for it
            documented = (ValueError, TypeError, OSError)
            report = fuzz_batches.judge(
                name, lambda: self.kinds[name].read(folder), documented, self.budget
            )
            if report.outcome in ("accepted", "refused"):
                shutil.rmtree(kept)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return report

    def close(self) -> None:
        """Remove the valid files."""
        shutil.rmtree(self.root, ignore_errors=True)


def main() -> int:
    """Run the fuzzer; the number of findings decides the exit status."""
    given = _parse()
    budget = given.budget_mib * MIB
    warnings.simplefilter("ignore")
    if given.child is None and given.only is None:
        names = list(kinds())
        reports = fuzz_batches.run(
            fuzz_batches.restart(__file__, given),
            given.count,
            given.batch,
            lambda index: names[index % len(names)],
            given.out,
        )
        return 1 if fuzz_batches.print_table(reports, "files") else 0
    trials = Trials(given.seed, budget, given.out)
    try:
        first, last = given.child or (given.only, given.only + 1)
        if given.child:
            fuzz_batches.limit_addresses()
            fuzz_batches.serve(trials, first, last)
        else:
            print(trials(first))
    finally:
        trials.close()
    return 0


def _parse() -> argparse.Namespace:
    return fuzz_batches.parser(__doc__.splitlines()[0], "files").parse_args()


if __name__ == "__main__":
    sys.exit(main())
