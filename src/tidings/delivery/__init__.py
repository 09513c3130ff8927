"""Reliable delivery between brokers: each acknowledged event reaches each durable subscriber exactly once, in order.

The overlay carries events on a best-effort basis. Some overlays guarantee little, and none survives a `kill -9` in
the middle of a publish. This protocol runs beside the overlay and adds what is missing: acknowledgements,
retransmission and ordering, with all state on disk.

**Interest.** Every broker advertises its durable subscriptions to all other brokers (`InterestAdvertisement`, signed,
versioned, flooded from broker to broker). `InterestVersions` is the anti-entropy: two brokers compare versions when a
link comes up and every few seconds, and each sends what the other lacks.

**Send.** The broker where an event is published is its *origin*. The origin looks up in its interest directory which
brokers need the event, and gives it a sequence number in the stream to each of them. It writes the event and these
numbers to disk in one transaction, before it acknowledges the publish. Numbers have no gaps.

    origin                                               broker with durable subscribers
    publish: event and numbers on disk
    overlay ── event ─────────────────────────────────→  held in memory, delivered to nobody yet
    Announce(number: event id, …) ────────────────────→  all numbers below are here: deliveries and number on disk
              ←─────────────────────────────────── Ack   the origin drops the numbers below
              ←────────────────────────────────── Nack   announced, but the overlay has not brought it
    Retransmit(number, event) ────────────────────────→

**Receive.** The receiver releases numbers in order and writes each in the same transaction as the deliveries it turns
into. So a duplicate is dropped, a lost event is retransmitted, and the events of one publisher keep their order. The
overlay is the fast path; correctness does not depend on it.

**Late interest.** When an origin learns of a subscription late, it matches the subscription against the events that it
still keeps, from the subscription's start time on, and sends these to that subscription alone (`only_for`). The same
mechanism serves subscriptions that begin in the past.

**Crashes.** A sequence number belongs to a journal, which has a random id. A broker that loses its journal starts a new
stream; a receiver that loses its own continues at `Announce.first`, the lowest number it has not acknowledged.

**Backups.** A journal that was restored from a backup has a new id and names its ancestor, with the number up to which
the two streams are the same: a receiver skips what it had from the ancestor. A receiver that was restored has
acknowledged more than it has. It sees that an announcement begins too late, and sends `Rewind`; the origin keeps the
numbers of acknowledged events as long as the events themselves, and announces them again.

**Live subscriptions** are on no disk and in no stream. Whether the overlay brings them what is published is checked by
samples that their origin sends straight, and where it does not, their origin sends everything straight for a while
(`spot_checks`).

Nothing in this package reads a clock, a socket or a disk. The caller passes messages and `now`, sends the messages
that it gets back, and persists what the docstrings name. `net.broker` drives it over TLS and SQLite; the simulation
tests drive it over links that lose, repeat and reorder.

Modules in reading order: `messages`, `durable_interest`, `log_cursor`, `outbox`, `inbox`; `spot_checks`;
`publish_rates`, how much is let in. A name is loaded when it is first used: a client needs the messages, and must not
wait for the matching kernels that `durable_interest` loads.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidings.delivery.durable_interest import (
        RENEW_S,
        BrokerInterests,
        DurableInterest,
        InterestDirectory,
        Shown,
        TypeNamed,
        matcher,
        may_match,
        read_advertisement,
    )
    from tidings.delivery.inbox import Deliveries, Inbox, KeyDeadlines
    from tidings.delivery.log_cursor import LogCursor, LogRead
    from tidings.delivery.messages import (
        DIRECT_EVENTS_MAX,
        WINDOW,
        Ack,
        Announce,
        DeliveryMessage,
        DirectEvents,
        DirectRequest,
        InterestAdvertisement,
        InterestVersions,
        Nack,
        Retransmit,
        Rewind,
    )
    from tidings.delivery.outbox import LogAncestor, Outbox, PendingEvent
    from tidings.delivery.publish_rates import PeerRates, PublishRates
    from tidings.delivery.spot_checks import (
        AGAIN_S,
        BACK_S,
        BACKLOG_MAX,
        BROKERS_CHECKED_MAX,
        CHECKED_MAX,
        Detours,
        HeldCheck,
        HeldChecks,
        RecentChecks,
        SpotSample,
        published_at,
    )

__all__ = [
    "AGAIN_S",
    "BACKLOG_MAX",
    "BACK_S",
    "BROKERS_CHECKED_MAX",
    "CHECKED_MAX",
    "DIRECT_EVENTS_MAX",
    "RENEW_S",
    "WINDOW",
    "Ack",
    "Announce",
    "BrokerInterests",
    "Deliveries",
    "DeliveryMessage",
    "Detours",
    "DirectEvents",
    "DirectRequest",
    "DurableInterest",
    "HeldCheck",
    "HeldChecks",
    "Inbox",
    "InterestAdvertisement",
    "InterestDirectory",
    "InterestVersions",
    "KeyDeadlines",
    "LogAncestor",
    "LogCursor",
    "LogRead",
    "Nack",
    "Outbox",
    "PeerRates",
    "PendingEvent",
    "PublishRates",
    "RecentChecks",
    "Retransmit",
    "Rewind",
    "Shown",
    "SpotSample",
    "TypeNamed",
    "matcher",
    "may_match",
    "published_at",
    "read_advertisement",
]

_HOMES = {
    "durable_interest": (
        "RENEW_S",
        "BrokerInterests",
        "DurableInterest",
        "InterestDirectory",
        "Shown",
        "TypeNamed",
        "matcher",
        "may_match",
        "read_advertisement",
    ),
    "inbox": ("Deliveries", "Inbox", "KeyDeadlines"),
    "log_cursor": ("LogCursor", "LogRead"),
    "messages": (
        "Ack",
        "Announce",
        "DIRECT_EVENTS_MAX",
        "DeliveryMessage",
        "DirectEvents",
        "DirectRequest",
        "InterestAdvertisement",
        "InterestVersions",
        "Nack",
        "Retransmit",
        "Rewind",
        "WINDOW",
    ),
    "outbox": ("LogAncestor", "Outbox", "PendingEvent"),
    "publish_rates": ("PeerRates", "PublishRates"),
    "spot_checks": (
        "BACKLOG_MAX",
        "BACK_S",
        "BROKERS_CHECKED_MAX",
        "CHECKED_MAX",
        "Detours",
        "HeldCheck",
        "AGAIN_S",
        "HeldChecks",
        "RecentChecks",
        "SpotSample",
        "published_at",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
