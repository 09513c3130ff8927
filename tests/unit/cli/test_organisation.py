"""`tidings org`, `broker create`, `client create`, `role`, `who can` and `why`, as two administrators type them."""

from __future__ import annotations

import json
import shutil
import stat
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.cli.registry_shell import PLATE, Said, Shell
from tidings.net import Organisation, authority_keys, read_broker, read_client
from tidings.net.enrolment.documents import CardBroker, sign
from tidings.net.journal_storage.sqlite import lock_journal
from tidings.net.transport import tls
from tidings.security import Identity, fingerprint


@dataclass(frozen=True)
class Two:
    """The police and the harbour, each with a folder that stands for its machine; the police owns Numberplate."""

    shell: Shell

    def __call__(self, org: str, *arguments: str) -> Said:
        self.shell.patch.chdir(self.shell.folder / org)
        self.shell.patch.setenv("TIDINGS_ORG", org)
        return self.shell(*arguments)

    def done(self, org: str, *arguments: str) -> Said:
        said = self(org, *arguments)
        assert said.code == 0, said.err
        return said

    def file(self, org: str, name: str) -> Path:
        return self.shell.folder / org / name

    def send(self, name: str, sender: str, receiver: str) -> str:
        self.file(receiver, name).write_bytes(self.file(sender, name).read_bytes())
        return name

    def linked(self) -> Two:
        """Each trusts the other."""
        for ours, theirs in (("police", "harbour"), ("harbour", "police")):
            self.done(theirs, "org", "export")
            self.done(ours, "org", "trust", self.send(f"{theirs}.org", theirs, ours))
        return self

    def granted(self, *narrower: str) -> Two:
        """The harbour's desk reads, by a right that the police has granted the harbour."""
        self.done("police", "grant", "--type", "Numberplate", "--to", "harbour", "--action", "subscribe", *narrower)
        self.send("police-Numberplate.right", "police", "harbour")
        self.done("harbour", "grant", "accept", "police-Numberplate.right", "--for", "desk")
        return self

    def rights(self, org: str, name: str) -> list[dict[str, object]]:
        """What the token files in a participant's folder amount to."""
        files = sorted(self.file(org, org).joinpath(name, "rights").glob("*.token"))
        return [json.loads(self.done(org, "grant", "inspect", str(file), "-o", "json").out) for file in files]


MADE: dict[str, Path] = {}
"""Folders as they are after the first commands, made once and copied for each test."""


