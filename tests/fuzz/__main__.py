"""Damaged files in great number, each to be read right or refused by name: ``python -m tests.fuzz --help``."""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from tests.fuzz.formats import FORMATS, FaultError

FORK = multiprocessing.get_context("fork")  # the imports take longer than many inputs
SECONDS = 20.0  # for one input
MEMORY = 1 << 30  # bytes beside what the imports take


def outcome(name: str, seed: int, number: int, folder: Path) -> tuple[str, str]:
    """What comes of one input: ``read``, ``refused`` or ``fault``, and in words."""
    rng = random.Random(f"{name}/{seed}/{number}")
    kind = FORMATS[name]
    path = kind.make(rng, folder)
    try:
        with within(SECONDS):
            kind.read(path)
    except (ValueError, OSError) as error:
        said = str(error)
        if path.name.split(".")[0] not in said:
            return "fault", f"without the name of the file: {_where(error)}"
        return "refused", said
    except FaultError as error:
        return "fault", str(error)
    except BaseException as error:  # whatever else comes of a file
        return "fault", _where(error)
    return "read", ""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """An alarm; of code that Python cannot break off, :func:`run` takes notice."""

    def late(*_: object) -> None:
        raise TimeoutError("it takes too long")  # of no file: a fault

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _where(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {str(error)[:300]} ({Path(frame.filename).name}, {frame.name})"


def work(pipe: Connection, name: str, seed: int, numbers: range, seconds: float) -> None:
    """Inputs one after the other, with little memory; a message before and after each."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)  # others were not forked
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what readers say beside their errors
    end = time.monotonic() + seconds
    for number in numbers:
        if time.monotonic() > end:
            break
        pipe.send((number, None, None))
        with tempfile.TemporaryDirectory() as folder:
            pipe.send((number, *outcome(name, seed, number, Path(folder))))


def run(
    names: Sequence[str], *, seed: int = 0, first: int = 0, count: int = 200, seconds: float = 1e9
) -> dict[str, Any]:
    """For each format how many inputs were read and refused, and all faults by number.

    A process that dies or hangs is one, too; another one goes on behind that input.
    """
    report: dict[str, Any] = {name: {"read": 0, "refused": 0, "fault": {}} for name in names}
    for name in names:
        begun, at = time.monotonic(), first
        while at < first + count and (left := seconds - (time.monotonic() - begun)) > 0:
            at = 1 + _go_on(name, seed, range(at, first + count), left, report[name])
        report[name]["seconds"] = round(time.monotonic() - begun, 1)
    return report


def _go_on(name: str, seed: int, numbers: range, seconds: float, report: dict[str, Any]) -> int:
    """Inputs up to the last one, or to one that ends the process, whose number is returned."""
    here, there = FORK.Pipe(duplex=False)
    worker = FORK.Process(target=work, args=(there, name, seed, numbers, seconds))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: none of those here is at work
        worker.start()
    there.close()
    at = None
    with contextlib.suppress(EOFError):  # the process has ended
        while here.poll(6 * SECONDS):
            number, result, said = here.recv()
            at = number if result is None else None
            if result == "fault":
                report["fault"][number] = said
            elif result is not None:
                report[result] += 1
    worker.kill()
    worker.join()
    if at is None:
        return numbers[-1]
    report["fault"][at] = f"the process ended, or hung (exit status {worker.exitcode})"
    return at


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("formats", nargs="*", help=f"of {', '.join(FORMATS)}; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--count", type=int, default=200, help="inputs of each format")
    parser.add_argument("--seconds", type=float, default=1e9, help="at most, for each format")
    parser.add_argument("--json", type=Path, help="a file for the report")
    parser.add_argument("--keep", type=Path, help="a new folder for the one input `--first`, to look at")
    args = parser.parse_args(arguments)
    names = args.formats or list(FORMATS)
    if unknown := set(names) - set(FORMATS):
        parser.error(f"there is no format {', '.join(sorted(unknown))}")
    if args.keep:
        args.keep.mkdir(parents=True)
        print(*outcome(names[0], args.seed, args.first, args.keep))
        return 0
    report = run(names, seed=args.seed, first=args.first, count=args.count, seconds=args.seconds)
    if args.json:
        args.json.write_text(json.dumps(report))
    for name, its in report.items():
        faults = its["fault"]
        print(f"{name:9} {its['read']:6} read {its['refused']:6} refused {len(faults):6} faults {its['seconds']:7} s")
        kinds = collections.defaultdict(list)
        for number, said in faults.items():
            kinds[said[:60]].append((number, said))
        for examples in sorted(kinds.values(), key=len, reverse=True)[:20]:
            print(f"    {len(examples)}: --first {examples[0][0]}: {examples[0][1]}")
    return int(any(its["fault"] for its in report.values()))


if __name__ == "__main__":
    sys.exit(main())
