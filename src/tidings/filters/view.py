"""A partly readable event, and whether a condition might match it.

A node that lacks keys reads some attributes of an event and not others. Routers prune by `may_match`, which never
says no to an event that the whole condition matches.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tidings.errors import EventError
from tidings.events import Date, Exact, Time, Timestamp, Value, from_message
from tidings.filters.condition import Condition
from tidings.filters.evaluate import evaluate
from tidings.filters.normal import Box
from tidings.filters.syntax import And, AnyItem, AttributeRef, Call, In, IsNull, Node, Not, Or, attributes_of, children

ATTRIBUTES_MAX = 4096  # In one view; as many as an event type may have.
_VALUE_CLASSES = frozenset({bool, int, float, str, bytes, Timestamp, Date, Time, Exact})


class View(Struct, frozen=True, array_like=True):
    """What one node can read of an event: the values, and the names of those it cannot read.

    An attribute in neither is known to be absent, unless `opaque` says that even the
    names are sealed. Packets carry views between nodes, so the class checks what it holds.
    """

    values: dict[str, Any]  # Of Value: a union of all types is more than msgspec can decode, so they are checked below.
    hidden: tuple[str, ...] = ()
    opaque: bool = False

    def __post_init__(self) -> None:
        if len(self.values) + len(self.hidden) > ATTRIBUTES_MAX:
            raise ValueError(f"a view has at most {ATTRIBUTES_MAX} attributes")
        for name, value in self.values.items():
            if value.__class__ not in _VALUE_CLASSES:
                try:
                    self.values[name] = from_message(value)
                except EventError:
                    raise ValueError(f"expected a value for {name!r}, got {type(value).__name__}") from None

    def unknown(self, name: str) -> bool:
        """Whether this node cannot tell what the attribute is, or whether it is there at all."""
        return name not in self.values and (self.opaque or name in self.hidden)

    def get(self, name: str) -> Value | None:
        """The value, or None where it is absent or unknown."""
        return self.values.get(name)


def may_match(condition: Condition, view: View) -> bool:
    """Whether the condition might be TRUE of the whole event: no only if it certainly is not.

    A router that forwards on it can send too much, never too little. With nothing unreadable
    the answer is exact.

    >>> from tidings.filters import parse
    >>> wanted = parse("speed > 20 AND plate = 'AB12CDE'")
    >>> may_match(wanted, View({"speed": 31.0}, ("plate",))), may_match(wanted, View({"speed": 9.0}, ("plate",)))
    (True, False)
    """
    return any(_may_hold(box, view) for box in condition.boxes)


def _may_hold(box: Box, view: View) -> bool:
    for name, side in box.sides:
        if not view.unknown(name) and view.values.get(name) not in side:
            return False
    return all(_may_be_true(residual, view) for residual in box.residuals)


def _may_be_true(residual: Node, view: View) -> bool:
    if any(view.unknown(name) for name in attributes_of(residual)):
        return not _surely_null(residual, view)
    return evaluate(residual, view.values) is True


def _surely_null(node: Node, view: View) -> bool:
    """Whether a readable NULL makes the whole residual NULL, whatever the unreadable rest is."""
    match node:
        case AttributeRef(name):
            return not view.unknown(name) and view.values.get(name) is None
        case IsNull() | And() | Or():
            return False
        case AnyItem(_, _, array):  # FALSE of an empty array, whatever it is asked for.
            return _surely_null(array, view)
        case In(arg, items):
            return _surely_null(arg, view) or all(_surely_null(item, view) for item in items)
        case Not(arg):
            return _surely_null(arg, view)
        case Call(name) if name in ("IS_INT", "IS_BOOL"):
            return False
        case _:
            return any(_surely_null(child, view) for child in children(node))
