"""Where contexts are kept: a folder with a small file for each, and the name of the selected one.

    ~/.config/tidings/contexts/NAME.toml     client = "/absolute/client.toml", description = "…"
    ~/.config/tidings/selected               NAME

A context names a client's file. It holds no key and no right, only the path to them. XDG_CONFIG_HOME moves the folder.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

from tidings.errors import InputError, did_you_mean

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # It becomes a file's name.
FILE_BYTES_MAX = 65_536


class Context(NamedTuple):
    """A name for a client."""

    name: str
    client: Path
    description: str = ""


def folder() -> Path:
    """Where contexts are kept."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "tidings"


def names() -> list[str]:
    """All contexts, in alphabetical order."""
    try:
        return sorted(file.stem for file in (folder() / "contexts").glob("*.toml"))
    except OSError:
        return []


def selected() -> str:
    """The selected context's name; empty if none is selected, or it was removed."""
    try:
        name = (folder() / "selected").read_text("utf-8")[:100].strip()
    except OSError:
        return ""
    return name if name in names() else ""


def read(name: str) -> Context:
    """The context of this name; raises InputError if there is none, or its file is broken."""
    file = _file(name)
    try:
        with file.open("rb") as stream:
            table = tomllib.loads(stream.read(FILE_BYTES_MAX).decode())
        return Context(name, Path(str(table["client"])), str(table.get("description", "")))
    except FileNotFoundError:
        hint = did_you_mean(name, names()) or "`tidings context ls` lists those that exist"
        raise InputError(f"there is no context {name!r}; {hint}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, RecursionError) as wrong:
        raise InputError(f"{file}: not a context ({wrong}); `tidings context rm {name}` removes it") from None


def write(context: Context) -> None:
    """Stores a context, in the place of one of the same name."""
    file = _file(context.name)
    file.parent.mkdir(parents=True, exist_ok=True)
    # Texts of JSON are texts of TOML.
    lines = {"client": str(context.client), "description": context.description}
    _replace(file, "".join(f"{word} = {json.dumps(text)}\n" for word, text in lines.items()))


def select(name: str) -> None:
    """Makes a context the selected one; raises InputError if there is none of this name."""
    read(name)
    _replace(folder() / "selected", name + "\n")


def remove(name: str) -> None:
    """Deletes a context, and never the client's files; raises InputError if there is none of this name."""
    if name not in names():
        read(name)  # Raises, with the nearest name.
    _file(name).unlink(missing_ok=True)


def _file(name: str) -> Path:
    if not NAME.fullmatch(name):
        raise InputError(f"expected a name of letters, digits, '.', '_' and '-', got {name[:100]!r}")
    return folder() / "contexts" / f"{name}.toml"


def _replace(file: Path, text: str) -> None:
    """Whole or not at all: a command that is killed leaves no half a file."""
    half = file.with_name(f"{file.name}.{os.getpid()}.new")
    half.write_text(text, "utf-8")
    half.replace(file)
