"""The tables that the steps of a pipeline pass to one another, by their columns.

EVENTS         an id column, and any others
SUBSCRIPTIONS  id, subscriber, filter [, type]
DELIVERIES     event_id, subscription_id, subscriber
COMPACT        event_id, subscription_ids
               both with columns of the event, if these are to be kept
REJECTED       id, subscriber, filter, error
QUARANTINE     reason, original
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tidings.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EVENT_IDS = ("event_id", "id")  # Where the caller names no id column, the first of these that exists.
SUBSCRIPTION_COLUMNS = ("id", "subscriber", "filter")
PAIR_NAMES = ["event_id", "subscription_id", "subscriber"]
COMPACT_NAMES = ["event_id", "subscription_ids"]
DELIVERY_NAMES = ["delivery_id", *PAIR_NAMES, "subscriptions_version", "event"]  # What `tidings run` writes.
KEEP_ALL = "all"
REJECTED_SCHEMA = "id string, subscriber string, filter string, error string"
LISTED_MAX = 12  # Columns that an error lists.
# How Spark writes times as JSON. Left alone, it cuts them off at the millisecond.
JSON_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][XXX]",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]",
}


def id_column(events: DataFrame, wanted: str | None) -> str:
    """The name of the id column: `wanted`, or else `event_id` or `id`. Raises InputError if there is none."""
    for name in (wanted,) if wanted else EVENT_IDS:
        if name in events.columns:
            return name
    expected = f"a column {wanted!r}" if wanted else "a column 'event_id' or 'id', or the name of another one as the id"
    raise InputError(f"the events need {expected}; they have {listed(events.columns)}{_hint(wanted, events.columns)}")


def check_subscriptions(subscriptions: DataFrame) -> None:
    """Raises InputError if a required column is missing."""
    missing = [name for name in SUBSCRIPTION_COLUMNS if name not in subscriptions.columns]
    if missing:
        raise InputError(
            f"the subscriptions need the columns id, subscriber and filter; {', '.join(missing)} missing, "
            f"they have {listed(subscriptions.columns)}"
        )


def kept_columns(keep: str | Sequence[str], known: Sequence[str], id: str, taken: Sequence[str]) -> list[str]:
    """The columns of the event that deliveries carry: those in `keep`, or with `all` every one but the id.

    Raises InputError for one that is not there, or has the name of a delivery's own column.

    >>> kept_columns("all", ["event_id", "area", "speed"], "event_id", PAIR_NAMES)
    ['area', 'speed']
    """
    if isinstance(keep, str) and keep != KEEP_ALL:
        raise InputError(f"keep: expected a list of columns, or {KEEP_ALL!r}, got {keep!r}")
    names = [name for name in known if name != id] if keep == KEEP_ALL else list(dict.fromkeys(keep))
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise InputError(f"keep: the events have no column {name!r}; {hint or 'they have ' + listed(known)}")
        if name.lower() in taken:
            raise InputError(
                f"keep: deliveries have a column {name!r} of their own; leave it out, or rename it in the events"
            )
    return names


def attribute_column(rows: DataFrame, name: str) -> Column:
    """An attribute's column: a column of that name, or a field of a struct for a name with dots."""
    if name in rows.columns:
        return f.col(quoted(name))
    return f.col(".".join(quoted(part) for part in name.split(".")))


def attribute_column_or_null(rows: DataFrame, name: str) -> Column:
    """The same, with NULL where the table has no such column."""
    is_there = name in rows.columns or name.split(".", maxsplit=1)[0] in rows.columns
    return attribute_column(rows, name) if is_there else f.lit(None)


def listed(names: Iterable[str]) -> str:
    """Names as a list that fits on a line or two."""
    names = list(names)
    more = f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else ""
    return (", ".join(names[:LISTED_MAX]) or "none") + more


def quoted(name: str) -> str:
    """A column's name as Spark SQL takes it, dots included."""
    return "`" + name.replace("`", "``") + "`"


def delivery_id(event_id: str, subscription_id: str) -> str:
    """The id of a delivery: the same for the same event and subscription on every machine, in every run.

    128 bits of SHA-256 over both ids. The length of the first comes before it, so that no two pairs collide.

    >>> delivery_id("e1", "s1") == delivery_id("e1", "s1") != delivery_id("e1s", "1")
    True
    """
    return hashlib.sha256(f"{len(event_id.encode())}:{event_id}{subscription_id}".encode()).hexdigest()[:32]


def delivery_id_column(event_id: Column, subscription_id: Column) -> Column:
    """The same, computed by Spark."""
    event_text = event_id.cast("string")
    both = f.concat(f.octet_length(event_text).cast("string"), f.lit(":"), event_text, subscription_id)
    return f.sha2(both, 256).substr(1, 32)


def _hint(wanted: str | None, known: Iterable[str]) -> str:
    hint = did_you_mean(wanted, known) if wanted else ""
    return f"; {hint}" if hint else ""
