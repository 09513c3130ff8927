"""Event types in files: TOML and JSON say the same, and a wrong file says where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.given import Plate
from tidings.errors import EventTypeError
from tidings.events import EventType, Required, Timestamp, from_declaration, read_file, to_declaration, write_file
from tidings.events.declaration import FILE_BYTES_MAX

TOML = """
name = "Numberplate"

[attributes]
plate = {type = "string", required = true}
area = "string"
speed = "double"
lanes = "int64"
stolen = "bool"
seen_at = "timestamp"
photo = "bytes"

[attributes.position]
lat = "double"
lon = {type = "double"}
"""


def _file(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_toml_file_declares_what_python_does(tmp_path: Path) -> None:
    assert EventType.from_file(_file(tmp_path, "plate.toml", TOML)) == Plate


def test_a_json_file_declares_the_same(tmp_path: Path) -> None:
    attributes = {"at": {"lat": "double"}, "felt": {"type": "bool", "required": True}}
    path = _file(tmp_path, "quake.JSON", json.dumps({"name": "Quake", "attributes": attributes}))
    assert read_file(str(path)) == EventType("Quake", at={"lat": float}, felt=Required(bool))


def test_a_group_may_hold_attributes_called_type_and_required(tmp_path: Path) -> None:
    toml = 'name = "Car"\n[attributes]\ntype = "int"\n[attributes.car]\ntype = {type = "string"}\nrequired = "bool"\n'
    declared = read_file(_file(tmp_path, "car.toml", toml))
    assert str(declared) == "Car(type int, car.type string, car.required bool)"


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_a_written_file_reads_back_as_it_was(suffix: str, tmp_path: Path) -> None:
    odd = EventType("Größe \"'\\", {"b.x": int, "a": Required(str), "b.type": Timestamp, "b.𝄞 two.words": bytes})
    for event_type in (Plate, odd, EventType("Heartbeat")):
        write_file(event_type, tmp_path / f"written{suffix}")
        assert read_file(tmp_path / f"written{suffix}") == event_type


_HEAD = 'name = "Q"\n'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            _HEAD + '[attributes]\nspeed = "duble"',
            r"attribute 'speed': expected a type \(bool, .*did you mean 'double'",
        ),
        (_HEAD + "[attributes]\nspeed = 5", "attribute 'speed': expected a type as a text, .* got int 5"),
        (_HEAD + "[attributes]\nspeed = ['int']", "attribute 'speed': expected a type as a text"),
        (_HEAD + '[attributes]\nspeed = {type = "int", require = true}', "'speed' has an unknown entry 'require'; did"),
        (_HEAD + '[attributes]\nspeed = {type = "int", required = 1}', "expected required = true or false, got int 1"),
        (
            _HEAD + '[attributes.car]\ntype = "int"\nwheels = "int"',
            "'wheels'; known are .* write type = {type = 'int'}",
        ),
        (_HEAD + '[attributes]\na = "int"\na = "int"\n', "not TOML: .*line 4"),
        (_HEAD + '[attributes]\na = "int"\n"a.b" = "int"', "'a' cannot be both"),
        (_HEAD + "[attributes]\na = \n", "not TOML: .*line 3"),
        (_HEAD + '[atributes]\na = "int"', "unknown entry 'atributes'; did you mean 'attributes'"),
        (_HEAD + "attributes = 5", "expected 'attributes' to be a table, got int 5"),
        (_HEAD, r"expected a table \[attributes\], got none"),
        ("[attributes]", "expected name = .*, got none"),
        ("name = 5\n[attributes]", "expected an event type name .*, got int 5"),
        (_HEAD + "x = " + "[" * 5000, "nested"),
        (_HEAD + "[attributes." + ".".join("a" * 400) + "]\nb='int'", "nested more than 16 levels"),
        (b"name = '\xff'", r"expected UTF-8, got b'\\xff' at byte 8"),
        (b" " * (FILE_BYTES_MAX + 1), f"at most {FILE_BYTES_MAX} bytes"),
        (_HEAD + "x = " + "9" * 5000, "not TOML|unknown entry"),
    ],
    ids=lambda part: str(part)[:60],
)
def test_a_wrong_toml_file_is_named_with_the_spot(content: str | bytes, says: str, tmp_path: Path) -> None:
    path = _file(tmp_path, "quake.toml", content)
    with pytest.raises(EventTypeError, match=says) as refusal:
        read_file(path)
    assert str(refusal.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"name": "Q", "attributes": {"a": "int", "a": "int"}}', "'a' is declared twice"),
        ('{"name": "Q",\n "attributes": {,}}', "not JSON: .*line 2 column 17"),
        ("[]", "expected the declaration to be a table, got list"),
        ("[" * 100_000, "nested"),
        ('{"a":' * 100_000, "nested"),
        ('{"name": "Q", "attributes": {"a": null}}', "'a': expected a type as a text, .* got null"),
        ('{"name": "\\ud800", "attributes": {}}', "expected an event type name"),
        ("9" * 5000, "not JSON"),
    ],
    ids=lambda part: str(part)[:60],
)
def test_a_wrong_json_file_is_named_with_the_spot(content: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(EventTypeError, match=says):
        read_file(_file(tmp_path, "quake.json", content))


def test_a_file_that_cannot_be_read_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(EventTypeError, match=r"none\.toml: cannot be read: No such file"):
        read_file(tmp_path / "none.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(EventTypeError, match="cannot be read: Is a directory"):
        read_file(tmp_path / "folder.toml")
    with pytest.raises(EventTypeError, match=r"ends in \.toml or \.json, got '\.yaml'"):
        read_file(_file(tmp_path, "quake.yaml", ""))


def test_a_file_that_cannot_be_written_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(EventTypeError, match="cannot be written"):
        write_file(Plate, tmp_path / "no folder" / "plate.toml")
    with pytest.raises(EventTypeError, match=r"ends in \.toml or \.json"):
        write_file(Plate, tmp_path / "plate")


def test_a_type_taken_from_a_null_cannot_be_declared() -> None:
    with pytest.raises(EventTypeError, match="attribute 'a' has no type yet"):
        to_declaration(EventType.infer({"a": None}))


def test_a_declaration_may_come_from_anywhere() -> None:
    assert from_declaration(to_declaration(Plate)) == Plate
    with pytest.raises(EventTypeError, match="to be a table"):
        from_declaration(["Quake"])  # type: ignore[arg-type]
