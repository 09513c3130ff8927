"""Bad input as a shell meets it: each is refused with its reason and exit code 3, and nothing is given away."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cbor2
import pytest
from biscuit_auth import Algorithm, BiscuitBuilder, PrivateKey

from tests.live.together import Together
from tests.unit.cli.registry_shell import PLATE, Said, Shell, a_shell
from tidings.cli.registry.registry import now_ms
from tidings.events import EventType
from tidings.net import read_broker, read_client
from tidings.net.ids import read_identity
from tidings.security import Grant, Identity, Mode, SignedType, grant
from tidings.store import Registry

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
FOR_CCS = ("--to", "ccs", "--action", "subscribe")
SECRET = "SE21CRT"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    made = a_shell(tmp_path, monkeypatch, capsys)
    (tmp_path / "quake.toml").write_text(PLATE.replace("Numberplate", "Quake"))
    made.done("type", "declare", "quake.toml", "--key", "police.pem")
    return made


def refused(shell: Shell, why: str, *arguments: str) -> Said:
    said = shell(*arguments)
    assert said.code == 3, said.err
    assert said.err.startswith(f"Denied: {why}")
    return said


def identity_of(shell: Shell, name: str) -> Identity:
    return Identity.from_pem((shell.folder / f"{name}.pem").read_bytes())


# ── Another type ──


def test_a_right_to_one_type_is_none_to_another(shell: Shell) -> None:
    token = shell.token("ccs", *FOR_CCS)
    shell.done("grant", "inspect", token, "--type", "Numberplate", "--holder", "ccs", "--action", "subscribe")
    refused(shell, "type: the right is to Numberplate@1, not to Quake", "grant", "inspect", token, "--type", "Quake")
    refused(shell, "type: the right is to Numberplate@1, not to *", "grant", "inspect", token, "--type", "*")
    (row,) = shell("grant", "inspect", token, "--type", "Quake", "-o", "json").rows
    assert row["refused"] == "type: the right is to Numberplate@1, not to Quake"


def test_without_a_registry_a_type_is_asked_for_by_its_id(shell: Shell) -> None:
    token, police = shell.token("ccs", *FOR_CCS), shell.done("identity", "show", "police.pem").out.strip()
    ids = {row["type"]: row["id"] for row in shell.done("type", "ls", "-o", "json").rows}
    alone = ("grant", "inspect", token, "--registry", "none.db", "--owner", police, "--type")
    shell.done(*alone, ids["Numberplate"])
    refused(shell, "type: the right is to ", *alone, ids["Quake"])
    assert shell(*alone, "Quake").code == 2


def test_a_type_nobody_knows_is_wrong_input_and_not_a_refusal(shell: Shell) -> None:
    said = shell("grant", "inspect", shell.token("ccs", *FOR_CCS), "--type", "Quaker")
    assert (said.code, "did you mean 'Quake'" in said.err) == (2, True)


def with_rights_to_quakes_only(shell: Shell) -> Together:
    """A broker of the police's that knows two types, and clients whose only right is to the other one."""
    network = Together(shell.folder)
    owner = read_identity(network.laid.folder / "police" / "authority.pem")
    quakes = SignedType.make(owner, EventType("Quake", place=str), mode=Mode.PLAIN)
    (network.laid.folder / "Quake.type").write_bytes(quakes.to_bytes())
    broker = network.laid.brokers["police-1"]
    text = broker.read_text().replace("types = [", 'types = ["../../Quake.type", ')
    broker.write_text(text.replace("tokens = [", 'tokens = ["quakes.token", '))
    _give(owner, quakes, read_broker(broker).key, broker.with_name("quakes.token"))
    for client in map(read_client, network.laid.clients.values()):
        _give(owner, quakes, client.key, client.tokens[0])
    return network


def _give(owner: Identity, to: SignedType, holder: Path, file: Path) -> None:
    given = Grant(to.type_id, frozenset({"publish", "subscribe"}), read_identity(holder).public_key)
    file.write_bytes(base64.urlsafe_b64encode(grant(owner, given, os.urandom).to_bytes()))


@pytest.mark.live
def test_with_a_right_to_another_type_nobody_publishes_or_subscribes(shell: Shell) -> None:
    network = with_rights_to_quakes_only(shell)
    camera, desk = (("--as", str(network.laid.clients[f"police/{name}"])) for name in ("camera", "desk"))

    async def typed(*arguments: str) -> Said:
        return await asyncio.to_thread(refused, shell, "right: none for this type was shown by ", *arguments)

    async def scenario() -> None:
        async with network:
            said = await typed("publish", "Numberplate", f'{{"plate": "{SECRET}"}}', *camera)
            assert (said.out, SECRET in said.err) == ("", False)
            assert (await typed("subscribe", "Numberplate", *desk)).out == ""
            await asyncio.to_thread(shell.done, "publish", "Quake", '{"place": "here"}', *camera)

    asyncio.run(scenario())


# ── Unknown suites and versions ──


def signed_otherwise(shell: Shell, change: Callable[[dict[str, Any]], object]) -> str:
    """The police's type with something changed, and properly signed by the police; in a file."""
    fields = cbor2.loads(SignedType.make(identity_of(shell, "police"), _plates(shell)).to_bytes())
    del fields["signature"]
    change(fields)
    signature = identity_of(shell, "police").sign(cbor2.dumps(fields, canonical=True))
    (shell.folder / "odd.type").write_bytes(cbor2.dumps({**fields, "signature": signature}, canonical=True))
    return "odd.type"


