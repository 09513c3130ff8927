"""Organisations that are linked by one command, and who is not let in by it."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.processes import LiveNetwork
from tidings.net import DevNetwork, domains_in, read_broker
from tidings.net.dev_network import membership
from tidings.net.transport.tls import authority
from tidings.security import Identity, fingerprint

pytestmark = pytest.mark.live


def trust(ours: Path, theirs: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidings", "domain", "trust", str(ours), str(theirs)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def strangers(folder: Path) -> LiveNetwork:
    """Two organisations that know nothing of each other but the rights that one has given: no brokers, no types.

    Each trusts itself alone and is in a network of its own.
    """
    network = LiveNetwork(folder, DevNetwork(first_port=0, brokers={"police": 1, "ccs": 1}))
    for name in ("police", "ccs"):
        own = network.laid.folder / name / "authority.crt"
        own.with_name("trusted.pem").write_bytes(own.read_bytes())
        file = network.laid.brokers[f"{name}-1"]
        file.write_text(file.read_text().partition("[[peer]]")[0])
    _found_network(network.laid.folder / "ccs", network.laid.brokers["ccs-1"])
    return network


def _found_network(organisation: Path, broker: Path) -> None:
    """Gives an organisation a network of its own, and no type."""
    key, config = Identity.make(secrets.token_bytes), read_broker(broker)
    (organisation / "network.pem").write_bytes(key.to_pem())
    holder = Identity.from_pem(config.key.read_bytes()).public_key
    (broker.parent / "member.token").write_bytes(membership(key, holder))
    text = broker.read_text().replace(config.network_key, fingerprint(key.public_key))
    broker.write_text(text.replace('types = ["../../Numberplate.type"]', "types = []"))


def test_one_command_links_two_organisations_and_events_cross(tmp_path: Path) -> None:
    network = strangers(tmp_path)
    police, ccs = network.laid.folder / "police", network.laid.folder / "ccs"
    done = trust(police, ccs)
    assert done.returncode == 0, done.stderr

    async def scenario() -> None:
        async with network:
            heard = await (await network.client("ccs/desk")).subscribe("Numberplate", durable="d").ready()
            id = await (await network.client("police/camera")).publish("Numberplate", {"plate": "AB"})
            async with asyncio.timeout(60):
                assert (await anext(heard)).id == id

    asyncio.run(scenario())
    again = trust(police, ccs)
    assert (again.returncode, "ccs is linked already" in again.stderr) == (0, True)


def test_nobody_is_drawn_out_of_a_network_that_has_others(tmp_path: Path) -> None:
    network = strangers(tmp_path)
    police, ccs = network.laid.folder / "police", network.laid.folder / "ccs"
    broker = network.laid.brokers["ccs-1"]
    other = fingerprint(Identity.make(secrets.token_bytes).public_key)
    broker.write_text(f'{broker.read_text()}\n[[peer]]\naddress = "127.0.0.1:1"\nkey = "{other}"\n')
    before = {file: file.read_text() for file in network.laid.brokers.values()}
    refused = trust(police, ccs)
    assert (refused.returncode, "in a network of their own, with 1 others" in refused.stderr) == (2, True)
    assert {file: file.read_text() for file in network.laid.brokers.values()} == before


def test_nobody_is_trusted_under_the_name_of_another(tmp_path: Path) -> None:
    police = strangers(tmp_path).laid.folder / "police"
    before = (police / "trusted.pem").read_bytes()
    (tmp_path / "false.crt").write_bytes(authority("police", Identity.make(secrets.token_bytes)))
    refused = trust(police, tmp_path / "false.crt")
    assert (refused.returncode, "call themselves 'police'" in refused.stderr) == (2, True)
    refused = trust(police, police / "police-1" / "cert.pem")
    assert (refused.returncode, "expected the certificate of one authority" in refused.stderr) == (2, True)
    assert (police / "trusted.pem").read_bytes() == before
    assert list(domains_in(before)) == ["police"]
