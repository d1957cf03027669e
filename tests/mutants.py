"""Take out each guard in turn, and see a test fail for it: `make mutants`.

A guard that can be taken out without a test noticing is not guarded. Each mutant is one change of
one file, made in a copy of the tree; the tests named beside it must fail there, and pass without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Mutant:
    """What a promise rests on (`old`), what stands there instead, and which tests notice.

    `also` is another such pair, where the promise is kept twice.
    """

    promise: int
    file: str
    old: str
    new: str
    tests: str
    also: tuple[str, str] | None = None

    def of(self, text: str) -> str:
        """The text of its file without the guard. Raises `ValueError` if that isn't there once."""
        for old, new in filter(None, ((self.old, self.new), self.also)):
            if text.count(old) != 1:
                raise ValueError(f"{self.file} does not have once: {old}")
            text = text.replace(old, new)
        return text


STORE = "src/botpool/store"
SCHEMA = f"{STORE}/schema"
MUTANTS = (
    Mutant(
        1,
        f"{SCHEMA}/migrations/0001_core.sql",
        "bigint UNIQUE REFERENCES bots (id)",
        "bigint REFERENCES bots (id)",
        "tests/integration/test_guards.py",
    ),
    Mutant(
        1,
        f"{SCHEMA}/migrations/0001_core.sql",
        "CHECK ((status IN ('deploying', 'busy')) = (assigned_bot_id IS NOT NULL))",
        "CHECK (true)",
        "tests/integration/test_guards.py",
    ),
    Mutant(
        2,
        f"{STORE}/slots.sql",
        "s.id = asked.slot_id AND s.lease = asked.lease",
        "s.id = asked.slot_id",
        "tests/integration/test_assignment.py",
    ),
    Mutant(
        2,
        f"{STORE}/bots.sql",
        "s.id = said.slot_id AND s.lease = said.lease",
        "s.id = said.slot_id",
        "tests/integration/test_assignment.py",
    ),
    Mutant(
        2,
        f"{SCHEMA}/functions/triggers.sql",
        "EXECUTE FUNCTION refuse_lease()",
        "EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "tests/integration/test_guards.py",
    ),
    Mutant(
        3,
        f"{SCHEMA}/functions/guards.sql",
        "WHERE platform = NEW.platform AND size < max_size",
        "WHERE platform = NEW.platform",
        "tests/integration/test_guards.py",
    ),
    Mutant(
        3,
        f"{SCHEMA}/functions/slots.sql",
        "least(p_wanted - cardinality(v_slots), v_pool.max_size - v_pool.size)",
        "p_wanted - cardinality(v_slots)",
        "tests/integration/test_create.py",
        also=("IF v_pool.size < v_pool.max_size THEN", "IF true THEN"),
    ),
    Mutant(
        4,
        f"{STORE}/queue.sql",
        "WHERE timeout_at <= (SELECT now FROM clock)",
        "WHERE timeout_at <= '-infinity'",
        "tests/integration/test_queue.py",
    ),
    Mutant(
        4,
        "src/botpool/reconciler/recovery.py",
        "        *await silent(context),\n",
        "",
        "tests/integration/test_recovery.py",
    ),
    Mutant(
        4,
        "src/botpool/reconciler/deploy.py",
        "if waited * 1000 >= settings.deployment_limit_ms and await _had_its_time(context, slot):",
        "if waited < 0:",
        "tests/integration/test_deploy.py",
    ),
    Mutant(
        5,
        "src/botpool/reconciler/release.py",
        "    if not proved_stopped(context, slot, seen):\n        return False\n    context.reached(Checkpoint.RELEASE_PROVED)",
        "    context.reached(Checkpoint.RELEASE_PROVED)",
        "tests/integration/test_release.py",
    ),
    Mutant(
        5,
        "src/botpool/reconciler/environment.py",
        "if traits.reusable and (traits.environment_at_start or made_elsewhere):",
        "if traits.reusable and made_elsewhere:",
        "tests/integration/test_start_pulls.py",
    ),
    Mutant(
        5,
        "src/botpool/reconciler/deploy.py",
        "if newly_admitted and not _may_start(context, slot, observation):",
        "if newly_admitted and observation.state is ContainerState.MISSING:",
        "tests/integration/test_fencing.py",
    ),
    Mutant(
        5,
        "src/botpool/engines/coolify/engine.py",
        "        for deployment in newest:\n            if deployment.active:",
        "        for deployment in newest:\n            if False:",
        "tests/engines/test_coolify.py -k while_a_deployment",
    ),
    Mutant(
        5,
        "src/botpool/engines/coolify/engine.py",
        "for deployment in await self._view.deployments_of(uuid):",
        "for deployment in ():",
        "tests/engines/test_coolify.py -k left_to_finish",
    ),
    Mutant(
        5,
        "src/botpool/engines/coolify/engine.py",
        "(stop.was_up or not exited)",
        "True",
        "tests/engines/test_coolify.py -k from_before_the_start",
    ),
    Mutant(
        5,
        "src/botpool/engines/coolify/engine.py",
        "return now >= stop.ask_at",
        "return True",
        "tests/engines/test_coolify.py -k one_weak_no",
    ),
    Mutant(
        5,
        "src/botpool/engines/coolify/engine.py",
        "        if await self._running(uuid):\n            return Observation(\n",
        "        if False:\n            return Observation(\n",
        "tests/engines/test_coolify.py",
    ),
    Mutant(
        2,
        f"{SCHEMA}/functions/bots.sql",
        "CASE WHEN s.status IN ('releasing', 'error') THEN s.last_bot_id END",
        "s.last_bot_id",
        "tests/integration/test_last_lines.py",
    ),
    Mutant(
        6,
        f"{SCHEMA}/functions/pulls.sql",
        "AND other.status = 'pulling' AND other.reserved_until > botpool_now()",
        "AND false",
        "tests/integration/test_pull_ahead.py",
    ),
    Mutant(
        6,
        f"{SCHEMA}/functions/pulls.sql",
        "image_pulls.status = 'pulling' AND image_pulls.reserved_until <= botpool_now()",
        "image_pulls.status = 'pulling'",
        "tests/integration/test_pulls.py",
    ),
    Mutant(
        6,
        "src/botpool/reconciler/pulls.py",
        "        if (pull.slot_id, pull.lease) == (slot.id, slot.lease):\n",
        "        if pull.slot_id is not None:\n",
        "tests/integration/test_start_pulls.py",
    ),
    Mutant(
        7,
        "src/botpool/reconciler/deploy.py",
        "    deployment_ref = await engine.start(\n"
        "        container, environment, stopped=True, avoid_node=await _avoided_node(context, slot)\n"
        "    )\n",
        "    async with context.store.installation._database.transaction() as connection:\n"
        "        await connection.execute('SELECT 1')\n"
        "        deployment_ref = await engine.start(container, environment, stopped=True)\n",
        "tests/integration/test_transactions.py",
    ),
    Mutant(
        8,
        "src/botpool/reconciler/compare.py",
        "    listed = await engine.list(host)\n",
        "    try:\n        listed = await engine.list(host)\n"
        "    except BotpoolError:\n        listed = []\n",
        "tests/integration/test_compare.py",
        also=(
            "    observation = await context.engine(slot).observe(container)\n"
            "    if observation.state not in _ENDED or",
            "    observation = Observation(state=ContainerState.MISSING)\n"
            "    if observation.state not in _ENDED or",
        ),
    ),
    Mutant(
        8,
        "src/botpool/reconciler/recovery.py",
        '        return decided(Outcome.SKIPPED, f"the engine can\'t say: {error}")\n',
        "        said = str(error)\n",
        "tests/integration/test_recovery.py",
    ),
    Mutant(
        8,
        f"{SCHEMA}/functions/listening.sql",
        "tstzrange(greatest(began_at, p_since), least(ended_at, now))",
        "tstzrange(p_since, now)",
        "tests/integration/test_recovery.py",
    ),
    Mutant(
        8,
        "src/botpool/reconciler/deploy.py",
        "if waited * 1000 >= settings.deployment_limit_ms and await _had_its_time(context, slot):",
        "if waited * 1000 >= settings.deployment_limit_ms:",
        "tests/integration/test_recovery.py",
    ),
    Mutant(
        8,
        f"{STORE}/slots.sql",
        "        AND s.status = coalesce(was, s.status)\n",
        "",
        "tests/integration/test_recovery.py",
    ),
    Mutant(
        8,
        f"{STORE}/bots.sql",
        "last_heartbeat = CASE WHEN heard THEN now ELSE b.last_heartbeat END",
        "last_heartbeat = b.last_heartbeat",
        "tests/integration/test_runtime_api.py",
    ),
    Mutant(
        9,
        f"{SCHEMA}/functions/slots.sql",
        "VALUES ('slot', slot_from, 'deploying'), ('bot', p_from, 'DEPLOYING')",
        "VALUES ('slot', slot_from, 'deploying')",
        "tests/integration/test_create.py",
    ),
    Mutant(
        9,
        "src/botpool/pool/publisher.py",
        "        log_transitions(written)\n",
        "",
        "tests/integration/test_assignment.py",
    ),
    Mutant(
        10,
        f"{STORE}/reservations.sql",
        "    WHERE due_at IS NOT NULL AND greatest(due_at, reserved_until) <= (SELECT botpool_now())\n",
        "    WHERE due_at IS NOT NULL AND reserved_until IS NULL\n"
        "        AND greatest(due_at, reserved_until) <= (SELECT botpool_now())\n",
        "tests/integration/test_reconciler.py",
    ),
    Mutant(
        10,
        "src/botpool/reconciler/reservations.py",
        "        if slot.id in self._workers:\n            raise ReservationLost",
        "        if False:\n            raise ReservationLost",
        "tests/integration/test_fencing.py",
    ),
    Mutant(
        10,
        f"{SCHEMA}/functions/health.sql",
        "OR images <@ ARRAY[''])\n    FOR UPDATE;",
        "OR images <@ ARRAY['']);",
        "tests/integration/test_hosts.py",
    ),
    Mutant(
        10,
        "src/botpool/reconciler/context.py",
        "        if slot.id not in await self.store.reservations.renew(self.replica, [slot.id], ttl_ms):\n",
        "        if False:\n",
        "tests/integration/test_fencing.py",
    ),
)
"""By the promises of docs/concepts/reliability.md."""


def main() -> int:
    """Try every mutant, or those whose file or promise is named, and tell which survived."""
    wanted = sys.argv[1:]
    survivors = []
    with tempfile.TemporaryDirectory(prefix="botpool-mutants-") as folder:
        tree = Path(folder) / "tree"
        ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis")
        shutil.copytree(ROOT, tree, ignore=ignored)
        for mutant in MUTANTS:
            if wanted and not {str(mutant.promise), mutant.file} & {*wanted}:
                continue
            path = tree / mutant.file
            text = path.read_text("utf-8")
            path.write_text(mutant.of(text), "utf-8")
            noticed = not _pass(tree, mutant.tests)
            path.write_text(text, "utf-8")
            line = " ".join(mutant.old.split())[:60]
            print(f"{'noticed ' if noticed else 'SURVIVED'} promise {mutant.promise}: {line}")
            if not noticed:
                survivors.append(mutant)
    print(f"{len(survivors)} survived")
    return 1 if survivors else 0


def _pass(tree: Path, tests: str) -> bool:
    """Whether tests pass on a tree."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests.split()],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        check=False,
    )
    if done.returncode not in {0, 1}:
        raise SystemExit(f"{tests} could not be run:\n{done.stdout.decode()[-2000:]}")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
