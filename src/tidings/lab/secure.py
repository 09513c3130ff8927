"""Encryption-enforced access control, measured: what sealing costs, and what keys cost to keep.

Figure 6: two brokers, one publisher, one subscriber without a condition. The time covers what the
first broker does to publish (check against the type, seal), what the second does to deliver (look for
replays, open, project), and the frame between them. Figure 7: both brokers have the same rights, events
are sealed beforehand and their plaintext travels along, so that nobody decrypts anything.

Section 6.4, which is ours: how many entries a change of the group broadcasts, how many keys a member
stores, and how many refreshes credentials of a day save over a month.

Speeds are of processor time, and modes take turns in short rounds of which the median counts: what else
a machine does weighs on all of them. Rates depend on the machine; claims are about ratios.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from tidings.errors import InputError
from tidings.events import EventType, Value
from tidings.lab.experiment import Axis, Claim, Experiment, Measured, Parameters, numbers
from tidings.lab.results import Finding, Results, judged
from tidings.security import (
    DELAY_MS,
    MEMBERS,
    TREES,
    Cipher,
    GroupPolicy,
    Identity,
    KeyGroup,
    Keyring,
    Mode,
    Opener,
    ReplayWindow,
    Sealer,
    SealingKey,
    SignedType,
    cached,
    project,
    split,
)

NONE, EVENT, ATTRIBUTE = "no encryption", "event encryption", "attribute encryption"
MODES = {NONE: Mode.PLAIN, EVENT: Mode.EVENT, ATTRIBUTE: Mode.ATTRIBUTE}
ENCRYPTIONS = {mode: f"encryptions, {mode}" for mode in (EVENT, ATTRIBUTE)}
DECRYPTIONS = {mode: f"decryptions, {mode}" for mode in (EVENT, ATTRIBUTE)}
CHARACTERS = 30
NOW_MS = 1_763_247_840_000
DAY_MS = 86_400_000

_GID = bytes(32)
_KEX = SealingKey(bytes(range(1, 33))).public_key  # Where members of made-up months have their keys sent.


@dataclass
class Counted:
    """A cipher that counts."""

    inner: Cipher
    encrypted: int = 0
    decrypted: int = 0

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes, /) -> bytes:
        self.encrypted += 1
        return self.inner.encrypt(nonce, data, associated_data)

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes, /) -> bytes:
        self.decrypted += 1
        return self.inner.decrypt(nonce, data, associated_data)


class TwoBrokers:
    """A publisher's broker and a subscriber's, with the same keys."""

    def __init__(self, mode: Mode, width: int, chance: random.Random, *, is_counted: bool = False) -> None:
        owner = Identity.make(chance.randbytes)
        names = [f"a{index:02}" for index in range(width)]
        self.type = SignedType.make(owner, EventType("Wide", dict.fromkeys(names, str)), mode=mode, grace_ms=60_000)
        keyring = Keyring(self.type)
        self.counted: list[Counted] = []
        for gid in self.type.group_ids:
            keyring.add(gid, 1, NOW_MS, chance.randbytes(32))
            if is_counted:
                keyring.epochs(gid)[0].watch(self._count)
        self.sealer = Sealer(self.type, keyring, 1)
        self.opener = Opener(self.type, keyring, replay=ReplayWindow(grace_ms=60_000, delay_ms=DELAY_MS))
        self.delivered = 0

    def _count(self, cipher: Cipher) -> Counted:
        self.counted.append(Counted(cipher))
        return self.counted[-1]

    def publish(self, record: dict[str, Value]) -> None:
        """From the publisher's hand to the subscriber's."""
        frame = self.sealer.seal(self.type.event_type.check(record), NOW_MS)
        event = self.opener.open_(frame, NOW_MS)
        self.delivered += len(project(self.type, event.values, None))

    def forward(self, frame: bytes) -> None:
        """From one broker to the other: the first passes it on as it is, the second believes what came along."""
        event = self.opener.open_(frame, NOW_MS, cache="trust")
        self.delivered += len(project(self.type, event.values, None))

    def with_cache(self, record: dict[str, Value]) -> bytes:
        """The frame of an event, its whole plaintext beside it."""
        frame = split(self.sealer.seal(record, NOW_MS))
        return cached(self.type, frame, record, None) if self.type.mode is not Mode.PLAIN else frame.raw


def measure_publishing(parameters: Parameters, seed: int) -> list[Measured]:
    """Messages per second of processor time in each mode, and AEAD operations per message."""
    chance = random.Random(seed)
    found = []
    for width in map(int, numbers(parameters, "attributes")):
        records = _records(width, chance)
        brokers = {name: TwoBrokers(mode, width, chance) for name, mode in MODES.items()}
        work = {name: _publishing(pair, records) for name, pair in brokers.items()}
        found += _speeds(work, width, parameters["events"], parameters["rounds"])
        found += _operations(width, chance, records)
    return found


def measure_forwarding(parameters: Parameters, seed: int) -> list[Measured]:
    """Messages per second of processor time where plaintext travels along, and how often a cipher was used."""
    chance = random.Random(seed)
    found = []
    for width in map(int, numbers(parameters, "attributes")):
        records = _records(width, chance)
        share = parameters["events"] // parameters["rounds"]
        work = {}
        for name, mode in MODES.items():
            pair = TwoBrokers(mode, width, chance)
            work[name] = _forwarding(pair, [records[at % len(records)] for at in range(share * parameters["rounds"])])
        found += _speeds(work, width, parameters["events"], parameters["rounds"])
        found += [Measured("AEAD operations", width, _operations_when_forwarded(width, chance, records))]
    return found


def _records(width: int, chance: random.Random) -> list[dict[str, Value]]:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return [
        {f"a{index:02}": "".join(chance.choices(letters, k=CHARACTERS)) for index in range(width)} for _ in range(64)
    ]


Round = Callable[[int], float]
"""So many events, in seconds of processor time."""


def _publishing(pair: TwoBrokers, records: Sequence[dict[str, Value]]) -> Round:
    def round_(events: int) -> float:
        began = time.process_time()
        for at in range(events):
            pair.publish(records[at & 63])
        return time.process_time() - began

    return round_


def _forwarding(pair: TwoBrokers, records: Sequence[dict[str, Value]]) -> Round:
    frames = iter([pair.with_cache(record) for record in records])

    def round_(events: int) -> float:
        batch = [next(frames) for _ in range(events)]
        began = time.process_time()
        for frame in batch:
            pair.forward(frame)
        return time.process_time() - began

    return round_


def _speeds(work: dict[str, Round], width: int, events: int, rounds: int) -> list[Measured]:
    share = events // rounds
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, round_ in work.items():
            seconds[name].append(round_(share))
    return [Measured(name, width, share / median(taken)) for name, taken in seconds.items()]


def _operations(width: int, chance: random.Random, records: Sequence[dict[str, Value]]) -> list[Measured]:
    """Per message, counted on brokers of their own: a counter would slow the others down."""
    found = []
    for name in (EVENT, ATTRIBUTE):
        pair = TwoBrokers(MODES[name], width, chance, is_counted=True)
        for record in records:
            pair.publish(record)
        encrypted, decrypted = (sum(getattr(c, of) for c in pair.counted) for of in ("encrypted", "decrypted"))
        found.append(Measured(ENCRYPTIONS[name], width, encrypted / len(records)))
        found.append(Measured(DECRYPTIONS[name], width, decrypted / len(records)))
    return found


def _operations_when_forwarded(width: int, chance: random.Random, records: Sequence[dict[str, Value]]) -> int:
    used = 0
    for name in (EVENT, ATTRIBUTE):
        pair = TwoBrokers(MODES[name], width, chance, is_counted=True)
        frames = [pair.with_cache(record) for record in records]
        before = sum(counter.encrypted + counter.decrypted for counter in pair.counted)
        for frame in frames:
            pair.forward(frame)
        used += sum(counter.encrypted + counter.decrypted for counter in pair.counted) - before
    return used


# ── Keys ──────────────────────────────────────────────────────────────────────

OFT, LKH = "oft", "lkh"
LEAVES = {OFT: "OFT, entries per leave", LKH: "LKH, entries per leave"}
JOINS = {OFT: "OFT, entries per join", LKH: "LKH, entries per join"}
STORED = {OFT: "OFT, keys stored", LKH: "LKH, keys stored"}


def measure_trees(parameters: Parameters, seed: int) -> list[Measured]:
    """Entries that one leave and one join broadcast in a full tree of n members, and the keys a member stores."""
    chance = random.Random(seed)
    return [
        measured
        for count in map(int, numbers(parameters, "members"))
        for kind in (OFT, LKH)
        for measured in _tree(kind, count, parameters["changes"], chance)
    ]


def _tree(kind: str, count: int, changes: int, chance: random.Random) -> list[Measured]:
    tree, kex = TREES[kind](_GID, chance.randbytes), SealingKey.make(chance.randbytes)
    people = [number.to_bytes(32, "big") for number in range(count)]
    tree.batch([(person, kex.public_key) for person in people])
    left, joined = [], []
    for number in range(changes):
        gone, new = people.pop(chance.randrange(count)), (count + number).to_bytes(32, "big")
        left.append(len(tree.leave(gone).entries))
        joined.append(len(tree.join(new, kex.public_key).entries))
        people.append(new)
    member = MEMBERS[kind](_GID, people[0], kex)
    member.resync(tree.resync(people[0]), tree.version)
    return [
        Measured(LEAVES[kind], count, fmean(left)),
        Measured(JOINS[kind], count, fmean(joined)),
        Measured(STORED[kind], count, member.held),
    ]


@dataclass
class Month:
    """Joins and leaves of one group over some days: who comes has a credential for whole days."""

    chance: random.Random
    days: int
    members: int
    lazy: bool
    names: int = 0
    group: KeyGroup = field(init=False)

    def play(self) -> int:
        """How often the group's key was changed because of somebody, the daily timer left aside."""
        policy = GroupPolicy(period_ms=400 * DAY_MS, grace_ms=5_000, max_lazy_ms=DAY_MS, lazy=self.lazy)
        self.group = KeyGroup(_GID, policy, self.chance.randbytes, 0)
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
        """Everybody comes once and goes once, within one day."""
        start, steps = day * DAY_MS, []
        for _ in range(self.members):
            self.names += 1
            comes, goes = sorted(self.chance.sample(range(1_000, DAY_MS - 1_000), 2))
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


