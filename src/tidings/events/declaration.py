"""Event types as files, in TOML or JSON.

    name = "Numberplate"

    [attributes]
    plate = {type = "string", required = true}
    area = "string"
    speed = "double"
    seen_at = "timestamp"

    [attributes.position]
    lat = "double"
    lon = "double"

A type is `bool`, `int` (or `int64`), `double`, `decimal(12,2)`, `string`, `timestamp`, `date`,
`time`, `bytes`, or an array or a map of these: `array<string>`, `map<string,double>`. A table
within `attributes` whose `type` is a text describes one attribute; every other table
groups attributes, whose names it begins. So a group may well hold an attribute called
`type`: it is written `type = {type = "string"}`. JSON has the same form.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tidings.errors import EventTypeError, did_you_mean
from tidings.events.schema import NESTING_MAX, Attribute, EventType, declared_type
from tidings.events.values import ValueType, describe

FILE_BYTES_MAX = 4 * 2**20  # Room for the widest event type with the longest names, twice over.


def read_file(path: str | Path) -> EventType:
    """The event type a `.toml` or `.json` file declares.

    Raises EventTypeError naming the file, the attribute or line, what was expected and what came.
    """
    file = Path(path)
    try:
        return from_declaration(_parsed(_read(file), file.suffix))
    except EventTypeError as wrong:
        raise EventTypeError(f"{file}: {wrong}") from None


def write_file(event_type: EventType, path: str | Path) -> None:
    """Declares the event type in a `.toml` or `.json` file; `read_file` gives it back as it was."""
    file = Path(path)
    declaration = to_declaration(event_type)
    match file.suffix.lower():
        case ".toml":
            text = _toml(declaration)
        case ".json":
            text = json.dumps(declaration, indent=2, ensure_ascii=False) + "\n"
        case other:
            raise EventTypeError(f"{file}: {_unknown_suffix(other)}")
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as wrong:
        raise EventTypeError(f"{file}: cannot be written: {wrong.strerror}") from None


def from_declaration(declaration: Mapping[str, Any]) -> EventType:
    """The event type that `declaration` describes, in the form of a parsed file.

    >>> print(from_declaration({"name": "Quake", "attributes": {"at": {"lat": "double"}, "magnitude": "double"}}))
    Quake(at.lat double, magnitude double)
    """
    declaration = _table(declaration, "the declaration")
    _check_words(declaration, ("name", "attributes"), "the declaration")
    for word, example in (("name", 'name = "Quake"'), ("attributes", "a table [attributes]")):
        if word not in declaration:
            raise EventTypeError(f"expected {example}, got none")
    attributes = _table(declaration["attributes"], "'attributes'")
    return EventType.of(declaration["name"], tuple(_attributes(attributes, "")))


def to_declaration(event_type: EventType) -> dict[str, Any]:
    """What `from_declaration` makes the very same event type of; nested names are written with dots.

    >>> to_declaration(EventType("Quake", at={"lat": float}))
    {'name': 'Quake', 'attributes': {'at.lat': 'double'}}
    """
    return {"name": event_type.name, "attributes": {a.name: _declared(a) for a in event_type}}


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            raw = stream.read(FILE_BYTES_MAX + 1)
    except OSError as wrong:
        raise EventTypeError(f"cannot be read: {wrong.strerror}") from None
    if len(raw) > FILE_BYTES_MAX:
        raise EventTypeError(f"expected at most {FILE_BYTES_MAX} bytes, the file has more")
    try:
        return raw.decode()
    except UnicodeDecodeError as wrong:
        raise EventTypeError(
            f"expected UTF-8, got {raw[wrong.start : wrong.start + 1]!r} at byte {wrong.start}"
        ) from None


def _parsed(text: str, suffix: str) -> Mapping[str, Any]:
    if suffix.lower() not in (".toml", ".json"):
        raise EventTypeError(_unknown_suffix(suffix))
    kind = suffix[1:].upper()
    try:
        return tomllib.loads(text) if kind == "TOML" else json.loads(text, object_pairs_hook=_without_repeats)
    except RecursionError:
        raise EventTypeError(f"the {kind} is nested more than {NESTING_MAX} levels deep") from None
    except ValueError as wrong:  # Of which both libraries' own errors are kinds, with line and column in them.
        raise EventTypeError(f"not {kind}: {wrong}") from None


def _unknown_suffix(suffix: str) -> str:
    return f"expected a file that ends in .toml or .json, got {suffix!r}"


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        repeated, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise EventTypeError(f"{repeated!r} is declared twice")
    return table


def _attributes(table: Mapping[str, Any], prefix: str) -> Iterator[Attribute]:
    if prefix.count(".") > NESTING_MAX:
        raise EventTypeError(f"{prefix[:60]!r} is nested more than {NESTING_MAX} levels deep")
    for key, what in table.items():
        name = prefix + key
        if isinstance(what, Mapping) and not isinstance(what.get("type"), str):
            yield from _attributes(what, name + ".")
        else:
            yield _attribute(name, what)


def _attribute(name: str, what: object) -> Attribute:
    options = what if isinstance(what, Mapping) else {"type": what}
    _check_words(options, ("type", "required"), f"attribute {name!r}")
    required = options.get("required", False)
    if not isinstance(required, bool):
        raise EventTypeError(f"attribute {name!r}: expected required = true or false, got {describe(required)}")
    if not isinstance(options["type"], str):
        got = describe(options["type"])
        raise EventTypeError(f"attribute {name!r}: expected a type as a text, a table of options or a group, got {got}")
    return Attribute(name, declared_type(name, options["type"]), required)


def _check_words(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for word in table:
        if word not in known:
            hint = did_you_mean(word, known) or f"known are {' and '.join(map(repr, known))}"
            raise EventTypeError(f"{where} has an unknown entry {word[:60]!r}; {hint}{_grouping_hint(table, word)}")


def _grouping_hint(table: Mapping[str, Any], word: str) -> str:
    """For the one trap of the format: a group that holds an attribute called `type`."""
    if not isinstance(table.get("type"), str) or word in ("name", "attributes"):
        return ""
    return f"; if this is a group with an attribute called type, write type = {{type = {table['type'][:60]!r}}}"


def _table(what: object, where: str) -> Mapping[str, Any]:
    if isinstance(what, Mapping):
        return what
    raise EventTypeError(f"expected {where} to be a table, got {describe(what)}")


def _declared(attribute: Attribute) -> str | dict[str, Any]:
    if attribute.type is ValueType.NULL:
        raise EventTypeError(f"attribute {attribute.name!r} has no type yet: it was taken from a null")
    return {"type": attribute.type.value, "required": True} if attribute.required else attribute.type.value


def _toml(declaration: Mapping[str, Any]) -> str:
    lines = [f"name = {_quoted(declaration['name'])}", "", "[attributes]"]
    for name, what in declaration["attributes"].items():
        options = isinstance(what, dict)
        shown = f"{{type = {_quoted(what['type'])}, required = true}}" if options else _quoted(what)
        lines.append(f"{_quoted(name)} = {shown}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A TOML string. Names are printable, so what JSON leaves unescaped TOML allows."""
    return json.dumps(text, ensure_ascii=False)