@pytest.fixture
def two(
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Two:
    monkeypatch.delenv("TIDINGS_REGISTRY", raising=False)
    if "two" not in MADE:
        MADE["two"] = tmp_path_factory.mktemp("two")
        _create(Two(Shell(MADE["two"], monkeypatch, capsys)))
    shutil.copytree(MADE["two"], tmp_path, dirs_exist_ok=True)
    return Two(Shell(tmp_path, monkeypatch, capsys))


def _create(made: Two) -> None:
    for name, port in (("police", "7401"), ("harbour", "7402")):
        (made.shell.folder / name).mkdir()
        made.done(name, "org", "create", name)
        made.done(name, "broker", "create", f"{name}-1", "--listen", f"127.0.0.1:{port}")
    made.done("harbour", "client", "create", "desk")
    made.file("police", "plate.toml").write_text(PLATE)
    made.done("police", "type", "declare", "plate.toml")


# ── Creating and enrolling ──


def test_what_is_created_is_for_its_owner_only_and_creating_it_again_changes_nothing(two: Two) -> None:
    before = {file: file.read_bytes() for file in two.file("police", "police").rglob("*.*") if file.suffix != ".db"}
    two.done("police", "org", "create", "police")
    said = two.done("police", "broker", "create", "police-1", "--listen", "127.0.0.1:7401")
    assert "police-1 is there already" in said.err
    for file, content in before.items():
        assert file.read_bytes() == content, file
        if file.name in ("key.pem", "manager.pem", "authority.pem"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_broker_and_a_client_elsewhere_enrol_by_files_and_their_keys_stay_there(two: Two) -> None:
    key = two.done("police", "org", "show", "-o", "json").rows[0]["key"]
    for role, options in (("broker", ["--listen", "10.0.0.2:7401"]), ("client", [])):
        name = f"far-{role}"
        (asked,) = two.done("harbour", role, "request", name, "--organisation", "police", *options, "-o", "json").rows
        two.send(f"{name}.request", "harbour", "police")
        two.done("police", "org", "approve", f"{name}.request", "--key", str(asked["key"]))
        two.send(f"{name}.approval", "police", "harbour")
        two.done("harbour", role, "accept", f"{name}.approval", "--fingerprint", str(key))
        assert b"PRIVATE" not in two.file("harbour", f"{name}.request").read_bytes()
    broker = read_broker(two.file("harbour", "far-broker/broker.toml"))
    assert (broker.listen, broker.domain) == ("10.0.0.2:7401", "police")
    assert [peer.address for peer in broker.peers] == ["127.0.0.1:7401"]
    for one in (
        "broker",
        "client",
    ):  # Their folders stand by themselves: they can be moved, and packed for a container.
        assert "../" not in two.file("harbour", f"far-{one}/{one}.toml").read_text()
    client = read_client(two.file("harbour", "far-client/client.toml"))
    assert {path.exists() for path in (client.certificate, client.trusted, client.key)} == {True}
    assert tls.role_of(tls.der(client.certificate.read_bytes())) == "client"


def test_an_approval_that_was_altered_or_is_from_somebody_else_is_refused(two: Two) -> None:
    two.done("harbour", "client", "request", "far", "--organisation", "police")
    two.done("police", "org", "approve", two.send("far.request", "harbour", "police"))
    file = two.file("harbour", two.send("far.approval", "police", "harbour"))
    other = fingerprint(Identity(bytes(32)).public_key)
    refused = two("harbour", "client", "accept", "far.approval", "--fingerprint", other)
    assert (refused.code, "do not accept it" in refused.err) == (3, True)
    file.write_bytes(file.read_bytes().replace(b'"far"', b'"fax"'))
    refused = two("harbour", "client", "accept", "far.approval", "--folder", "far")
    assert (refused.code, "was altered or cut short" in refused.err) == (3, True)
    assert not two.file("harbour", "far/client.toml").exists()


def test_a_name_belongs_to_one_key_until_it_is_removed(two: Two) -> None:
    two.done("police", "client", "request", "desk", "--organisation", "harbour")
    two.send("desk.request", "police", "harbour")
    refused = two("harbour", "org", "approve", "desk.request")
    assert (refused.code, "tidings client remove desk" in refused.err) == (2, True)
    two.done("harbour", "client", "remove", "desk")
    two.done("harbour", "org", "approve", "desk.request")


def test_the_folder_of_a_broker_is_no_clients_and_what_is_refused_changes_nothing(two: Two) -> None:
    def content(name: str) -> dict[Path, bytes]:
        folder = two.file("police", f"police/{name}")
        return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}

    two.done("police", "client", "create", "camera")
    for wrong, name in (("client", "police-1"), ("broker", "camera")):
        before = content(name)
        where = ("--listen", "127.0.0.1:7409") if wrong == "broker" else ()
        refused = two("police", wrong, "create", name, *where)
        assert (refused.code, f"this is for a {wrong}" in refused.err) == (2, True), refused.err
        assert content(name) == before
    assert two("police", "broker", "create", "new", "--listen", "nowhere").code == 2
    assert not two.file("police", "police/new").exists()
    two.done("harbour", "broker", "request", "far", "--organisation", "police", "--listen", "127.0.0.1:7409")
    assert "folder of a broker" in two("harbour", "client", "request", "far", "--organisation", "police").err


def test_a_client_is_moved_to_another_broker(two: Two) -> None:
    two.done("harbour", "broker", "create", "harbour-2", "--listen", "127.0.0.1:7403")
    two.done("harbour", "client", "move", "desk", "--broker", "harbour-2")
    config = read_client(two.file("harbour", "harbour/desk/client.toml"))
    key = Identity.from_pem(two.file("harbour", "harbour/harbour-2/key.pem").read_bytes()).public_key
    assert (config.broker, config.broker_key) == ("127.0.0.1:7403", fingerprint(key))
    assert "already" in two.done("harbour", "client", "move", "desk", "--broker", "harbour-2").err
    assert two("harbour", "client", "move", "harbour-1", "--broker", "harbour-2").code == 2


def test_names_may_have_quotes_spaces_and_any_script_and_what_is_printed_can_be_pasted(two: Two) -> None:
    for name in ('d\'Artagnan "x"; true', "港 😀", "$(id)", "ünï"):
        two.done("harbour", "client", "create", name)
        assert read_client(two.file("harbour", f"harbour/{name}/client.toml")).name == name
        two.done("harbour", "client", "remove", name, "--purge")
        assert not two.file("harbour", f"harbour/{name}").exists()
    said = two.done("harbour", "broker", "create", "b; true", "--listen", "127.0.0.1:7409")
    assert said.err.splitlines()[-1] == "next: tidings broker run --config 'harbour/b; true/broker.toml'"


def test_removing_twice_is_no_error_and_a_name_that_never_was_is(two: Two) -> None:
    for _ in range(2):
        assert two.done("harbour", "client", "remove", "desk", "--purge", "-o", "json").rows[0]["removed"] == "desk"
    assert two("harbour", "client", "remove", "dask").code == 2
    two.done("harbour", "client", "create", "desk")
    two.done("harbour", "client", "remove", "desk")


def test_an_organisation_is_deleted_once_and_asking_again_is_no_error(two: Two) -> None:
    (row,) = two.done("harbour", "org", "delete", "--yes", "-o", "json").rows
    assert (row["deleted"], two.file("harbour", "harbour").exists()) == ("harbour", False)
    assert two.done("harbour", "org", "delete", "--yes", "-o", "json").rows == []


def test_nothing_is_deleted_while_a_broker_runs_from_it(two: Two) -> None:
    data = two.file("police", "police/police-1/data")
    data.mkdir()
    with closing(lock_journal(data / "journal.db")):
        for wrong in (("org", "delete", "--yes"), ("broker", "remove", "police-1", "--purge")):
            refused = two("police", *wrong)
            assert (refused.code, "police-1 of police runs; stop it first" in refused.err) == (2, True), refused.err
    assert two.file("police", "police/police-1/key.pem").exists()
    two.done("police", "broker", "remove", "police-1", "--purge")
    two.done("police", "org", "delete", "--yes")
    assert not two.file("police", "police").exists()


def test_a_client_without_a_broker_is_refused_before_it_is_enrolled(two: Two) -> None:
    refused = two("harbour", "client", "create", "x", "--broker", "none")
    assert (refused.code, "no broker 'none'" in refused.err) == (2, True)
    assert "x" not in [row["name"] for row in two.done("harbour", "org", "show", "-o", "json").rows]
    two.done("harbour", "broker", "create", "harbour-2", "--listen", "127.0.0.1:7403")
    refused = two("harbour", "client", "create", "desk", "--broker", "harbour-2")
    assert (refused.code, "tidings client move desk --broker harbour-2" in refused.err) == (2, True)


def test_an_interrupted_creation_is_completed_by_the_next(two: Two) -> None:
    two.done("police", "org", "create", "new")
    key = two.file("police", "new/authority.pem").read_bytes()
    for name in ("authority.crt", "trusted.pem", "org.toml", "tidings.db"):
        two.file("police", f"new/{name}").unlink()
    two.done("police", "org", "create", "new")
    assert two.file("police", "new/authority.pem").read_bytes() == key
    two.done("police", "broker", "create", "new-1", "--listen", "127.0.0.1:7411", "--org", "new")


# ── Trust ──


def _forged(two: Two, **changes: Any) -> str:
    """The harbour's public file with other content, signed by the harbour as it should be."""
    harbour = Organisation(two.file("harbour", "harbour"))
    content = msgspec.structs.replace(harbour.card(), **changes)
    two.file("police", "harbour.org").write_bytes(sign(content, harbour.authority))
    return "harbour.org"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"brokers": (CardBroker("b", "127.0.0.1:1", "zzz"),)}, "ed25519:"),
        ({"brokers": (CardBroker("b", "nowhere", fingerprint(bytes(32))),)}, "host:port"),
        ({"brokers": (CardBroker("b", "127.0.0.1:1", fingerprint(bytes(32))),) * 257}, "at most 256 brokers"),
        ({"types": ("AA==",)}, "type: "),
        ({"types": ("AA==",) * 513}, "512 types"),
        ({"overlay": "\x1b[2J"}, "all brokers of a network run the same"),
        ({"enrolment": "nowhere"}, "host:port"),
        ({"made_ms": 1}, "is older than the file of harbour that you have"),
    ],
)
def test_a_hostile_public_file_is_refused_and_changes_nothing(two: Two, changes: dict[str, Any], why: str) -> None:
    if "made_ms" in changes:
        two.linked()
    folder = two.file("police", "police")
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and "tidings.db" not in file.name}
    refused = two("police", "org", "trust", _forged(two, **changes))
    assert refused.code in (2, 3)
    assert why in refused.err
    assert "\x1b" not in refused.err
    after = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and "tidings.db" not in file.name}
    assert {file.name for file in after if after[file] != before.get(file)} <= {".lock"}


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b'{"a":' * 3000, b"a = " + b"[" * 5000])
def test_a_damaged_file_of_an_organisation_is_named_in_one_line(two: Two, content: bytes) -> None:
    two.linked()
    for name in ("org.toml", "organisations/harbour.org", "authority.crt", "trusted.pem", "authority.pem"):
        file = two.file("police", "police") / name
        whole = file.read_bytes()
        file.write_bytes(content)
        for command in (["org", "show"], ["client", "create", "camera"]):
            said = two("police", *command)
            assert (said.err.count("\n"), name in said.err) == (1, True), f"{name}, {command}: {said.err}"
            assert said.code in (2, 3)
        file.write_bytes(whole)


