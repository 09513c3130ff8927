"""What a node can say of an event it may only partly read."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from tidings.events import Value
from tidings.filters.condition import Condition
from tidings.filters.evaluate import evaluate
from tidings.filters.normal import Box
from tidings.filters.syntax import And, AttributeRef, Call, In, IsNull, Node, Not, Or, attributes_of, children


@dataclass(frozen=True, slots=True)
class View:
    """The readable values of an event, and the names of attributes that may be there but cannot be read."""

    values: Mapping[str, Value]
    unreadable: Set[str] = field(default_factory=frozenset)


def may_match(condition: Condition, view: View) -> bool:
    """Whether the condition might be TRUE of the whole event: no only if it certainly is not.

    A router that forwards on it can send too much, never too little. With nothing unreadable
    the answer is exact.

    >>> from tidings.filters import parse
    >>> wanted = parse("speed > 20 AND plate = 'AB12CDE'")
    >>> may_match(wanted, View({"speed": 31.0}, {"plate"})), may_match(wanted, View({"speed": 9.0}, {"plate"}))
    (True, False)
    """
    return any(_may_hold(box, view) for box in condition.boxes)


def _may_hold(box: Box, view: View) -> bool:
    for name, side in box.sides:
        if name not in view.unreadable and view.values.get(name) not in side:
            return False
    return all(_may_be_true(residual, view) for residual in box.residuals)


def _may_be_true(residual: Node, view: View) -> bool:
    if any(name in view.unreadable for name in attributes_of(residual)):
        return not _surely_null(residual, view)
    return evaluate(residual, view.values) is True


def _surely_null(node: Node, view: View) -> bool:
    """Whether a readable NULL makes the whole residual NULL, whatever the unreadable rest is."""
    match node:
        case AttributeRef(name):
            return name not in view.unreadable and view.values.get(name) is None
        case IsNull() | And() | Or():
            return False
        case In(arg, items):
            return _surely_null(arg, view) or all(_surely_null(item, view) for item in items)
        case Not(arg):
            return _surely_null(arg, view)
        case Call(name) if name in ("IS_INT", "IS_BOOL"):
            return False
        case _:
            return any(_surely_null(child, view) for child in children(node))
