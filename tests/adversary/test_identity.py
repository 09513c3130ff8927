"""Who is who: an organisation is its trust anchor, and only its administrators stop its brokers."""

from __future__ import annotations

import asyncio
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from tests.live.together import Together
from tidings.errors import Denied, InputError, PeerError
from tidings.net import Broker, Client, DevNetwork, read_broker
from tidings.net.transport import tls
from tidings.security import Identity


def authority_below(name: str, key: Identity, signer: Identity, issuer: str, *, path_length: int | None) -> bytes:
    """An authority's certificate as nobody of ours writes it: with others below it, or below another."""
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(_named(issuer))
        .public_key(Ed25519PublicKey.from_public_bytes(key.public_key))
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
        .sign(Ed25519PrivateKey.from_private_bytes(signer.secret), algorithm=None)
    )
    return made.public_bytes(Encoding.PEM)


def _named(name: str) -> x509.Name:
    parts = ((NameOID.ORGANIZATION_NAME, name), (NameOID.COMMON_NAME, f"{name} authority"))
    return x509.Name([x509.NameAttribute(oid, text) for oid, text in parts])


def test_an_authority_below_a_trusted_one_cannot_take_the_name_of_another_organisation() -> None:
    police, ccs, posing, mallory = (Identity.make(secrets.token_bytes) for _ in range(4))
    trusted = tls.authority("police", police) + tls.authority("ccs", ccs)
    below = authority_below("police", posing, ccs, "ccs", path_length=0)
    taken = tls.der(tls.certificate("police", "operator", mallory.public_key, posing, below, role="client"))
    with pytest.raises(PeerError, match="certificate"):
        tls.certified_by(taken, tls.anchors_in(trusted))
    mine = tls.der(tls.certificate("police", "desk", mallory.public_key, ccs, trusted, role="client"))
    with pytest.raises(PeerError, match="certificate"):  # The name of another organisation's authority as issuer.
        tls.certified_by(mine, tls.anchors_in(trusted))


def test_a_broker_does_not_start_with_an_authority_that_allows_others_below_it(tmp_path: Path) -> None:
    network = Together(tmp_path)
    config = read_broker(network.laid.brokers["police-1"])
    ccs = Identity.make(secrets.token_bytes)
    with config.trusted.open("ab") as file:
        file.write(authority_below("ccs", ccs, ccs, "ccs", path_length=None))
    with pytest.raises(InputError, match="pathlen:0"):
        asyncio.run(Broker.start(config))


def test_only_an_administrator_drains_a_broker(tmp_path: Path) -> None:
    asyncio.run(_drain(tmp_path))


async def _drain(tmp_path: Path) -> None:
    async with Together(tmp_path, DevNetwork(first_port=0, brokers={"police": 1})) as network:
        desk = await Client.connect(network.laid.clients["police/desk"])
        with pytest.raises(Denied, match="administer"):
            await desk.ask("drain")
        assert not network.brokers["police-1"].is_draining
        await desk.close()
        camera = await Client.connect(network.laid.clients["police/camera"])  # As `tidings init` has made it.
        assert await camera.ask("drain") == [{"draining": True}]
        async with asyncio.timeout(60):
            await network.brokers.pop("police-1").ended()
        await camera.close()
