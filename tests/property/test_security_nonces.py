"""No content key ever meets a nonce twice: clocks that jump, crashes, several workers (SECURE-INV-8)."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.security.london import NOW_MS, PLATES, SIGHTING, a_keyring
from tidings.security import FilterSealer, NonceClock, NotYet, Sealer
from tidings.security.keys.keyring import KeyEpoch
from tidings.security.suites import Cipher


class Watched:
    """A real cipher that notes every (key, nonce) it is asked to seal with."""

    def __init__(self, inner: Cipher, key: bytes, used: list[tuple[bytes, bytes]]) -> None:
        self.inner, self.key, self.used = inner, key, used

    def encrypt(self, nonce: bytes, data: bytes, aad: bytes) -> bytes:
        self.used.append((self.key, nonce))
        return self.inner.encrypt(nonce, data, aad)


def watch(key: KeyEpoch, used: list[tuple[bytes, bytes]]) -> None:
    purposes: tuple[Any, ...] = ("pub", "sub")
    for purpose in purposes:
        sealed_with = key.content_key(purpose)
        key.watch(lambda inner, by=sealed_with: Watched(inner, by, used), purpose)  # type: ignore[misc,arg-type]


steps = st.lists(
    st.tuples(
        st.sampled_from(["seal", "seal", "seal", "filter", "crash"]), st.integers(0, 2), st.integers(-3000, 3000)
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=60)
@given(steps)
def test_no_key_meets_a_nonce_twice(plan: list[tuple[str, int, int]]) -> None:
    used: list[tuple[bytes, bytes]] = []
    keyring = a_keyring(PLATES, start_ms=NOW_MS - 10**9)
    for gid in PLATES.group_ids:
        watch(keyring.epochs(gid)[0], used)
    sender_ids = iter(range(1, 1000))  # The manager's durable counter: every start takes the next.
    workers = [worker(keyring, sender_ids) for _ in range(3)]
    now = NOW_MS
    for what, who, jump in plan:
        now += jump
        try:
            if what == "crash":
                workers[who] = worker(keyring, sender_ids)
            elif what == "seal":
                workers[who][0].seal(SIGHTING, now)
            else:
                gid = PLATES.group_ids[0]
                workers[who][1].seal([{gid: b"a"}, {gid: b"a"}], sub_id=bytes(16), version=1, lease_ms=1, now_ms=now)
        except NotYet:
            continue
    assert len(set(used)) == len(used)


def worker(keyring: Any, sender_ids: Any) -> tuple[Sealer, FilterSealer]:
    return Sealer(PLATES, keyring, next(sender_ids)), FilterSealer(PLATES, keyring, next(sender_ids))


@given(st.lists(st.tuples(st.integers(-4000, 4000), st.sampled_from([1, 1, 1, 5, 2**19, 2**20])), max_size=100))
def test_moments_never_overlap_however_the_clock_jumps(plan: list[tuple[int, int]]) -> None:
    """Runs of up to a million stand for as many single moments."""
    moments, now, last = NonceClock(grace_ms=5_000), 10**6, -1
    for jump, run in plan:
        now = max(0, now + jump)
        try:
            ts, seq = moments.take(now, run)
        except NotYet:
            continue
        first = ts << 20 | seq
        assert first > last
        assert (first + run - 1) >> 20 == ts
        assert ts - now <= 2_500
        last = first + run - 1