# ── What the paper says, and what is said beyond it ────────────────────────────

_SLACK = 1.1  # Ratios of speeds are not to a tenth the same from run to run.


def _ratio(results: Results, mode: str, width: float) -> float:
    return results.mean(mode, width) / results.mean(NONE, width)


def _keeps(mode: str, width: float, paper: float | None, target: float) -> Callable[[Results], Finding]:
    def judge(results: Results) -> Finding:
        ratio = _ratio(results, mode, width)
        least = target if paper is None else paper
        verdict = judged(ratio, holds=lambda r: r >= least, better=lambda r: paper is not None and r >= target)
        why = "the cipher object and the associated data are made once; AES-GCM runs in hardware"
        return Finding(f"{ratio:.1%} of plaintext", verdict, why)

    return judge


def _plain_is_fastest(results: Results) -> Finding:
    worst = max(_ratio(results, mode, width) for mode in (EVENT, ATTRIBUTE) for width in results.xs(NONE))
    return Finding(f"at most {worst:.1%} of plaintext", judged(worst, holds=lambda r: r < 1), "sealing is never free")


def _event_beats_attribute(results: Results) -> Finding:
    places = [width for width in results.xs(NONE) if width >= 4]
    least = min(results.mean(EVENT, width) / results.mean(ATTRIBUTE, width) for width in places)
    return Finding(
        f"at least {least:.2f} times", judged(least, holds=lambda r: r > 1), "one operation instead of one each"
    )


