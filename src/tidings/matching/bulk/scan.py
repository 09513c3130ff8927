"""Plain conditions straight from their bytes into columns of boxes: `price > 10 AND area IN ('WC1', 'EC2')`.

The scanner knows ANDs of attributes compared with constants: comparisons, BETWEEN, IN, LIKE, IS NULL, and truths
on their own. What it does not know for certain it calls odd, and the parser takes that text: escapes, parentheses,
OR, functions, long lists, names in other capitals, letters that are not ASCII, and every mistake. So there is still one
definition of the language, and one place that finds errors.

An interval of numbers is kept as its first and last key here, because the key after the last may not fit into 64 bits.
"""

# mypy: disable-error-code="call-arg, no-untyped-def, no-untyped-call"
# Numba infers types itself; the parser is the plain twin.

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types

from tidings.events import INT_MAX, INT_MIN, ValueType
from tidings.filters import DOMAIN
from tidings.matching.kernels.cache import kernel
from tidings.matching.kernels.cells import double_key, is_same, readable

# Kinds of attributes, and of constants.
BOOL, INT, DOUBLE, STRING, TIMESTAMP = range(1, 6)

ODD, PLAIN = 0, 1  # What becomes of a text.

SIDES_MAX = 32  # Attributes in one plain condition.
ITEMS_MAX = 64  # Constants in one list.
BYTES_MAX = 4096  # Of one plain condition.
_PIECES_MAX = 4 * SIDES_MAX * ITEMS_MAX

_LOW, _LAST = INT_MIN, INT_MAX
_DOUBLES: Any = DOMAIN[ValueType.DOUBLE]
_DOUBLE_LOW, _DOUBLE_LAST = _DOUBLES[0], _DOUBLES[1] - 1
_EXACT = 1 << 53  # Ints up to here are doubles.
_POWERS = 10.0 ** np.arange(23)  # Exact, so that one multiplication rounds once.

# Words.
_END, _NAME, _NUMBER, _TEXT, _OPEN, _CLOSE, _COMMA, _MINUS, _EQ, _NE, _LT, _LE, _GT, _GE = range(1, 15)


def _packed(word: str) -> int:
    return int.from_bytes(word.encode(), "big")


_AND, _NOT, _IN, _IS = _packed("AND"), _packed("NOT"), _packed("IN"), _packed("IS")
_LIKE, _NULL, _TRUE, _FALSE, _BETWEEN, _TIMESTAM = map(
    _packed, ("LIKE", "NULL", "TRUE", "FALSE", "BETWEEN", "TIMESTAM")
)

# Bounds of text intervals: none, a text of the condition, the one just after it, the one after all that begin with it.
_NOWHERE, _AT, _AFTER, _AFTER_PREFIX = range(4)


class Names(NamedTuple):
    """The attributes that a scanner knows, in a hash table by name."""

    slots: Any  # A power of two: number of the attribute, or -1.
    offsets: Any  # Names in UTF-8 …
    content: Any
    quoted_offsets: Any  # … and as conditions write them.
    quoted: Any
    kind: Any  # By attribute; 0 for those that are never plain.
    rank: Any  # By attribute: its place in the order of names.


class BoxBuffers(NamedTuple):
    """Columns of boxes being written: at most one box for each text."""

    outcome: Any  # By text: ODD or PLAIN.
    boxes: Any  # By text: 0 or 1.
    sides: Any  # By box: how many.
    residuals: Any  # By box: how many.
    attribute: Any  # By side.
    null: Any
    numbers: Any  # By side: how many intervals.
    texts: Any
    number_low: Any
    number_high: Any
    number_open: Any  # 1 where there is no high.
    low_ends: Any  # Of the lows of text intervals, in bytes.
    low: Any
    high_ends: Any
    high: Any
    high_open: Any
    residual_ends: Any
    residual: Any


class Filled(NamedTuple):
    """How much of the buffers is in use, in the order in which a scan counts it."""

    boxes: int
    sides: int
    numbers: int
    texts: int
    low_bytes: int
    high_bytes: int
    residuals: int
    residual_bytes: int


# Rows of the sides of one condition so far: of each, a range of pieces, which are intervals.
# Arrays with rows compile faster than tuples of arrays.
_ATTRIBUTE, _HAS_NULL, _FIRST, _STOP, _SIDE_ROWS = range(5)

# Rows of the residual LIKEs, in the order in which they are written; how many there are is in the last row.
_OF, _NEGATED, _PATTERN, _PATTERN_STOP, _LIKE_COUNT, _LIKE_ROWS = range(6)

