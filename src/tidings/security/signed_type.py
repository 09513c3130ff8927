"""Signed event types: what an event looks like, how it is protected, and who is responsible for it.

A type's name starts with its owner's key, so nobody can define somebody else's type. The
signature is over the canonical CBOR of every other field; ids are always recomputed from the
name and never taken from a message.
"""

from __future__ import annotations

import enum
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import cbor2

from tidings.errors import Denied, EventTypeError, InputError, PeerError
from tidings.events import Attribute, EventType, ValueType
from tidings.security.formats import Profile, profile_of
from tidings.security.identity import KEY_BYTES, Identity, fingerprint, verify_signature
from tidings.security.suites import EAX_TAG_BYTES_MIN, SUITES, TAG_BYTES
from tidings.security.validity import why_not_valid

TYPE_BYTES_MAX = 2**20  # 4096 attributes with names of 255 characters fit; nothing honest is larger.
VALUE_BYTES_MAX = 2**20  # One attribute's encoded value, unless the type says less.
U32_MAX = 2**32 - 1
I64_MIN, I64_MAX = -(2**63), 2**63 - 1


class Mode(enum.IntEnum):
    """What is encrypted: nothing, the event as one, or each attribute by itself."""

    PLAIN = 0
    EVENT = 1
    ATTRIBUTE = 2


class PadPolicy(enum.StrEnum):
    """Whether sealed values show their length, or only the bucket it falls into."""

    NONE = "none"
    BUCKET = "bucket"


_VALUE_TYPES = {
    ValueType.BOOL: "bool",
    ValueType.INT: "i64",
    ValueType.DOUBLE: "f64",
    ValueType.STRING: "str",
    ValueType.BYTES: "bytes",
    ValueType.TIMESTAMP: "ts",
}
_BY_WIRE_NAME = {wire: value_type for value_type, wire in _VALUE_TYPES.items()}


def _wire_name(value_type: ValueType) -> str:
    return _VALUE_TYPES.get(value_type, value_type.value)


def _by_wire_name(name: str) -> ValueType:
    """Raises ValueError for a name that `_wire_name` never gives."""
    found = _BY_WIRE_NAME.get(name) or ValueType(name)
    if _wire_name(found) != name or found is ValueType.NULL:
        raise ValueError(f"{name!r} is not a type")
    return found


@dataclass(frozen=True, eq=False)
class SignedType:
    """An event type with its protection, signed by its owner. Compared by its canonical bytes.

    Made with `SignedType.make`, which signs; read with `SignedType.from_bytes`, after which
    `verify` must be called before anything in it is trusted.
    """

    event_type: EventType
    owner_key: bytes
    key_manager: bytes
    version: int = 1
    mode: Mode = Mode.ATTRIBUTE
    suite: int = 0x01
    tag_len: int = TAG_BYTES
    pad_policy: PadPolicy = PadPolicy.NONE
    refresh_secs: int = 86_400
    grace_ms: int = 5_000
    max_lazy_secs: int = 86_400
    not_before: int = 0
    not_after: int = I64_MAX
    max_len: Mapping[str, int] = field(default_factory=dict)
    signatures: bool = True
    """Whether brokers sign events of this type, and readers in the live network ask for it."""
    signature: bytes = b""

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_len", MappingProxyType(dict(self.max_len)))
        _check(self)

    @classmethod
    def make(cls, owner: Identity, event_type: EventType, **fields: Any) -> SignedType:
        """A type that `owner` defines and signs; the fields are those of the class."""
        fields.setdefault("key_manager", owner.public_key)
        unsigned = cls(event_type, owner.public_key, **fields)
        return replace(unsigned, signature=owner.sign(unsigned.canonical()))

    @cached_property
    def profile(self) -> Profile:
        return profile_of(self.suite)

    @cached_property
    def name(self) -> str:
        """Unique in the world: it holds the owner's key."""
        return f"{fingerprint(self.owner_key)}/{self.event_type.name}@{self.version}"

    @cached_property
    def type_id(self) -> bytes:
        return self.profile.type_id(self.name)

    @cached_property
    def attr_ids(self) -> Mapping[str, bytes]:
        """Each attribute's id, in the order of the ids, which is their order on the wire."""
        ids = {a.name: self.profile.attr_id(self.name, a.name) for a in self.event_type}
        return MappingProxyType(dict(sorted(ids.items(), key=lambda item: item[1])))

    @cached_property
    def attributes_by_id(self) -> Mapping[bytes, Attribute]:
        return MappingProxyType({id: self.event_type[name] for name, id in self.attr_ids.items()})

    @cached_property
    def group_ids(self) -> tuple[bytes, ...]:
        """The key groups of the type: one for the event, one for each attribute, or none."""
        match self.mode:
            case Mode.PLAIN:
                return ()
            case Mode.EVENT:
                return (self.type_id,)
            case Mode.ATTRIBUTE:
                return tuple(self.attr_ids.values())

    def attr_id(self, attribute: str) -> bytes:
        """The id of one attribute; raises EventError with the nearest name if there is none."""
        return self.attr_ids[self.event_type[attribute].name]

    def max_len_of(self, attribute: str) -> int:
        return self.max_len.get(attribute, VALUE_BYTES_MAX)

    def canonical(self) -> bytes:
        """The bytes the owner signs: equal for equal definitions, different for different ones."""
        return cbor2.dumps(self._fields(), canonical=True)

    def to_bytes(self) -> bytes:
        return cbor2.dumps({**self._fields(), "signature": self.signature}, canonical=True)

    @classmethod
    def from_bytes(cls, raw: bytes) -> SignedType:
        """A definition as received; raises PeerError unless it is in the one canonical form."""
        if len(raw) > TYPE_BYTES_MAX:
            raise PeerError(f"type: {len(raw)} bytes; at most {TYPE_BYTES_MAX} are allowed")
        try:
            fields = cbor2.loads(raw)
            if not isinstance(fields, dict):
                raise PeerError("type: expected a signed event type, as `tidings type show --out` writes it")
            read = _from_fields(fields)
        except (cbor2.CBORDecodeError, InputError, KeyError, TypeError, ValueError, AttributeError) as wrong:
            raise PeerError(f"type: expected a signed event type: {type(wrong).__name__}: {str(wrong)[:200]}") from None
        if read.to_bytes() != raw:
            raise PeerError("type: not in canonical form")
        return read

    def verify(self, now_ms: int) -> None:
        """Returns if the owner signed exactly this and it is valid now; raises PeerError or Denied otherwise."""
        verify_signature(self.owner_key, self.signature, self.canonical(), f"event type {self.event_type.name!r}")
        if why := why_not_valid(self.not_before, self.not_after, now_ms):
            raise Denied(f"validity: event type {self.name} {why}")

    def _fields(self) -> dict[str, Any]:
        return {
            "owner_key": self.owner_key,
            "local_name": self.event_type.name,
            "version": self.version,
            "attributes": [
                {
                    "name": a.name,
                    "vtype": _wire_name(a.type),
                    "required": a.required,
                    "max_len": self.max_len_of(a.name),
                }
                for a in sorted(self.event_type, key=lambda a: a.name)
            ],
            "mode": self.mode.name.lower(),
            "suite": self.suite,
            "tag_len": self.tag_len,
            "pad_policy": str(self.pad_policy),
            "key_manager": self.key_manager,
            "refresh_secs": self.refresh_secs,
            "grace_ms": self.grace_ms,
            "max_lazy_secs": self.max_lazy_secs,
            "not_before": self.not_before,
            "not_after": self.not_after,
            **({} if self.signatures else {"signatures": False}),  # Types of earlier versions say nothing.
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SignedType) and self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def __reduce__(self) -> tuple[Any, ...]:
        return SignedType.from_bytes, (self.to_bytes(),)