def test_a_registry_that_is_gone_is_not_replaced_by_an_empty_one(two: Two) -> None:
    registry = two.file("police", "police") / "tidings.db"
    kept = registry.rename(registry.with_name("away"))
    for command in (["org", "show"], ["client", "create", "camera"], ["org", "renew"]):
        said = two("police", *command)
        assert (said.code, said.err.count("\n"), registry.exists()) == (2, 1, False)
        assert "restore it from a backup" in said.err
    kept.rename(registry)
    two.done("police", "client", "create", "camera")


def test_a_type_of_another_organisation_does_not_take_the_name_of_ours(two: Two) -> None:
    two.send("plate.toml", "police", "harbour")
    two.done("harbour", "type", "declare", "plate.toml", "--version", "9")
    two.linked()
    (row,) = two.done("police", "type", "show", "Numberplate", "-o", "json").rows
    assert (row["version"], row["owner"]) == (1, two.done("police", "org", "show", "-o", "json").rows[0]["key"])
    two.done("police", "grant", "--type", "Numberplate", "--to", "harbour", "--action", "subscribe")
    two.done("police", "who", "can", "read", "plate", "of", "Numberplate")


def test_an_organisation_cannot_offer_a_broker_of_ours_as_its_own(two: Two) -> None:
    (row,) = (row for row in two.done("police", "org", "show", "-o", "json").rows if row["is"] == "broker")
    refused = two("police", "org", "trust", _forged(two, brokers=(CardBroker("b", "127.0.0.1:9", row["key"]),)))
    assert (refused.code, "of another organisation; do not trust it" in refused.err) == (2, True)


