"""Every command teaches itself by an example, and every command line in a document exists, with the options it shows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tidings.cli import COMMANDS
from tidings.cli.lazy import LazyEntry

TOP = Path(__file__).resolve().parents[3]
DOCUMENTS = sorted([*TOP.glob("*.md"), *TOP.glob("docs/**/*.md"), *TOP.glob("deploy/**/*.md")])
FENCE = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
TYPED = re.compile(r"(?:^|[|;&(] ?)\s*(?:\$ )?(tidings [a-z-].*)$", re.MULTILINE)
"""A command line in a block, also behind a pipe; what follows it is cut off below."""
MENTIONED = re.compile(r"`(tidings [a-z-][^`]*)`")
SEPARATORS = frozenset({"|", "||", "&", "&&", ";", ">", ">>", "<", "2>", ")"})


@cache
def command(name: str) -> Any:
    """The command of this name as `tidings` runs it; None if there is none."""
    found = next((entry for entry in COMMANDS if entry.name == name), None)
    return found.load() if found else None


def below(group: Any, name: str) -> Any:
    found = group.commands.get(name)
    return found.entry.load() if hasattr(found, "entry") else found


def commands_of(found: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, found
    for name in getattr(found, "commands", ()):
        yield from commands_of(below(found, name), f"{path} {name}")


def words_of(line: str) -> list[str]:
    """The words of one command, without comments and what follows it in the line."""
    line = re.split(r" {3,}", line)[0]  # What the command does, in a column beside it.
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";<>|&()")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] = []
    try:
        for word in lexer:
            if word in SEPARATORS:
                break
            words.append(word)
    except ValueError:
        return []  # A quotation that goes on in the next line.
    return words[1:]


def wrong_with(line: str) -> str:
    """What of a command line does not exist; empty if all does."""
    name, *rest = words_of(line) or [""]
    if name in ("", "COMMAND") or name.startswith("-"):
        return ""
    found = command(name.rstrip(","))
    if found is None:
        return f"there is no command {name}"
    while hasattr(found, "commands"):
        if not rest or not re.match(r"[a-z]", rest[0]):
            break
        choices = [below(found, each) for each in rest.pop(0).replace("\\", "").split("|")]
        if None in choices:
            return f"`{found.name}` has no such command"
        found = choices[0]
    options = {each for parameter in found.params for each in (*parameter.opts, *parameter.secondary_opts)}
    given = {re.split("[=.]", word)[0] for word in rest if re.match(r"--?[a-z]", word)}
    unknown = given - options - {"-h", "--help"}
    return f"`{found.name}` has no {', '.join(sorted(unknown))}" if unknown else ""


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(TOP)))
def test_every_command_line_in_a_document_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    typed = [line for block in FENCE.findall(text) for line in TYPED.findall(block)]
    mentioned = [" ".join(each.split()) for each in MENTIONED.findall(FENCE.sub("", text))]
    assert {line: wrong for line in (*typed, *mentioned) if (wrong := wrong_with(line))} == {}


def test_what_does_not_exist_is_found() -> None:
    assert wrong_with("tidings grant inspct FILE") == "`grant` has no such command"
    assert wrong_with('tidings broker create a --listn "x y" | head -3') == "`create` has no --listn"
    assert wrong_with("tidings org create police && tidings nonsense") == ""
    assert wrong_with("tidings nonsense") == "there is no command nonsense"


@pytest.mark.parametrize("entry", [each for each in COMMANDS if not each.hidden], ids=lambda entry: entry.name)
def test_every_command_has_an_example_that_exists_and_no_list_cuts_a_sentence_off(entry: LazyEntry) -> None:
    for path, found in commands_of(entry.load(), entry.name):
        if hasattr(found, "commands"):
            assert [each for each in found.commands.values() if each.get_short_help_str(60).endswith("...")] == []
        else:
            assert f"tidings {path}" in found.help, path
        examples = TYPED.findall(found.help.replace("\\\n", " "))
        assert {line: wrong for line in examples if (wrong := wrong_with(line))} == {}
