"""The worker's step of a secure pipeline: frames → frames for each recipient, in one pass.

Separate from `job`, which reads rights from the registry, so that workers do not load a database library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.pipeline.matching.batch_step import BROKEN, COUNT, DELIVERY, results_of
from tidings.pipeline.matching.index_replica import MatchedPairs
from tidings.pipeline.security.decrypt import FRAME, HEADER_BYTES, header_columns
from tidings.pipeline.security.encrypt import RecipientSealer
from tidings.pipeline.security.recipients import Recipient, Rest
from tidings.pipeline.state.subscription_versions import VersionIndex
from tidings.pipeline.tables import PAIR_NAMES
from tidings.security import BatchMoments, OpenedBatch, PublisherRights, SignedType, State, split, uncached

Numbers = np.ndarray[Any, np.dtype[Any]]
Withheld: TypeAlias = Mapping[Recipient, frozenset[str]]
"""Ids of subscriptions that mention attributes which their subscriber may not read."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """The authentic events of a batch, with what is needed to encrypt them again."""

    rows: pa.RecordBatch
    ids: pa.Array
    frames: pa.Array
    moments: BatchMoments


class AdmitMatchSecure:
    """mapInArrow: frames → RESULTS, as in `batch_step`, with deliveries as encrypted frames."""

    def __init__(
        self,
        index: VersionIndex,
        sealer: RecipientSealer,
        rest: Rest,
        withheld: Withheld,
        publishers: PublisherRights | None = None,
    ) -> None:
        self.index, self.sealer, self.rest, self.publishers = index, sealer, rest, publishers
        self.withheld = {who: pa.array(sorted(ids), pa.string()) for who, ids in withheld.items()}

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opener = self.sealer.keys.opener(self.sealer.type, self.publishers)
        for batch in batches:
            frames = batch.column(FRAME)
            opened = opener.open_(frames)
            refused = np.flatnonzero(opened.states != State.OK)
            if len(refused):
                yield _refusals(frames, opened, refused)
            yield from self._match(_genuine(frames, opened), len(refused))

    def _match(self, events: _Opened, refused: int) -> Iterator[pa.RecordBatch]:
        is_matched, pairs = np.zeros(events.rows.num_rows, bool), 0
        for start, found in self.index.match_in_rounds(events.rows):
            sealed, rows = self._sealed_deliveries(events, start, found)
            is_matched[rows] = True
            pairs += sealed.num_rows
            if sealed.num_rows:
                yield sealed
        counts = [len(is_matched) + refused, int(is_matched.sum()), refused, pairs]
        yield results_of(COUNT, 1, counts=pa.array([counts], pa.list_(pa.int64())))

    def _sealed_deliveries(self, events: _Opened, start: int, found: MatchedPairs) -> tuple[pa.RecordBatch, Numbers]:
        """The matched pairs that a right allows, encrypted, and their rows."""
        pairs, rows = found.pairs(events.ids.slice(start)), start + found.events
        kept, frames = self._frames(events, rows, pairs)
        allowed_pairs = pairs.take(pa.array(kept))
        columns = {name: allowed_pairs.column(name) for name in PAIR_NAMES}
        return results_of(DELIVERY, len(kept), original=frames, **columns), rows[kept]

    def _frames(self, events: _Opened, rows: Numbers, pairs: pa.RecordBatch) -> tuple[Numbers, pa.Array]:
        taken = events.rows.select(_names(self.sealer.type)).take(pa.array(rows))
        moments = events.moments.take(rows)
        kept, frames = [np.zeros(0, np.int64)], [pa.array([], pa.binary())]
        for recipient in self.sealer.recipients:
            mine = self._allowed(recipient, taken, pairs)
            if self.rest is Rest.SEALED:  # Passed on as it came: its attributes are already encrypted.
                frames.append(events.frames.take(pa.array(rows[mine])))
            elif len(mine):
                here, sources = moments.take(mine), pa.array(moments.sender_ids[mine]).cast(pa.string())
                shown = taken.take(pa.array(mine))
                frames.append(self.sealer.seal_for(recipient, shown, sources, here.ts_ms, here.seqs))
            kept.append(mine)
        return np.concatenate(kept), pa.concat_arrays(frames)

    def _allowed(self, recipient: Recipient, taken: pa.RecordBatch, pairs: pa.RecordBatch) -> Numbers:
        """The deliveries of this recipient, without those of withheld subscriptions."""
        mine = self.sealer.readable(recipient, taken, pairs.column("subscriber"))
        if recipient not in self.withheld:
            return mine
        ids = pairs.column("subscription_id").take(pa.array(mine))
        is_withheld = pc.is_in(ids, value_set=self.withheld[recipient]).to_numpy(zero_copy_only=False)
        allowed: Numbers = mine[~is_withheld]
        return allowed


def _names(signed_type: SignedType) -> list[str]:
    return [attribute.name for attribute in signed_type.event_type]


def _genuine(frames: pa.Array, opened: OpenedBatch) -> _Opened:
    good = np.flatnonzero(opened.states == State.OK)
    rows = pa.array(good)
    ids = header_columns(opened)[0].take(rows)
    return _Opened(opened.rows.take(rows), ids, _bare(frames.take(rows)), opened.moments.take(good))


def _bare(frames: pa.Array) -> pa.Array:
    """Frames without the plaintext cache that a relay may have added, which must not be stored."""
    flags = pc.binary_slice(frames, HEADER_BYTES - 2, HEADER_BYTES)
    if pc.all(pc.equal(flags, pa.scalar(b"\0\0")), min_count=0).as_py():
        return frames
    return pa.array([uncached(split(frame)) for frame in frames.to_pylist()], pa.binary())


def _refusals(frames: pa.Array, opened: OpenedBatch, refused: Numbers) -> pa.RecordBatch:
    reasons = pa.array([opened.reasons[row] for row in refused.tolist()], pa.string())
    originals = [_quarantined(frames[row].as_py() or b"", State(opened.states[row])) for row in refused.tolist()]
    return results_of(BROKEN, len(refused), reason=reasons, original=pa.array(originals, pa.binary()))


def _quarantined(frame: bytes, state: State) -> bytes:
    """What the quarantine stores: the header of an altered frame; the whole frame if only its key is missing."""
    return uncached(split(frame)) if state is State.NO_KEY else frame[:HEADER_BYTES]