# Rows of pieces: of an interval of numbers the first and the last key, of texts where its bounds are and of what kind.
_KEY, _KEY_LAST, _LOW_START, _LOW_STOP, _LOW_KIND, _HIGH_START, _HIGH_STOP, _HIGH_KIND, _PIECE_ROWS = range(9)


_I1, _L1, _B1 = readable(types.int32), readable(types.int64), readable(types.uint8)
_OUT = {"i": types.int32[::1], "l": types.int64[::1], "b": types.uint8[::1]}
_NAMES = types.NamedTuple([_OUT[code] for code in "iibibbi"], Names)
_BUFFERS = types.NamedTuple([_OUT[code] for code in "bbiiibiillbibibbib"], BoxBuffers)


# Called from Numba only: the wrapper with which Python calls a function takes longer to compile than the function.
_helper: Any = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)  # type: ignore[call-overload]


@_helper
def _is_letter(char):
    return ((char | 32) - 97 < 26 and (char | 32) >= 97) or char == 95


@_helper
def _is_digit(char):
    return 48 <= char <= 57


@_helper
def _word(content, at, end):
    """The next word: kind (0 for an odd one), start, stop. Of a text, what is between the quotes."""
    while at < end and (content[at] == 32 or content[at] == 10 or content[at] == 9 or content[at] == 13):
        at += 1
    if at >= end:
        return _END, at, at
    char = content[at]
    following = content[at + 1] if at + 1 < end else 0
    if _is_letter(char):
        return _name(content, at, end)
    if _is_digit(char) or (char == 46 and _is_digit(following)):
        return _digits(content, at, end)
    if char == 39:
        return _quoted(content, at + 1, end)
    if char == 40:
        return _OPEN, at, at + 1
    if char == 41:
        return _CLOSE, at, at + 1
    if char == 44:
        return _COMMA, at, at + 1
    if char == 45:
        return _MINUS, at, at + 1
    if char == 61:
        return _EQ, at, at + 1
    if char == 33 and following == 61:
        return _NE, at, at + 2
    if char == 60:
        return (_NE, at, at + 2) if following == 62 else (_LE, at, at + 2) if following == 61 else (_LT, at, at + 1)
    if char == 62:
        return (_GE, at, at + 2) if following == 61 else (_GT, at, at + 1)
    return 0, at, at


@_helper
def _name(content, at, end):
    stop = at + 1
    while stop < end:
        char = content[stop]
        if char == 46 and stop + 1 < end and _is_letter(content[stop + 1]):
            stop += 2
        elif _is_letter(char) or _is_digit(char):
            stop += 1
        elif char == 46 or char == 39 or char == 96 or char >= 128:
            return 0, at, at
        else:
            break
    return _NAME, at, stop


@_helper
def _digits(content, at, end):
    stop = at
    while stop < end and _is_digit(content[stop]):
        stop += 1
    if stop < end and content[stop] == 46:
        stop += 1
        while stop < end and _is_digit(content[stop]):
            stop += 1
    if stop < end and content[stop] | 32 == 101:
        sign = stop + 1 < end and (content[stop + 1] == 43 or content[stop + 1] == 45)
        power = stop + 1 + sign
        if power < end and _is_digit(content[power]):
            stop = power
            while stop < end and _is_digit(content[stop]):
                stop += 1
    if stop < end and (_is_letter(content[stop]) or content[stop] >= 128):
        return 0, at, at
    return _NUMBER, at, stop


@_helper
def _quoted(content, start, end):
    stop = start
    while stop < end and content[stop] != 39:
        if content[stop] == 92 or content[stop] == 0:
            return 0, start, start
        stop += 1
    if stop >= end or (stop + 1 < end and content[stop + 1] == 39):
        return 0, start, start
    return _TEXT, start, stop


@_helper
def _after(kind, stop):
    """Where the word ends that `_word` found."""
    return stop + 1 if kind == _TEXT else stop


@_helper
def _keyword(content, start, stop):
    """The letters of a word in capitals as one number; 0 for longer ones."""
    if stop - start > 8:
        return np.int64(_TIMESTAM) if _is_timestamp(content, start, stop) else np.int64(0)
    packed = np.int64(0)
    for i in range(start, stop):
        packed = packed << 8 | np.int64(content[i] & 0xDF)
    return packed


@_helper
def _is_timestamp(content, start, stop):
    packed = np.int64(0)
    for i in range(start, start + 8):
        packed = packed << 8 | np.int64(content[i] & 0xDF)
    return stop - start == 9 and packed == _TIMESTAM and content[stop - 1] & 0xDF == 80


