"""broker.toml and client.toml: what is written is what is meant, and what is misspelt is told."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path

import pytest

from tidings.cli.network.broker import run
from tidings.errors import InputError
from tidings.net import DevNetwork, broker_with, lay_out, peer_at, read_broker, read_client
from tidings.net.config import BrokerConfig, Limits, host_and_port


def test_what_init_writes_can_be_read(tmp_path: Path) -> None:
    laid = lay_out(tmp_path / "n", DevNetwork(limits={"connections_max": 7}, overlay_options={"heartbeat_s": 2.0}))
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


def test_an_option_counts_instead_of_what_the_file_says(tmp_path: Path) -> None:
    file = lay_out(tmp_path / "n").brokers["ccs-1"]
    written = read_broker(file)
    described = broker_with(file, {"listen": "[::1]:9", "peers": written.peers[:1]})
    assert (described.listen, described.peers) == ("[::1]:9", written.peers[:1])
    assert (described.name, described.types) == (written.name, written.types)


def test_options_alone_describe_a_broker_or_are_told_which_are_missing(tmp_path: Path) -> None:
    written = read_broker(lay_out(tmp_path / "n").brokers["ccs-1"])
    needed = {word: getattr(written, word) for word in ("name", "domain", "listen", "key", "certificate", "trusted")}
    with pytest.raises(InputError, match="these options: --data$"):
        broker_with(None, needed)
    described = broker_with(None, {**needed, "data": tmp_path})
    assert (described.overlay, described.key) == ("irbr", written.key)


def test_a_peer_is_an_address_and_a_key(tmp_path: Path) -> None:
    (first, _) = read_broker(lay_out(tmp_path / "n").brokers["ccs-1"]).peers
    assert peer_at(f"{first.address}={first.key}") == first
    for wrong in ("here", "here:1", f"here={first.key}", "here:1=ed25519:nonsense"):
        with pytest.raises(InputError):
            peer_at(wrong)


def test_every_limit_is_in_the_reference() -> None:
    reference = (Path(__file__).parents[3] / "docs/reference/live.md").read_text()
    assert [limit.name for limit in fields(Limits) if f"| `{limit.name}` |" not in reference] == []


def test_an_option_counts_more_than_a_variable_and_a_variable_more_than_the_file(tmp_path: Path) -> None:
    file = lay_out(tmp_path / "n", DevNetwork(limits={"connections_max": 7, "burst_s": 3.0})).brokers["ccs-1"]
    variables = {
        "TIDINGS_BROKER_METRICS": "127.0.0.1:9101",
        "TIDINGS_BROKER_LISTEN": "127.0.0.1:7001",
        "TIDINGS_BROKER_TOKENS": "a.token, b.token",
        "TIDINGS_LIMITS_CONNECTIONS_MAX": "8",
        "TIDINGS_LIMITS_BURST_S": "4",
        "TIDINGS_LIMITS_SPOT_CHECKS": "false",
        "TIDINGS_BROKER_CONFIG": "elsewhere.toml",
        "HOME": "/",
    }
    broker = broker_with(file, {"listen": "127.0.0.1:7002"}, variables, ["burst_s=5"])
    assert (broker.name, broker.metrics, broker.listen) == ("ccs-1", "127.0.0.1:9101", "127.0.0.1:7002")
    assert broker.tokens == (Path("a.token"), Path("b.token"))
    assert (broker.limits.connections_max, broker.limits.burst_s, broker.limits.spot_checks) == (8, 5.0, False)


def test_every_setting_but_those_of_the_overlay_has_an_option_and_a_line_in_the_reference() -> None:
    options = inspect.signature(run).parameters.keys() | {"overlay_options"}
    missing = [f.name for f in fields(BrokerConfig) if not options & {f.name, f.name.removesuffix("s")}]
    assert missing == []
    reference = (Path(__file__).parents[3] / "docs/reference/live.md").read_text()
    tables = {"overlay_options", "peers", "limits"}
    assert {f.name for f in fields(BrokerConfig) if f"`{f.name}`" not in reference} == tables


def test_a_limit_and_a_share_can_be_taken_back_to_none(tmp_path: Path) -> None:
    file = lay_out(tmp_path / "n", DevNetwork(limits={"client_events_per_s": 7.0})).brokers["ccs-1"]
    none = {"TIDINGS_LIMITS_CLIENT_EVENTS_PER_S": "0", "TIDINGS_BROKER_TRACES_RATIO": "0"}
    broker = broker_with(file, {}, none, ["cover_bytes_s=0"])
    assert (broker.limits.client_events_per_s, broker.traces_ratio, broker.limits.cover_bytes_s) == (0, 0, 0)


def test_peers_are_also_in_the_file_that_an_option_or_a_variable_names(tmp_path: Path) -> None:
    laid = lay_out(tmp_path / "n").brokers
    first, second = read_broker(laid["ccs-1"]).peers
    text = laid["ccs-1"].read_text()
    laid["ccs-1"].write_text(text[: text.index("[[peer]]")])
    shared = tmp_path / "peers.toml"
    shared.write_text(text[text.index("[[peer]]") :])
    assert read_broker(laid["ccs-1"]).peers == ()
    assert broker_with(laid["ccs-1"], {"peers_file": shared}).peers == (first, second)
    assert broker_with(laid["ccs-1"], {}, {"TIDINGS_BROKER_PEERS_FILE": str(shared)}).peers == (first, second)
    assert broker_with(laid["ccs-1"], {"peers_file": shared, "advertise": first.address}).peers == (second,)


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("TIDINGS_BROKER_LISTN", "x", "no setting 'listn'; did you mean 'listen'"),
        ("TIDINGS_LIMITS_BURST", "2", "no setting 'burst'; did you mean 'burst_s'"),
        ("TIDINGS_LIMITS_BURST_S", "soon", "TIDINGS_LIMITS_BURST_S: expected float, got 'soon'"),
        ("TIDINGS_LIMITS_CONNECTIONS_MAX", "-1", "expected int, got -1"),
        ("TIDINGS_LIMITS_CONNECTIONS_MAX", "0", "expected int, got 0"),
        ("TIDINGS_LIMITS_RETENTION_HOURS", "0", "expected float, got 0"),
        ("TIDINGS_LIMITS_RETENTION_HOURS", "inf", "expected float, got inf"),
        ("TIDINGS_LIMITS_BURST_S", "nan", "expected float, got nan"),
        ("TIDINGS_LIMITS_SPOT_CHECKS", "no", "expected bool, got 'no'"),
        ("TIDINGS_BROKER_PEERS", "nowhere", "host:port"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        broker_with(lay_out(tmp_path / "n").brokers["ccs-1"], {}, {variable: value})
