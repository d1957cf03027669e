"""`python -m botpool.simulation`: run seeds, and say which promise broke and how to repeat it."""

from __future__ import annotations

import argparse
import signal
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING

from botpool.reconciler import Checkpoint
from botpool.simulation.profiles import TROUBLES
from botpool.simulation.running import (
    Outcome,
    Run,
    server,
    simulate,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_EXPLAINED = """\
Runs the real pool and reconciler on a real PostgreSQL. The engine, the bots and the time are
simulated, and a seed decides what goes wrong: processes are killed between any two steps or paused
for minutes, connections are cut, engines hang, lie or lose replies, hosts vanish and return, clocks
jump, bots crash, hang or won't leave. All promises are checked every simulated minute. At the end
the troubles stop, and everything has to come to rest: every bot has ended, every slot is idle, and
nothing is reserved.

A failure prints the seed, the promise that broke, and the last events. The same seed repeats it.
"""
_EXAMPLES = """\
examples:
  python -m botpool.simulation --seed 7 --hours 2
  python -m botpool.simulation --seeds 1-100 --jobs 2
  python -m botpool.simulation --seed 1 --hours 8 --bots 10000 --slots 200
"""
_LAST = 40


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m botpool.simulation",
        description=_EXPLAINED,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, default=1, help="the seed to run; 1 by default")
    which.add_argument(
        "--seeds", type=_seeds, metavar="A-B,C", help="run all of these seeds, such as 1-100,4711"
    )
    parser.add_argument(
        "--hours", type=float, default=1.0, help="simulated hours with trouble; 1 by default"
    )
    parser.add_argument("--jobs", type=int, default=1, help="how many seeds run at a time")
    parser.add_argument("--bots", type=int, help="how many bots are created in all")
    parser.add_argument("--slots", type=int, help="how many slots there are in all")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=[*TROUBLES],
        metavar="TROUBLE",
        help="make only this trouble, and often; may be repeated. One of: " + ", ".join(TROUBLES),
    )
    parser.add_argument(
        "--database",
        metavar="URL",
        help="a PostgreSQL on which databases may be created; by default an embedded one",
    )
    parser.add_argument("--verbose", action="store_true", help="print every event as it happens")
    return parser


def _seeds(text: str) -> list[int]:
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            seeds.extend(range(int(first), int(last or first) + 1))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must look like 1-100 or 1-100,4711") from None
    return seeds


def _outcomes(url: str, runs: Sequence[Run], jobs: int, *, verbose: bool) -> Iterator[Outcome]:
    show = partial(print, flush=True) if verbose else None
    if jobs == 1 or len(runs) == 1:
        yield from map(partial(simulate, url, show=show), runs)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as workers:
        yield from workers.map(partial(simulate, url, show=show), runs)


def _say(line: str) -> None:
    print(line, flush=True)


def _tell(outcome: Outcome) -> None:
    ended = ", ".join(f"{count} {status}" for status, count in sorted(outcome.ended.items()))
    _say(
        f"seed {outcome.run.seed:<5} {'ok    ' if outcome.broken is None else 'BROKEN'}"
        f" {outcome.virtual_seconds / 3600:5.1f} h in {outcome.seconds:5.1f} s  {ended};"
        f" {outcome.counts.get('kill', 0)} kills, {outcome.transitions} transitions,"
        f" {outcome.checks} checks, digest {outcome.digest}"
    )
    if outcome.broken is not None:
        for line in outcome.lines[-_LAST:]:
            _say(f"    {line}")
        _say(f"  profile: {outcome.profile}")
        _say(f"  broken:  {outcome.broken}")
        _say(f"  again:   {outcome.run.command}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds. Returns 0 if every promise held, otherwise 1."""
    options = _parser().parse_args(arguments)
    runs = [
        Run(
            seed=seed,
            hours=options.hours,
            bots=options.bots,
            slots=options.slots,
            only=tuple(options.only),
        )
        for seed in options.seeds or [options.seed]
    ]
    broken: list[Outcome] = []
    counts: Counter[str] = Counter()
    hours = 0.0
    with server(options.database) as url:
        for outcome in _outcomes(url, runs, options.jobs, verbose=options.verbose):
            _tell(outcome)
            counts.update(outcome.counts)
            hours += outcome.virtual_seconds / 3600
            if outcome.broken is not None:
                broken.append(outcome)
    done = ", ".join(
        f"{what} {count}"
        for what, count in sorted(counts.items())
        if not what.startswith("reached")
    )
    _say(f"{len(runs)} seeds, {hours / 24:.1f} days: {done}")
    unseen = [point for point in Checkpoint if not counts[f"reached {point}"]]
    if unseen:
        _say(f"never reached: {', '.join(unseen)}")
    for outcome in broken:
        _say(f"BROKEN {outcome.broken}\n       {outcome.run.command}")
    return 1 if broken else 0


if __name__ == "__main__":
    # So that SIGTERM also stops an embedded PostgreSQL.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
