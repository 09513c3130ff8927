"""Messages whose schema is in a schema registry: Avro, Protobuf and JSON, as Confluent's serializers write them.

Such a message begins with a zero byte and the number of its schema. Workers fetch each schema once, by the registry's
own client, and turn messages into JSON documents, which are then validated as all others are. A message that cannot
be decoded, or whose schema the registry does not have, is a broken record; a registry that does not answer ends
the run.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import pyarrow as pa

from tidings.errors import SetupError

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema

PREFIX = "schema.registry."
HEAD_BYTES = 5  # A zero byte, and the number of the schema.
NEW_SCHEMAS_MAX = 100  # That one batch may have fetched: anybody can write any number into a message.
REFERENCES_MAX = 64  # Schemas that one schema imports.
NESTING_MAX = 8  # Of messages of Protobuf within one another, and of imports.
NOT_FOUND = 404

Decode: TypeAlias = Callable[[bytes], Any]
"""The content of a message after its head → values that JSON can express."""

_NUMBERS = (  # Settings of the registry's client that it does not take as texts.
    "cache.capacity", "cache.latest.ttl.sec", "max.retries", "retries.max.wait.ms", "retries.wait.ms", "timeout",
)  # fmt: skip
_NO_LIBRARY = "messages with a schema registry need more libraries: {}\ntry: pip install 'tidings[kafka]'"


class BrokenMessage(ValueError):
    """Why a message cannot be decoded."""


@dataclass(frozen=True, slots=True)
class DecodedMessages:
    """JSON documents of the rows `kept`, and the row and reason of each of the others."""

    lines: pa.Array
    kept: list[int]
    broken: list[tuple[int, str]]


@dataclass(slots=True)
class MessageDecoder:
    """Decodes the values of a topic. Sent to workers, which fetch schemas for themselves."""

    kind: str
    settings: Mapping[str, str]
    _known: dict[int, Decode | str] = field(default_factory=dict)
    _client: Any = None

    def __getstate__(self) -> tuple[str, dict[str, str]]:
        return self.kind, dict(self.settings)

    def __setstate__(self, state: tuple[str, dict[str, str]]) -> None:
        self.kind, self.settings = state
        self._known, self._client = {}, None

    def check(self) -> None:
        """Raises SetupError if a library is missing, or a setting is wrong."""
        self._registry()
        _library(self.kind)

    def __call__(self, values: pa.Array) -> DecodedMessages:
        """Raises SetupError if the registry does not answer."""
        lines, kept, broken = [], [], []
        budget = len(self._known) + NEW_SCHEMAS_MAX
        for row, value in enumerate(values.to_pylist()):
            try:
                lines.append(self._line(value, budget))
                kept.append(row)
            except BrokenMessage as wrong:
                broken.append((row, str(wrong)))
        return DecodedMessages(pa.array(lines, pa.binary()), kept, broken)

    def _line(self, value: bytes | None, budget: int) -> bytes:
        if value is None or len(value) < HEAD_BYTES or value[0] != 0:
            raise BrokenMessage("expected a message with the number of its schema, got something else")
        number = int.from_bytes(value[1:HEAD_BYTES], "big")
        decode = self._known.get(number)
        if decode is None:
            if len(self._known) >= budget:
                raise BrokenMessage(f"schema {number} was not looked up: more than {NEW_SCHEMAS_MAX} new ones at once")
            decode = self._known[number] = self._decode_of(number)
        if isinstance(decode, str):
            raise BrokenMessage(decode)
        try:
            content = decode(value[HEAD_BYTES:])
            return content if isinstance(content, bytes) else msgspec.json.encode(content)
        except BrokenMessage:
            raise
        except Exception as wrong:  # noqa: BLE001  Each library has errors of its own for bytes that do not fit.
            raise BrokenMessage(f"the message does not fit schema {number}: {type(wrong).__name__}: {wrong}") from None

    def _decode_of(self, number: int) -> Decode | str:
        """What decodes messages of a schema, or why nothing does."""
        schema = self._fetched(number)
        if schema is None:
            return f"schema {number} is not in the registry"
        came = (schema.schema_type or "AVRO").lower()
        if came != self.kind:
            return f"schema {number} is one of {came}, and the pipeline expects {self.kind}"
        try:
            return _DECODERS[self.kind](schema, self._imports(schema))
        except SetupError:
            raise
        except Exception as wrong:  # noqa: BLE001  As above, for schemas.
            return f"schema {number} cannot be used: {type(wrong).__name__}: {str(wrong)[:200]}"

    def _fetched(self, number: int) -> Schema | None:
        return self._asked(lambda registry: registry.get_schema(number))  # type: ignore[no-any-return]

    def _imports(self, schema: Schema, depth: int = 0) -> dict[str, str]:
        """The texts of all schemas that one refers to, by the names that it uses, the innermost first."""
        found: dict[str, str] = {}
        for reference in schema.references or ():
            if len(found) >= REFERENCES_MAX or depth >= NESTING_MAX:
                raise BrokenMessage("it imports too many schemas")
            there = self._asked(partial(_version_of, reference))
            if there is None:
                raise BrokenMessage(f"{reference.name!r}, which it imports, is not in the registry")
            found |= self._imports(there.schema, depth + 1)
            found[str(reference.name)] = str(there.schema.schema_str)
        return found

    def _asked(self, question: Callable[[Any], Any]) -> Any:
        registry = self._registry()
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return question(registry)
        except SchemaRegistryError as wrong:
            if wrong.http_status_code == NOT_FOUND:
                return None
            raise SetupError(f"the schema registry {self.settings['url']!r} refuses: {wrong.error_message}") from None
        except Exception as wrong:  # noqa: BLE001  The client's HTTP library has errors of its own.
            raise SetupError(
                f"the schema registry {self.settings['url']!r} does not answer: {type(wrong).__name__}: {wrong}"
            ) from None

    def _registry(self) -> Any:
        if self._client is None:
            try:
                from confluent_kafka.schema_registry import SchemaRegistryClient
            except ImportError as wrong:
                raise SetupError(_NO_LIBRARY.format(wrong)) from None
            try:
                self._client = SchemaRegistryClient(
                    {name: _number(value) if name in _NUMBERS else value for name, value in self.settings.items()}
                )
            except (ValueError, TypeError, OSError) as wrong:
                raise SetupError(f"events.options: the schema registry's client refuses: {wrong}") from None
        return self._client


def _version_of(reference: Any, registry: Any) -> Any:
    return registry.get_version(reference.subject, reference.version)


def _number(text: str) -> float:
    return int(text) if text.isdigit() else float(text)


def decoder_of(kind: str, options: Mapping[str, str]) -> MessageDecoder | None:
    """What decodes values of this kind; None for JSON without a registry. `options` are those of the topic."""
    settings = {name.removeprefix(PREFIX): value for name, value in options.items() if name.startswith(PREFIX)}
    return MessageDecoder(kind, settings) if settings else None


_LIBRARIES = {"json": (), "avro": ("fastavro",), "protobuf": ("google.protobuf.message_factory", "grpc_tools.protoc")}


def _library(kind: str) -> None:
    try:
        for name in _LIBRARIES[kind]:
            import_module(name)
    except ImportError as wrong:
        raise SetupError(_NO_LIBRARY.format(wrong)) from None


# ── JSON and Avro ────────────────────────────────────────────────────────────


def _json(schema: Schema, imports: Mapping[str, str]) -> Decode:
    """The document as it is: the event type says what it must hold."""
    return lambda content: content


def _avro(schema: Schema, imports: Mapping[str, str]) -> Decode:
    import fastavro

    named: dict[str, Any] = {}
    for text in imports.values():
        fastavro.parse_schema(json.loads(text), named_schemas=named)
    parsed = fastavro.parse_schema(json.loads(schema.schema_str or ""), named_schemas=named)

    def decode(content: bytes) -> Any:
        stream = io.BytesIO(content)
        record = fastavro.schemaless_reader(stream, parsed, None)
        return _whole(record, len(content) - stream.tell())

    return decode


def _whole(record: Any, left: int) -> Any:
    if left:
        raise BrokenMessage(f"the message has {left} bytes more than its schema")
    return record


# ── Protobuf ─────────────────────────────────────────────────────────────────

_MAIN = "tidings-main.proto"


def _protobuf(schema: Schema, imports: Mapping[str, str]) -> Decode:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    described = descriptor_pb2.FileDescriptorSet.FromString(_compiled(schema.schema_str or "", imports))
    for file in described.file:
        pool.Add(file)
    main = pool.FindFileByName(_MAIN)
    messages = list(main.message_types_by_name.values())  # In the order of the file, as messages number them.

    def decode(content: bytes) -> Any:
        path, rest = _message_path(content)
        here = messages[path[0]]
        for step in path[1:]:
            here = here.nested_types[step]
        return _plain(message_factory.GetMessageClass(here).FromString(rest))

    return decode


def _compiled(text: str, imports: Mapping[str, str]) -> bytes:
    """The schema and what it imports as a set of descriptors, by Protobuf's own compiler."""
    from importlib.resources import files

    from grpc_tools import protoc

    with tempfile.TemporaryDirectory(prefix="tidings-schema-") as folder:
        root = Path(folder).resolve()
        for name, content in {**imports, _MAIN: text}.items():
            place = (root / name).resolve()
            if root not in place.parents:
                raise BrokenMessage(f"it imports {name!r}, which is no name of a schema")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content, "utf-8")
        known = str(files("grpc_tools") / "_proto")
        out = root / "descriptors"
        wanted = ["protoc", f"-I{root}", f"-I{known}", "--include_imports", f"--descriptor_set_out={out}", _MAIN]
        if protoc.main(wanted) != 0:
            raise BrokenMessage("Protobuf's compiler refuses it")
        return out.read_bytes()


