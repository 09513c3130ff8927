"""Everything that can go wrong, as one tree, by whose fault it is.

    TidingsError
    ├── InputError          the caller's: a record, a condition, an option, a file
    │   ├── EventError          a record does not fit its event type
    │   ├── EventTypeError      an event type is declared wrongly
    │   ├── FilterError         a condition
    │   │   ├── FilterSyntaxError   is not in the language
    │   │   ├── FilterTypeError     compares things that do not compare
    │   │   └── FilterTooLarge      would cost too much to keep
    │   └── IndexFileError      a saved index is damaged or from another version
    ├── SetupError          this machine's: no Java, no room, no rights on a folder
    ├── PeerError           the other node's
    └── Denied              nobody's: a right that was not given

Our own mistakes are asserts, and not in this tree.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class TidingsError(Exception):
    """The root: catch this to catch everything Tidings raises on purpose."""


class InputError(TidingsError):
    """What the caller handed in is wrong; the message says what was expected and where."""


class EventError(InputError):
    """A record does not fit its event type."""


class EventTypeError(InputError):
    """An event type is declared wrongly."""


class FilterError(InputError):
    """A condition cannot be used; `column` (from 1) and `text` show the spot.

    >>> print(FilterError("expected a number", "price > cheap", 9))
    expected a number at column 9
      price > cheap
              ^
    """

    def __init__(self, what: str, text: str, column: int, hint: str = "") -> None:
        super().__init__(what, text, column, hint)  # All four, so that it survives pickling.
        self.what, self.text, self.column, self.hint = what, text, column, hint

    def __str__(self) -> str:
        line, offset = _excerpt(self.text, self.column - 1)
        hint = f"\n{self.hint}" if self.hint else ""
        return f"{self.what} at column {self.column}\n  {line}\n  {' ' * offset}^{hint}"


class FilterSyntaxError(FilterError):
    """A condition is not in the language."""


class FilterTypeError(FilterError):
    """A condition compares or computes with values of types that do not go together."""


class FilterTooLarge(FilterError):
    """A condition is longer, deeper or wider than the named limits allow."""


class IndexFileError(InputError):
    """A saved index is damaged, cut short, or written by a newer version."""


class SetupError(TidingsError):
    """This machine lacks something; the message says what and how to get it."""


class PeerError(TidingsError):
    """Another node broke the protocol."""


class Denied(TidingsError):
    """A right that is needed was not given."""


EXCERPT_WIDTH = 100  # A terminal line, less the indent: an error about a megabyte still fits on a screen.


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known word, or nothing if none is near.

    >>> did_you_mean("pirce", ["price", "size"])
    "did you mean 'price'?"
    """
    near = get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def _excerpt(text: str, offset: int) -> tuple[str, int]:
    """At most EXCERPT_WIDTH characters of `text` around `offset`, on one line, and where it is in them."""
    start = max(0, offset - EXCERPT_WIDTH // 2)
    shown = text[start : start + EXCERPT_WIDTH]
    before, after = "…" if start else "", "…" if start + EXCERPT_WIDTH < len(text) else ""
    flat = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" if c not in "\t\n\r" else " " for c in shown)
    return before + flat + after, offset - start + len(before)
