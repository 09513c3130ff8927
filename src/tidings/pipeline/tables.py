"""The tables that steps hand to one another, by their columns.

EVENTS         id column, and any others
SUBSCRIPTIONS  id, subscriber, filter [, type]
DELIVERIES     event_id, subscription_id, subscriber
COMPACT        event_id, subscription_ids
REJECTED       id, subscriber, filter, error
QUARANTINE     reason, original
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from tidings.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EVENT_IDS = ("event_id", "id")  # Where no id column is named, the first of these that is there.
SUBSCRIPTION_COLUMNS = ("id", "subscriber", "filter")
REJECTED_SCHEMA = "id string, subscriber string, filter string, error string"
LISTED_MAX = 12  # Columns that an error lists.


def id_column(events: DataFrame, wanted: str | None) -> str:
    """The name of the id column: the wanted one, or `event_id`, or `id`. Raises InputError if there is none."""
    for name in (wanted,) if wanted else EVENT_IDS:
        if name in events.columns:
            return name
    expected = f"a column {wanted!r}" if wanted else "a column 'event_id' or 'id', or the name of another one as the id"
    raise InputError(f"the events need {expected}; they have {listed(events.columns)}{_hint(wanted, events.columns)}")


def check_subscriptions(subscriptions: DataFrame) -> None:
    """Raises InputError if a column that every subscription needs is missing."""
    missing = [name for name in SUBSCRIPTION_COLUMNS if name not in subscriptions.columns]
    if missing:
        raise InputError(
            f"the subscriptions need the columns id, subscriber and filter; {', '.join(missing)} missing, "
            f"they have {listed(subscriptions.columns)}"
        )


def listed(names: Iterable[str]) -> str:
    """Names as a list that fits on a line or two."""
    names = list(names)
    more = f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else ""
    return (", ".join(names[:LISTED_MAX]) or "none") + more


def quoted(name: str) -> str:
    """A column's name as Spark takes it, dots and all."""
    return "`" + name.replace("`", "``") + "`"


def delivery_id(event_id: str, subscription_id: str) -> str:
    """Names a delivery: the same for the same event and subscription on every machine, in every run.

    128 bits of SHA-256 over both ids, the first behind its length, so that no two pairs run together.

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
