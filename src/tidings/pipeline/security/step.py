"""What a worker does in a pipeline with rights: frames → mail, opened and sealed again in one pass.

Apart from the registry that the rights come from: a worker that loads this loads no database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.pipeline.matching.batch_step import BROKEN, COUNT, DELIVERY, results_of
from tidings.pipeline.matching.index_replica import Found
from tidings.pipeline.security.decrypt import FRAME, HEADER_BYTES, head_columns
from tidings.pipeline.security.encrypt import Sealing
from tidings.pipeline.security.recipients import Recipient, Rest
from tidings.pipeline.state.subscription_versions import InForce
from tidings.security import BatchMoments, OpenedBatch, PublisherRights, SignedType, State, split, uncached

Numbers = np.ndarray[Any, np.dtype[Any]]
Withheld: TypeAlias = Mapping[Recipient, frozenset[str]]
"""Ids of subscriptions that ask about what their subscriber may not read."""


@dataclass(frozen=True, slots=True)
class _Open:
    """Genuine events of a batch, with what it takes to seal them again."""

    rows: pa.RecordBatch
    ids: pa.Array
    frames: pa.Array
    moments: BatchMoments


class AdmitMatchSecure:
    """mapInArrow: frames → mail, refused frames and counts, told apart by `kind`."""

    def __init__(
        self,
        in_force: InForce,
        sealing: Sealing,
        rest: Rest,
        withheld: Withheld,
        publishers: PublisherRights | None = None,
    ) -> None:
        self.in_force, self.sealing, self.rest, self.publishers = in_force, sealing, rest, publishers
        self.withheld = {who: pa.array(sorted(ids), pa.string()) for who, ids in withheld.items()}

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opener = self.sealing.keys.opener(self.sealing.type, self.publishers)
        for batch in batches:
            frames = batch.column(FRAME)
            opened = opener.open_(frames)
            refused = np.flatnonzero(opened.states != State.OK)
            if len(refused):
                yield _refusals(frames, opened, refused)
            yield from self._match(_genuine(frames, opened), len(refused))

    def _match(self, events: _Open, refused: int) -> Iterator[pa.RecordBatch]:
        is_wanted, pairs = np.zeros(events.rows.num_rows, bool), 0
        for start, found in self.in_force.match_in_rounds(events.rows):
            mail, rows = self._mail(events, start, found)
            is_wanted[rows] = True
            pairs += mail.num_rows
            if mail.num_rows:
                yield mail
        counts = [len(is_wanted) + refused, int(is_wanted.sum()), refused, pairs]
        yield results_of(COUNT, 1, counts=pa.array([counts], pa.list_(pa.int64())))

    def _mail(self, events: _Open, start: int, found: Found) -> tuple[pa.RecordBatch, Numbers]:
        """Of the pairs that match, those that a right allows, sealed; and which rows they are of."""
        pairs, rows = found.pairs(events.ids.slice(start)), start + found.events
        kept, frames = self._sealed(events, rows, pairs)
        mailed = pairs.take(pa.array(kept))
        columns = {name: mailed.column(name) for name in ("event_id", "subscription_id", "subscriber")}
        return results_of(DELIVERY, len(kept), original=frames, **columns), rows[kept]

    def _sealed(self, events: _Open, rows: Numbers, pairs: pa.RecordBatch) -> tuple[Numbers, pa.Array]:
        taken = events.rows.select(_names(self.sealing.type)).take(pa.array(rows))
        moments = events.moments.take(rows)
        kept, frames = [np.zeros(0, np.int64)], [pa.array([], pa.binary())]
        for recipient in self.sealing.recipients:
            mine = self._allowed(recipient, taken, pairs)
            if self.rest is Rest.SEALED:  # As it came: what is sealed already is not sealed again.
                frames.append(events.frames.take(pa.array(rows[mine])))
            elif len(mine):
                here, sources = moments.take(mine), pa.array(moments.sender_ids[mine]).cast(pa.string())
                shown = taken.take(pa.array(mine))
                frames.append(self.sealing.seal_for(recipient, shown, sources, here.ts_ms, here.seqs))
            kept.append(mine)
        return np.concatenate(kept), pa.concat_arrays(frames)

    def _allowed(self, recipient: Recipient, taken: pa.RecordBatch, pairs: pa.RecordBatch) -> Numbers:
        """Which deliveries are this recipient's and tell it nothing that it may not know."""
        mine = self.sealing.readable(recipient, taken, pairs.column("subscriber"))
        if recipient not in self.withheld:
            return mine
        asking = pairs.column("subscription_id").take(pa.array(mine))
        asks_too_much = pc.is_in(asking, value_set=self.withheld[recipient]).to_numpy(zero_copy_only=False)
        allowed: Numbers = mine[~asks_too_much]
        return allowed


def _names(signed_type: SignedType) -> list[str]:
    return [attribute.name for attribute in signed_type.event_type]


def _genuine(frames: pa.Array, opened: OpenedBatch) -> _Open:
    good = np.flatnonzero(opened.states == State.OK)
    rows = pa.array(good)
    ids = head_columns(opened)[0].take(rows)
    return _Open(opened.rows.take(rows), ids, _bare(frames.take(rows)), opened.moments.take(good))


def _bare(frames: pa.Array) -> pa.Array:
    """Frames without the plaintext that a relay may have sent along: that must not be kept."""
    flags = pc.binary_slice(frames, HEADER_BYTES - 2, HEADER_BYTES)
    if pc.all(pc.equal(flags, pa.scalar(b"\0\0")), min_count=0).as_py():
        return frames
    return pa.array([uncached(split(frame)) for frame in frames.to_pylist()], pa.binary())


def _refusals(frames: pa.Array, opened: OpenedBatch, refused: Numbers) -> pa.RecordBatch:
    reasons = pa.array([opened.reasons[row] for row in refused.tolist()], pa.string())
    originals = [_kept(frames[row].as_py() or b"", State(opened.states[row])) for row in refused.tolist()]
    return results_of(BROKEN, len(refused), reason=reasons, original=pa.array(originals, pa.binary()))


def _kept(frame: bytes, state: State) -> bytes:
    """Of what was altered only the header; what lacks a key is kept, still sealed, to be read when the key is there."""
    return uncached(split(frame)) if state is State.NO_KEY else frame[:HEADER_BYTES]
