"""IRBR on networks that are no prefix rings: the buckets of Kademlia and the fingers of Chord, as a model of ranges.

IRBR rests on two properties of ranges. *Any node of a range may stand for it*: what it then hands on is the whole rest
of the range, and nothing else. And *covers hold for everybody outside*: two nodes of one range are in one range for
every node outside it, so who knows the one enters the same range as who knows the other.

    prefix cells       a node sees the ids that share r digits with it and differ in the next; both hold
    Kademlia buckets   the same with binary digits, as ids are compared by XOR; both hold
    Chord fingers      a node sees the ids from 2^i to 2^(i+1) beyond its own; ranges differ from node to node

On Chord a node in the middle of a range has that part of it behind itself which lies before it, and can hand on only
what comes after. Entered at the first interested node of a range nothing lies before, so that delivery is exact; but
who that is must be known, so nothing may be covered.

The model has no messages and no repair: tables are perfect, some nodes fail at once, and a node uses the first live
one of three that it knows for a range, as a Pastry table has them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random

from tidings.lab.experiment import Claim, Experiment, Measured, Parameters, PlotAxis, numbers
from tidings.lab.parameter_checks import expect_at_least, expect_one_of, expect_rates
from tidings.lab.results import Finding, Results, judged

PREFIX, KADEMLIA = "cells of a prefix network", "buckets of Kademlia"
CHORD, CHORD_FIRST = "fingers of Chord, any node", "fingers of Chord, first interested node"
NETWORKS = (PREFIX, KADEMLIA, CHORD, CHORD_FIRST)

BITS = 32
SIZE = 1 << BITS
DIGIT_BITS = {PREFIX: 4, KADEMLIA: 1}
KNOWN = 3  # Nodes that one knows of a range.

Range = tuple[int, int]
"""From an id, included, to another, not included; on a circle, so the second may be the smaller."""


class Circle:
    """Ids in order, and which of them lie in a range."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = sorted(ids)

    def within(self, span: Range) -> list[int]:
        """The ids of a range, in its order."""
        low, high = (bisect_left(self.ids, end % SIZE) for end in span)
        if span[1] - span[0] <= 0 or span[1] % SIZE <= span[0] % SIZE:
            return [] if span[0] == span[1] else [*self.ids[low:], *self.ids[:high]]
        return self.ids[low:high]


def ranges(network: str, node: int, rest: Range) -> Iterator[tuple[Range, Range]]:
    """The ranges in which a node sees the others of the part that it answers for, and what each then answers for."""
    if network in DIGIT_BITS:
        yield from _cells(DIGIT_BITS[network], node, rest)
    else:
        yield from _fingers(node, rest)


def _cells(digit_bits: int, node: int, rest: Range) -> Iterator[tuple[Range, Range]]:
    width = rest[1] - rest[0]
    while width > 1:
        start, width = node // width * width, width >> digit_bits
        for digit in range(1 << digit_bits):
            low = start + digit * width
            if not low <= node < low + width:
                yield (low, low + width), (low, low + width)


def _fingers(node: int, rest: Range) -> Iterator[tuple[Range, Range]]:
    """Nothing is seen of what lies before the node: on a circle it is as far away as can be."""
    ahead = (rest[1] - node) % SIZE or SIZE
    for power in range(BITS):
        low, high = 1 << power, min(2 << power, ahead)
        if low < high:
            span = node + low, node + high
            yield span, span


def reached(network: str, everybody: Circle, interested: Circle, failed: frozenset[int], rng: Random) -> set[int]:
    """The nodes that an event of a random live publisher reaches."""
    publisher = rng.choice([id for id in everybody.ids if id not in failed])
    got, waiting = {publisher}, [(publisher, (0, SIZE) if network in DIGIT_BITS else (publisher, publisher + SIZE))]
    while waiting:
        node, rest = waiting.pop()
        for seen, answers_for in ranges(network, node, rest):
            wanting = interested.within(seen)
            if not wanting:
                continue
            if network == CHORD_FIRST:
                known = wanting
            else:
                there = everybody.within(seen)
                known = rng.sample(there, min(KNOWN, len(there)))
            entry = next((id for id in known if id not in failed), None)
            if entry is not None and entry not in got:
                got.add(entry)
                waiting.append((entry, answers_for))
    return got


def measure_reach(parameters: Parameters, seed: int) -> list[Measured]:
    """The share of live interested nodes that an event does not reach, in percent, by the share that has failed."""
    rng, network = Random(f"networks/{seed}"), str(parameters["network"])
    ids = rng.sample(range(SIZE), parameters["node_count"])
    everybody, interested = Circle(ids), Circle(rng.sample(ids, parameters["interested"]))
    measured = []
    for percent in numbers(parameters, "failed_percent"):
        for _ in range(parameters["events"]):
            failed = frozenset(rng.sample(ids, round(len(ids) * percent / 100)))
            live = [id for id in interested.ids if id not in failed]
            got = reached(network, everybody, interested, failed, rng)
            measured.append(Measured(network, percent, 100 * sum(id not in got for id in live) / max(1, len(live))))
    return measured


def measure_covers(parameters: Parameters, seed: int) -> list[Measured]:
    """The share of publishers for whom a cover does not hold, in percent, by the number of nodes.

    A node wants the same as the nearest node that it sees in a small range, and relies on it: it is not announced
    outside that range. The cover holds for a publisher there if it sees both in one range.
    """
    network, measured = str(parameters["network"]), []
    for count in map(int, numbers(parameters, "node_count")):
        rng = Random(f"covers/{seed}/{count}")
        everybody = Circle(rng.sample(range(SIZE), count))
        missed = pairs = 0
        for node in rng.sample(everybody.ids, min(count, parameters["covered"])):
            cover, shared = _nearest(network, node, everybody)
            outside = set(everybody.ids) - set(everybody.within(shared)) - {node}
            pairs += len(outside)
            missed += sum(not _are_in_one_range(network, id, node, cover) for id in outside)
        measured.append(Measured(network, count, 100 * missed / max(1, pairs)))
    return measured