def test_an_organisation_that_calls_itself_as_our_client_gets_none_of_its_rights(two: Two, tmp_path: Path) -> None:
    (tmp_path / "false").mkdir()
    two.shell.patch.chdir(tmp_path / "false")
    two.shell.patch.delenv("TIDINGS_ORG", raising=False)
    two.shell.done("org", "create", "desk")
    two.shell.done("org", "export", "--org", "desk", "--out", str(two.file("harbour", "false.org")))
    refused = two("harbour", "org", "trust", "false.org")
    assert (refused.code, "a broker or a client of yours" in refused.err) == (2, True)
    assert two.done("harbour", "org", "show", "-o", "json").rows[-1]["is"] == "broker", "nobody is trusted"


def test_trust_is_one_file_each_way_and_a_wrong_fingerprint_is_refused(two: Two) -> None:
    (row,) = two.done("harbour", "org", "export", "-o", "json").rows
    two.send("harbour.org", "harbour", "police")
    wrong = two("police", "org", "trust", "harbour.org", "--fingerprint", fingerprint(bytes(32)))
    assert (wrong.code, "do not trust it" in wrong.err) == (3, True)
    two.done("police", "org", "trust", "harbour.org", "--fingerprint", str(row["fingerprint"]))
    assert "was trusted already" in two.done("police", "org", "trust", "harbour.org").err
    peers = read_broker(two.file("police", "police/police-1/broker.toml")).peers
    assert [peer.address for peer in peers] == ["127.0.0.1:7402"]


