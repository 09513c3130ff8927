"""Identifiers and credentials as files, terminals and URLs hold them: event ids, broker ids, keys, tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from tidings.errors import InputError
from tidings.overlay import EventId, NodeId
from tidings.security import Identity, token_of

KEY_FILE_BYTES_MAX = 16_384
TOKEN_FILE_BYTES_MAX = 1 << 20


def show_event(event: Iterable[object]) -> str:
    """The text of an event's id.

    >>> show_event(("ae18", 2, 17))
    'ae18.2.17'
    """
    return ".".join(map(str, event))


def broker_id(public_key: bytes) -> NodeId:
    """The node id of a broker's key."""
    from tidings.node import node_id_of  # Here, so that a client need not wait for the matching kernels.

    return node_id_of(public_key)


def repeat_key(publisher: bytes, name: str) -> bytes:
    """The idempotency key of an event: the same for the same publisher and the same name."""
    return hashlib.blake2b(publisher + name.encode(errors="surrogateescape"), digest_size=16).digest()


def read_event_id(text: str) -> EventId:
    """An event's id from its text; raises InputError for anything else.

    >>> read_event_id("ae18.2.17")
    EventId(origin='ae18', incarnation=2, seq=17)
    """
    origin, _, rest = text.partition(".")
    try:
        incarnation, seq = map(int, rest.split("."))
    except ValueError:
        raise InputError(f"expected an event id as `tidings subscribe -o json` prints it, got {text[:100]!r}") from None
    return EventId(origin, incarnation, seq)


def read_identity(file: Path) -> Identity:
    """The private key in a file; raises InputError naming the file if there is none in it."""
    with file.open("rb") as stream:
        pem = stream.read(KEY_FILE_BYTES_MAX)
    try:
        return Identity.from_pem(pem)
    except InputError as wrong:
        raise InputError(f"{file}: {wrong}") from None


def read_token(file: Path) -> bytes:
    """The token in a file, as `tidings grant` writes it; raises Denied for one that was cut short."""
    with file.open(encoding="ascii", errors="replace") as stream:
        return token_of(stream.read(TOKEN_FILE_BYTES_MAX), str(file))