def _plates(shell: Shell) -> Any:
    with Registry.open(shell.folder / "tidings.db", now_ms=1) as registry:
        return registry.types.find("Numberplate").event_type


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"suite": 0x99}, "suite 153 is unknown; expected one of 0x1"),
        ({"mode": "quantum"}, "QUANTUM"),
        ({"format": 2}, "format"),
        ({"version": 2**32}, "expected version between"),
    ],
)
def test_a_signed_type_of_an_unknown_suite_or_form_is_refused(shell: Shell, changed: dict[str, Any], why: str) -> None:
    file = signed_otherwise(shell, lambda fields: fields.update(changed))
    for command in ("verify", "import"):
        said = refused(shell, "type: ", "type", command, file, "--registry", "other.db")
        assert (why in said.err, said.out) == (True, "")
    assert not (shell.folder / "other.db").exists()


def test_a_type_that_is_cut_short_is_refused_wherever_it_is_cut(shell: Shell) -> None:
    raw = (shell.folder / signed_otherwise(shell, lambda fields: None)).read_bytes()
    shell.done("type", "verify", "odd.type")
    for kept in (0, 1, len(raw) // 2, len(raw) - 1):
        (shell.folder / "cut.type").write_bytes(raw[:kept])
        refused(shell, "type: ", "type", "verify", "cut.type")


def test_a_token_of_the_owner_s_in_another_form_than_ours_is_refused(shell: Shell) -> None:
    key = PrivateKey.from_bytes(identity_of(shell, "police").secret, Algorithm.Ed25519)  # type: ignore[call-arg, attr-defined]
    token = BiscuitBuilder('version(2); right("Numberplate", "subscribe");').build(key)
    (shell.folder / "odd.token").write_bytes(base64.urlsafe_b64encode(bytes(token.to_bytes())))
    for command in ("inspect", "narrow"):
        assert refused(shell, "form: link 0 is not as Tidings writes links", "grant", command, "odd.token").out == ""


# ── A clock that has stepped back ──


def changed_at(shell: Shell, at_ms: int) -> None:
    with Registry.open(shell.folder / "tidings.db", now_ms=at_ms) as registry:
        registry.domains.add("tfl", [Identity.make(os.urandom).public_key], by="me", now_ms=at_ms)


def test_by_a_clock_behind_the_registry_s_last_change_nothing_is_done(shell: Shell) -> None:
    token = shell.token("ccs", *FOR_CCS)
    changed_at(shell, now_ms() + DAY_MS)
    before = shell.done("registry", "verify").out
    for command in (
        ["grant", "inspect", token],
        ["grant", "narrow", token, "--until", "+1h"],
        ["grant", "revoke", token, "--key", "police.pem"],
        ["grant", "--type", "Numberplate", *FOR_CCS, "--key", "police.pem"],
        ["subscription", "add", "c", "speed > 1", "--type", "Numberplate", "--key", "ccs.pem", "--token", token],
        ["subscription", "ls"],
        ["type", "verify", "Numberplate"],
        ["domain", "rm", "yard"],
        ["registry", "clock"],
    ):
        said = refused(shell, "clock: it shows ", *command)
        assert ("but the registry was changed at " in said.err, said.out) == (True, "")
    assert shell.done("registry", "verify").out == before


def test_a_clock_that_is_right_after_one_that_was_ahead_is_accepted_by_hand(shell: Shell) -> None:
    token = shell.token("ccs", *FOR_CCS)
    changed_at(shell, now_ms() + DAY_MS)
    shell.done("registry", "clock", "--accept")
    shell.done("grant", "inspect", token)
    assert shell.done("registry", "audit", "-o", "json").rows[-1]["action"] == "accept clock"
    shell.done("registry", "verify")


def test_clocks_may_differ_by_less_than_an_hour(shell: Shell) -> None:
    changed_at(shell, now_ms() + HOUR_MS // 2)
    shell.done("grant", "inspect", shell.token("ccs", *FOR_CCS))


# ── Nothing is given away ──


def _pieces(secret: str, length: int = 24) -> list[str]:
    return [secret[at : at + length] for at in range(0, len(secret) - length, length)]


def test_no_refusal_shows_a_key_a_token_or_a_value(shell: Shell) -> None:
    token = shell.token("ccs", *FOR_CCS, "--attribute", "location")
    text = (shell.folder / token).read_text().strip()
    (shell.folder / "cut.token").write_text(text[:200])
    add = ("subscription", "add", "--type", "Numberplate", "--token", token, "c")
    said = [
        refused(shell, "attributes: ", *add, f"plate = '{SECRET}'", "--key", "ccs.pem"),
        refused(shell, "holder: ", *add, f"location = '{SECRET}'", "--key", "yard.pem"),
        refused(shell, "validity: ", "grant", "inspect", token, "--at", "+90d"),
        refused(shell, "type: ", "grant", "inspect", token, "--type", "Quake", "-o", "json"),
        refused(shell, "signature: ", "grant", "inspect", "cut.token"),
        refused(shell, "issuer: ", "grant", "--type", "Quake", *FOR_CCS, "--key", "ccs.pem"),
        refused(shell, "depth: ", "grant", "narrow", token, "--to", "yard", "--key", "yard.pem"),
        shell("grant", "inspect", "ccs.pem"),  # A private key, where a token should be.
    ]
    secrets = [SECRET, *_pieces(text)]
    for name in ("police", "ccs", "yard"):
        secrets += [identity_of(shell, name).secret.hex(), (shell.folder / f"{name}.pem").read_text().split("\n")[1]]
    shown = "".join(each.out + each.err for each in said)
    assert [secret for secret in secrets if secret in shown] == []