def _message_path(content: bytes) -> tuple[list[int], bytes]:
    r"""Which message of the file it is, as places from outside in; a single zero stands for the first.

    >>> _message_path(bytes([0, 8]))
    ([0], b'\x08')
    >>> _message_path(bytes([4, 2, 0, 8]))
    ([1, 0], b'\x08')
    """
    count, at = _varint(content, 0)
    if count == 0:
        return [0], content[at:]
    if not 0 < count <= NESTING_MAX:
        raise BrokenMessage("the message names no message type of its schema")
    path = []
    for _ in range(count):
        step, at = _varint(content, at)
        path.append(step)
    if min(path) < 0:
        raise BrokenMessage("the message names no message type of its schema")
    return path, content[at:]


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number in zigzag form, and the place after it."""
    value = shift = 0
    while True:
        byte = content[at]
        at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        if shift > 63:
            raise BrokenMessage("the message names no message type of its schema")


def _plain(message: Any, depth: int = 0) -> Any:
    """Fields by name. Unlike in Protobuf's own JSON, whole numbers of 64 bits stay numbers."""
    name = message.DESCRIPTOR.full_name
    if name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        return message.ToJsonString()
    if name.startswith("google.protobuf.") and name.endswith("Value") and "value" in message.DESCRIPTOR.fields_by_name:
        return message.value
    if depth > NESTING_MAX:
        raise BrokenMessage("the message is nested too deeply")
    return {
        field.name: _field(field, getattr(message, field.name), depth)
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _field(field: Any, value: Any, depth: int) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        return {str(key): _one(inner, each, depth) for key, each in value.items()}
    if _is_repeated(field):
        return [_one(field, each, depth) for each in value]
    return _one(field, value, depth)


def _is_repeated(field: Any) -> bool:
    known = getattr(field, "is_repeated", None)  # Older releases of the library have the label only.
    return bool(known if known is not None else field.label == field.LABEL_REPEATED)


def _one(field: Any, value: Any, depth: int) -> Any:
    if field.message_type is not None:
        return _plain(value, depth + 1)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    return value


_DECODERS: dict[str, Callable[[Any, Mapping[str, str]], Decode]] = {
    "json": _json,
    "avro": _avro,
    "protobuf": _protobuf,
}