def test_nobody_takes_the_name_of_an_organisation_that_is_trusted(two: Two, tmp_path: Path) -> None:
    two.linked()
    (tmp_path / "false").mkdir()
    two.shell.patch.chdir(tmp_path / "false")
    two.shell.patch.delenv("TIDINGS_ORG")
    two.shell.done("org", "create", "harbour")
    two.shell.done("org", "export", "--org", "harbour", "--out", str(two.file("police", "false.org")))
    refused = two("police", "org", "trust", "false.org")
    assert (refused.code, "call themselves 'harbour'" in refused.err) == (2, True)


def test_who_is_distrusted_loses_its_rights_and_its_brokers_are_no_peers(two: Two) -> None:
    two.linked().granted()
    (row,) = two.done("police", "org", "distrust", "harbour", "-o", "json").rows
    assert row["revoked"] == 1
    assert read_broker(two.file("police", "police/police-1/broker.toml")).peers == ()
    assert list(authority_keys(two.file("police", "police/trusted.pem").read_bytes())) == ["police"]
    assert two("police", "why", "harbour", "read", "Numberplate").code == 3
    assert two.done("police", "org", "distrust", "harbour", "-o", "json").rows[0]["revoked"] == 0
    assert "it trusts none" in two("police", "org", "distrust", "habour").err


def test_leaving_distrusts_everybody(two: Two) -> None:
    two.linked()
    assert [row["distrusted"] for row in two.done("harbour", "org", "leave", "-o", "json").rows] == ["police"]
    assert "in no network with others" in two.done("harbour", "org", "leave").err


# ── Rights across organisations ──


def test_a_right_for_an_organisation_is_one_command_here_and_one_there(two: Two) -> None:
    two.linked().granted("--attribute", "plate")
    for name in ("harbour-1", "desk"):
        (right,) = two.rights("harbour", name)
        assert (right["attributes"], right["actions"], right["refused"]) == (["plate"], ["subscribe"], None)
    (listed,) = [row for row in two.done("harbour", "grant", "ls", "-o", "json").rows if len(row["links"]) == 1]
    assert listed["type"] == "Numberplate@1"


def test_a_right_of_an_organisation_that_is_not_trusted_is_not_taken(two: Two) -> None:
    two.linked()
    two.done("police", "grant", "--type", "Numberplate", "--to", "harbour", "--action", "subscribe")
    two.send("police-Numberplate.right", "police", "harbour")
    two.done("harbour", "org", "distrust", "police")
    refused = two("harbour", "grant", "accept", "police-Numberplate.right")
    assert (refused.code, "tidings org trust" in refused.err) == (3, True)


def test_inspect_shows_names_and_dates_and_neither_digests_nor_milliseconds(two: Two) -> None:
    two.linked()
    two.done(
        "police", "grant", "--type", "Numberplate", "--to", "harbour", "--action", "subscribe", "--attribute", "plate"
    )
    two.send("police-Numberplate.right", "police", "harbour")
    _, line = two.done("harbour", "grant", "inspect", "police-Numberplate.right").out.splitlines()
    assert line.split()[:6] == ["0", "police", "harbour", "Numberplate@1", "subscribe", "plate"]
    assert line.count(" UTC") == 2
    late = two("harbour", "grant", "inspect", "police-Numberplate.right", "--at", "+40d")
    assert (late.code, "expired at 20" in late.err) == (3, True)


def test_a_condition_on_what_the_right_does_not_show_is_refused_when_it_is_granted(two: Two) -> None:
    two.linked()
    grant = ("grant", "--type", "Numberplate", "--to", "harbour", "--action", "subscribe", "--attribute", "plate")
    refused = two("police", *grant, "--where", "speed > 20")
    assert (refused.code, "add --attribute speed" in refused.err) == (2, True)


def test_an_organisation_passes_on_no_more_than_it_has(two: Two) -> None:
    two.linked().granted("--attribute", "plate")
    more = ("grant", "--type", "Numberplate", "--to", "desk", "--action")
    assert "to subscribe, not to publish" in two("harbour", *more, "publish").err
    assert "attributes: no right" in two("harbour", *more, "subscribe", "--attribute", "speed").err


def test_the_owner_revokes_what_it_has_given_and_what_was_made_of_it(two: Two) -> None:
    two.linked().granted()
    (row,) = two.done("police", "grant", "revoke", "--holder", "harbour", "--reason", "over", "-o", "json").rows
    (desk,) = two.rights("harbour", "desk")
    links = desk["links"]
    assert isinstance(links, list)
    assert row["revoked"] == links[0]["revocation_id"]
    assert "nothing to revoke" in two.done("police", "grant", "revoke", "--holder", "harbour").err