def _ratio_falls(results: Results) -> Finding:
    few, some, many = (_ratio(results, ATTRIBUTE, width) for width in (1.0, 10.0, 25.0))
    falls = few * _SLACK >= some and some * _SLACK >= many
    shown = f"{few:.1%}, {some:.1%}, {many:.1%} at 1, 10, 25 attributes"
    return Finding(shown, judged(falls, holds=bool), "what an event costs besides is shared by more operations")


def _operations_are_exact(results: Results) -> Finding:
    wrong = [
        (series, width)
        for mode, each in ((EVENT, lambda _: 1.0), (ATTRIBUTE, lambda width: width))
        for series in (ENCRYPTIONS[mode], DECRYPTIONS[mode])
        for width in results.xs(series)
        if set(results.ys(series, width)) != {each(width)}
    ]
    shown = "1 + 1 by event, A + A by attribute" if not wrong else f"otherwise: {wrong[:3]}"
    return Finding(shown, judged(not wrong, holds=bool), "counted")


def _added_time(results: Results) -> Finding:
    """Microseconds that an attribute adds, sealed, opened and framed, over the widths from 4 on."""
    added = [
        (1e6 / results.mean(ATTRIBUTE, width) - 1e6 / results.mean(NONE, width)) / width
        for width in results.xs(NONE)
        if width >= 4
    ]
    return Finding(f"{median(added):.2f} µs", judged(median(added), holds=lambda us: us <= 4), "processor time")


def _loses(mode: str, width: float, paper: float, soft: float) -> Callable[[Results], Finding]:
    def judge(results: Results) -> Finding:
        loss = 1 - _ratio(results, mode, width)
        verdict = judged(loss, holds=lambda share: share <= paper)
        why = "the second copy is passed over, not read"
        if loss > paper:
            why = f"{'within' if loss <= soft else 'beyond'} the {soft:.0%} set for Python: stepping over the sealed part costs"
        return Finding(f"{loss:.1%}", verdict, why)

    return judge


def _curves_coincide(results: Results) -> Finding:
    apart = median(abs(1 - results.mean(EVENT, w) / results.mean(ATTRIBUTE, w)) for w in results.xs(NONE))
    return Finding(f"{apart:.1%} apart (median)", judged(apart, holds=lambda a: a <= 0.05), "neither is opened")


