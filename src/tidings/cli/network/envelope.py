"""`tidings envelope FILE`: what an event's envelope reveals without a key."""

from __future__ import annotations

import binascii
import sys
from base64 import b64decode
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tidings.cli.registry.registry import DEFAULT_REGISTRY, OrgOption, RegistryOption, show_moment
from tidings.cli.registry.tokens import STDIN, TokenContext
from tidings.cli.terminal import Output, OutputOption, Row, refusing_what_is_broken, show
from tidings.security import FRAME_BYTES_MAX, Mode, split, suite_of

if TYPE_CHECKING:
    from tidings.security import Frame, SignedType

TEXT_BYTES_MAX = 2 * FRAME_BYTES_MAX + 2  # The longest envelope as hexadecimal digits, and the end of its line.

FileArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="FILE", help="Bytes, base64 or hexadecimal; - reads stdin.", show_default=False)
]


def envelope(
    file: FileArgument,
    org: OrgOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what an envelope reveals without a key: its type, sender, time, cipher and sealed attributes.

    Values are never shown, not even those that a relay has added in plain text. An envelope that is
    truncated, or of an unknown version or cipher, is refused with exit code 3.

    \b
    Examples:
      tidings envelope event.bin
      spark-sql … | tail -1 | tidings envelope -          hexadecimal, as Spark prints bytes
    """
    with refusing_what_is_broken():
        frame = split(_bytes_of(_read(file)))
        signed = TokenContext.of(registry).types.get(frame.type_id)
        attributes = list(_attributes(frame, signed))
    if output is Output.JSON:
        show([{**_head(frame, signed), "attributes": attributes}], output)
        return
    show({"what": what, "is": shown} for what, shown in _head(frame, signed).items())
    print()
    show(attributes, columns=("attribute", "epoch", "bytes"))


def _read(file: str) -> bytes:
    if file == STDIN:
        return sys.stdin.buffer.read(TEXT_BYTES_MAX)
    with open(file, "rb") as stream:
        return stream.read(TEXT_BYTES_MAX)


def _bytes_of(raw: bytes) -> bytes:
    """Decodes hexadecimal or base64 text; other bytes are an envelope itself, whose header cannot be such text."""
    text = raw.strip()
    for decode in (binascii.unhexlify, _from_base64):
        try:
            return decode(text)
        except ValueError:
            continue
    return raw


def _from_base64(text: bytes) -> bytes:
    return b64decode(
        text + b"=" * (-len(text) % 4), altchars=b"-_" if b"-" in text or b"_" in text else None, validate=True
    )


def _head(frame: Frame, signed: SignedType | None) -> dict[str, object]:
    return {
        "type": signed.name if signed else frame.type_id.hex(),
        "mode": Mode(frame.mode).name.lower(),
        "cipher": suite_of(frame.suite).name,
        "sender": frame.sender_id,
        "time": show_moment(frame.ts_ms),
        "number": frame.seq,
        "signed": bool(frame.signature),
        "sent along in plain": len(frame.cache),
        "bytes": len(frame.raw),
    }


def _attributes(frame: Frame, signed: SignedType | None) -> Iterator[Row]:
    """Each attribute with the epoch of its key and its encrypted length; one row for an event that is sealed as one."""
    if frame.mode == Mode.EVENT:
        yield {"attribute": "(the event)", "epoch": int.from_bytes(frame.heads[0]), "bytes": len(frame.bodies[0])}
        return
    for id, head, body in zip(frame.attr_ids, frame.heads, frame.bodies, strict=True):
        known = signed.attributes_by_id.get(id) if signed else None
        epoch = int.from_bytes(head[len(id) :]) if frame.mode == Mode.ATTRIBUTE else None
        yield {"attribute": known.name if known else id.hex(), "epoch": epoch, "bytes": len(body)}
