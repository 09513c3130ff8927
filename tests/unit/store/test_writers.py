"""Several processes on one registry: they migrate it once, wait for one another, and forget nothing when killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from sqlalchemy import func, select

from tests.unit.security.london import NOW_MS, PLATES
from tests.unit.store.police import actions, declare_plates
from tidings.store import Registry, tables
from tidings.store.migrations import STEPS

pytestmark = pytest.mark.slow

PROCESSES = 4
IDS_EACH = 15

TAKE_IDS = """
import sys
from tidings.store import Registry

address, type_id, count = sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
with Registry.open(address, now_ms=1) as registry:
    for _ in range(count):
        print(registry.keys.new_sender_ids(type_id, by="worker", now_ms=1)[0], flush=True)
"""

ADD_A_DOMAIN = """
import sys
from tidings.store import Registry

print("ready", flush=True)
sys.stdin.readline()
with Registry.open(sys.argv[1], now_ms=1) as registry:
    registry.domains.add(sys.argv[2], [sys.argv[2].encode().rjust(32)], by="worker", now_ms=1)
"""


@contextmanager
def process(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has loaded everything and waits for a line before it starts."""
    started = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        yield started
    finally:
        started.kill()
        started.wait()


def start(*processes: subprocess.Popen[str]) -> None:
    for each in processes:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()


def test_processes_that_open_a_new_registry_at_once_migrate_it_once(address: str) -> None:
    with ExitStack() as stack:
        workers = [stack.enter_context(process(ADD_A_DOMAIN, address, f"d{n}")) for n in range(PROCESSES)]
        start(*workers)
        assert [worker.wait(timeout=120) for worker in workers] == [0] * PROCESSES
    with Registry.open(address, now_ms=NOW_MS, create=False) as registry:
        assert [domain.name for domain in registry.domains.all()] == [f"d{n}" for n in range(PROCESSES)]
        assert registry.audit.verify().position == PROCESSES
        with registry.database.read() as connection:
            assert connection.scalar(select(func.count()).select_from(tables.schema)) == len(STEPS)


def test_no_two_processes_get_the_same_sender_id_and_every_one_is_audited(address: str) -> None:
    with Registry.open(address, now_ms=NOW_MS) as registry, ExitStack() as stack:
        declare_plates(registry)
        arguments = (address, PLATES.type_id.hex(), str(IDS_EACH))
        workers = [stack.enter_context(process(TAKE_IDS, *arguments)) for _ in range(PROCESSES)]
        start(*workers)
        given = [int(id) for worker in workers for id in worker.communicate(timeout=120)[0].split()]
        assert sorted(given) == list(range(1, PROCESSES * IDS_EACH + 1))
        assert [worker.returncode for worker in workers] == [0] * PROCESSES
        assert registry.audit.verify().position == len(given) + 1
        assert actions(registry).count("give sender ids") == len(given)


@pytest.mark.parametrize("lines_before", [1, 7])
def test_a_process_killed_while_it_writes_takes_no_id_back(address: str, lines_before: int) -> None:
    with Registry.open(address, now_ms=NOW_MS) as registry:
        declare_plates(registry)
        with process(TAKE_IDS, address, PLATES.type_id.hex(), "100000") as worker:
            start(worker)
            assert worker.stdout is not None
            seen = [int(worker.stdout.readline()) for _ in range(lines_before)]
            worker.kill()
            seen += [int(line) for line in worker.stdout if line.endswith("\n")]
        (following,) = registry.keys.new_sender_ids(PLATES.type_id, by="manager", now_ms=NOW_MS)
        assert following > max(seen)
        assert registry.audit.verify().position == following + 1