def _nearest(network: str, node: int, everybody: Circle) -> tuple[int, Range]:
    """The first node in the smallest range that is not empty, and the range around both."""
    rest = (0, SIZE) if network in DIGIT_BITS else (node, node + SIZE)
    smallest = min(
        (seen for seen, _ in ranges(network, node, rest) if everybody.within(seen)), key=lambda span: span[1] - span[0]
    )
    width = (smallest[1] - smallest[0]) << DIGIT_BITS.get(network, 0)
    around = (node // width * width, (node // width + 1) * width) if network in DIGIT_BITS else (node, smallest[1])
    return everybody.within(smallest)[0], around


def _are_in_one_range(network: str, publisher: int, one: int, other: int) -> bool:
    if network in DIGIT_BITS:
        digits = [(publisher ^ id).bit_length() + DIGIT_BITS[network] - 1 for id in (one, other)]
        rows = [bits // DIGIT_BITS[network] for bits in digits]
        width = (rows[0] - 1) * DIGIT_BITS[network]
        return rows[0] == rows[1] and one >> width == other >> width
    return ((one - publisher) % SIZE).bit_length() == ((other - publisher) % SIZE).bit_length()


def _check(parameters: Parameters) -> None:
    expect_one_of(NETWORKS, parameters, "network")
    expect_at_least(1, parameters, "events", "covered", "interested")
    expect_rates(parameters, "failed_percent")
    least = parameters.get("interested", 2)
    for count in map(int, numbers(parameters, "node_count")):
        expect_at_least(max(2, least), {"node_count": count}, "node_count")


# ── What is said of it ─────────────────────────────────────────────────────────


def _holds_for(*networks: str, at_most: float, why: str) -> partial[Finding]:
    def judge(results: Results, bound: float, because: str) -> Finding:
        worst = {network: max(results.mean(network, x) for x in results.xs(network)) for network in networks}
        shown = "; ".join(f"{network}: at most {value:.2f} %" for network, value in worst.items())
        return Finding(shown, judged(max(worst.values()), holds=lambda share: share <= bound), because)

    return partial(judge, bound=at_most, because=why)


def _does_not_hold_on_chord(results: Results) -> Finding:
    shown = ", ".join(f"{x:g}: {results.mean(CHORD, x):.1f} %" for x in results.xs(CHORD))
    why = "a node in the middle of a range cannot hand on what lies before it"
    least = min(results.mean(CHORD, x) for x in results.xs(CHORD))
    return Finding(shown, judged(least, holds=lambda share: share == 0), why)


def _covers_fail_on_chord(results: Results) -> Finding:
    shown = ", ".join(f"{x:g}: {results.mean(CHORD, x):.2f} %" for x in results.xs(CHORD))
    why = "two neighbours are in different ranges for every node to which a border of ranges lies between them"
    worst = max(results.mean(CHORD, x) for x in results.xs(CHORD))
    return Finding(shown, judged(worst, holds=lambda share: share == 0), why)


_CONDITIONS = "a model without messages: tables are perfect, nodes fail at once, nobody searches; three known nodes for each range"
_OURS = partial(Experiment, paper="irbr", check=_check, conditions=_CONDITIONS)

EXPERIMENTS = (
    _OURS(
        figure="other-networks",
        title="IRBR's ranges on other networks: events lost when nodes fail (1000 nodes, a model)",
        measure=measure_reach,
        x=PlotAxis("nodes failed at once (%)"),
        y=PlotAxis("live interested nodes not reached (%)"),
        varies={"network": NETWORKS, "failed_percent": ("0 0.5 1 2 5 10",)},
        stays={"node_count": 1000, "interested": 100, "events": 50},
        seeds=10,
        quick_varies={"failed_percent": ("0 10",)},
        quick_seeds=1,
        cost=lambda parameters: 3.0,
        claims=(
            Claim(
                "beyond the paper: any node stands for a bucket of Kademlia, as for a cell of a prefix network",
                "≤ 0.28 %, as in the paper",
                _holds_for(PREFIX, KADEMLIA, at_most=0.28, why="both are ranges of ids that share a prefix"),
            ),
            Claim("beyond the paper: any node stands for a range of Chord", "0 %", _does_not_hold_on_chord),
            Claim(
                "beyond the paper: on Chord the first interested node of a range reaches all others",
                "0 %",
                _holds_for(
                    CHORD_FIRST, at_most=0.0, why="nothing of the range lies before it; so nothing may be covered"
                ),
            ),
        ),
    ),
    _OURS(
        figure="other-covers",
        title="IRBR's covers on other networks: publishers for whom one does not hold (a model)",
        measure=measure_covers,
        x=PlotAxis("nodes", log=True),
        y=PlotAxis("publishers outside that would miss the covered node (%)"),
        varies={"network": (PREFIX, KADEMLIA, CHORD), "node_count": ("10 30 100 300 1000",)},
        stays={"covered": 50},
        seeds=10,
        quick_varies={"node_count": ("10 100 1000",)},
        quick_seeds=1,
        cost=lambda parameters: 3.0,
        claims=(
            Claim(
                "beyond the paper: covers hold in Kademlia, as in a prefix network",
                "0 %",
                _holds_for(
                    PREFIX, KADEMLIA, at_most=0.0, why="nodes that share a prefix are in one range for all others"
                ),
            ),
            Claim("beyond the paper: covers hold on Chord", "0 %", _covers_fail_on_chord),
        ),
    ),
)