def test_a_removed_client_loses_its_rights(two: Two) -> None:
    two.linked().granted()
    (row,) = two.done("harbour", "client", "remove", "desk", "-o", "json").rows
    assert row["revoked"] == 1
    assert "no domain" not in two("harbour", "who", "can", "read", "Numberplate").err
    held = [row["who"] for row in two.done("harbour", "who", "can", "read", "Numberplate", "-o", "json").rows]
    assert held == ["police", "harbour", "harbour-1"]


# ── Roles, who can, why ──


def test_changing_a_role_changes_the_rights_of_its_members(two: Two) -> None:
    two.done("police", "client", "create", "desk")
    two.done("police", "role", "create", "analyst")
    allow = ("role", "allow", "analyst", "--type", "Numberplate", "--action", "subscribe", "--attribute")
    two.done("police", *allow, "plate")
    two.done("police", "role", "assign", "analyst", "desk")
    assert [right["attributes"] for right in two.rights("police", "desk")] == [["plate"]]
    assert "issued 1 right" in two.done("police", *allow, "speed").err
    assert sorted(str(right["attributes"]) for right in two.rights("police", "desk")) == ["['plate']", "['speed']"]
    assert "revoked 2 rights" in two.done("police", "role", "disallow", "analyst", "--type", "Numberplate").err
    assert two.rights("police", "desk") == []
    two.done("police", *allow, "plate")
    assert "revoked 1 right" in two.done("police", "role", "unassign", "analyst", "desk").err
    two.done("police", "role", "assign", "analyst", "desk")
    assert "revoked 1 right" in two.done("police", "role", "delete", "analyst").err
    assert two.done("police", "role", "ls", "-o", "json").rows == []


def test_a_role_is_data_for_a_program_and_deleting_it_twice_is_no_error(two: Two) -> None:
    assert two.done("harbour", "role", "create", "reader", "-o", "json").rows == [
        {"role": "reader", "type": None, "members": []}
    ]
    two.linked().granted()
    terms = ("--type", "Numberplate", "--action", "subscribe", "--attribute", "plate")
    two.done("harbour", "role", "allow", "reader", *terms)
    (row,) = two.done("harbour", "role", "assign", "reader", "desk", "-o", "json").rows
    assert (row["actions"], row["attributes"], row["members"]) == (["subscribe"], ["plate"], ["desk"])
    assert [two.done("harbour", "role", "delete", "reader", "-o", "json").rows[0]["revoked"] for _ in "ab"] == [1, 0]
    assert two("harbour", "role", "delete", "raeder").code == 2


def test_a_role_gives_what_another_organisation_has_granted(two: Two) -> None:
    two.linked().granted("--attribute", "plate")
    two.done("harbour", "client", "create", "clerk")
    two.done("harbour", "role", "create", "reader")
    two.done("harbour", "role", "assign", "reader", "clerk")
    allow = ("role", "allow", "reader", "--type", "Numberplate", "--action", "subscribe")
    assert "issued 1 right" in two.done("harbour", *allow).err
    (right,) = two.rights("harbour", "clerk")
    assert right["attributes"] == ["plate"]
    assert "attributes: no right" in two.done("harbour", *allow, "--attribute", "speed").err


def test_who_can_lists_who_reads_an_attribute_and_until_when(two: Two) -> None:
    two.linked().granted("--attribute", "plate", "--until", "+2d")
    asked = ("who", "can", "read", "plate", "of", "Numberplate", "-o", "json")
    rows = two.done("police", *asked).rows
    assert [row["who"] for row in rows] == ["police", "police-1", "harbour"]
    assert [row["who"] for row in two.done("police", *asked, "--at", "+3d").rows] == ["police", "police-1"]
    speeds = two.done("police", "who", "can", "read", "speed", "of", "Numberplate", "-o", "json").rows
    assert [row["who"] for row in speeds] == ["police", "police-1"]
    wrong = two("police", "who", "can", "eat", "Numberplate")
    assert (wrong.code, "read ATTRIBUTE of TYPE" in wrong.err) == (2, True)


