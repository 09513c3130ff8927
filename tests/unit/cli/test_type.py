"""`tidings type`, `identity`, `domain` and `registry`, as a shell sees them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.unit.cli.registry_shell import PLATE, Shell, a_shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return a_shell(tmp_path, monkeypatch, capsys)


def test_a_key_is_made_for_its_owners_eyes_only_and_never_overwritten(shell: Shell) -> None:
    made = shell.key("new")
    assert stat.S_IMODE((shell.folder / "new.pem").stat().st_mode) == 0o600
    assert shell.done("identity", "show", "new.pem").out.strip() == made
    again = shell("identity", "new", "new.pem")
    assert (again.code, again.out) == (2, "")
    assert "exists already" in again.err
    assert shell.done("identity", "show", "new.pem").out.strip() == made


def test_a_key_that_others_can_read_is_noted(shell: Shell) -> None:
    (shell.folder / "ccs.pem").chmod(0o644)
    assert "chmod 600 ccs.pem" in shell.done("identity", "show", "ccs.pem").err


def test_a_key_with_a_password_opens_with_it_alone(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDINGS_KEY_PASSWORD", "open sesame")
    made = shell.key("locked")
    assert shell.done("identity", "show", "locked.pem").out.strip() == made
    monkeypatch.setenv("TIDINGS_KEY_PASSWORD", "sesame")
    assert shell("identity", "show", "locked.pem").code == 2
    monkeypatch.delenv("TIDINGS_KEY_PASSWORD")
    assert shell("identity", "show", "locked.pem").code == 2


@pytest.mark.parametrize("content", ["", "hello", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_what_is_no_key_is_wrong_input(shell: Shell, content: str) -> None:
    (shell.folder / "bad.pem").write_text(content)
    said = shell("identity", "show", "bad.pem")
    assert said.code == 2
    assert "bad.pem: expected an Ed25519 private key" in said.err


def test_a_declared_type_is_listed_and_shown(shell: Shell) -> None:
    (row,) = shell.done("type", "ls", "-o", "json").rows
    assert (row["type"], row["version"], row["mode"]) == ("Numberplate", 1, "attribute")
    assert row["name"] == f"{row['owner']}/Numberplate@1"
    assert row["attributes"]["plate"] == {"type": "string", "required": True}
    assert shell.done("type", "show", "Numberplate", "-o", "json").rows == [row]
    assert "police" in shell.done("type", "ls").out
    assert "key manager  police" in shell.done("type", "show", "Numberplate@1").out


def test_a_changed_type_needs_a_new_version(shell: Shell) -> None:
    again = shell.done("type", "declare", "plate.toml", "--key", "police.pem")
    assert "declared before" in again.err
    changed = shell("type", "declare", "plate.toml", "--key", "police.pem", "--mode", "event")
    assert changed.code == 2
    assert "--version 2" in changed.err
    shell.done("type", "declare", "plate.toml", "--key", "police.pem", "--mode", "event", "--version", "2")
    assert [row["version"] for row in shell.done("type", "ls", "-o", "json").rows] == [1, 2]


def test_a_type_travels_to_another_organisations_registry(shell: Shell) -> None:
    shell.done("type", "show", "Numberplate", "--out", "plate.type")
    police = shell.done("identity", "show", "police.pem").out.strip()
    shell.done("type", "verify", "plate.type", "--owner", police)
    shell.done("type", "import", "plate.type", "--registry", "theirs.db", "--owner", police)
    assert len(shell.done("type", "ls", "--registry", "theirs.db", "-o", "json").rows) == 1
    ccs = shell.done("identity", "show", "ccs.pem").out.strip()
    for command in ("verify", "import"):
        refused = shell("type", command, "plate.type", "--owner", ccs)
        assert (refused.code, refused.out) == (3, "")
        assert "Denied: owner: Numberplate is" in refused.err


def test_an_altered_type_is_refused(shell: Shell) -> None:
    shell.done("type", "show", "Numberplate", "--out", "plate.type")
    raw = (shell.folder / "plate.type").read_bytes()
    for altered in (raw.replace(b"location", b"Location"), raw[:-1], raw + b"\0", b""):
        (shell.folder / "plate.type").write_bytes(altered)
        for command in ("verify", "import"):
            said = shell("type", command, "plate.type")
            assert (said.code, said.out) == (3, "")
            assert said.err.startswith(("Denied: type: ", "Denied: signature: "))


def test_an_expired_type_is_not_declared_and_one_for_later_does_not_verify_yet(shell: Shell) -> None:
    declare = ("type", "declare", "plate.toml", "--key", "police.pem")
    expired = shell(*declare, "--version", "2", "--until", "+0s")
    assert (expired.code, expired.out) == (3, "")
    assert "Denied: validity: " in expired.err
    shell.done(*declare, "--version", "3", "--from", "+1d")
    early = shell("type", "verify", "Numberplate@3")
    assert (early.code, early.out) == (3, "")
    assert "is not valid before" in early.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["ls", "--registry", "none.db"], "there is no registry none.db"),
        (["ls", "--registry", "plate.toml"], "is not a registry"),
        (["ls", "--registry", "."], "is a folder"),
        (["ls", "--registry", "mysql://me:secret@host/x"], "not mysql://"),
        (["show", "Nummerplate"], "did you mean 'Numberplate'"),
        (["verify", "Nothing"], "has no event type 'Nothing'"),
        (["verify", "plate.toml"], "is a declaration, not a signed type"),
        (["declare", "none.toml", "--key", "police.pem"], "none.toml"),
        (["declare", "plate.toml", "--key", "none.pem"], "none.pem"),
        (["declare", "plate.toml", "--key", "police.pem", "--version", "-1"], "expected version between"),
        (["declare", "plate.toml", "--key", "police.pem", "--until", "soon"], "expected a time as"),
        (["declare", "plate.toml", "--key", "police.pem", "--key-manager", "nobody"], "name of a domain"),
    ],
)
def test_wrong_input_is_told_with_what_was_expected(shell: Shell, arguments: list[str], why: str) -> None:
    said = shell("type", *arguments)
    assert (said.code, said.out) == (2, "")
    assert why in said.err
    assert "secret" not in said.err


def test_the_environment_names_the_registry(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDINGS_REGISTRY", str(shell.folder / "other.db"))
    (shell.folder / "quake.toml").write_text(PLATE.replace("Numberplate", "Quake"))
    shell.done("type", "declare", "quake.toml", "--key", "police.pem")
    assert [row["type"] for row in shell.done("type", "ls", "-o", "json").rows] == ["Quake"]
    assert (shell.folder / "other.db").exists()


def test_the_audit_trail_is_listed_and_checked(shell: Shell) -> None:
    rows = shell.done("registry", "audit", "-o", "json").rows
    assert [row["action"] for row in rows] == ["declare type", *["add domain"] * 3]
    assert len(shell.done("registry", "audit", "--after", "3", "-o", "json").rows) == 1
    assert shell.done("registry", "audit", "--after", "9" * 30, "-o", "json").rows == []
    noted = shell.done("registry", "verify").out.strip()
    assert noted == f"4:{rows[-1]['hash']}"
    shell.done("domain", "rm", "yard")
    shell.done("registry", "verify", "--noted", noted)
    assert shell("registry", "verify", "--noted", "4:" + "00" * 32).code == 3
    assert shell("registry", "verify", "--noted", "nonsense").code == 2


def test_domains_are_listed_and_removed(shell: Shell) -> None:
    assert [row["domain"] for row in shell.done("domain", "ls", "-o", "json").rows] == ["ccs", "police", "yard"]
    shell.done("domain", "rm", "yard")
    assert shell("domain", "rm", "yard").code == 2
    assert shell("domain", "add", "tfl", "ed25519:zz").code == 2


@pytest.mark.parametrize("group", ["type", "grant", "subscription", "identity", "domain", "registry"])
def test_help_teaches(shell: Shell, group: str) -> None:
    assert "Commands:" in shell.done(group, "--help").out


@pytest.mark.parametrize(
    "command", ["type declare", "type verify", "grant narrow", "grant revoke", "subscription add", "registry verify"]
)
def test_a_commands_help_has_an_example(shell: Shell, command: str) -> None:
    assert f"  tidings {command} " in shell.done(*command.split(), "--help").out
