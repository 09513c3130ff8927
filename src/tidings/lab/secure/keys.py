"""Encryption-enforced access control, measured: what group keys cost.

How many entries a change of a group broadcasts, how many keys a member stores, and how many
refreshes one-day credentials save over a month. The paper states logarithmic growth and shows by
an example that lazy refresh saves messages; the numbers are ours.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from tidings.errors import InputError
from tidings.lab.experiment import Claim, Experiment, Measured, Parameters, PlotAxis, numbers
from tidings.lab.parameter_checks import expect_at_least
from tidings.lab.results import Finding, Results, judged
from tidings.security import MEMBERS, TREES, GroupPolicy, KeyGroup, SealingKey

DAY_MS = 86_400_000

_GID = bytes(32)
_KEX = SealingKey(bytes(range(1, 33))).public_key  # The sealing key of all members of simulated months.

OFT, LKH = "oft", "lkh"
LEAVES = {OFT: "OFT, entries per leave", LKH: "LKH, entries per leave"}
JOINS = {OFT: "OFT, entries per join", LKH: "LKH, entries per join"}
STORED = {OFT: "OFT, keys stored", LKH: "LKH, keys stored"}


def measure_trees(parameters: Parameters, seed: int) -> list[Measured]:
    """Entries that one leave and one join broadcast in a full tree of n members, and the keys a member stores."""
    rng = random.Random(seed)
    return [
        measured
        for count in map(int, numbers(parameters, "members"))
        for kind in (OFT, LKH)
        for measured in _tree(kind, count, parameters["changes"], rng)
    ]


def _tree(kind: str, count: int, changes: int, rng: random.Random) -> list[Measured]:
    tree, kex = TREES[kind](_GID, rng.randbytes), SealingKey.make(rng.randbytes)
    people = [number.to_bytes(32, "big") for number in range(count)]
    tree.batch([(person, kex.public_key) for person in people])
    left, joined = [], []
    for number in range(changes):
        gone, new = people.pop(rng.randrange(count)), (count + number).to_bytes(32, "big")
        left.append(len(tree.leave(gone).entries))
        joined.append(len(tree.join(new, kex.public_key).entries))
        people.append(new)
    member = MEMBERS[kind](_GID, people[0], kex)
    member.resync(tree.resync(people[0]), tree.version)
    return [
        Measured(LEAVES[kind], count, fmean(left)),
        Measured(JOINS[kind], count, fmean(joined)),
        Measured(STORED[kind], count, member.key_count),
    ]


@dataclass
class Month:
    """Joins and leaves of one group over some days; every joiner has a credential for whole days."""

    rng: random.Random
    days: int
    members: int
    lazy: bool
    names: int = 0
    group: KeyGroup = field(init=False)

    def play(self) -> int:
        """How often joins, leaves and expiries changed the group's key; the periodic refresh is left out."""
        policy = GroupPolicy(period_ms=400 * DAY_MS, grace_ms=5_000, max_lazy_ms=DAY_MS, lazy=self.lazy)
        self.group = KeyGroup(_GID, policy, self.rng.randbytes, 0)
        steps = sorted(step for day in range(self.days) for step in self._day(day))
        for at_ms, name, valid_to, comes in steps:
            self._until(at_ms)
            if comes:
                self.group.join(name, _KEX, valid_from=valid_to - DAY_MS, valid_to=valid_to, now_ms=at_ms)
            elif name in self.group.members:
                self.group.leave(name, at_ms)
        self._until(self.days * DAY_MS + 1)
        return self.group.refreshes

    def _day(self, day: int) -> list[tuple[int, bytes, int, bool]]:
        """Every member joins once and leaves once, within one day."""
        start, steps = day * DAY_MS, []
        for _ in range(self.members):
            self.names += 1
            comes, goes = sorted(self.rng.sample(range(1_000, DAY_MS - 1_000), 2))
            name = self.names.to_bytes(32, "big")
            steps += [(start + comes, name, start + DAY_MS, True), (start + goes, name, start + DAY_MS, False)]
        return steps

    def _until(self, now_ms: int) -> None:
        while self.group.next_tick_ms <= now_ms:
            self.group.tick(self.group.next_tick_ms)


LAZY, CLASSIC = "lazy", "classic"


def measure_month(parameters: Parameters, seed: int) -> list[Measured]:
    """Refreshes in so many days, for groups of several sizes, lazily and as the classic scheme has it."""
    return [
        Measured(name, members, Month(random.Random(seed), parameters["days"], int(members), name == LAZY).play())
        for members in numbers(parameters, "members")
        for name in (LAZY, CLASSIC)
    ]