def test_why_says_which_check_fails(two: Two) -> None:
    two.linked().granted("--attribute", "plate", "--where", "plate = 'AB12CDE'")
    may = two.done("harbour", "why", "desk", "read", "plate", "of", "Numberplate")
    assert "from police → harbour: plate, of events with plate = 'AB12CDE'" in may.out
    checks = two("harbour", "why", "desk", "read", "speed", "of", "Numberplate", "-o", "json")
    assert checks.code == 3
    assert {row["check"]: row["holds"] for row in checks.rows} == {
        "type": True,
        "certificate": True,
        "right of desk": False,
        "right of harbour-1": False,
    }
    assert "a right is to subscribe, not to publish" in two("harbour", "why", "desk", "publish", "Numberplate").out
    assert "certificate" in two("harbour", "why", "desk", "read", "Numberplate", "--at", "+8d").out


# ── Renewal, and a new key ──


def test_certificates_and_rights_are_renewed_until_they_are_taken_away(two: Two) -> None:
    two.linked().granted()
    file = two.file("harbour", "harbour/desk/cert.pem")
    before, rights = file.read_bytes(), two.rights("harbour", "desk")
    assert two.done("harbour", "org", "renew", "-o", "json").rows == []
    assert [row["of"] for row in two.done("harbour", "org", "renew", "--all", "-o", "json").rows] == [
        "desk",
        "harbour-1",
    ]
    assert file.read_bytes() != before
    assert len(two.rights("harbour", "desk")) == len(rights) + 1
    two.done("harbour", "grant", "revoke", "--holder", "desk")
    assert two.rights("harbour", "desk") == []
    two.done("harbour", "org", "renew", "--all")
    assert two.rights("harbour", "desk") == []


def test_an_organisation_changes_its_key_while_both_are_trusted(two: Two) -> None:
    two.linked().granted()
    old = Organisation(two.file("harbour", "harbour")).authority.public_key
    (row,) = two.done("harbour", "org", "rotate", "-o", "json").rows
    (exported,) = two.done("harbour", "org", "export", "-o", "json").rows
    assert exported["fingerprint"] == row["key"]
    heard = two.done("police", "org", "trust", two.send("harbour.org", "harbour", "police")).err
    assert "newer file replaces the older one" in heard
    assert "compare" not in heard  # The present key has signed it.
    trusted = authority_keys(two.file("police", "police/trusted.pem").read_bytes())["harbour"]
    assert [fingerprint(key) for key in trusted] == [fingerprint(old), row["key"]]
    two.done("harbour", "org", "rotate", "--finish")
    certificate = tls.der(two.file("harbour", "harbour/harbour-1/cert.pem").read_bytes())
    tls.check_issued(certificate, trusted[-1])
    two.done(
        "police", "grant", "--type", "Numberplate", "--to", "harbour", "--action", "subscribe", "--attribute", "speed"
    )
    two.done("harbour", "grant", "accept", two.send("police-Numberplate.right", "police", "harbour"))
    assert two("harbour", "why", "desk", "read", "Numberplate").code == 0
    two.done("harbour", "org", "rotate", "--retire")
    assert authority_keys(two.file("harbour", "harbour/trusted.pem").read_bytes())["harbour"] == trusted[1:]


def test_a_change_of_key_can_be_taken_back_before_it_is_used_and_repeated_after(two: Two) -> None:
    before = two.done("police", "org", "show", "-o", "json").rows[0]["key"]
    two.done("police", "org", "rotate")
    assert [row["state"] for row in two.done("police", "org", "rotate", "--cancel", "-o", "json").rows] == ["dropped"]
    assert two.done("police", "org", "rotate", "--cancel", "-o", "json").rows == []
    assert two("police", "org", "rotate", "--finish").code == 2
    two.done("police", "org", "rotate")
    (row,) = two.done("police", "org", "rotate", "--finish", "-o", "json").rows
    assert (row["key"] != before, row["certified"]) == (True, "police-1")
    (again,) = two.done("police", "org", "rotate", "--finish", "-o", "json").rows
    assert (again["key"], again["certified"]) == (row["key"], "")


def test_an_interrupted_change_of_key_is_completed(two: Two) -> None:
    two.done("police", "org", "rotate")
    folder = two.file("police", "police")
    (folder / "retired").mkdir(mode=0o700)
    (folder / "retired" / "0.pem").write_bytes((folder / "authority.pem").read_bytes())
    (folder / "next.pem").replace(folder / "authority.pem")  # As far as --finish came.
    (row,) = two.done("police", "org", "rotate", "--finish", "-o", "json").rows
    assert row["certified"] == "police-1"
    assert [path.name for path in folder.glob("next.*")] == []
    key = Identity.from_pem((folder / "authority.pem").read_bytes()).public_key
    tls.check_issued(tls.der((folder / "police-1" / "cert.pem").read_bytes()), key)


