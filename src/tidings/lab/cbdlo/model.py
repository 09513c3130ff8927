"""The cost of an event by formula, for networks too large to simulate.

The formulas are the paper's, with two corrections: an event goes up the tree and then down, not only down, and n
intervals make up to 2 n + 1 partitions.
"""

from __future__ import annotations

from math import log2

import numpy as np

from tidings.lab.cbdlo.scene import EVENT_ATTRIBUTES, INDEXED, SUBSCRIPTION_ATTRIBUTES, Floats, chances

PUBLISHED = (68_605, 68, 408)
"""Messages, actual matches, possible matches: the one point that the paper prints."""


def effective_cost(messages: float, actual: float, possible: float) -> float:
    """The paper's measure: messages, over the share of the possible matches that came about.

    >>> effective_cost(*PUBLISHED)
    411630.0
    """
    return messages / (actual / possible)


def walk_success(table: int, attributes: int, hops: int) -> float:
    """The chance that one of so many different nodes knows the attribute.

    >>> round(walk_success(50, 243, 10), 3), round(walk_success(100, 486, 10), 3)
    (0.9, 0.9)
    """
    return 1 - (1 - min(1.0, table / attributes)) ** hops


def walk_length(known: float, hops: int) -> float:
    """How many nodes a walk looks at, if each knows the way with the chance `known`."""
    return (1 - (1 - known) ** hops) / known


def tree_steps(partitions: float) -> float:
    """Messages from a member to the owner of a random partition, with fingers, in a perfectly balanced tree.

    Everybody owns two partitions, and goes on from the nearer one. A step covers 1.6 levels on average (trees of 6 to
    18 levels).
    """
    return max(0.0, 0.625 * log2(partitions + 1) - 1.3)


def taking_part(attributes: int) -> Floats:
    """The chance that a subscription names each attribute, given that empty ones are drawn again."""
    wanted = chances(attributes, SUBSCRIPTION_ATTRIBUTES)
    return np.asarray(wanted / (1 - np.prod(1 - wanted)))


def filing(attributes: int) -> Floats:
    """The chance that a subscription is filed under each attribute: it names it, and at most one before it."""
    wanted = chances(attributes, SUBSCRIPTION_ATTRIBUTES)
    none, one, filed = 1.0, 0.0, []
    assert INDEXED == 2, "one before it"
    for chance in wanted:
        filed.append(chance * (none + one))
        none, one = none * (1 - chance), one * (1 - chance) + none * chance
    return np.asarray(np.array(filed) / (1 - np.prod(1 - wanted)))


def cbdlo_messages(nodes: float, subscriptions: float, attributes: int, table: int, hops: int, matches: float) -> float:
    """Messages of one event in the robust profile, tables balanced."""
    events, joined, filed = chances(attributes, EVENT_ATTRIBUTES), taking_part(attributes), filing(attributes)
    total, known = 0.0, _known(table, joined, subscriptions)
    for event, named, kept in zip(events, joined, filed, strict=True):
        alive = 1 - (1 - kept) ** subscriptions
        member = 1 - (1 - named) ** (subscriptions / nodes)
        tree = tree_steps(2 * kept * subscriptions + 1)
        total += event * alive * (_two_walkers(known, member, hops) + tree)
    return float(total + matches)  # Of those that match nearly all name one attribute, and are told once.


def _known(table: int, joined: Floats, subscriptions: float) -> float:
    """The chance that a table knows an attribute: it holds only those that have a subscriber."""
    return min(1.0, table / float((1 - (1 - joined) ** subscriptions).sum()))


def _two_walkers(known: float, member: float, hops: int) -> float:
    """Messages until a robust publisher has found a topology: its own table first, then one walk, or two.

    A walk that ends at a table takes one message more, to the access point; one that ends at its first hop stays alone.
    """
    hit = known + member - known * member
    found = 1 - (1 - hit) ** hops
    walk = walk_length(hit, hops) + found * (hit - member) / hit
    return (hit - member) + (1 - hit) * (walk + (1 - hit) * walk)


def tera_messages(nodes: float, subscriptions: float, attributes: int, table: int, hops: int, view: int) -> float:
    """Messages of one event in TERA: a walk and a flood for each of its attributes."""
    events, joined = chances(attributes, EVENT_ATTRIBUTES), taking_part(attributes)
    total, known = 0.0, _known(table, joined, subscriptions)
    for event, named in zip(events, joined, strict=True):
        members = nodes * (1 - (1 - named) ** (subscriptions / nodes))
        hit = known + (1 - known) * members / nodes
        reached = 1 - (1 - hit) ** hops
        total += event * (walk_length(hit, hops) + reached * members * min(view, max(0.0, members - 1)))
    return float(total)
