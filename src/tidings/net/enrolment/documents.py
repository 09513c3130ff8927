"""What organisations and participants hand each other, as small signed files of JSON.

    OrganisationCard   public: an organisation's name, authority, brokers and types; for `tidings org trust`
    Approval           an authority's answer to a signing request: certificate, trust, peers, types and rights
    RightBundle        rights for another organisation, with the types that they are for; for `tidings grant accept`

An authority signs each of them, over its content as JSON with sorted keys and no spaces. A card proves only that it was
not altered since: whose it is, people compare by the fingerprint.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tidings.errors import Denied, InputError, PeerError
from tidings.net.transport import tls
from tidings.security import Identity, SignedType, verify_signature

DOCUMENT_BYTES_MAX = 8 << 20  # Thousands of types and rights.
_LABEL = b"tidings/document/1\0"


class CardBroker(msgspec.Struct, frozen=True):
    """A broker, as others reach it."""

    name: str
    address: str
    key: str


class OrganisationCard(msgspec.Struct, frozen=True, tag="organisation/1", tag_field="tidings"):
    """An organisation, as it shows itself to others."""

    name: str
    authority: str
    """Certificates as PEM: its present authority last, after those that it succeeds."""
    made_ms: int
    brokers: tuple[CardBroker, ...] = ()
    types: tuple[str, ...] = ()
    overlay: str = "irbr"
    enrolment: str = ""
    """Where it renews the rights that it has granted, as host:port."""


class Approval(msgspec.Struct, frozen=True, tag="approval/1", tag_field="tidings"):
    """What an authority gives a participant: on enrolment, and again with each renewal."""

    organisation: str
    authority: str
    name: str
    role: str
    certificate: str
    trusted: str
    peers: tuple[CardBroker, ...] = ()
    """The brokers to connect to; a client's own broker is the first of its organisation."""
    types: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    overlay: str = "irbr"
    enrolment: str = ""


class RightBundle(msgspec.Struct, frozen=True, tag="right/1", tag_field="tidings"):
    """Rights for another organisation, and the signed types that they are for."""

    organisation: str
    authority: str
    tokens: tuple[str, ...]
    types: tuple[str, ...]


Document = OrganisationCard | Approval | RightBundle
_D = TypeVar("_D", OrganisationCard, Approval, RightBundle)


class _Signed(msgspec.Struct):
    content: Document
    signature: str


def sign(content: Document, authority: Identity) -> bytes:
    """The document as its file holds it."""
    signature = base64.b64encode(authority.sign(_signed_bytes(content))).decode()
    return msgspec.json.format(msgspec.json.encode(_Signed(content, signature)), indent=1) + b"\n"


def read(raw: bytes, kind: type[_D], where: str) -> tuple[_D, bytes]:
    """A document, and the key of the authority that signed it; raises InputError for another, Denied for an altered one."""
    try:
        signed = msgspec.json.decode(raw, type=_Signed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise InputError(f"{where}: expected {_WRITTEN_BY[kind]}: {wrong}") from None
    if not isinstance(signed.content, kind):
        raise InputError(f"{where}: expected {_WRITTEN_BY[kind]}, got {_WRITTEN_BY[type(signed.content)]}")
    try:
        keys = tls.authority_keys(signed.content.authority.encode())
    except (PeerError, InputError) as wrong:
        raise InputError(f"{where}: {wrong}") from None
    if list(keys) != [_organisation(signed.content)]:
        raise InputError(f"{where}: expected the authority of {_organisation(signed.content)[:80]!r} alone")
    ((*_, key),) = keys.values()
    try:
        verify_signature(key, base64.b64decode(signed.signature), _signed_bytes(signed.content), "the file")
    except (PeerError, ValueError):
        raise Denied(
            f"signature: {where} was altered or cut short since {_organisation(signed.content)} signed it"
        ) from None
    return signed.content, key


def read_file(file: Path, kind: type[_D]) -> tuple[_D, bytes]:
    """Likewise, from a file."""
    return read(read_bytes(file), kind, str(file))


def read_bytes(file: Path) -> bytes:
    """A document's file; raises InputError for one that is too large to be one."""
    with file.open("rb") as stream:
        raw = stream.read(DOCUMENT_BYTES_MAX + 1)
    if len(raw) > DOCUMENT_BYTES_MAX:
        raise InputError(f"{file} is larger than {DOCUMENT_BYTES_MAX >> 20} MiB, and so is no file of Tidings")
    return raw


def types_of(texts: tuple[str, ...]) -> list[SignedType]:
    """The signed types in a document; raises Denied for a broken one."""
    try:
        return [SignedType.from_bytes(base64.b64decode(text)) for text in texts]
    except (PeerError, ValueError) as broken:
        raise Denied(f"type: {broken}") from None


def type_text(signed: SignedType) -> str:
    return base64.b64encode(signed.to_bytes()).decode()


def _organisation(content: Document) -> str:
    return content.name if isinstance(content, OrganisationCard) else content.organisation


def _signed_bytes(content: Document) -> bytes:
    return _LABEL + msgspec.json.encode(content, order="sorted")


_WRITTEN_BY: dict[Any, str] = {
    OrganisationCard: "an organisation's public file, as `tidings org export` writes it",
    Approval: "an approval, as `tidings org approve` writes it",
    RightBundle: "a right for an organisation, as `tidings grant --to ORGANISATION` writes it",
}
