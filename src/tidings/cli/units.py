"""Numbers for people: amounts, sizes and durations with their units."""

from __future__ import annotations


def count(amount: int, noun: str) -> str:
    """An amount of something.

    >>> count(1, "event"), count(12_345, "event")
    ('1 event', '12,345 events')
    """
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def size(amount: float) -> str:
    """An amount of bytes.

    >>> size(812), size(8_388_608)
    ('812 B', '8.4 MB')
    """
    unit = "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(amount) < 1000 or unit == "TB":
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def duration(seconds: float) -> str:
    """A time span, in its two largest units.

    >>> duration(0.0042), duration(42), duration(3725), duration(200_000)
    ('4.2 ms', '42 s', '1 h 2 min', '2 d 7 h')
    """
    if seconds < 1:
        return f"{1000 * seconds:.1f} ms"
    whole = int(seconds)
    for name, length, next_name, next_length in (
        ("d", 86_400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= length:
            return f"{whole // length} {name} {whole % length // next_length} {next_name}"
    return f"{whole} s"
