"""A shell for the tests of commands that use a registry: one folder with keys, a type and a registry of its own."""

from __future__ import annotations

import json
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tidings.cli import app
from tidings.cli.terminal import run
from tidings.events import read_file
from tidings.security import Identity, SignedType
from tidings.store import Registry

PLATE = """
name = "Numberplate"
[attributes]
plate = {type = "string", required = true}
location = "string"
speed = "double"
"""


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it wrote where."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass(frozen=True)
class Shell:
    """Runs commands in a folder, as a shell would."""

    folder: Path
    patch: pytest.MonkeyPatch
    captured: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> Said:
        """The command's ending, whatever it is; never a stack trace."""
        self.patch.setattr(sys, "argv", ["tidings", *arguments])
        self.captured.readouterr()
        with pytest.raises(SystemExit) as ended:
            run(app)
        out, err = self.captured.readouterr()
        assert isinstance(ended.value.code, int)
        assert "Traceback" not in err
        return Said(ended.value.code, out, err)

    def done(self, *arguments: str) -> Said:
        """As a call, for commands that must succeed."""
        said = self(*arguments)
        assert said.code == 0, said.err
        return said

    def key(self, name: str) -> str:
        """A new private key in NAME.pem; gives its public half."""
        return self.done("identity", "new", f"{name}.pem").out.strip()

    def token(self, name: str, *arguments: str) -> str:
        """What the police grants, written to NAME.token."""
        self.done("grant", "--type", "Numberplate", "--key", "police.pem", "--out", f"{name}.token", *arguments)
        return f"{name}.token"


def a_shell(folder: Path, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> Shell:
    """In `folder`: keys of the police, ccs and yard, their names, and the police's type Numberplate."""
    patch.chdir(folder)
    patch.delenv("TIDINGS_REGISTRY", raising=False)
    patch.delenv("TIDINGS_KEY_PASSWORD", raising=False)
    (folder / "plate.toml").write_text(PLATE)
    people = {name: Identity.make(secrets.token_bytes) for name in ("police", "ccs", "yard")}
    for name, identity in people.items():
        (folder / f"{name}.pem").write_bytes(identity.to_pem())
        (folder / f"{name}.pem").chmod(0o600)
    with Registry.open(folder / "tidings.db", now_ms=1) as registry:
        plates = SignedType.make(people["police"], read_file(folder / "plate.toml"))
        registry.types.declare(plates, by="police", now_ms=1)
        for name, identity in people.items():
            registry.domains.add(name, [identity.public_key], by="me", now_ms=1)
    return Shell(folder, patch, captured)