# ── What is claimed ──────────────────────────────────────────────────────────


def _slope(series: str, wanted: float) -> Callable[[Results], Finding]:
    def judge(results: Results) -> Finding:
        places = [count for count in results.xs(series) if count >= 4]
        heights = [math.log2(count) for count in places]
        entries = [results.mean(series, count) for count in places]
        slope = _fitted(heights, entries)
        return Finding(f"{slope:.2f}", judged(abs(slope - wanted), holds=lambda off: off <= 0.1), "entries over log2 n")

    return judge


def _fitted(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The slope of the straight line through these points, by least squares."""
    mid_x, mid_y = fmean(xs), fmean(ys)
    return sum((x - mid_x) * (y - mid_y) for x, y in zip(xs, ys, strict=True)) / sum((x - mid_x) ** 2 for x in xs)


def _storage(results: Results) -> Finding:
    over = max(
        max(results.ys(STORED[kind], count)) - math.ceil(math.log2(count))
        for kind in (OFT, LKH)
        for count in results.xs(STORED[kind])
    )
    return Finding(
        f"at most ⌈log2 n⌉ + {over:g}", judged(over, holds=lambda more: more <= 2), "the shallowest leaf is split"
    )


def _saved(results: Results) -> Finding:
    places = results.xs(LAZY)
    shown = ", ".join(f"{results.mean(CLASSIC, n):.0f} → {results.mean(LAZY, n):.0f} with {n:g} a day" for n in places)
    least = min(results.mean(CLASSIC, n) / results.mean(LAZY, n) for n in places)
    why = "refreshes at the ends of credentials instead of at every coming and going"
    return Finding(shown, judged(least, holds=lambda ratio: ratio > 1), why)


def _at_expiry_only(results: Results) -> Finding:
    """Everybody's credential of a day ends at the same instant: one refresh a day, or less where nobody is left."""
    most = max(results.mean(LAZY, n) for n in results.xs(LAZY))
    return Finding(f"at most {most:.0f}", judged(most, holds=lambda count: count <= 31), "one instant a day")


def check_trees(parameters: Parameters) -> None:
    if not all(2 <= count <= 65_536 for count in numbers(parameters, "members")):
        raise InputError(f"expected members from 2 to 65536, got {parameters['members']}")
    expect_at_least(1, parameters, "changes")


def check_month(parameters: Parameters) -> None:
    if parameters["days"] < 1 or not all(1 <= count <= 10_000 for count in numbers(parameters, "members")):
        raise InputError("expected at least 1 day, and 1 to 10000 members a day")


EXPERIMENTS = (
    Experiment(
        paper="secure",
        figure="trees",
        conditions="counted, not timed: a random member leaves or a new one joins a tree of so many, one at a time",
        title="Key trees: entries that a change broadcasts, and keys that a member stores",
        measure=measure_trees,
        x=PlotAxis("members", log=True),
        y=PlotAxis("entries, or keys"),
        varies={"members": ("2 4 8 16 32 64 128 256 512 1024 2048 4096",)},
        stays={"changes": 16},
        seeds=3,
        quick_varies={"members": ("2 4 16 64 256",)},
        quick_seeds=1,
        check=check_trees,
        claims=(
            Claim("OFT: entries per leave grow with log2 n", "slope 1 ± 0.1", _slope(LEAVES[OFT], 1.0)),
            Claim("OFT: entries per join grow with log2 n", "slope 1 ± 0.1", _slope(JOINS[OFT], 1.0)),
            Claim("LKH: entries per leave grow with log2 n", "slope 2 ± 0.1", _slope(LEAVES[LKH], 2.0)),
            Claim("a member stores a path", "≤ ⌈log2 n⌉ + 2 keys", _storage),
        ),
    ),
    Experiment(
        paper="secure",
        figure="refreshes",
        conditions="counted, not timed: each day so many members come, at random, each with a credential that ends at midnight",
        title="Lazy and classic refresh: 30 days, credentials of a day",
        measure=measure_month,
        x=PlotAxis("members a day", log=True),
        y=PlotAxis("refreshes in 30 days", log=True),
        varies={"members": ("1 3 10 30",)},
        stays={"days": 30},
        seeds=3,
        quick_varies={"members": ("1 5",)},
        quick_seeds=1,
        check=check_month,
        claims=(
            Claim("credentials that are valid anyway save refreshes", "fewer than at every join and leave", _saved),
            Claim(
                "lazily, the key changes when credentials end", "once a day at most, and at the end", _at_expiry_only
            ),
        ),
    ),
)
