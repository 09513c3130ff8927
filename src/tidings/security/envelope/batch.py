"""Many events at once: columns into frames and back, byte for byte as `Sealer` and `Opener` do it.

A table job has thousands of rows of the same shape, so everything but the cipher itself is done for
a whole column: one row costs its encryptions and little else. Rows with the same attributes and
epochs are processed together. A row that is unusual in any way, down to a single wrong byte, goes to
the live `Opener`, which says what is wrong with it: one piece of code decides what is accepted.

Unlike a live publisher, `BatchSealer` does not choose moments. They come with the rows, and the
caller must make sure that no (sender id, millisecond, counter) comes with two different rows.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import Denied, EventError, PeerError
from tidings.events import ARROW_TYPES, Value, arrow_schema, arrow_values
from tidings.security.envelope.column_codec import (
    Numbers,
    binary,
    gathered,
    joined,
    parts_of,
    pieces_of,
    plaintexts,
    rows_of,
    values,
)
from tidings.security.envelope.frame import FRAME_BYTES_MAX, MAGIC, VERSION, split
from tidings.security.envelope.nonce import SEQ_MAX, TS_MS_MAX
from tidings.security.envelope.opener import Opener, OpenPlan, UnknownEpoch
from tidings.security.envelope.sealer import Sealer, SealPlan
from tidings.security.envelope.value_codec import padded, unpadded
from tidings.security.keys.keyring import KeyEpoch, Keyring
from tidings.security.rights.publishers import PublisherRights
from tidings.security.signed_type import Mode, PadPolicy, SignedType

COLUMNS_FROM = 128  # Fewer events are sealed sooner one by one.
SHAPES_MAX = 16  # Attribute sets processed by column in one batch; rows with other sets are opened one by one.

_HEADER = np.dtype([("prefix", "V36"), ("sender_id", ">u4"), ("ts_ms", ">u8"), ("seq", ">u4"), ("flags", ">u2")])
_START = np.dtype([("header", _HEADER), ("count", ">u2")])  # Of a frame that is sealed by attribute.
_NONCE = np.dtype([("sender_id", ">u4"), ("invocation", ">u8")])
_are_prepared = False
_STEP_BYTES = 40  # An attribute's id, its epoch and its size, which come before its body.


class State(enum.IntEnum):
    """The outcome of opening a frame."""

    OK = 0
    NO_KEY = 1
    AUTH_FAIL = 2


@dataclass(frozen=True, slots=True)
class BatchMoments:
    """Which moment each row has: three arrays of one length."""

    sender_ids: Numbers
    ts_ms: Numbers
    seqs: Numbers

    def take(self, rows: Numbers) -> BatchMoments:
        return BatchMoments(self.sender_ids[rows], self.ts_ms[rows], self.seqs[rows])

    def nonces(self) -> Numbers:
        """Twelve bytes a row, as they are sealed with."""
        written = np.empty(len(self.ts_ms), _NONCE)
        written["sender_id"] = self.sender_ids
        written["invocation"] = self.ts_ms.astype(np.uint64) << np.uint64(20) | self.seqs.astype(np.uint64)
        return written.view(np.uint8).reshape(-1, _NONCE.itemsize)

    def check(self) -> None:
        """Raises EventError for a moment that no header can hold."""
        for what, numbers, most in (
            ("sender_id", self.sender_ids, 2**32 - 1),
            ("ts_ms", self.ts_ms, TS_MS_MAX),
            ("seq", self.seqs, SEQ_MAX),
        ):
            if len(numbers) and (numbers.min() < 0 or numbers.max() > most):
                raise EventError(f"{what}: expected 0 to {most}")


class BatchSealer:
    """Seals tables of one event type."""

    def __init__(self, signed_type: SignedType, keyring: Keyring, live: Sealer | None = None) -> None:
        """With `live`, frames are as that one makes them before it signs them."""
        assert not signed_type.profile.is_paper, "the paper's profile is for live figures"
        self._type, self._keyring = signed_type, keyring
        self._plans = live or Sealer(signed_type, keyring, 0)  # For its plans alone; no sender has the id 0.
        self._names = [a.name for a in signed_type.event_type]
        starts = {key.start_ms for gid in signed_type.group_ids for key in keyring.epochs(gid)}
        self._starts = np.array(sorted(starts), np.int64)

    def seal(
        self,
        rows: pa.RecordBatch,
        moments: BatchMoments,
        shown: Iterable[str] | None = None,
        now_ms: int | None = None,
    ) -> pa.BinaryArray:
        """A frame for each row, of its attributes that are not null, or of those only the `shown` ones.

        Rows are as `conform` makes them. Raises EventError where a value does not fit the type,
        Denied where there is no key to seal with; at `now_ms`, if that is another time than the rows'.
        """
        moments.check()
        names = self._names if shown is None else [name for name in self._names if name in set(shown)]
        is_there = [pc.is_valid(rows.column(name)).to_numpy(zero_copy_only=False) for name in names]
        epochs = np.searchsorted(self._starts, moments.ts_ms, "right")
        sealed, places = [], []
        for members in _alike([*is_there, epochs], rows.num_rows):
            present = tuple(name for name, there in zip(names, is_there) if there[members[0]])
            here = rows if len(members) == rows.num_rows else rows.take(pa.array(members))
            sealed.append(self._seal_alike(here, moments.take(members), present, now_ms))
            places.append(members)
        return _in_place(sealed, places, pa.binary())

    def _seal_alike(
        self, rows: pa.RecordBatch, moments: BatchMoments, names: tuple[str, ...], now_ms: int | None
    ) -> pa.BinaryArray:
        ts_ms = int(moments.ts_ms[0])
        plan = self._plans.plan_for(names, ts_ms, ts_ms if now_ms is None else now_ms)
        if plan.whole is None:
            frames = self._by_attribute(plan, rows, moments)
        else:
            frames = self._as_one(plan, rows, moments) if plan.keys else self._unsealed(plan, rows, moments)
        for key in plan.keys:
            key.count(len(frames), len(frames.buffers()[2]) >> 4)
        return frames

    def _by_attribute(self, plan: SealPlan, rows: pa.RecordBatch, moments: BatchMoments) -> pa.BinaryArray:
        columns = [
            (head, self._padded(self._plain(rows, name, most)), key, aad)
            for (name, _, _, head, aad, most), key in zip(plan.steps, plan.keys, strict=True)
        ]
        return _sealed(self._starts_of(moments, plan.count), columns, moments.nonces())

    def _as_one(self, plan: SealPlan, rows: pa.RecordBatch, moments: BatchMoments) -> pa.BinaryArray:
        assert plan.whole is not None
        _, epoch, aad = plan.whole
        body = self._padded(self._bodies(plan, rows))
        return _sealed(self._starts_of(moments, b""), [(epoch, body, plan.keys[0], aad)], moments.nonces())

    def _unsealed(self, plan: SealPlan, rows: pa.RecordBatch, moments: BatchMoments) -> pa.BinaryArray:
        return joined([rows_of(self._starts_of(moments, b"")), self._bodies(plan, rows)])

    def _bodies(self, plan: SealPlan, rows: pa.RecordBatch) -> pa.BinaryArray:
        """All attributes of an event in one piece."""
        parts: list[pa.Array | pa.Scalar] = [pa.scalar(plan.count, pa.binary())]
        for name, _, _, head, _, most in plan.steps:
            parts += (pa.scalar(head, pa.binary()), self._plain(rows, name, most))
        empty = binary([b""] * rows.num_rows)  # Gives the length where an event has no attribute at all.
        return joined([empty, *parts])

    def _padded(self, plains: pa.BinaryArray) -> pa.BinaryArray:
        if self._type.pad_policy is PadPolicy.NONE:
            return plains
        return binary([padded(plain) for plain in pieces_of(plains)])

    def _plain(self, rows: pa.RecordBatch, name: str, most: int) -> pa.BinaryArray:
        plain = plaintexts(rows.column(name), self._type.event_type[name].type)
        if pc.max(pc.binary_length(plain)).as_py() > most:
            raise EventError(f"{self._type.event_type.name}: attribute {name!r} is longer than its type allows")
        return plain

    def _starts_of(self, moments: BatchMoments, count: bytes) -> Numbers:
        """The bytes that come before the first attribute, a row for each frame."""
        written = np.empty(len(moments.ts_ms), np.dtype([("header", _HEADER), ("count", f"V{len(count)}")]))
        header = written["header"]
        header["prefix"] = np.void(_prefix(self._type))
        header["sender_id"], header["ts_ms"], header["seq"] = moments.sender_ids, moments.ts_ms, moments.seqs
        header["flags"] = self._plans.flags
        if count:
            written["count"] = np.void(count)
        return written.view(np.uint8).reshape(len(written), -1)


def prepare_columns() -> None:
    """Compiles what seals columns, or loads it: `seal_rows` uses it from then on. Takes seconds the first time.

    Where that cannot be done, say without a folder for what was compiled, `seal_rows` goes on without it.
    """
    global _are_prepared  # noqa: PLW0603 - set once, when a server starts
    from tidings.security.envelope.accelerated import prepare  # Imports Numba; see there.

    _are_prepared = prepare()


def seal_rows(
    signed_type: SignedType,
    keyring: Keyring,
    sealer: Sealer,
    rows: pa.RecordBatch,
    events: Sequence[Mapping[str, Value]],
    now_ms: int,
) -> tuple[int, int, list[bytes]]:
    """As `sealer.seal_run(events, now_ms)`, by columns where these are prepared; `rows` are the same events."""
    count = rows.num_rows
    if not _are_prepared or count < COLUMNS_FROM:
        return sealer.seal_run(events, now_ms)
    ts, seq = sealer.take_run(now_ms, count)
    moments = BatchMoments(np.full(count, sealer.sender_id), np.full(count, ts), np.arange(seq, seq + count))
    frames = BatchSealer(signed_type, keyring, sealer).seal(rows, moments, now_ms=now_ms)
    return ts, seq, pieces_of(frames)


def _sealed(
    starts: Numbers, columns: list[tuple[bytes, pa.BinaryArray, KeyEpoch, bytes]], nonces: Numbers
) -> pa.BinaryArray:
    """Frames that begin so and have these columns: head, plaintext, key and associated data of each."""
    from tidings.security.envelope.accelerated import FrameWriter  # Imports Numba; see there.

    writer = FrameWriter(starts, [(head, plain) for head, plain, *_ in columns])
    for head, plain, key, aad in columns:
        writer.seal(key, nonces, aad, head, plain)
    return writer.frames()


@dataclass(frozen=True, slots=True)
class OpenedBatch:
    """A table of events as far as one reader sees them.

    `rows` has the type's columns, null where absent, unreadable or refused; `moments` is of rows that
    are not null in `has_header`. `reasons` holds why, for each row that is not OK.
    """

    rows: pa.RecordBatch
    states: Numbers
    reasons: dict[int, str]
    moments: BatchMoments
    has_header: Numbers


class BatchOpener:
    """Opens tables of frames of one type with the keys of one ring, as a reader of history.

    With `publishers` every frame must be signed, by one of them; whatever is not is AUTH_FAIL. A
    frame is then checked by itself, which costs some ten times as much.
    """

    def __init__(self, signed_type: SignedType, keyring: Keyring, publishers: PublisherRights | None = None) -> None:
        self._type, self._keyring = signed_type, keyring
        self._signers = None if publishers is None else _Signers(publishers, signed_type.type_id)
        self._opener = Opener(signed_type, keyring, may_publish=self._signers)
        self._attributes = {a.name: a for a in signed_type.event_type}
        self._prefix = np.frombuffer(_prefix(signed_type), np.uint8)
        is_sealed_by_column = signed_type.mode is Mode.ATTRIBUTE and not signed_type.profile.is_paper
        self._is_by_column = is_sealed_by_column and publishers is None

    def open_(self, frames: pa.Array) -> OpenedBatch:
        """What each frame holds; every row is OK, NO_KEY or AUTH_FAIL, and only OK rows have values."""
        frames = frames.cast(pa.binary())
        opening = _Opening(self._type, self._opener, self._prefix, frames, self._is_by_column)
        opening.signers = self._signers
        return opening.opened()


class _Signers:
    """Permits signers that had the right to publish at `ts_ms`, the time of the present event."""

    def __init__(self, publishers: PublisherRights, type_id: bytes) -> None:
        self._publishers, self._type_id = publishers, type_id
        self.ts_ms = 0

    def __call__(self, signer: bytes, attr_ids: tuple[bytes, ...]) -> None:
        self._publishers.check(signer, self._type_id, attr_ids, self.ts_ms)


class _Opening:
    """The opening of one batch: rows of one shape after another, then the unusual ones."""

    def __init__(
        self, signed_type: SignedType, opener: Opener, prefix: Numbers, frames: pa.BinaryArray, by_column: bool
    ) -> None:
        self.type, self.opener, self.frames = signed_type, opener, frames
        self.signers: _Signers | None = None
        self.data, self.starts, self.sizes = parts_of(frames)
        self.ends = self.starts + self.sizes
        self.whole = frames.buffers()[2].to_pybytes() if len(self.data) else b""
        self.states = np.full(len(frames), State.AUTH_FAIL, np.int8)
        self.reasons: dict[int, str] = {}
        self.columns: list[dict[str, pa.Array]] = []
        self.places: list[Numbers] = []
        raw = gathered(self.data, self.starts, _START.itemsize)
        begun = raw.view(_START)[:, 0]
        header = begun["header"]
        self.moments = BatchMoments(
            header["sender_id"].astype(np.int64),
            np.minimum(header["ts_ms"], np.uint64(TS_MS_MAX + 1)).astype(np.int64),
            header["seq"].astype(np.int64),
        )
        self.has_header = (self.sizes >= _HEADER.itemsize) & (raw[:, 0] == MAGIC) & (raw[:, 1] == VERSION)
        self.has_header &= (self.moments.ts_ms <= TS_MS_MAX) & (self.moments.seqs <= SEQ_MAX)
        self.counts = begun["count"]
        is_ordinary = self.has_header & (raw[:, : len(prefix)] == prefix).all(axis=1) & (header["flags"] == 0)
        is_ordinary &= (self.sizes >= _START.itemsize) & (self.sizes <= FRAME_BYTES_MAX)
        self.left = np.flatnonzero(is_ordinary if by_column else np.zeros(len(frames), bool))
        self.odd: list[Numbers] = [np.flatnonzero(~is_ordinary if by_column else np.ones(len(frames), bool))]

    def opened(self) -> OpenedBatch:
        for _ in range(SHAPES_MAX):
            if len(self.left):
                self._next_shape()
        self._one_by_one(np.concatenate([*self.odd, self.left]))
        schema = arrow_schema(self.type.event_type)
        optional = pa.schema([field.with_nullable(True) for field in schema])
        columns = [
            _in_place([given[field.name] for given in self.columns], self.places, field.type) for field in optional
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=optional)
        return OpenedBatch(rows, self.states, self.reasons, self.moments, self.has_header)

    # ── Rows of one shape ──

    def _next_shape(self) -> None:
        """Takes the first row that is left, and with it all that have the same attributes and epochs."""
        first = int(self.left[0])
        try:
            parts = split(self.whole[self.starts[first] : self.ends[first]])
            plan = self.opener.plan_for(parts)
        except PeerError:
            self.odd.append(self.left[:1])
            self.left = self.left[1:]
            return
        is_same, bodies = self._same_shape(parts.heads)
        if plan.unknown is not None or not plan.steps:
            self._unreadable(self.left[is_same], plan)
        else:
            self._readable(self.left[is_same], plan, [(start[is_same], end[is_same]) for start, end in bodies])
        self.left = self.left[~is_same]

    def _same_shape(self, heads: Sequence[bytes]) -> tuple[Numbers, list[tuple[Numbers, Numbers]]]:
        """Which of the rows left have these heads and nothing besides, and where each one's bodies are."""
        rows, step = self.left, _STEP_BYTES
        ends = self.ends[rows]
        is_same = self.counts[rows] == len(heads)
        at = self.starts[rows] + _START.itemsize
        bodies = []
        for head in heads:
            is_same &= at + step <= ends
            words = gathered(self.data, np.where(is_same, at, 0), step).view(">u4")
            is_same &= (words[:, :-1] == np.frombuffer(head, ">u4")).all(axis=1)
            sizes = words[:, -1].astype(np.int64)
            bodies.append((at + step, at + step + sizes))
            at = np.where(is_same, at + step + sizes, at)
        return is_same & (at == ends), bodies

    def _unreadable(self, rows: Numbers, plan: OpenPlan) -> None:
        why = str(UnknownEpoch(*plan.unknown)) if plan.unknown is not None else "key: none for any attribute"
        self.states[rows] = State.NO_KEY
        self.reasons.update(dict.fromkeys(rows.tolist(), why))
        self._keep(rows, {})

    def _readable(self, rows: Numbers, plan: OpenPlan, bodies: list[tuple[Numbers, Numbers]]) -> None:
        from tidings.security.envelope.accelerated import open_column  # Imports Numba; see there.

        ts_ms = self.moments.ts_ms[rows]
        is_wrong = (ts_ms < plan.from_ms) | (ts_ms >= plan.to_ms)
        nonces = self.moments.take(rows).nonces()
        read = {}
        for (index, name, _, aad, _, most), key in zip(plan.steps, plan.keys, strict=True):
            starts, ends = bodies[index]
            plains, is_forged = open_column(key, nonces, aad, self.data, starts, ends - starts)
            read[name], is_unfit = self._values(plains, name, most)
            is_wrong |= is_forged | is_unfit
        good = ~is_wrong
        if is_wrong.any():
            read = {name: column.filter(pa.array(good)) for name, column in read.items()}
            self.odd.append(rows[is_wrong])
        self.states[rows[good]] = State.OK
        self._keep(rows[good], read)

    def _values(self, plains: pa.BinaryArray, name: str, most: int) -> tuple[pa.Array, Numbers]:
        is_long = parts_of(plains)[2] > most
        if self.type.pad_policy is PadPolicy.BUCKET:
            plains = binary([_bare(plain) for plain in pieces_of(plains)])
        column, is_unfit = values(plains, self.type.event_type[name].type)
        return column, is_unfit | is_long

    # ── The odd ones ──

    def _one_by_one(self, rows: Numbers) -> None:
        opened = [self._open_one(int(row)) for row in rows]
        self._keep(
            rows,
            {a.name: arrow_values([given.get(a.name) for given in opened], a.type) for a in self.type.event_type},
        )

    def _open_one(self, row: int) -> dict[str, Value]:
        raw = self.whole[self.starts[row] : self.ends[row]]
        if self.signers is not None:
            self.signers.ts_ms = int(self.moments.ts_ms[row])
        try:
            event = self.opener.open_(raw, 0)
        except UnknownEpoch as wrong:
            self.states[row], self.reasons[row] = State.NO_KEY, str(wrong)
            return {}
        except (PeerError, Denied) as wrong:
            self.states[row], self.reasons[row] = State.AUTH_FAIL, str(wrong)
            return {}
        if event.sealed and not event.values:
            self.states[row], self.reasons[row] = State.NO_KEY, "key: none for any attribute"
        else:
            self.states[row] = State.OK
        return event.values

    def _keep(self, rows: Numbers, read: dict[str, pa.Array]) -> None:
        if len(rows):
            nothing = {
                a.name: pa.nulls(len(rows), ARROW_TYPES[a.type]) for a in self.type.event_type if a.name not in read
            }
            self.columns.append(nothing | read)
            self.places.append(rows)


