"""Filters split by attribute, so that each part can be sealed under its own attribute key, and joined again.

A condition is a union of boxes. Each box becomes one clause, each of its sides one part, written as SQL. Terms that
relate two attributes belong to no part; only the subscriber's own broker checks them. So the parts may match too
much, never too little, and a flag says which:

    part = 01 ‖ SQL     all parts together are equivalent to the condition
    part = 00 ‖ SQL     something was left out

Parts on attributes that the advertising right does not cover are left out, too.

A node that can open only some parts joins those. A clause of which it can open nothing matches everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidings.errors import FilterError
from tidings.events import ValueType
from tidings.filters import (
    DOMAIN,
    Box,
    Condition,
    Intervals,
    attributes_of,
    format_tree,
    format_value,
    next_key,
    parse,
    quote_name,
)
from tidings.overlay import AnyWanted, Everything, Sql
from tidings.security import Mode, SignedType

WHOLE, LEFT_OUT = b"\1", b"\0"
UNREAD = Everything(exact=False)  # The interest as it appears to a node that can open none of it.
UNWANTED = Sql("FALSE", (), exact=False)  # Stands for an advertisement without a valid right: it matches nothing.


def clauses_of(
    condition: Condition, made: SignedType, granted: frozenset[bytes] | None = None
) -> list[dict[bytes, bytes]]:
    """The condition as clauses to be sealed: parts by attribute id (in event mode one part, under the type's id).

    Only parts on `granted` attributes; None for all.
    """
    if made.mode is Mode.EVENT:
        return [{made.type_id: WHOLE + str(condition).encode()}]
    clauses = [_parts(box, condition) for box in condition.boxes]
    texts = [{made.attr_ids[name]: text for name, text in parts.items()} for parts, _ in clauses]
    kept = [{id: text for id, text in each.items() if granted is None or id in granted} for each in texts]
    flag = WHOLE if kept == texts and all(whole for _, whole in clauses) else LEFT_OUT
    return [{id: flag + text.encode() for id, text in each.items()} for each in kept]


def wanted_from(clauses: Sequence[Mapping[bytes, bytes | None]], made: SignedType) -> AnyWanted:
    """The filter that follows from the readable parts: it matches at least what the subscriber's condition matches.

    Parts that do not form a valid condition, or one beyond this node's limits, count as unreadable.
    """
    read = [[part for part in clause.values() if part is not None] for clause in clauses]
    if not all(read):
        return UNREAD
    exact = all(part is not None and part[:1] == WHOLE for clause in clauses for part in clause.values())
    try:
        text = " OR ".join(_joined([part[1:].decode() for part in parts]) for parts in read)
        return Sql.of(parse(text, made.event_type), exact=exact)
    except (UnicodeDecodeError, FilterError):
        return UNREAD


def _joined(texts: list[str]) -> str:
    return "(" + " AND ".join(f"({text})" for text in texts) + ")"


def _parts(box: Box, condition: Condition) -> tuple[dict[str, str], bool]:
    """For each attribute of a box the terms on it alone, and whether these are all terms of the box."""
    texts: dict[str, list[str]] = {}
    whole = True
    for name, side in box.sides:
        text = _as_written(name, side, condition)
        whole = whole and text is not None
        if text is not None:
            texts.setdefault(name, []).append(text)
    for residual in box.residuals:
        names = list(attributes_of(residual))
        if len(names) == 1:
            texts.setdefault(names[0], []).append(format_tree(residual))
        else:
            whole = False
    return {name: " AND ".join(f"({text})" for text in found) for name, found in texts.items()}, whole


def _as_written(name: str, side: Intervals, condition: Condition) -> str | None:
    """The side as SQL; None if no text means exactly this (bounds at infinity, say)."""
    pieces = [_interval(quote_name(name), side.type, low, high) for low, high in side.pairs]
    text = " OR ".join(pieces + ([f"{quote_name(name)} IS NULL"] if side.null else []))
    try:
        boxes = parse(text, condition.event_type).boxes
    except FilterError:
        return None
    # Parsed back before it is used: it must mean exactly this side.
    return text if boxes == (Box(((name, side),)),) else None


def _interval(name: str, kind: ValueType, low: object, high: object) -> str:
    start, end = DOMAIN[kind]
    if (low, high) == (start, end):
        return f"{name} IS NOT NULL"
    if next_key(low) == high:
        return f"{name} = {_literal(kind, low)}"
    bounds = []
    if low != start:
        bounds.append(_bound(name, kind, low, ">", ">="))
    if high != end:
        bounds.append(_bound(name, kind, high, "<=", "<"))
    return " AND ".join(bounds)


def _bound(name: str, kind: ValueType, key: object, after: str, at: str) -> str:
    """The bound at a key. A string that ends in NUL is the successor of a shorter one, and written as such."""
    if isinstance(key, str) and key.endswith("\0"):
        return f"{name} {after} {_literal(kind, key[:-1])}"
    if isinstance(key, bytes) and key.endswith(b"\0"):
        return f"{name} {after} {_literal(kind, key[:-1])}"
    return f"{name} {at} {_literal(kind, key)}"


def _literal(kind: ValueType, key: object) -> str:
    return format_value(kind.value_at(key), kind)  # type: ignore[arg-type]