@_helper
def _find(names, content, start, stop):
    """The number of an attribute, or -1."""
    mask = len(names.slots) - 1
    slot = name_hash(content, start, stop) & mask
    while names.slots[slot] >= 0:
        number = names.slots[slot]
        first, last = np.int64(names.offsets[number]), np.int64(names.offsets[number + 1])
        if is_same(content, start, stop, names.content, first, last):
            return number
        slot = (slot + 1) & mask
    return -1


@_helper
def name_hash(content, start, stop):
    """FNV-1a in 31 bits."""
    value = 2166136261
    for i in range(start, stop):
        value = ((value ^ content[i]) * 16777619) & 0x7FFFFFFF
    return value


@_helper
def _number(content, start, stop):
    """A number as kind (0 if it needs a closer look), int and double."""
    mantissa: Any = np.int64(0)
    digits, point, at = 0, -1, start
    while at < stop and content[at] | 32 != 101:
        if content[at] == 46:
            point = at
        else:
            mantissa = mantissa * 10 + np.int64(content[at] - 48)
            digits += mantissa > 0
            if digits > 18:
                return 0, np.int64(0), 0.0
        at += 1
    if point < 0 and at == stop:
        return (INT if stop - start <= 18 else 0), mantissa, 0.0
    power = -(at - point - 1) if point >= 0 else 0
    if at < stop:
        power += _power(content, at + 1, stop)
    if mantissa == 0:
        return DOUBLE, np.int64(0), 0.0
    if mantissa > _EXACT or power < -22 or power > 22:
        return 0, np.int64(0), 0.0
    return DOUBLE, np.int64(0), mantissa * _POWERS[power] if power >= 0 else mantissa / _POWERS[-power]


@_helper
def _power(content, at, stop):
    sign = -1 if content[at] == 45 else 1
    if not _is_digit(content[at]):
        at += 1
    power = 0
    while at < stop and power < 1000:
        power = power * 10 + (content[at] - 48)
        at += 1
    return sign * power


@_helper
def _two(content, at):
    """Two digits as a number, or -1000."""
    if not (_is_digit(content[at]) and _is_digit(content[at + 1])):
        return -1000
    return (np.int64(content[at]) - 48) * 10 + np.int64(content[at + 1]) - 48


