"""Enrolment over HTTPS: with a code, once; renewal while the organisation agrees; rights between organisations."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tidings.errors import Denied, InputError, PeerError, SetupError, TidingsError
from tidings.events import EventType
from tidings.net import (
    Client,
    Organisation,
    OrganisationSettings,
    enrol_with_code,
    read_broker,
    read_client,
    renew_participant,
)
from tidings.net.clock import now_ms
from tidings.net.dev_network import free_ports
from tidings.net.enrolment.live_files import ChangedFiles, renew_when_due
from tidings.net.enrolment.participant import prepare
from tidings.net.enrolment.renewal import post
from tidings.net.enrolment.server import EnrolmentServer, maintain
from tidings.net.ids import read_identity
from tidings.net.transport import tls
from tidings.security import Identity, SignedType
from tidings.store import RightTerms

pytestmark = pytest.mark.live
HOUR_MS = 3_600_000


def an_organisation(folder: Path, name: str) -> Organisation:
    """With an endpoint to be, and a broker."""
    (port,) = free_ports(1)
    org, _ = Organisation.create(folder / name, OrganisationSettings(name, enrolment=f"127.0.0.1:{port}"))
    request = prepare(org.folder / f"{name}-1", name, f"{name}-1", "broker", "127.0.0.1:7401")
    org.install_here(org.approve(request))
    return org


def while_serving(*orgs: Organisation, do: Callable[[], Any]) -> Any:
    """What `do` returns, which asks the endpoints of these organisations."""

    async def serving(rest: tuple[Organisation, ...]) -> Any:
        if not rest:
            return await asyncio.to_thread(do)
        async with EnrolmentServer(rest[0].folder, rest[0].settings.enrolment):
            return await serving(rest[1:])

    return asyncio.run(serving(orgs))


def a_client(org: Organisation, folder: Path, name: str = "desk") -> Path:
    code = org.invite(name, "client", expires_ms=now_ms() + HOUR_MS)
    enrol_with_code(folder, name, "client", code)
    return folder


def test_a_code_enrols_one_participant_once(tmp_path: Path) -> None:
    org = an_organisation(tmp_path, "police")
    code = org.invite("desk", "client", expires_ms=now_ms() + HOUR_MS)

    def enrol() -> None:
        enrol_with_code(tmp_path / "desk", "desk", "client", code)
        enrol_with_code(tmp_path / "desk", "desk", "client", code)  # The same key: the answer was lost, perhaps.
        with pytest.raises(Denied, match="it has been used"):
            enrol_with_code(tmp_path / "thief", "desk", "client", code)

    while_serving(org, do=enrol)
    config = read_client(tmp_path / "desk" / "client.toml")
    assert (config.domain, config.broker) == ("police", "127.0.0.1:7401")
    tls.check_issued(tls.der(config.certificate.read_bytes()), org.authority.public_key)
    assert not (tmp_path / "thief" / "client.toml").exists()


def test_a_code_that_expired_is_for_another_or_was_never_given_is_refused(tmp_path: Path) -> None:
    org = an_organisation(tmp_path, "police")
    late = org.invite("late", "client", expires_ms=now_ms() - 1)
    other = org.invite("other", "client", expires_ms=now_ms() + HOUR_MS)

    def enrol() -> None:
        with pytest.raises(Denied, match="expired"):
            enrol_with_code(tmp_path / "late", "late", "client", late)
        with pytest.raises(Denied, match="it is for the client other"):
            enrol_with_code(tmp_path / "desk", "desk", "client", other)
        with pytest.raises(Denied, match="not valid"):
            enrol_with_code(tmp_path / "guess", "late", "client", late.rpartition("/")[0] + "/" + "00" * 16)
        with pytest.raises(PeerError, match="expected /enrol"):
            post(org.settings.enrolment, [org.authority.public_key], "/none", {"request": ""})

    while_serving(org, do=enrol)


def test_guesses_change_nothing_and_a_mistake_in_the_name_does_not_cost_the_code(tmp_path: Path) -> None:
    org = an_organisation(tmp_path, "police")
    code = org.invite("desk", "client", expires_ms=now_ms() + HOUR_MS)
    key = [org.authority.public_key]
    pem = prepare(tmp_path / "desk", "police", "desk", "client").pem.decode()
    with org.registry() as registry:
        before = registry.audit.head()

    def enrol() -> None:
        for guess in range(50):
            with pytest.raises(Denied, match="not valid"):
                post(org.settings.enrolment, key, "/enrol", {"code": f"{guess:032x}", "request": pem})
        for nonsense in ("", "xyz", "0" * 100_000):
            with pytest.raises(TidingsError):
                post(org.settings.enrolment, key, "/enrol", {"code": nonsense, "request": pem})
        with org.registry() as registry:
            assert registry.audit.head() == before
        with pytest.raises(Denied, match="it is for the client desk, not for the client dsk"):
            enrol_with_code(tmp_path / "dsk", "dsk", "client", code)
        enrol_with_code(tmp_path / "desk", "desk", "client", code)

    while_serving(org, do=enrol)


def test_who_was_removed_does_not_come_back_with_its_code(tmp_path: Path) -> None:
    org = an_organisation(tmp_path, "police")
    code = org.invite("desk", "client", expires_ms=now_ms() + HOUR_MS)

    def enrol() -> None:
        enrol_with_code(tmp_path / "desk", "desk", "client", code)
        org.remove("desk", "client")
        with pytest.raises(Denied, match="not valid"):
            enrol_with_code(tmp_path / "desk", "desk", "client", code)

    while_serving(org, do=enrol)


def test_nothing_is_sent_to_somebody_without_the_organisations_key(tmp_path: Path) -> None:
    real, false = an_organisation(tmp_path / "a", "police"), an_organisation(tmp_path / "b", "police")
    code = real.invite("desk", "client", expires_ms=now_ms() + HOUR_MS)
    at_the_false_one = false.settings.enrolment + code[code.index("/") :]

    def enrol() -> None:
        with pytest.raises(Denied, match="nothing was sent"):
            enrol_with_code(tmp_path / "desk", "desk", "client", at_the_false_one)

    while_serving(false, do=enrol)
    with pytest.raises(SetupError, match="is `tidings org serve` running there"):
        enrol_with_code(tmp_path / "desk", "desk", "client", code)


def test_a_participant_is_renewed_until_it_is_removed(tmp_path: Path) -> None:
    org = an_organisation(tmp_path, "police")

    def renew() -> None:
        desk = a_client(org, tmp_path / "desk")
        before = (desk / "cert.pem").read_bytes()
        renew_participant(desk, "client")
        assert (desk / "cert.pem").read_bytes() != before
        org.remove("desk", "client")
        with pytest.raises(Denied, match="has removed it"):
            renew_participant(desk, "client")

    while_serving(org, do=renew)


def test_who_enrolled_under_the_former_key_renews_under_the_next(tmp_path: Path) -> None:
    org = an_organisation(tmp_path, "police")

    def renew() -> None:
        desk = a_client(org, tmp_path / "desk")
        org.rotate()
        Organisation(org.folder).finish_rotation()
        renew_participant(desk, "client")
        tls.check_issued(tls.der((desk / "cert.pem").read_bytes()), Organisation(org.folder).authority.public_key)
        renew_participant(desk, "client")

    while_serving(org, do=renew)


def test_a_request_that_somebody_recorded_is_refused_later(tmp_path: Path) -> None:
    org = an_organisation(tmp_path, "police")
    key = Identity.make(secrets.token_bytes)
    old = tls.signing_request("police", "police-1", "broker", key, {"at": str(now_ms() - HOUR_MS)})

    def renew() -> None:
        for said in (old, tls.signing_request("police", "police-1", "broker", key, {})):
            with pytest.raises(Denied, match="not made within"):
                post(org.settings.enrolment, [org.authority.public_key], "/renew", {"request": said.decode()})

    while_serving(org, do=renew)


def test_rights_between_organisations_are_renewed_by_the_one_that_granted_them(tmp_path: Path) -> None:
    police, harbour = an_organisation(tmp_path, "police"), an_organisation(tmp_path, "harbour")
    plates = SignedType.make(police.authority, EventType("Numberplate", plate=str))
    with police.registry() as registry:
        registry.types.declare(plates, by=police.by, now_ms=now_ms())
    for one, other in ((police, harbour), (harbour, police)):
        (tmp_path / f"{other.name}.org").write_bytes(other.sign(other.card()))
        one.trust(tmp_path / f"{other.name}.org")
    with police.registry() as registry:
        terms = RightTerms(plates.type_id, ("subscribe",), depth=1)
        police.issuer(registry).issue(terms, harbour.authority.public_key, now_ms=now_ms(), lasts_ms=HOUR_MS)

    def maintained() -> list[int]:
        maintain(harbour.folder)
        with harbour.registry() as registry:
            broker = registry.participants.find("harbour-1").key
            assert [known.refusal(now_ms()) for known in registry.grants.all(holder=broker)] != []
            mine = registry.grants.all(holder=harbour.authority.public_key)
            return [known.right.not_after for known in mine]

    def renewed() -> None:
        assert len(maintained()) == 1
        with police.registry() as registry:
            police.issuer(registry).renew(now_ms(), within_ms=HOUR_MS)
        assert len(maintained()) == 2
        with police.registry() as registry:
            for known in registry.grants.all(holder=harbour.authority.public_key):
                police.issuer(registry).revoke(known, now_ms())
            police.issuer(registry).renew(now_ms(), within_ms=2**62)
        assert len(maintained()) == 2

    while_serving(police, harbour, do=renewed)


def test_org_serve_says_whose_rights_it_could_not_renew_and_why(tmp_path: Path) -> None:
    police, harbour = an_organisation(tmp_path, "police"), an_organisation(tmp_path, "harbour")
    (tmp_path / "police.org").write_bytes(police.sign(police.card()))
    harbour.trust(tmp_path / "police.org")
    command = [sys.executable, "-m", "tidings", "org", "serve", "--org", str(harbour.folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = json.loads(process.stderr.readline())
        process.terminate()
    assert (said["what"], said["organisation"]) == ("rights were not renewed", "police")
    assert "cannot reach" in said["why"]


def test_who_was_off_until_its_certificate_had_ended_renews_when_it_comes_back(tmp_path: Path) -> None:
    org = an_organisation(tmp_path, "police")
    desk = tmp_path / "desk"
    while_serving(org, do=lambda: a_client(org, desk))
    key, issuer = read_identity(desk / "key.pem").public_key, org.anchors[-1].pem
    month_ago = datetime.now(UTC) - timedelta(days=30)
    (desk / "cert.pem").write_bytes(
        tls.certificate("police", "desk", key, org.authority, issuer, month_ago, role="client", days=7)
    )

    def comes_back() -> None:
        with pytest.raises(
            PeerError, match="cannot reach the broker"
        ):  # Which does not run; that it got so far is all.
            asyncio.run(Client.connect(desk / "client.toml"))

    with pytest.raises(InputError, match="expired at"):
        asyncio.run(Client.connect(desk / "client.toml"))  # Nobody renews.
    while_serving(org, do=comes_back)
    assert tls.validity((desk / "cert.pem").read_bytes())[1] > datetime.now(UTC) + timedelta(days=6)


def test_who_enrolled_by_files_learns_with_its_next_approval_where_to_renew(tmp_path: Path) -> None:
    org, _ = Organisation.create(tmp_path / "police", OrganisationSettings("police"))
    request = prepare(org.folder / "police-1", "police", "police-1", "broker", "127.0.0.1:7401")
    org.install_here(org.approve(request))
    broker = org.folder / "police-1" / "broker.toml"
    with broker.open("a") as file:
        file.write("\n[limits]\nalone_after_s = 1.0\n")
    for address in ("127.0.0.1:7400", "127.0.0.1:7500"):
        settings = (org.folder / "org.toml").read_text().partition("enrolment")[0]
        (org.folder / "org.toml").write_text(f'{settings}enrolment = "{address}"\n')
        Organisation(org.folder).renew_certificates(within_days=float("inf"))
        config = read_broker(broker)
        assert (config.enrolment, config.authority) == (address, broker.parent / "../authority.crt")


def test_who_runs_renews_by_itself_before_its_certificate_ends(tmp_path: Path) -> None:
    org = an_organisation(tmp_path, "police")
    desk = tmp_path / "desk"
    while_serving(org, do=lambda: a_client(org, desk))
    key, issuer = read_identity(desk / "key.pem").public_key, org.anchors[-1].pem
    week_ago = datetime.now(UTC) - timedelta(days=6)
    old = tls.certificate("police", "desk", key, org.authority, issuer, week_ago, role="client", days=7)
    (desk / "cert.pem").write_bytes(old)
    files = ChangedFiles([desk / "cert.pem", desk / "rights", None, tmp_path / "none"])
    assert not files.changed()

    async def renewed() -> None:
        async with EnrolmentServer(org.folder, org.settings.enrolment), asyncio.timeout(60):
            renewing = asyncio.create_task(renew_when_due(desk / "cert.pem", "client"))
            while not files.changed():  # noqa: ASYNC110  It is a file that changes.
                await asyncio.sleep(0.01)
            renewing.cancel()

    asyncio.run(renewed())
    assert tls.validity((desk / "cert.pem").read_bytes())[1] > datetime.now(UTC) + timedelta(days=6)
