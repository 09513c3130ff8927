"""Residual conditions as expressions: each different sub-expression is one object, shared by all that contain it.

A condition has two forms. In its *bound* form, constants are leaves like attributes. In its *shape*, they are parameters, so
that all conditions which differ only in their constants have the same shape and can be evaluated together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from tidings.events import ValueType
from tidings.filters import syntax
from tidings.matching.residuals.column import TEXTS
from tidings.matching.residuals.decimals import is_exact

ATTRIBUTE, LITERAL, PATTERN, PARAMETER, PATTERN_PARAMETER = (
    "attribute",
    "literal",
    "pattern",
    "parameter",
    "pattern parameter",
)
COMPARE, IN, LIKE, IS_NULL, NOT, AND, OR = "compare", "in", "like", "is null", "not", "and", "or"
ARITHMETIC, NEGATE, CALL, ITEM, ANY_ITEM = "arithmetic", "negate", "call", "item", "any item"


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """`operator` with its argument expressions. Equal expressions of one `Expressions` are the same object.

    detail      what the operator needs to know: `<` of a comparison, the name of an attribute or function, a constant
    attributes  all that it looks at, by name
    weight      how many times as long as the longest text of an event its text may be, roughly
    """

    operator: str
    detail: Any
    type: ValueType
    args: tuple[Expression, ...] = ()
    attributes: dict[str, ValueType] = field(default_factory=dict)
    has_parameters: bool = False
    weight: int = 0

    @property
    def sole_text(self) -> str | None:
        """The attribute, if it is a text and the only one: the expression is then evaluated once per different text."""
        if len(self.attributes) != 1 or self.has_parameters:
            return None
        ((name, kind),) = self.attributes.items()
        return name if kind in TEXTS else None


Constants: TypeAlias = list[Any]

_TEXT_RESULTS: Final = ("CONCAT", "CONCAT_WS")


def has_columns(node: syntax.Node) -> bool:
    """Whether a condition can be evaluated in columns: all but arithmetic of decimals that rounds."""
    return not _rounds(node) and all(map(has_columns, syntax.children(node)))


def _rounds(node: syntax.Node) -> bool:
    if not isinstance(node, syntax.Arithmetic) or not node.type.is_decimal:
        return False
    return not is_exact(node.op, node.type, node.left.type, node.right.type)


class Expressions:
    """All expressions of a segment, each once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Expression] = {}

    def __len__(self) -> int:
        return len(self._known)

    def bound(self, node: syntax.Node) -> Expression:
        """The expression of a condition, with its constants."""
        return self._of(node, None)

    def shape(self, node: syntax.Node) -> tuple[Expression, Constants]:
        """The expression of a condition with parameters in place of its constants, and these."""
        constants: Constants = []
        return self._of(node, constants), constants

    def _of(self, node: syntax.Node, constants: Constants | None) -> Expression:
        match node:
            case syntax.Literal(value, kind):
                # `repr` tells 0.0 from -0.0, and the type 1 from TRUE.
                return self._constant(LITERAL, PARAMETER, value, kind, repr(value), constants)
            case syntax.AttributeRef(name, kind):
                return self._one(ATTRIBUTE, name, kind, ())
        args = [self._of(child, constants) for child in syntax.children(node)]
        if isinstance(node, syntax.Like):
            args.append(
                self._constant(PATTERN, PATTERN_PARAMETER, node.pattern, ValueType.STRING, node.pattern, constants)
            )
        return self._one(*_operator(node), node.type, tuple(args))

    def _constant(
        self, fixed: str, open: str, value: Any, kind: ValueType, name: str, constants: Constants | None
    ) -> Expression:
        if constants is None:
            key = (fixed, name, kind)
            return self._known.get(key) or self._known.setdefault(key, Expression(fixed, value, kind, weight=1))
        constants.append(value)
        return self._one(open, len(constants) - 1, kind, ())

    def _one(self, operator: str, detail: Any, kind: ValueType, args: tuple[Expression, ...]) -> Expression:
        key = (operator, detail, kind, *map(id, args))
        found = self._known.get(key)
        if found is None:
            attributes = {name: type for arg in args for name, type in arg.attributes.items()}
            if operator == ATTRIBUTE:
                attributes = {detail: kind}
            parameters = operator in (PARAMETER, PATTERN_PARAMETER) or any(arg.has_parameters for arg in args)
            weights = [arg.weight for arg in args]
            weight = sum(weights) if detail in _TEXT_RESULTS else max(weights, default=1)
            found = Expression(operator, detail, kind, args, attributes, parameters, weight)
            self._known[key] = found
        return found


def _operator(node: syntax.Node) -> tuple[str, Any]:
    match node:
        case syntax.Compare(op):
            return COMPARE, op
        case syntax.Arithmetic(op):
            return ARITHMETIC, op
        case syntax.Call(name):
            return CALL, name
        case syntax.AnyItem(op):
            return ANY_ITEM, op
    return _PLAIN[type(node)], None


_PLAIN: Final[dict[type, str]] = {
    syntax.In: IN,
    syntax.Like: LIKE,
    syntax.IsNull: IS_NULL,
    syntax.Not: NOT,
    syntax.And: AND,
    syntax.Or: OR,
    syntax.Negate: NEGATE,
    syntax.Item: ITEM,
}
