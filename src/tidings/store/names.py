"""What people may call things in the registry: printable texts of a sensible length."""

from __future__ import annotations

from tidings.errors import InputError

NAME_CHARACTERS_MAX = 255  # As long as a file's name; nobody reads longer ones.
TEXT_CHARACTERS_MAX = 4096  # For a reason: a paragraph or two.


def checked_name(text: str, what: str, characters_max: int = NAME_CHARACTERS_MAX) -> str:
    """`text` as it is; raises InputError unless it can be shown on one line and kept by every database.

    >>> checked_name("ccs", "a domain")
    'ccs'
    """
    if not 1 <= len(text) <= characters_max or not text.isprintable() or text != text.strip():
        shown = ascii(text[:60])
        raise InputError(f"expected {what} of 1 to {characters_max} printable characters, got {shown}")
    return text
