"""Organisations that are linked by one command, and who is not let in by it."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.together import Together
from tidings.net import Layout, domains_in
from tidings.net.pki import authority
from tidings.security import Identity

pytestmark = pytest.mark.live


def trust(ours: Path, theirs: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidings", "domain", "trust", str(ours), str(theirs)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def strangers(folder: Path) -> Together:
    """Two organisations, each of which trusts itself alone."""
    network = Together(folder, Layout(first_port=0, brokers={"police": 1, "ccs": 1}))
    for name in ("police", "ccs"):
        own = network.laid.folder / name / "authority.crt"
        own.with_name("trusted.pem").write_bytes(own.read_bytes())
    return network


def test_events_cross_between_organisations_once_they_trust_each_other(tmp_path: Path) -> None:
    network = strangers(tmp_path)
    done = trust(network.laid.folder / "police", network.laid.folder / "ccs")
    assert done.returncode == 0, done.stderr

    async def scenario() -> None:
        async with network:
            heard = await (await network.client("ccs/desk")).subscribe("Numberplate", durable="d").ready()
            id = await (await network.client("police/camera")).publish("Numberplate", {"plate": "AB"})
            async with asyncio.timeout(60):
                assert (await anext(heard)).id == id

    asyncio.run(scenario())


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
