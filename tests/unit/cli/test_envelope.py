"""`tidings envelope`: what can be seen of an event without a key, and what is not believed."""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.registry_shell import Shell, a_shell
from tests.unit.security.london import NOW_MS, a_keyring
from tidings.cli.registry.registry import now_ms
from tidings.events import Value
from tidings.security import Mode, Sealer, SignedType
from tidings.store import Registry

SECRET = "SE21CRT"
SIGHTING: dict[str, Value] = {"plate": SECRET, "location": "EC2", "speed": 31.0}


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return a_shell(tmp_path, monkeypatch, capsys)


def sealed(shell: Shell, mode: Mode = Mode.ATTRIBUTE) -> bytes:
    with Registry.open(shell.folder / "tidings.db", now_ms=now_ms()) as registry:
        (plates,) = registry.types.all()
    if mode is not plates.mode:
        plates = SignedType(plates.event_type, plates.owner_key, plates.key_manager, mode=mode)
    return Sealer(plates, a_keyring(plates), 7).seal(SIGHTING, NOW_MS)


@pytest.mark.parametrize(
    "written", [bytes, b64encode, urlsafe_b64encode, lambda raw: raw.hex().upper().encode() + b"\n"]
)
def test_an_envelope_shows_its_head_and_the_names_of_what_is_sealed_but_no_value(
    shell: Shell, written: Callable[[bytes], bytes]
) -> None:
    (shell.folder / "event").write_bytes(written(sealed(shell)))
    (row,) = shell.done("envelope", "event", "-o", "json").rows
    assert {each["attribute"] for each in row["attributes"]} == {"plate", "location", "speed"}
    assert (row["mode"], row["sender"], row["time"]) == ("attribute", 7, "2025-11-15T23:04:00.123000Z")
    assert row["type"].endswith("/Numberplate@1")
    assert SECRET not in shell.done("envelope", "event").out


def test_an_event_sealed_as_one_or_of_an_unknown_type_shows_less(shell: Shell) -> None:
    (shell.folder / "event").write_bytes(sealed(shell, Mode.EVENT))
    (row,) = shell.done("envelope", "event", "-o", "json", "--registry", "none.db").rows
    assert [each["attribute"] for each in row["attributes"]] == ["(the event)"]
    assert len(bytes.fromhex(row["type"])) == 32


@pytest.mark.parametrize(
    ("at", "byte", "why"),
    [
        (0, 0x51, "header: not a Tidings frame"),
        (1, 9, "version: 9 is unknown"),
        (2, 7, "header: 7 is no mode"),
        (3, 0x7F, "suite: "),
    ],
)
def test_an_envelope_of_an_unknown_form_is_refused_with_its_reason(shell: Shell, at: int, byte: int, why: str) -> None:
    raw = bytearray(sealed(shell))
    raw[at] = byte
    (shell.folder / "event").write_bytes(bytes(raw))
    said = shell("envelope", "event")
    assert (said.code, said.out) == (3, "")
    assert said.err.startswith(f"Denied: {why}")


def test_an_envelope_cut_short_anywhere_is_refused(shell: Shell) -> None:
    raw = sealed(shell)
    for size in range(0, len(raw), 23):
        (shell.folder / "event").write_bytes(raw[:size])
        assert shell("envelope", "event").code == 3, size


def test_a_file_that_is_not_there_is_a_wrong_input(shell: Shell) -> None:
    assert shell("envelope", "nothing").code == 2
