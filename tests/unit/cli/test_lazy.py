"""What a command does not use it does not import: `tidings --help` must not wait for Spark, Arrow or a compiler."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tidings.cli import COMMANDS
from tidings.cli.lazy import LazyEntry
from tidings.cli.registry.registry import DEFAULT_REGISTRY

HEAVY = {"numba", "llvmlite", "pyarrow", "numpy", "pandas", "scipy", "matplotlib", "pyspark", "sqlalchemy", "networkx"}
PROGRAM = """
import json, sys
sys.argv = ["tidings", *sys.argv[1:]]
from tidings.cli import main
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules} | {n for n in sys.modules if "tidings" in n})))
"""


def modules_of(program: str, *arguments: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("arguments", "also"),
    [
        (["--help"], {"tidings.events", "tidings.net", "cryptography", "rich", "pydantic"}),
        (["--version"], {"tidings.events", "tidings.net", "cryptography", "rich"}),
        (
            ["filter", "check", "area = 'EC2' AND speed > 20"],
            {"tidings.net", "tidings.matching", "cryptography", "rich"},
        ),
        (["filter", "test", "speed > 20", "--event", '{"speed": 31.0}'], {"tidings.net", "cryptography", "rich"}),
        (["context", "ls", "-o", "json"], {"tidings.net", "tidings.matching", "cryptography", "rich"}),
        *(
            ([*name.split(), "--help"], {"asyncio", "tidings.net", "tidings.filters", "tidings.store", "biscuit_auth"})
            for name in (
                "org",
                "org create",
                "client",
                "grant",
                "role",
                "type",
                "who",
                "why",
                "subscription",
                "envelope",
            )
        ),
        (["broker", "run", "--help"], {"tidings.net", "tidings.matching", "cryptography", "rich"}),
    ],
)
def test_a_light_command_loads_nothing_heavy(arguments: list[str], also: set[str]) -> None:
    assert modules_of(PROGRAM, *arguments) & (HEAVY | also) == set()


def test_importing_tidings_loads_nothing_but_itself() -> None:
    program = "import json, sys, tidings; print(json.dumps([name for name in sys.modules if 'tidings' in name]))"
    assert modules_of(program) == {"tidings"}


def test_every_public_name_of_tidings_is_there_when_it_is_asked_for() -> None:
    import tidings

    assert [name for name in tidings.__all__ if getattr(tidings, name) is None] == []
    assert set(dir(tidings)) >= set(tidings.__all__)


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_every_command_is_where_the_list_says_and_its_help_fits_on_a_line(entry: LazyEntry) -> None:
    assert entry.load().name
    assert len(entry.help) <= 80 - 6 - max(len(each.name) for each in COMMANDS)


def commands_of(command: Any) -> Iterator[Any]:
    subcommands = getattr(command, "commands", None)
    if subcommands is None:
        yield command
        return
    for each in subcommands.values():
        yield from commands_of(each)


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_whatever_takes_a_registry_with_a_default_takes_the_organisation_it_belongs_to(entry: LazyEntry) -> None:
    for command in commands_of(entry.load()):
        options = {name: each for each in command.params for name in each.opts}
        if "--registry" in options and options["--registry"].default == DEFAULT_REGISTRY:
            assert "--org" in options, command.name