@_helper
def _moment(content, start, stop):
    """Whether this is a plain `2026-01-31T12:00:00Z`, with or without the Z; and its microseconds since 1970."""
    if stop - start == 20 and content[stop - 1] == 90:
        stop -= 1
    if stop - start != 19 or content[start + 4] != 45 or content[start + 7] != 45:
        return False, np.int64(0)
    if (
        (content[start + 10] != 32 and content[start + 10] != 84)
        or content[start + 13] != 58
        or content[start + 16] != 58
    ):
        return False, np.int64(0)
    year = _two(content, start) * 100 + _two(content, start + 2)
    month, day = _two(content, start + 5), _two(content, start + 8)
    hour, minute, second = _two(content, start + 11), _two(content, start + 14), _two(content, start + 17)
    if year < 1 or month < 1 or month > 12 or day < 1 or day > 28:  # The ends of months need a closer look.
        return False, np.int64(0)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return False, np.int64(0)
    # Days of the Gregorian calendar, in years that begin in March so that a leap day comes last.
    counted = year - (month <= 2)
    era, of_era = counted // 400, counted % 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days = era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
    return True, ((days * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000


@_helper
def _constant(content, at, end):
    """A constant: kind (0 for an odd one), int, double, start and stop of a text, and where to go on."""
    kind, start, stop = _word(content, at, end)
    sign = 1
    if kind == _MINUS:
        sign = -1
        kind, start, stop = _word(content, stop, end)
        if kind != _NUMBER:
            return 0, np.int64(0), 0.0, start, stop, stop
    if kind == _NUMBER:
        what, whole, double = _number(content, start, stop)
        return what, sign * whole, sign * double, start, stop, stop
    if kind == _TEXT:
        return STRING, np.int64(0), 0.0, start, stop, stop + 1
    if kind == _NAME:
        keyword = _keyword(content, start, stop)
        if keyword in (_TRUE, _FALSE):
            return BOOL, np.int64(keyword == _TRUE), 0.0, start, stop, stop
        if keyword == _TIMESTAM and stop - start == 9:
            kind, start, stop = _word(content, stop, end)
            if kind == _TEXT:
                known, moment = _moment(content, start, stop)
                if known:
                    return TIMESTAMP, moment, 0.0, start, stop, stop + 1
    return 0, np.int64(0), 0.0, start, stop, stop


@_helper
def _domain(kind):
    if kind == BOOL:
        return np.int64(0), np.int64(1)
    if kind == DOUBLE:
        return np.int64(_DOUBLE_LOW), np.int64(_DOUBLE_LAST)
    return np.int64(_LOW), np.int64(_LAST)


@_helper
def _equal(kind, what, whole, double, bits, doubles):
    """The keys of an attribute of `kind` that equal a constant: whether they are known, the first and the last."""
    if kind == DOUBLE and (what in (DOUBLE, INT)):
        doubles[0] = double if what == DOUBLE else np.float64(whole)
        key = double_key(bits[0])
        return True, key, key
    if kind == INT and what == DOUBLE:
        if abs(double) >= _EXACT:
            return False, np.int64(0), np.int64(0)
        return True, np.int64(np.ceil(double)), np.int64(np.floor(double))
    return kind == what, whole, whole


@_helper
def _compared(pieces, at, kind, op, low, high):
    """Writes the intervals of `attribute op constant` at `at`; returns where they end. `low` and `high` are its keys."""
    start, last = _domain(kind)
    if op == _EQ and low <= high:
        return _keep(pieces, at, low, high)
    if op in (_GE, _GT, _NE):
        after = op == _GE
        if op == _NE and low > high:
            return _keep(pieces, at, start, last)
        if op == _NE and low > start:
            at = _keep(pieces, at, start, low - 1)
        bound = low if after else high
        if after or bound < last:
            at = _keep(pieces, at, bound if after else bound + 1, last)
    elif op in (_LE, _LT):
        bound = high if op == _LE else low
        if op == _LE or bound > start:
            at = _keep(pieces, at, start, bound if op == _LE else bound - 1)
    return at


@_helper
def _keep(pieces, at, first, last):
    if first <= last:
        pieces[_KEY, at] = first
        pieces[_KEY_LAST, at] = last
        at += 1
    return at


@_helper
def _less(content, a_start, a_stop, b_start, b_stop):
    shared = min(a_stop - a_start, b_stop - b_start)
    for i in range(shared):
        if content[a_start + i] != content[b_start + i]:
            return content[a_start + i] < content[b_start + i]
    return a_stop - a_start < b_stop - b_start


@_helper
def _keep_text(pieces, at, low_start, low_stop, low_kind, high_start, high_stop, high_kind):
    pieces[_LOW_START, at], pieces[_LOW_STOP, at], pieces[_LOW_KIND, at] = low_start, low_stop, low_kind
    pieces[_HIGH_START, at], pieces[_HIGH_STOP, at], pieces[_HIGH_KIND, at] = high_start, high_stop, high_kind
    return at + 1


@_helper
def _compared_text(pieces, at, op, start, stop):
    if op == _EQ:
        return _keep_text(pieces, at, start, stop, _AT, start, stop, _AFTER)
    if op in (_GE, _GT):
        return _keep_text(pieces, at, start, stop, _AT if op == _GE else _AFTER, 0, 0, _NOWHERE)
    if op == _LE:
        return _keep_text(pieces, at, 0, 0, _AT, start, stop, _AFTER)
    if start < stop:
        at = _keep_text(pieces, at, 0, 0, _AT, start, stop, _AT)
    return at if op == _LT else _keep_text(pieces, at, start, stop, _AFTER, 0, 0, _NOWHERE)


@_helper
def _add_side(content, sides, pieces, count, attribute, is_text, null, first, stop):
    """Adds a side, or meets it with the one of the same attribute. Returns the sides (-1: odd, -2: nothing is left)
    and where free pieces begin."""
    at = 0
    while at < count and sides[_ATTRIBUTE, at] != attribute:
        at += 1
    if at < count:
        null &= sides[_HAS_NULL, at]
        if is_text:
            first, stop = _meet_texts(content, pieces, sides[_FIRST, at], sides[_STOP, at], first, stop)
        else:
            first, stop = _meet(pieces, sides[_FIRST, at], sides[_STOP, at], first, stop)
    elif count == SIDES_MAX:
        return -1, stop
    sides[_ATTRIBUTE, at], sides[_HAS_NULL, at], sides[_FIRST, at], sides[_STOP, at] = attribute, null, first, stop
    if first == stop and not null:
        return -2, stop
    return max(count, at + 1), stop


@_helper
def _meet(pieces, a, a_stop, b, b_stop):
    """The intervals in both of two lists, written behind the second."""
    first = at = b_stop
    while a < a_stop and b < first:
        at = _keep(pieces, at, max(pieces[_KEY, a], pieces[_KEY, b]), min(pieces[_KEY_LAST, a], pieces[_KEY_LAST, b]))
        if pieces[_KEY_LAST, a] < pieces[_KEY_LAST, b]:
            a += 1
        else:
            b += 1
    return first, at


@_helper
def _char(content, start, stop, kind, at):
    """A byte of a bound, or -1 behind its end."""
    if start + at < stop:
        return np.int64(content[start + at]) + (kind == _AFTER_PREFIX and start + at == stop - 1)
    return 0 if kind == _AFTER and start + at == stop else -1


@_helper
def _is_before(content, a_start, a_stop, a_kind, b_start, b_stop, b_kind):
    """Whether one bound comes before another, neither of which is nowhere."""
    for at in range(a_stop - a_start + 2):
        a, b = _char(content, a_start, a_stop, a_kind, at), _char(content, b_start, b_stop, b_kind, at)
        if a != b:
            return a < b
    return False


@_helper
def _meet_texts(content, pieces, a, a_stop, b, b_stop):
    """The same as `_meet` for intervals of texts."""
    first = at = b_stop
    while a < a_stop and b < first:
        low = a
        if _is_before(
            content,
            pieces[_LOW_START, a],
            pieces[_LOW_STOP, a],
            pieces[_LOW_KIND, a],
            pieces[_LOW_START, b],
            pieces[_LOW_STOP, b],
            pieces[_LOW_KIND, b],
        ):
            low = b
        a_ends_first = _ends_before(content, pieces, a, b)
        high = a if a_ends_first else b
        if pieces[_HIGH_KIND, high] == _NOWHERE or _is_before(
            content,
            pieces[_LOW_START, low],
            pieces[_LOW_STOP, low],
            pieces[_LOW_KIND, low],
            pieces[_HIGH_START, high],
            pieces[_HIGH_STOP, high],
            pieces[_HIGH_KIND, high],
        ):
            for row in (_LOW_START, _LOW_STOP, _LOW_KIND):
                pieces[row, at] = pieces[row, low]
            for row in (_HIGH_START, _HIGH_STOP, _HIGH_KIND):
                pieces[row, at] = pieces[row, high]
            at += 1
        if a_ends_first:
            a += 1
        else:
            b += 1
    return first, at


@_helper
def _ends_before(content, pieces, a, b):
    if pieces[_HIGH_KIND, a] == _NOWHERE or pieces[_HIGH_KIND, b] == _NOWHERE:
        return pieces[_HIGH_KIND, a] != _NOWHERE
    return _is_before(
        content,
        pieces[_HIGH_START, a],
        pieces[_HIGH_STOP, a],
        pieces[_HIGH_KIND, a],
        pieces[_HIGH_START, b],
        pieces[_HIGH_STOP, b],
        pieces[_HIGH_KIND, b],
    )


@_helper
def _list(content, at, end, kind, pieces, free, bits, doubles):
    """The constants of an IN as sorted intervals: where to go on (-1: odd), and where the intervals end."""
    word, _, stop = _word(content, at, end)
    if word != _OPEN:
        return -1, free
    count, at = 0, stop
    while count < ITEMS_MAX:
        what, whole, double, start, stop, at = _constant(content, at, end)
        if what == 0:
            return -1, free
        if kind == STRING:
            if what != STRING:
                return -1, free
            _sort_text(content, pieces, free, count, start, stop)
        else:
            known, first, last = _equal(kind, what, whole, double, bits, doubles)
            if not known:
                return -1, free
            if first > last:
                count -= 1  # No int equals 2.5.
            else:
                _sort_number(pieces, free, count, first)
        count += 1
        word, _, stop = _word(content, at, end)
        at = stop
        if word == _CLOSE:
            return at, (_joined_texts(content, pieces, free, count) if kind == STRING else _joined(pieces, free, count))
        if word != _COMMA:
            return -1, free
    return -1, free


@_helper
def _sort_number(pieces, free, count, key):
    at = free + count
    while at > free and pieces[_KEY, at - 1] > key:
        pieces[_KEY, at] = pieces[_KEY, at - 1]
        at -= 1
    pieces[_KEY, at] = key


@_helper
def _joined(pieces, free, count):
    """Sorted keys as intervals that do not touch."""
    at = free
    for i in range(free, free + count):
        key = pieces[_KEY, i]
        if at > free and key <= pieces[_KEY_LAST, at - 1]:
            continue
        if at > free and key - 1 == pieces[_KEY_LAST, at - 1]:
            pieces[_KEY_LAST, at - 1] = key
        else:
            at = _keep(pieces, at, key, key)
    return at


@_helper
def _sort_text(content, pieces, free, count, start, stop):
    at = free + count
    while at > free and _less(content, start, stop, pieces[_LOW_START, at - 1], pieces[_LOW_STOP, at - 1]):
        pieces[_LOW_START, at], pieces[_LOW_STOP, at] = pieces[_LOW_START, at - 1], pieces[_LOW_STOP, at - 1]
        at -= 1
    pieces[_LOW_START, at], pieces[_LOW_STOP, at] = start, stop


@_helper
def _joined_texts(content, pieces, free, count):
    """Sorted texts as intervals; no text here holds the zero with which two of them could touch."""
    at = free
    for i in range(free, free + count):
        start, stop = pieces[_LOW_START, i], pieces[_LOW_STOP, i]
        if at == free or _less(content, pieces[_LOW_START, at - 1], pieces[_LOW_STOP, at - 1], start, stop):
            at = _keep_text(pieces, at, start, stop, _AT, start, stop, _AFTER)
    return at


@_helper
def _others(pieces, kind, first, stop):
    """The gaps between intervals of numbers, written behind them."""
    low, last = _domain(kind)
    at = stop
    for i in range(first, stop):
        if low < pieces[_KEY, i]:
            at = _keep(pieces, at, low, pieces[_KEY, i] - 1)
        if pieces[_KEY_LAST, i] == last:
            return at
        low = pieces[_KEY_LAST, i] + 1
    return _keep(pieces, at, low, last)


@_helper
def _other_texts(pieces, first, stop):
    """The gaps between single texts, written behind them."""
    at, low_start, low_stop, low_kind = stop, np.int64(0), np.int64(0), _AT
    for i in range(first, stop):
        start, end = pieces[_LOW_START, i], pieces[_LOW_STOP, i]
        if low_kind == _AFTER or start < end:
            at = _keep_text(pieces, at, low_start, low_stop, low_kind, start, end, _AT)
        low_start, low_stop, low_kind = start, end, _AFTER
    return _keep_text(pieces, at, low_start, low_stop, low_kind, 0, 0, _NOWHERE)


@_helper
def _like(content, sides, pieces, likes, count, attribute, negated, start, stop, free):
    """Adds the side of a pattern; as `_add_side`."""
    prefix = start
    while prefix < stop and content[prefix] != 37 and content[prefix] != 95:
        prefix += 1
    at = free
    plain, single = prefix == stop, prefix == stop - 1 and content[prefix] == 37
    if plain:
        at = _compared_text(pieces, free, _NE if negated else _EQ, start, stop)
    elif prefix > start and content[prefix - 1] >= 127:
        return -1, free  # The text after all that have this prefix takes a closer look.
    elif negated and single and prefix > start:
        at = _keep_text(pieces, at, 0, 0, _AT, start, prefix, _AT)
        at = _keep_text(pieces, at, start, prefix, _AFTER_PREFIX, 0, 0, _NOWHERE)
    elif not negated and prefix > start:
        at = _keep_text(pieces, at, start, prefix, _AT, start, prefix, _AFTER_PREFIX)
    elif not (negated and single):  # Nothing is not LIKE '%'.
        at = _keep_text(pieces, at, 0, 0, _AT, 0, 0, _NOWHERE)
    if not plain and not single:
        if negated:
            at = _keep_text(pieces, free, 0, 0, _AT, 0, 0, _NOWHERE)
        if not _add_like(content, likes, attribute, negated, start, stop):
            return -1, free
    return _add_side(content, sides, pieces, count, attribute, True, 0, free, at)


@_helper
def _add_like(content, likes, attribute, negated, start, stop):
    """Adds a residual, unless it is there already; returns False if there is no room."""
    count = likes[_LIKE_COUNT, 0]
    for i in range(count):
        same = likes[_OF, i] == attribute and likes[_NEGATED, i] == negated
        if same and is_same(content, start, stop, content, likes[_PATTERN, i], likes[_PATTERN_STOP, i]):
            return True
    if count == SIDES_MAX:
        return False
    likes[_OF, count], likes[_NEGATED, count] = attribute, negated
    likes[_PATTERN, count], likes[_PATTERN_STOP, count] = start, stop
    likes[_LIKE_COUNT, 0] = count + 1
    return True


@_helper
def _condition(content, at, end, names, sides, pieces, likes, bits, doubles):
    """Reads one text: how many sides it has; -1 if it is odd, -2 if nothing matches it."""
    count, free, is_empty = 0, 0, False
    likes[_LIKE_COUNT, 0] = 0
    if end - at > BYTES_MAX:
        return -1
    while True:
        if free > _PIECES_MAX // 2:
            return -1
        word, start, stop = _word(content, at, end)
        if word != _NAME:
            return -1
        attribute = _find(names, content, start, stop)
        if attribute < 0:
            return -1
        found, free, at = _predicate(
            content, stop, end, attribute, names.kind[attribute], sides, pieces, likes, count, free, bits, doubles
        )
        if found == -1:
            return -1
        is_empty |= found == -2
        if found >= 0:
            count = found
        word, start, stop = _word(content, at, end)
        if word == _END:
            return -2 if is_empty else count
        if word != _NAME or stop - start != 3 or _keyword(content, start, stop) != _AND:
            return -1
        at = stop


@_helper
def _predicate(content, at, end, attribute, kind, sides, pieces, likes, count, free, bits, doubles):
    """Reads what follows an attribute: the sides as `_add_side` says, where free pieces begin, and where to go on."""
    op, start, stop = _word(content, at, end)
    if op >= _EQ:
        what, whole, double, start, stop, at = _constant(content, stop, end)
        if kind == STRING:
            if what != STRING:
                return -1, free, at
            last = _compared_text(pieces, free, op, start, stop)
        else:
            known, low, high = _equal(kind, what, whole, double, bits, doubles)
            if what == 0 or not known:
                return -1, free, at
            last = _compared(pieces, free, kind, op, low, high)
        count, free = _add_side(content, sides, pieces, count, attribute, kind == STRING, 0, free, last)
        return count, free, at
    keyword = _keyword(content, start, stop) if op == _NAME else np.int64(0)
    if (op == _END or keyword == _AND) and kind == BOOL:
        count, free = _add_side(content, sides, pieces, count, attribute, False, 0, free, _keep(pieces, free, 1, 1))
        return count, free, at
    negated = keyword == _NOT
    if negated:
        op, start, stop = _word(content, stop, end)
        keyword = _keyword(content, start, stop) if op == _NAME else np.int64(0)
    if keyword == _IN:
        at, last = _list(content, stop, end, kind, pieces, free, bits, doubles)
        if at < 0:
            return -1, free, at
        if negated:
            more = _other_texts(pieces, free, last) if kind == STRING else _others(pieces, kind, free, last)
            free, last = last, more
        count, free = _add_side(content, sides, pieces, count, attribute, kind == STRING, 0, free, last)
        return count, free, at
    if keyword == _LIKE and kind == STRING:
        op, start, stop = _word(content, stop, end)
        if op != _TEXT:
            return -1, free, at
        count, free = _like(content, sides, pieces, likes, count, attribute, negated, start, stop, free)
        return count, free, stop + 1
    if keyword == _BETWEEN:
        return _between(content, stop, end, attribute, kind, negated, sides, pieces, count, free, bits, doubles)
    if keyword == _IS and not negated:
        return _null(content, stop, end, attribute, kind, sides, pieces, count, free)
    return -1, free, at


@_helper
def _between(content, at, end, attribute, kind, negated, sides, pieces, count, free, bits, doubles):
    what, whole, double, start, stop, at = _constant(content, at, end)
    word, and_start, and_stop = _word(content, at, end)
    if what == 0 or word != _NAME or and_stop - and_start != 3 or _keyword(content, and_start, and_stop) != _AND:
        return -1, free, at
    that, that_whole, that_double, that_start, that_stop, at = _constant(content, and_stop, end)
    if kind == STRING:
        if negated or what != STRING or that != STRING:
            return -1, free, at
        last = free
        if not _less(content, that_start, that_stop, start, stop):
            last = _keep_text(pieces, free, start, stop, _AT, that_start, that_stop, _AFTER)
    else:
        known, low, _ = _equal(kind, what, whole, double, bits, doubles)
        that_known, that_low, that_high = _equal(kind, that, that_whole, that_double, bits, doubles)
        if that == 0 or not known or not that_known:
            return -1, free, at
        if negated:
            last = _compared(pieces, free, kind, _LT, low, low)
            below = last > free
            last = _compared(pieces, last, kind, _GT, that_low, that_high)
            if below and last == free + 2 and pieces[_KEY, free + 1] - 1 <= pieces[_KEY_LAST, free]:
                pieces[_KEY_LAST, free] = pieces[
                    _KEY_LAST, free + 1
                ]  # What is between nothing is nothing, and its contrary all.
                last = free + 1
        else:
            last = _keep(pieces, free, low, that_high)
    count, free = _add_side(content, sides, pieces, count, attribute, kind == STRING, 0, free, last)
    return count, free, at


@_helper
def _null(content, at, end, attribute, kind, sides, pieces, count, free):
    word, start, stop = _word(content, at, end)
    keyword = _keyword(content, start, stop) if word == _NAME else np.int64(0)
    negated = keyword == _NOT
    if negated:
        word, start, stop = _word(content, stop, end)
        keyword = _keyword(content, start, stop) if word == _NAME else np.int64(0)
    if keyword != _NULL:
        return -1, free, at
    last = free
    if negated and kind == STRING:
        last = _keep_text(pieces, free, 0, 0, _AT, 0, 0, _NOWHERE)
    elif negated:
        low, high = _domain(kind)
        last = _keep(pieces, free, low, high)
    count, free = _add_side(content, sides, pieces, count, attribute, kind == STRING, not negated, free, last)
    return count, free, stop


@_helper
def _copy(content, start, stop, out, at):
    for i in range(start, stop):
        out[at] = content[i]
        at += 1
    return at


@_helper
def _write_bound(content, start, stop, kind, out, at):
    at = _copy(content, start, stop, out, at)
    if kind == _AFTER:
        out[at] = 0
        at += 1
    elif kind == _AFTER_PREFIX:
        out[at - 1] += 1
    return at


@_helper
def _write_residual(content, names, likes, i, out, at):
    """`name LIKE 'pattern'`, or `NOT name LIKE 'pattern'`, as `format_tree` writes it."""
    if likes[_NEGATED, i]:
        for char in (78, 79, 84, 32):
            out[at] = char
            at += 1
    attribute = likes[_OF, i]
    at = _copy(names.quoted, names.quoted_offsets[attribute], names.quoted_offsets[attribute + 1], out, at)
    for char in (32, 76, 73, 75, 69, 32, 39):
        out[at] = char
        at += 1
    at = _copy(content, likes[_PATTERN, i], likes[_PATTERN_STOP, i], out, at)
    out[at] = 39
    return at + 1


@_helper
def _write_box(content, names, sides, pieces, likes, count, order, out, n):
    """Writes one box, its sides in the order of their names."""
    for i in range(count):
        at = i
        while at > 0 and names.rank[sides[_ATTRIBUTE, order[at - 1]]] > names.rank[sides[_ATTRIBUTE, i]]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = i
    out.sides[n[0]], out.residuals[n[0]] = count, likes[_LIKE_COUNT, 0]
    for i in range(count):
        side = order[i]
        attribute = sides[_ATTRIBUTE, side]
        out.attribute[n[1]], out.null[n[1]] = attribute, sides[_HAS_NULL, side]
        is_text, many = names.kind[attribute] == STRING, sides[_STOP, side] - sides[_FIRST, side]
        out.numbers[n[1]], out.texts[n[1]] = (0, many) if is_text else (many, 0)
        n[1] += 1
        for piece in range(sides[_FIRST, side], sides[_STOP, side]):
            if is_text:
                low, low_stop, low_kind = pieces[_LOW_START, piece], pieces[_LOW_STOP, piece], pieces[_LOW_KIND, piece]
                high, high_stop = pieces[_HIGH_START, piece], pieces[_HIGH_STOP, piece]
                n[4] = _write_bound(content, low, low_stop, low_kind, out.low, n[4])
                n[5] = _write_bound(content, high, high_stop, pieces[_HIGH_KIND, piece], out.high, n[5])
                out.low_ends[n[3]], out.high_ends[n[3]] = n[4], n[5]
                out.high_open[n[3]] = pieces[_HIGH_KIND, piece] == _NOWHERE
                n[3] += 1
            else:
                is_open = pieces[_KEY_LAST, piece] == _LAST
                out.number_low[n[2]], out.number_open[n[2]] = pieces[_KEY, piece], is_open
                out.number_high[n[2]] = 0 if is_open else pieces[_KEY_LAST, piece] + 1
                n[2] += 1
    for i in range(likes[_LIKE_COUNT, 0]):
        n[7] = _write_residual(content, names, likes, i, out.residual, n[7])
        out.residual_ends[n[6]] = n[7]
        n[6] += 1
    n[0] += 1


@kernel(types.void(_I1, _B1, _NAMES, _BUFFERS, types.int64[::1]))
def scan(offsets, content, names, out, filled):
    """Reads texts, and writes the boxes of the plain ones; `filled` counts as `Filled` does."""
    sides, pieces = np.empty((_SIDE_ROWS, SIDES_MAX), np.int64), np.empty((_PIECE_ROWS, _PIECES_MAX), np.int64)
    likes, order = np.empty((_LIKE_ROWS, SIDES_MAX), np.int64), np.empty(SIDES_MAX, np.int64)
    doubles = np.zeros(1)
    bits = doubles.view(np.int64)
    for i in range(len(offsets) - 1):
        start, end = np.int64(offsets[i]), np.int64(offsets[i + 1])
        count = _condition(content, start, end, names, sides, pieces, likes, bits, doubles)
        out.outcome[i] = ODD if count == -1 else PLAIN
        out.boxes[i] = count >= 0
        if count >= 0:
            _write_box(content, names, sides, pieces, likes, count, order, out, filled)
