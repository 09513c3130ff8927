"""The registry's commands against a real server: they work, and a wrong URL is told without its password."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgres_server import PostgresServer
from tests.unit.cli.registry_shell import Shell, a_shell

pytestmark = pytest.mark.live


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return a_shell(tmp_path, monkeypatch, capsys)


def test_commands_work_on_a_server_that_the_environment_names(
    shell: Shell, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDINGS_REGISTRY", postgres.new_schema())
    shell.done("type", "declare", "plate.toml", "--key", "police.pem")
    shell.done("domain", "add", "ccs", shell.done("identity", "show", "ccs.pem").out.strip())
    token = shell.token("ccs", "--to", "ccs", "--action", "subscribe")
    add = ("subscription", "add", "ccs-1", "speed > 20", "--type", "Numberplate", "--key", "ccs.pem", "--token", token)
    shell.done(*add)
    shell.done("grant", "revoke", token, "--key", "police.pem")
    assert shell("grant", "inspect", token).code == 3
    assert shell(*add).code == 3
    assert shell.done("registry", "verify").out.startswith("5:")


def test_an_empty_database_is_no_registry_for_who_only_reads(shell: Shell, postgres: PostgresServer) -> None:
    said = shell("type", "ls", "--registry", postgres.new_schema())
    assert (said.code, said.out) == (2, "")
    assert "holds no registry yet" in said.err


def test_a_wrong_password_or_port_is_told_without_the_password(shell: Shell, postgres: PostgresServer) -> None:
    unreachable = "postgresql://tester:wr0ng@127.0.0.1:1/postgres"
    for url, why in ((postgres.url(password="wr0ng"), "InputError"), (unreachable, "SetupError")):
        said = shell("type", "ls", "--registry", url)
        assert (said.code, said.out) == (2, "")
        assert said.err.startswith(why)
        assert said.err.count("\n") == 1
        assert ("correct the registry's URL" if why == "InputError" else "are host and port right?") in said.err
        assert "wr0ng" not in said.err
