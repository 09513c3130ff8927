"""A condition: one text, one syntax tree, and everything that can be asked of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Final

from tidings.events import EventType, Value
from tidings.filters.compile import Test, compile_boxes
from tidings.filters.evaluate import decided_by, evaluate
from tidings.filters.normal import Box, boxes_of
from tidings.filters.parse import guess_type, parse_tree
from tidings.filters.spark import to_spark
from tidings.filters.syntax import Node, attributes_of, format_tree
from tidings.filters.templates import boxes_by_template, learn_template

LONG: Final = 2048  # Characters; a longer text has no template.


def parse(text: str, event_type: EventType | None = None) -> Condition:
    """A condition over events of this type, checked: every error is raised here, none when an event comes.

    Without a type, the condition's own constants suggest one (see `guess_type`).

    >>> wanted = parse("area IN ('WC1', 'EC2') AND speed > 20")
    >>> wanted.matches({"area": "EC2", "speed": 31.0})
    True
    """
    if len(text) > LONG:
        return _with_room(lambda: Condition(text, event_type or guess_type(text)))
    event_type = event_type or guess_type(text)
    boxes = boxes_by_template(text, event_type)
    condition = Condition(text, event_type, boxes=boxes)
    if boxes is None:
        learn_template(text, event_type, condition.tree)
    return condition


def _call(work: Callable[[], Condition]) -> Condition:
    return work()


# CPython keeps the frames of calls in chunks of memory. A loop that happens to call across the end of a chunk gets a
# new one and gives it back each time, so that a deeply nested text can take three times as long. A function that asks
# for so many words of stack gets a chunk in which all that it calls has room.
_with_room: Callable[[Callable[[], Condition]], Condition] = FunctionType(
    _call.__code__.replace(co_stacksize=32_768), {}
)


class Condition:
    """A parsed condition; compared by event type and tree, so spelling does not matter.

    `boxes` is its normal form: at most BOXES_MAX of them, and exact for every condition.
    """

    __slots__ = ("_test", "_tree", "boxes", "event_type", "text")

    def __init__(
        self, text: str, event_type: EventType, tree: Node | None = None, boxes: tuple[Box, ...] | None = None
    ) -> None:
        """Called by `parse` only: what is not given is derived from the text, which must be valid."""
        self.text = text
        self.event_type = event_type
        self._tree = tree
        self.boxes = boxes_of(self.tree) if boxes is None else boxes
        self._test: Test | None = None

    @property
    def tree(self) -> Node:
        """The syntax tree; of a condition that came from a template, it is parsed on first use."""
        if self._tree is None:
            self._tree = parse_tree(self.text, self.event_type)
        return self._tree

    def evaluate(self, values: Mapping[str, Value]) -> bool | None:
        """TRUE, FALSE or NULL for an event's checked values, as True, False or None."""
        return evaluate(self.tree, values)  # type: ignore[no-any-return]

    def decided_by(self, values: Mapping[str, Value]) -> list[Condition]:
        """The smallest parts that alone give the condition the value it has for this event."""
        parts = decided_by(self.tree, values)
        return [Condition(format_tree(part), self.event_type, part) for part in parts]

    @property
    def matches(self) -> Test:
        """A compiled test: whether the condition is TRUE of an event's checked values."""
        if self._test is None:
            self._test = compile_boxes(self.boxes)
        return self._test

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes it mentions, in the order of first mention."""
        return tuple(attributes_of(self.tree))

    def to_spark(self) -> str:
        """A Spark SQL expression with the same answer for every row."""
        return to_spark(self.tree)

    def __str__(self) -> str:
        return format_tree(self.tree)

    def __repr__(self) -> str:
        return f"parse({str(self)!r}, {self.event_type!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Condition) and (self.event_type, self.tree) == (other.event_type, other.tree)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Condition, (self.text, self.event_type, self.tree)