def test_after_a_change_of_key_a_type_is_declared_again_and_gets_its_next_version_under_the_same_name(two: Two) -> None:
    (before,) = two.done("police", "type", "ls", "-o", "json").rows
    two.done("police", "org", "rotate")
    two.done("police", "org", "rotate", "--finish")
    two.done("police", "org", "rotate", "--retire")
    said = two.done("police", "type", "declare", "plate.toml", "-o", "json")
    assert ("was declared before" in said.err, said.rows[0]["id"]) == (True, before["id"])
    (second,) = two.done("police", "type", "declare", "plate.toml", "--version", "2", "-o", "json").rows
    assert second["owner"] == before["owner"]
    two.done("police", "who", "can", "read", "plate", "of", "Numberplate")


def test_a_key_that_the_present_one_has_not_signed_is_no_successor() -> None:
    old, new, thief = (Identity(bytes([n]) * 32) for n in range(3))
    first, second = tls.authority("police", old), tls.authority("police", new, predecessor=old)
    assert tls.domains_in(first + second) == {"police": new.public_key}
    with pytest.raises(Exception, match="call themselves 'police'"):
        tls.domains_in(first + tls.authority("police", thief, predecessor=new))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["org", "show", "--org", "nowhere"], "tidings org create NAME"),
        (["org", "create", "a/b"], "a name that can be a folder's"),
        (["org", "delete"], "add --yes"),
        (["org", "create", "x", "--overlay", "none"], "none"),
        (["org", "create", "x", "--certificate-days", "0"], "--certificate-days"),
        (["org", "invite", "client", "far"], "enrolment"),
        (["org", "trust", "plate.toml"], "tidings org export"),
        (["org", "approve", "plate.toml"], "tidings broker request"),
        (["broker", "create", "b", "--listen", "nowhere"], "host:port"),
        (["client", "create", "c", "--broker", "none"], "no broker 'none'"),
        (["client", "create", "c", "--code", "x"], "tidings org invite"),
        (["client", "renew", "police/police-1"], "client.toml"),
        (["broker", "renew", "police/police-1"], "names no address to renew at"),
        (["client", "remove", "police-1"], "tidings broker remove police-1"),
        (["broker", "rotate", "police-1", "--to", "police-1", "--finish"], "a name of its own"),
        (["broker", "rotate", "police-1", "--to", "police-2"], "--listen HOST:PORT"),
        (["broker", "rotate", "police-9", "--to", "police-2", "--listen", "127.0.0.1:7"], "no broker or client"),
        (["org", "create", "police", "--overlay", "flooding"], "nothing was changed"),
        (["org", "create", "police", "--certificate-days", "3"], "nothing was changed"),
        (["org", "rotate", "--finish", "--retire"], "expected one of --finish"),
        (["org", "approve", "/dev/zero"], "a request of at most"),
        (["org", "trust", "/dev/zero"], "larger than 8 MiB"),
        *(
            (["client", "create", name], why)
            for name, why in (
                ("", "1 to 64 bytes"),
                ("a/b", "can be a folder's"),
                ("..", "can be a folder's"),
                (".hidden", "can be a folder's"),
                (" desk", "can be a folder's"),
                ("two\nlines", "can be a folder's"),
                ("\u202eksed", "can be a folder's"),
                ("\u00fc" * 33, "1 to 64 bytes"),
                ("retired", "of every organisation"),
                ("Organisations", "of every organisation"),
                ("tidings.db-wal", "of every organisation"),
                ("police", "the name of an organisation"),
            )
        ),
        (["broker", "rotate", "police-1", "--to", "police-2", "--finish"], "no broker or client 'police-2'"),
        (["role", "allow", "none", "--type", "Numberplate", "--action", "publish"], "has no role 'none'"),
        (["grant", "--type", "Numberplate", "--to", "habour", "--action", "subscribe"], "expected ed25519:…"),
        (["grant", "accept", "plate.toml"], "tidings grant --to ORGANISATION"),
    ],
)
def test_a_mistake_is_told_in_one_line_that_says_what_helps(two: Two, arguments: list[str], why: str) -> None:
    said = two("police", *arguments)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1), said.err
    assert why in said.err