def _bare(plain: bytes) -> bytes:
    try:
        return unpadded(plain)
    except PeerError:
        return b""  # No value of any type: refused with the other unfit ones.


def _prefix(signed_type: SignedType) -> bytes:
    return bytes((MAGIC, VERSION, signed_type.mode, signed_type.suite)) + signed_type.type_id


def _alike(keys: Sequence[Numbers], count: int) -> list[Numbers]:
    """Row numbers in groups whose keys are all the same."""
    if not count:
        return []
    if all((key == key[0]).all() for key in keys):
        return [np.arange(count)]
    table = np.stack([np.asarray(key, np.int64) for key in keys], axis=1)
    _, which = np.unique(table, axis=0, return_inverse=True)
    which = which.reshape(-1)
    return [np.flatnonzero(which == group) for group in range(int(which.max()) + 1)]


def _in_place(parts: Sequence[pa.Array], places: Sequence[Numbers], arrow_type: pa.DataType) -> pa.Array:
    """Parts of a column put together, each row where it belongs."""
    if not parts:
        return pa.array([], arrow_type)
    whole = pa.concat_arrays([part.cast(arrow_type) for part in parts])
    if len(parts) == 1 and len(places[0]) and (np.diff(places[0]) == 1).all():
        return whole
    order = np.empty(len(whole), np.int64)
    order[np.concatenate(places)] = np.arange(len(whole))
    return whole.take(pa.array(order))
