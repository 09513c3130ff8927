"""broker.toml and client.toml: what is written is what is meant, and what is misspelt is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidings.errors import InputError
from tidings.net import Layout, lay_out, read_broker, read_client
from tidings.net.config import host_and_port


def test_what_init_writes_can_be_read(tmp_path: Path) -> None:
    laid = lay_out(tmp_path / "n", Layout(limits={"connections_max": 7}, overlay_options={"heartbeat_s": 2.0}))
    broker = read_broker(laid.brokers["ccs-1"])
    assert (broker.domain, broker.overlay, broker.limits.connections_max) == ("ccs", "irbr", 7)
    assert broker.overlay_options == {"heartbeat_s": 2.0}
    assert len(broker.peers) == 2
    assert all(
        file.exists() for file in (broker.key, broker.certificate, broker.trusted, *broker.types, *broker.tokens)
    )
    client = read_client(laid.clients["ccs/desk"])
    assert client.broker == broker.listen
    with pytest.raises(InputError, match="not empty"):
        lay_out(tmp_path / "n")


def test_secrets_are_for_their_owner_only(tmp_path: Path) -> None:
    lay_out(tmp_path / "n")
    assert {file.stat().st_mode & 0o077 for file in tmp_path.rglob("*.pem") if "PRIVATE" in file.read_text()} == {0}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("[broker]\nnme = 'x'", "has no 'nme'; did you mean 'name'"),
        ("[broker]\nname = 'x'", r"\[broker\] needs 'domain'"),
        ("[broker]\nname = 3", "name: expected str, got 3"),
        ("[limit]\nx = 3", r"no \[limit\]; did you mean 'limits'"),
        ("name = ", "Invalid value"),
        ("", r"expected a table \[broker\]"),
    ],
)
def test_a_mistake_is_told_with_its_place(wrong: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(wrong)
    with pytest.raises(InputError, match=told):
        read_broker(file)


@pytest.mark.parametrize("wrong", ["localhost", "localhost:", "localhost:http", "localhost:70000", ""])
def test_an_address_is_a_host_and_a_port(wrong: str) -> None:
    with pytest.raises(InputError, match="host:port"):
        host_and_port(wrong)