def _nothing_is_decrypted(results: Results) -> Finding:
    used = sum(results.ys("AEAD operations"))
    return Finding(f"{used:g} operations", judged(used, holds=lambda count: count == 0), "counted")


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


# ── The experiments ────────────────────────────────────────────────────────────


def check_speed(parameters: Parameters) -> None:
    if parameters["rounds"] < 1 or parameters["events"] < parameters["rounds"]:
        raise InputError(f"expected events of at least rounds, got {parameters['events']} and {parameters['rounds']}")
    if not all(1 <= width <= 1000 for width in numbers(parameters, "attributes")):
        raise InputError(f"expected attributes from 1 to 1000, got {parameters['attributes']}")


def check_trees(parameters: Parameters) -> None:
    if not all(2 <= count <= 65_536 for count in numbers(parameters, "members")):
        raise InputError(f"expected members from 2 to 65536, got {parameters['members']}")
    if parameters["changes"] < 1:
        raise InputError(f"expected changes of at least 1, got {parameters['changes']}")


def check_month(parameters: Parameters) -> None:
    if parameters["days"] < 1 or not all(1 <= count <= 10_000 for count in numbers(parameters, "members")):
        raise InputError("expected at least 1 day, and 1 to 10000 members a day")


EXPERIMENTS = (
    Experiment(
        paper="secure",
        figure="6",
        title="Encryption between two brokers, figure 6: messages a second (processor time)",
        measure=measure_publishing,
        x=Axis("attributes of 30 characters"),
        y=Axis("messages a second; operations a message", log=True),
        varies={"attributes": ("1 2 4 7 10 15 20 25",)},
        stays={"events": 10_000, "rounds": 20},
        seeds=5,
        quick_varies={"attributes": ("1 4 10 25",)},
        quick_seeds=2,
        check=check_speed,
        claims=(
            Claim(
                "attribute encryption, 1 attribute",
                "46 % of plaintext; here ≥ 55 %",
                _keeps(ATTRIBUTE, 1.0, 0.46, 0.55),
            ),
            Claim(
                "attribute encryption, 10 attributes",
                "11.7 % of plaintext; here ≥ 35 %",
                _keeps(ATTRIBUTE, 10.0, 0.117, 0.35),
            ),
            Claim("attribute encryption, 25 attributes", "≥ 33 % of plaintext", _keeps(ATTRIBUTE, 25.0, None, 0.33)),
            Claim("event encryption, 10 attributes", "≥ 75 % of plaintext", _keeps(EVENT, 10.0, None, 0.75)),
            Claim("no encryption is fastest", "at every number of attributes", _plain_is_fastest),
            Claim("by event is faster than by attribute", "from 4 attributes on", _event_beats_attribute),
            Claim(
                "attribute encryption loses ground as attributes are added",
                "1 > 10 > 25, a tenth of slack",
                _ratio_falls,
            ),
            Claim("operations", "1 + 1 by event, A + A by attribute", _operations_are_exact),
            Claim("beyond the paper: what an attribute adds", "≤ 4 µs, sealed, opened and framed", _added_time),
        ),
    ),
    Experiment(
        paper="secure",
        figure="7",
        title="Encryption within a domain, figure 7: plaintext travels along (processor time)",
        measure=measure_forwarding,
        x=Axis("attributes of 30 characters"),
        y=Axis("messages a second"),
        varies={"attributes": ("1 2 4 7 10 15 20 25",)},
        stays={"events": 10_000, "rounds": 20},
        seeds=5,
        quick_varies={"attributes": ("1 10 25",)},
        quick_seeds=2,
        check=check_speed,
        claims=(
            Claim("attribute encryption loses, 1 attribute", "3.7 %", _loses(ATTRIBUTE, 1.0, 0.037, 0.1)),
            Claim("attribute encryption loses, 25 attributes", "2.5 %", _loses(ATTRIBUTE, 25.0, 0.025, 0.1)),
            Claim("event encryption loses, 1 attribute", "3.7 %", _loses(EVENT, 1.0, 0.037, 0.1)),
            Claim("event encryption loses, 25 attributes", "2.5 %", _loses(EVENT, 25.0, 0.025, 0.1)),
            Claim("both encrypted curves nearly coincide", "within 5 %", _curves_coincide),
            Claim("nothing is decrypted", "0 operations", _nothing_is_decrypted),
        ),
    ),
    Experiment(
        paper="secure",
        figure="trees",
        title="Key trees: entries that a change broadcasts, and keys that a member stores",
        measure=measure_trees,
        x=Axis("members", log=True),
        y=Axis("entries, or keys"),
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
        title="Lazy and classic refresh: 30 days, credentials of a day",
        measure=measure_month,
        x=Axis("members a day", log=True),
        y=Axis("refreshes in 30 days", log=True),
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
