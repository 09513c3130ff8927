"""Contexts: which client a command acts as, and the completions that know them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.registry_shell import Shell
from tidings.cli.network.session import complete_who

CLIENT = '[client]\nname = "{name}"\ndomain = "police"\nbroker = "127.0.0.1:7401"\nkey = "k"\ncertificate = "c"\ntrusted = "t"\n'


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("TIDINGS_CLIENT", "TIDINGS_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("camera", "desk", "van"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "client.toml").write_text(CLIENT.format(name=name))
    return Shell(tmp_path, monkeypatch, capsys)


def acting(shell: Shell, *arguments: str) -> tuple[str, str]:
    """Whom a command acts as, and by which rule."""
    (row,) = shell.done("context", "show", *arguments, "-o", "json").rows
    return row["client"], row["chosen by"]


def test_the_first_context_is_selected_and_another_by_select(shell: Shell) -> None:
    shell.done("context", "create", "cam", "camera")
    shell.done("context", "create", "d", "desk/client.toml", "--description", "the desk")
    assert acting(shell) == ("police/camera", "the selected context 'cam'")
    shell.done("context", "select", "d")
    assert acting(shell)[0] == "police/desk"
    rows = shell.done("context", "ls", "-o", "json").rows
    assert [(row["name"], row["selected"], row["description"]) for row in rows] == [
        ("cam", False, ""),
        ("d", True, "the desk"),
    ]


def test_what_is_nearer_to_the_command_wins(shell: Shell) -> None:
    shell.done("context", "create", "cam", "camera")
    (shell.folder / "client.toml").write_text(CLIENT.format(name="here"))
    assert acting(shell) == ("police/here", "client.toml in this folder")
    shell.patch.setenv("TIDINGS_CONTEXT", "cam")
    assert acting(shell) == ("police/camera", "TIDINGS_CONTEXT=cam")
    shell.patch.setenv("TIDINGS_CLIENT", "van")
    assert acting(shell)[0] == "police/van"
    assert acting(shell, "--as", "desk/client.toml")[0] == "police/desk"
    assert acting(shell, "--as", "cam")[0] == "police/camera"


def test_creating_is_idempotent_and_does_not_replace_another_client_by_accident(shell: Shell) -> None:
    for described in (("--description", "at the gate"), ()):
        shell.done("context", "create", "cam", "camera", *described)
    assert "at the gate" in shell.done("context", "ls").out
    said = shell("context", "create", "cam", "desk")
    assert (said.code, "--replace" in said.err) == (2, True)
    shell.done("context", "create", "cam", "desk", "--replace")
    assert acting(shell)[0] == "police/desk"


def test_a_removed_context_is_gone_and_its_client_stays(shell: Shell) -> None:
    shell.done("context", "create", "cam", "camera")
    assert "no context is selected now" in shell.done("context", "rm", "cam").err
    assert (shell("context", "rm", "cam").code, shell("context", "show").code) == (2, 2)
    assert (shell.folder / "camera" / "client.toml").exists()


def test_a_broken_context_says_how_to_remove_it(shell: Shell) -> None:
    shell.done("context", "create", "cam", "camera")
    (shell.folder / "config" / "tidings" / "contexts" / "cam.toml").write_text("client = ")
    said = shell("context", "show")
    assert (said.code, "`tidings context rm cam` removes it" in said.err) == (2, True)
    shell.done("context", "rm", "cam")


def test_completion_offers_contexts_files_and_commands(shell: Shell) -> None:
    shell.done("context", "create", "cam", "camera")
    assert complete_who("ca") == ["cam", "camera/"]
    assert complete_who("camera/") == ["camera/client.toml"]
    for words, offered in (
        ("tidings pub", "publish"),
        ("tidings context select ", "cam"),
        ("tidings broker st", "status"),
    ):
        shell.patch.setenv("COMP_WORDS", words)
        shell.patch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
        shell.patch.setenv("_TIDINGS_COMPLETE", "complete_bash")
        assert offered in shell.done().out.split()
