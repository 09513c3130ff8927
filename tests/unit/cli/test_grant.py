"""`tidings grant …`, as a shell sees it: every refusal has its reason, and exit code 3."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest

from tests.unit.cli.registry_shell import Shell, a_shell
from tests.unit.security.london import OWNER
from tests.unit.security.rights.test_biscuit import passed_on_twice
from tidings.security import fingerprint

SUBSCRIBE = ("--to", "ccs", "--action", "subscribe")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return a_shell(tmp_path, monkeypatch, capsys)


def refused(shell: Shell, why: str, *arguments: str) -> None:
    said = shell(*arguments)
    assert said.code == 3, said.err
    assert said.err.startswith(f"Denied: {why}")


def test_a_token_goes_to_stdout_alone_and_is_listed(shell: Shell) -> None:
    said = shell.done("grant", "--type", "Numberplate", *SUBSCRIBE, "--key", "police.pem")
    assert (said.out.count("\n"), said.err) == (1, "")
    (shell.folder / "ccs.token").write_text(said.out)
    (inspected,) = shell.done("grant", "inspect", "ccs.token", "-o", "json").rows
    (listed,) = shell.done("grant", "ls", "--type", "Numberplate", "--holder", "ccs", "-o", "json").rows
    assert inspected == listed
    assert (listed["type"], listed["actions"], listed["attributes"]) == ("Numberplate@1", ["subscribe"], None)
    assert listed["refused"] is None
    assert shell.done("grant", "ls", "--holder", "yard", "-o", "json").rows == []


def test_inspect_shows_every_link_by_name(shell: Shell) -> None:
    token = shell.token("ccs", *SUBSCRIBE, "--attribute", "plate", "--where", "speed>20", "--depth", "1")
    shell.done("grant", "narrow", token, "--to", "yard", "--key", "ccs.pem", "--out", "yard.token")
    header, first, second = shell.done("grant", "inspect", "yard.token").out.splitlines()
    assert header.split()[:3] == ["link", "by", "to"]
    assert first.split()[:5] == ["0", "police", "ccs", "Numberplate@1", "subscribe"]
    assert second.split()[:3] == ["1", "ccs", "yard"]
    (row,) = shell.done("grant", "inspect", "yard.token", "-o", "json").rows
    assert (row["attributes"], row["where"], row["depth"]) == (["plate"], ["speed > 20"], 0)


def test_a_token_is_read_from_stdin(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    token = shell.token("ccs", *SUBSCRIBE)
    monkeypatch.setattr("sys.stdin", io.StringIO((shell.folder / token).read_text()))
    assert "Numberplate@1" in shell.done("grant", "inspect", "-").out


def test_without_a_registry_a_token_is_read_by_its_owners_key(shell: Shell) -> None:
    token, police = shell.token("ccs", *SUBSCRIBE), shell.done("identity", "show", "police.pem").out.strip()
    alone = ("--registry", "none.db")
    assert shell("grant", "inspect", token, *alone).code == 2
    shell.done("grant", "inspect", token, *alone, "--owner", police)
    shell.done("grant", "narrow", token, *alone, "--owner", police, "--until", "+1h")
    assert not (shell.folder / "none.db").exists()


def test_only_the_owner_of_a_type_gives_rights_to_it(shell: Shell) -> None:
    refused(shell, "issuer:", "grant", "--type", "Numberplate", *SUBSCRIBE, "--key", "ccs.pem")
    assert shell.done("grant", "ls", "-o", "json").rows == []


def test_membership_of_the_network_is_granted_like_any_right(shell: Shell) -> None:
    shell.done(
        "grant", "--type", "*", "--to", "ccs", "--action", "join-net", "--key", "police.pem", "--out", "net.token"
    )
    (row,) = shell.done("grant", "inspect", "net.token", "-o", "json").rows
    assert (row["type"], row["actions"]) == ("*", ["join-net"])


# ── Refusals ──


def test_an_expired_token_and_one_for_later_are_refused(shell: Shell) -> None:
    token = shell.token("ccs", *SUBSCRIBE)
    refused(shell, "validity: the right expired at ", "grant", "inspect", token, "--at", "+31d")
    later = shell.token("later", *SUBSCRIBE, "--from", "+1d")
    refused(shell, "validity: the right is not valid before ", "grant", "inspect", later)
    refused(shell, "validity: the right is not valid before ", "grant", "narrow", later, "--until", "+2d")


def test_a_token_is_good_for_its_holder_action_and_attributes_only(shell: Shell) -> None:
    token = shell.token("ccs", *SUBSCRIBE, "--attribute", "plate")
    shell.done("grant", "inspect", token, "--holder", "ccs", "--action", "subscribe", "--attribute", "plate")
    refused(shell, "holder: ", "grant", "inspect", token, "--holder", "yard")
    refused(shell, "action: link 0 publish", "grant", "inspect", token, "--action", "publish")
    refused(shell, "attributes: link 0", "grant", "inspect", token, "--attribute", "location")


def test_a_revoked_token_is_refused_with_what_was_made_of_it(shell: Shell) -> None:
    token = shell.token("ccs", *SUBSCRIBE, "--depth", "1")
    shell.done("grant", "narrow", token, "--to", "yard", "--key", "ccs.pem", "--out", "yard.token")
    refused(shell, "issuer:", "grant", "revoke", "yard.token", "--link", "0", "--key", "yard.pem")
    digest = shell.done("grant", "ls", "-o", "json").rows[0]["digest"]
    shell.done("grant", "revoke", digest[:8], "--key", "police.pem", "--reason", "lost")
    for dead in (token, "yard.token"):
        refused(shell, "revoked: link 0", "grant", "inspect", dead)
        refused(shell, "revoked: link 0", "grant", "narrow", dead, "--until", "+1h")
    assert str(shell.done("grant", "ls", "-o", "json").rows[0]["refused"]).startswith("revoked:")


def test_revoking_the_last_link_leaves_the_first(shell: Shell) -> None:
    token = shell.token("ccs", *SUBSCRIBE, "--depth", "1")
    shell.done("grant", "narrow", token, "--to", "yard", "--key", "ccs.pem", "--out", "yard.token")
    shell.done("grant", "revoke", "yard.token", "--key", "ccs.pem")
    refused(shell, "revoked: link 1", "grant", "inspect", "yard.token")
    shell.done("grant", "inspect", token)


@pytest.mark.parametrize(
    ("wider", "why"),
    [
        (["--action", "publish"], "action: the token is not for publish"),
        (["--attribute", "plate", "--attribute", "location"], "attributes: the token does not cover"),
        (["--until", "+60d"], "validity: the token is valid only"),
        (["--from", "2020-01-01T00:00:00Z"], "validity: the token is valid only"),
        (["--depth", "1"], "depth: "),
        (["--to", "yard", "--key", "ccs.pem"], "depth: "),
        (["--to", "yard", "--key", "yard.pem"], "depth: |holder: "),
    ],
)
def test_a_token_is_never_widened_nor_passed_on_too_often(shell: Shell, wider: list[str], why: str) -> None:
    token = shell.token("ccs", *SUBSCRIBE, "--attribute", "plate")
    said = shell("grant", "narrow", token, *wider)
    assert (said.code, said.out) == (3, "")
    assert any(said.err.startswith(f"Denied: {one}") for one in why.split("|"))


def test_an_over_delegated_token_is_shown_and_refused(shell: Shell) -> None:
    (shell.folder / "over.token").write_bytes(base64.urlsafe_b64encode(passed_on_twice()))
    owner = ("--owner", fingerprint(OWNER.public_key))
    refused(shell, "depth: link 2", "grant", "inspect", "over.token", *owner)
    refused(shell, "depth: link 2", "grant", "narrow", "over.token", *owner)
    assert len(shell("grant", "inspect", "over.token", *owner, "-o", "json").rows[0]["links"]) == 3


def test_only_the_holder_passes_a_token_on(shell: Shell) -> None:
    token = shell.token("ccs", *SUBSCRIBE, "--depth", "1")
    refused(shell, "holder: ", "grant", "narrow", token, "--to", "yard", "--key", "yard.pem")
    assert shell("grant", "narrow", token, "--to", "yard").code == 2


@pytest.mark.parametrize("kept", [1, 5, 100, 101, 102, 103, -2, -5])
def test_a_token_cut_short_is_refused_wherever_it_is_cut(shell: Shell, kept: int) -> None:
    text = (shell.folder / shell.token("ccs", *SUBSCRIBE)).read_text().strip().rstrip("=")
    (shell.folder / "cut.token").write_text(text[:kept])
    for command in ("inspect", "narrow"):
        said = shell("grant", command, "cut.token")
        assert (said.code, said.out) == (3, "")
        assert said.err.startswith(("Denied: signature:", "Denied: form:"))


def test_an_altered_token_is_refused(shell: Shell) -> None:
    raw = base64.urlsafe_b64decode((shell.folder / shell.token("ccs", *SUBSCRIBE)).read_text())
    for spot in (10, len(raw) // 2, len(raw) - 1):
        altered = bytes(b ^ (i == spot) for i, b in enumerate(raw))
        (shell.folder / "altered.token").write_bytes(base64.urlsafe_b64encode(altered))
        assert shell("grant", "inspect", "altered.token").code == 3


@pytest.mark.parametrize("content", [b"", b"hello there!", b"\xff\xfe\x00", b"a b", "é".encode()])
def test_what_does_not_look_like_a_token_is_wrong_input(shell: Shell, content: bytes) -> None:
    (shell.folder / "bad.token").write_bytes(content)
    said = shell("grant", "inspect", "bad.token")
    assert (said.code, said.out) == (2, "")
    assert "bad.token: expected a token" in said.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--type", "Numberplate"], "expected --type, --to, --action and --key"),
        (["--type", "Numberplate", *SUBSCRIBE, "--key", "police.pem", "--attribute", "plat"], "plat"),
        (["--type", "Numberplate", *SUBSCRIBE, "--key", "police.pem", "--where", "speed >"], "FilterSyntaxError"),
        (["--type", "Numberplate", *SUBSCRIBE, "--key", "police.pem", "--depth", "-1"], "delegation depth"),
        (["--type", "Numberplate", *SUBSCRIBE, "--key", "police.pem", "--until", "+0s"], "never valid"),
        (
            ["--type", "Numberplate", "--to", "ccs", "--action", "eat", "--key", "police.pem"],
            "expected one or more actions",
        ),
        (
            ["--type", "Numberplate", "--to", "css", "--action", "subscribe", "--key", "police.pem"],
            "did you mean 'ccs'",
        ),
        (["--type", "None", *SUBSCRIBE, "--key", "police.pem"], "has no event type"),
        (["inspect", "none.token"], "none.token"),
        (["revoke", "abcd", "--key", "police.pem"], "no known grants"),
    ],
)
def test_wrong_input_is_told_with_what_was_expected(shell: Shell, arguments: list[str], why: str) -> None:
    said = shell("grant", *arguments)
    assert (said.code, said.out) == (2, "")
    assert why in said.err