# Clocks of two machines agree no better, and keys cannot change faster than twice in this time.
GRACE_MS_MIN = 500

_INTS = {
    "version": (0, U32_MAX),
    "refresh_secs": (1, U32_MAX),
    "grace_ms": (GRACE_MS_MIN, U32_MAX),
    "max_lazy_secs": (0, U32_MAX),
    "not_before": (I64_MIN, I64_MAX),
    "not_after": (I64_MIN, I64_MAX),
}


def _check(made: SignedType) -> None:
    name = made.event_type.name
    for what in ("owner_key", "key_manager"):
        if not isinstance(key := getattr(made, what), bytes) or len(key) != KEY_BYTES:
            raise EventTypeError(f"{name}: expected {KEY_BYTES} bytes as {what}")
    for what, (least, most) in _INTS.items():
        if type(number := getattr(made, what)) is not int or not least <= number <= most:
            raise EventTypeError(f"{name}: expected {what} between {least} and {most}, got {number!r}")
    _check_name(name)
    _check_protection(made)
    _check_limits(made)


def _check_name(name: str) -> None:
    if unicodedata.normalize("NFC", name) != name or "\0" in name:
        raise EventTypeError(f"{name[:60]!r}: expected a name in Unicode NFC without NUL")


def _check_protection(made: SignedType) -> None:
    name = made.event_type.name
    if type(made.signatures) is not bool:
        raise EventTypeError(f"{name}: expected true or false as signatures, got {made.signatures!r}")
    if made.suite not in SUITES:
        raise EventTypeError(f"{name}: suite {made.suite!r} is unknown; expected one of {', '.join(map(hex, SUITES))}")
    shortest = EAX_TAG_BYTES_MIN if made.profile.is_paper else TAG_BYTES
    if type(made.tag_len) is not int or not shortest <= made.tag_len <= TAG_BYTES:
        raise EventTypeError(f"{name}: expected a tag of {shortest} to {TAG_BYTES} bytes, got {made.tag_len!r}")
    if made.refresh_secs * 1000 < made.grace_ms:
        raise EventTypeError(
            f"{name}: keys that change every {made.refresh_secs} s, while one is used for {made.grace_ms} ms beyond its time;"
            " expected refresh_secs of at least the grace"
        )
    if made.not_before >= made.not_after:
        raise EventTypeError(f"{name}: valid from {made.not_before} to {made.not_after} ms, which is never")


def _check_limits(made: SignedType) -> None:
    for attribute, most in sorted(made.max_len.items()):
        if attribute not in made.event_type:
            raise EventTypeError(f"{made.event_type.name}: max_len names {attribute!r}, which is no attribute")
        if type(most) is not int or not 1 <= most <= U32_MAX:
            raise EventTypeError(f"{made.event_type.name}: expected max_len of {attribute!r} from 1 to {U32_MAX}")


def _from_fields(fields: dict[str, Any]) -> SignedType:
    listed = fields.pop("attributes")
    attributes = tuple(Attribute(a["name"], _by_wire_name(a["vtype"]), a["required"] is True) for a in listed)
    return SignedType(
        event_type=EventType.of(fields.pop("local_name"), attributes),
        mode=Mode[fields.pop("mode").upper()],
        pad_policy=PadPolicy(fields.pop("pad_policy")),
        max_len={a["name"]: a["max_len"] for a in listed},
        **fields,
    )
