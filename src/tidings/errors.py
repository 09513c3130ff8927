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
    ├── SetupError          this machine's: no Java, a full disk, no rights on a folder
    ├── PeerError           the other node's
    └── Denied              nobody's: a right that was not given
        └── RateLimited         too much at once; it says when to come again

Our own mistakes are asserts, and not in this tree. Every error carries a `code` (`ErrorCode`), by which
programs decide; its text is for people.
"""

from __future__ import annotations

import enum
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class ErrorCode(enum.StrEnum):
    """What failed, for programs: decide by an error's `code`, never by its text.

    The text of a `PeerError` or a `Denied` begins with the check that failed, and that word is the code. Metrics
    count refusals under it (`refused_signature`), and it crosses the client link beside the text.
    """

    # By class, where nothing more is known.
    ERROR = "error"  # TidingsError itself.
    INPUT = "input"
    EVENT = "event"
    EVENT_TYPE = "event_type"
    FILTER = "filter"
    FILTER_SYNTAX = "filter_syntax"
    FILTER_TYPE = "filter_type"
    FILTER_TOO_LARGE = "filter_too_large"
    INDEX_FILE = "index_file"
    SETUP = "setup"
    PEER = "peer"
    DENIED = "denied"

    # Rights: what a token does not cover.
    ACTION = "action"
    ADMINISTER = "administer"  # Only for administrators of the broker's organisation.
    ATTRIBUTES = "attributes"
    CONSTRAINTS = "constraints"
    DEPTH = "depth"  # Delegated more often than allowed.
    DOMAIN = "domain"
    HOLDER = "holder"  # Another key holds the right.
    ISSUER = "issuer"
    LEASE = "lease"
    MEMBER = "member"
    ONLINE = "online"  # No recent yes from the right's online test.
    OWNER = "owner"
    PUBLISHER = "publisher"  # The signer has no known right to publish.
    REVOCATION = "revocation"  # The notice of one is not valid itself.
    REVOKED = "revoked"
    RECORD = "record"  # What a node says about itself is not shown to be its own.
    RIGHT = "right"  # None was shown.
    RIGHTS = "rights"
    SIGNATURE = "signature"
    TOKEN = "token"  # noqa: S105 (no password)
    TYPE = "type"
    VALIDITY = "validity"  # Outside the time for which a right or a type holds.

    # Keys.
    BEACON = "beacon"  # The key manager has not been heard of for too long; it may return.
    EPOCH = "epoch"
    FRESH = "fresh"
    GROUP = "group"
    JOIN = "join"
    KEY = "key"  # No key is held; it may still come.
    KEYRING = "keyring"
    MANAGER = "manager"
    NOT_YET = "not yet"
    SENDER = "sender"
    STATE = "state"
    SUPERSEDED = "superseded"  # A restored copy of this broker has taken its place.
    SUITE = "suite"
    TREE = "tree"
    WELCOME = "welcome"

    # Sealed events and filters.
    ATTRIBUTE = "attribute"
    CACHE = "cache"  # A neighbour's plaintext differs from the sealed event: the neighbour itself lied.
    ENVELOPE = "envelope"
    FORM = "form"
    HEAD = "head"  # The packet's header names another event than its envelope.
    HEADER = "header"
    PADDING = "padding"
    REPLAY = "replay"
    SEAL = "seal"
    TAG = "tag"
    VALUE = "value"

    # Links and messages.
    ANNOUNCE = "announce"
    CERTIFICATE = "certificate"
    CLIENT = "client"
    CREDENTIALS = "creds"
    DELIVERY = "delivery"
    DIRECT = "direct"  # Sent straight, beside the overlay, by somebody else than its origin, or too much of it.
    DRAINING = "draining"
    FRAME = "frame"
    HANDSHAKE = "handshake"
    HELLO = "hello"
    INTEREST = "interest"
    LIMIT = "limit"
    LINK = "link"
    MESSAGE = "message"  # Not a message of the protocol.
    PROOF = "proof"
    PROTOCOL = "protocol"
    RATE = "rate"  # Too much at once; the error says when to come again.
    RETRANSMIT = "retransmit"
    SINK = "sink"  # The address of a webhook.
    SIZE = "size"
    VERSION = "version"

    # This machine.
    AUDIT = "audit"
    CLOCK = "clock"
    CODE = "code"  # A one-time code for enrolment.

    @classmethod
    def named(cls, name: str) -> ErrorCode | None:
        """The code of this name; None for one that only a newer version knows."""
        return _CODES.get(name)

    @classmethod
    def of(cls, text: str) -> ErrorCode | None:
        """The code that an error's text begins with, followed by a colon; None if it begins with none.

        >>> ErrorCode.of("signature: not an unbroken token of ed25519:…")
        <ErrorCode.SIGNATURE: 'signature'>
        """
        word, colon, _ = text.partition(":")
        return _CODES.get(word) if colon else None


_CODES = {code.value: code for code in ErrorCode}


class TidingsError(Exception):
    """The root: catch this to catch everything Tidings raises on purpose.

    `code` is the class's own unless the raiser gives another one. Both survive pickling.
    """

    code: ErrorCode = ErrorCode.ERROR

    def __init__(self, *args: object, code: ErrorCode | None = None) -> None:
        super().__init__(*args)
        if code is not None:
            self.code = code


class InputError(TidingsError):
    """What the caller handed in is wrong; the message says what was expected and where."""

    code = ErrorCode.INPUT


class EventError(InputError):
    """A record does not fit its event type."""

    code = ErrorCode.EVENT


class EventTypeError(InputError):
    """An event type is declared wrongly."""

    code = ErrorCode.EVENT_TYPE


class FilterError(InputError):
    """A condition cannot be used; `column` (from 1) and `text` show the spot.

    >>> print(FilterError("expected a number", "price > cheap", 9))
    expected a number at column 9
      price > cheap
              ^
    """

    code = ErrorCode.FILTER

    def __init__(self, what: str, text: str, column: int, hint: str = "") -> None:
        super().__init__(what, text, column, hint)  # All four, so that it survives pickling.
        self.what, self.text, self.column, self.hint = what, text, column, hint

    def __str__(self) -> str:
        line, offset = _excerpt(self.text, self.column - 1)
        hint = f"\n{self.hint}" if self.hint else ""
        return f"{self.what} at column {self.column}\n  {line}\n  {' ' * offset}^{hint}"


class FilterSyntaxError(FilterError):
    """A condition is not in the language."""

    code = ErrorCode.FILTER_SYNTAX


class FilterTypeError(FilterError):
    """A condition compares or computes with values of types that do not go together."""

    code = ErrorCode.FILTER_TYPE


class FilterTooLarge(FilterError):
    """A condition is longer, deeper or wider than the named limits allow."""

    code = ErrorCode.FILTER_TOO_LARGE


class IndexFileError(InputError):
    """A saved index is damaged, cut short, or written by a newer version."""

    code = ErrorCode.INDEX_FILE


class SetupError(TidingsError):
    """This machine lacks something; the message says what and how to get it."""

    code = ErrorCode.SETUP


class _CheckFailed(TidingsError):
    """A check failed. Its code is the one given, or the one that the text begins with, or the class's own."""

    def __init__(self, *args: object, code: ErrorCode | None = None) -> None:
        if code is None and args and isinstance(args[0], str):
            code = ErrorCode.of(args[0])
        super().__init__(*args, code=code)


class PeerError(_CheckFailed):
    """Another node broke the protocol."""

    code = ErrorCode.PEER


class Denied(_CheckFailed):
    """A right that is needed was not given."""

    code = ErrorCode.DENIED


class RateLimited(Denied):
    """More than the broker lets in at this rate. The same request can be made again after `retry_after_s` seconds."""

    code = ErrorCode.RATE

    def __init__(self, *args: object, code: ErrorCode | None = None, retry_after_s: float = 0.0) -> None:
        super().__init__(*args, code=code or ErrorCode.RATE)
        self.retry_after_s = retry_after_s


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
