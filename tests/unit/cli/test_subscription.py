"""`tidings subscription …`, as a shell sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.registry_shell import PLATE, Shell, a_shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return a_shell(tmp_path, monkeypatch, capsys)


def add(token: str | None, condition: str = "plate LIKE 'A%'", *, key: str = "ccs", id: str = "ccs-1") -> list[str]:
    shown = ["--token", token] if token else []
    return ["subscription", "add", id, condition, "--type", "Numberplate", "--key", f"{key}.pem", *shown]


def plates_for_ccs(shell: Shell, *more: str) -> str:
    return shell.token("ccs", "--to", "ccs", "--action", "subscribe", "--attribute", "plate", *more)


def test_a_subscription_is_added_listed_and_removed(shell: Shell) -> None:
    token = plates_for_ccs(shell)
    shell.done(*add(token, "plate like 'A%'"))
    assert "already has this subscription" in shell.done(*add(token)).err
    (row,) = shell.done("subscription", "ls", "--type", "Numberplate", "-o", "json").rows
    assert {name: row[name] for name in ("id", "subscriber", "filter", "type", "refused")} == {
        "id": "ccs-1",
        "subscriber": "ccs",
        "filter": "plate LIKE 'A%'",
        "type": "Numberplate",
        "refused": None,
    }
    assert shell("subscription", "rm", "ccs-1", "--key", "yard.pem").code == 3
    shell.done("subscription", "rm", "ccs-1", "--key", "ccs.pem")
    assert shell.done("subscription", "ls", "-o", "json").rows == []
    assert shell("subscription", "rm", "ccs-1", "--key", "ccs.pem").code == 2


def test_the_owner_subscribes_without_a_token(shell: Shell) -> None:
    shell.done(*add(None, "speed > 20", key="police"))


def test_a_right_that_has_gone_shows_in_the_list(shell: Shell) -> None:
    token = plates_for_ccs(shell)
    shell.done(*add(token))
    shell.done("grant", "revoke", token, "--key", "police.pem")
    (row,) = shell.done("subscription", "ls", "-o", "json").rows
    assert row["refused"].startswith("revoked: link 0")
    assert shell.done("subscription", "ls", "--active", "-o", "json").rows == []


def refuse(shell: Shell, why: str, arguments: list[str]) -> None:
    said = shell(*arguments)
    assert (said.code, said.out) == (3, "")
    assert said.err.startswith(f"Denied: {why}")
    assert shell.done("subscription", "ls", "-o", "json").rows == []


def test_without_the_right_nothing_is_added(shell: Shell) -> None:
    token = plates_for_ccs(shell)
    refuse(shell, "token: ", add(None))
    refuse(shell, "holder: ", add(token, key="yard"))
    refuse(shell, "attributes: link 0", add(token, "speed > 20"))
    later = plates_for_ccs(shell, "--from", "+1d")
    refuse(shell, "validity: link 0", add(later))
    publish = shell.token("publish", "--to", "ccs", "--action", "publish")
    refuse(shell, "action: link 0", add(publish))


def test_a_token_for_another_type_cut_short_or_revoked_adds_nothing(shell: Shell) -> None:
    (shell.folder / "quake.toml").write_text(PLATE.replace("Numberplate", "Quake"))
    shell.done("type", "declare", "quake.toml", "--key", "police.pem")
    quake = ["grant", "--type", "Quake", "--to", "ccs", "--action", "subscribe", "--key", "police.pem"]
    shell.done(*quake, "--out", "quake.token")
    refuse(shell, "type: link 0", add("quake.token"))
    token = plates_for_ccs(shell)
    (shell.folder / "cut.token").write_text((shell.folder / token).read_text()[:200])
    refuse(shell, "signature: ", add("cut.token"))
    shell.done("grant", "revoke", token, "--key", "ccs.pem")
    refuse(shell, "revoked: link 0", add(token))


@pytest.mark.parametrize(
    ("condition", "id", "why"),
    [
        ("plat = 'A'", "ccs-1", "did you mean"),
        ("plate >", "ccs-1", "FilterSyntaxError"),
        ("plate > 3", "ccs-1", "FilterTypeError"),
        ("plate = 'A'", "", "expected a subscription's id"),
    ],
)
def test_a_condition_or_id_that_does_not_fit_is_wrong_input(shell: Shell, condition: str, id: str, why: str) -> None:
    said = shell(*add(plates_for_ccs(shell), condition, id=id))
    assert (said.code, said.out) == (2, "")
    assert why in said.err
