"""The fast path: frames with attached plaintext, recognised by their shape.

Within a trust domain events travel with their plaintext attached, and a reader skips what is sealed.
Skipping twenty-five attributes one by one costs as much as reading them. But events of one type come
in few shapes: the same attributes in the same epochs, often of the same lengths. One comparison of
everything that the reader's checks look at recognises a shape that was read in full before. A frame
that differs anywhere is read in full again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from tidings.security.envelope.frame import FLAG_CACHE, Frame, FrameLayout
from tidings.security.signed_type import Mode

SHAPES_MAX = 256  # Frame lengths that are remembered; beyond it all are forgotten, which is only slower.


class Shape(NamedTuple):
    """Everything in a frame before its plaintext, except sender, moment and ciphertexts."""

    unpack: struct.Struct
    prefix: bytes
    rest: tuple[Any, ...]
    cache_at: int
    plan: Any


class Shapes:
    """The shapes that one reader has seen at least twice, by the length of the frame."""

    __slots__ = ("_known", "_seen")

    def __init__(self) -> None:
        self._known: dict[int, Shape] = {}
        self._seen: dict[int, tuple[int, ...]] = {}

    def get(self, size: int) -> Shape | None:
        return self._known.get(size)

    def learn(self, frame: Frame, plan: Any) -> None:
        """Records a frame that was read in full. A shape is prepared when it comes a second time."""
        if frame.flags != FLAG_CACHE or frame.layout.profile.is_paper:
            return
        size, sizes = len(frame.raw), tuple(map(len, frame.bodies))
        if self._seen.get(size) == sizes:
            self._known[size] = _shape(frame, sizes, plan)
        if len(self._seen) >= SHAPES_MAX:
            self._seen.clear()
            self._known.clear()
        self._seen[size] = sizes


def _shape(frame: Frame, sizes: tuple[int, ...], plan: Any) -> Shape:
    by_attribute = frame.mode == Mode.ATTRIBUTE
    layout = _layout(frame.layout, len(frame.heads[0]), sizes, "H" if by_attribute else "")
    count = (len(sizes),) if by_attribute else ()
    steps = tuple(part for head, size in zip(frame.heads, sizes, strict=True) for part in (head, size))
    return Shape(layout, frame.raw[: frame.layout.id_bytes + 4], (frame.flags, *count, *steps), frame.body_end, plan)


def _layout(layout: FrameLayout, head_bytes: int, sizes: tuple[int, ...], count: str) -> struct.Struct:
    def steps() -> Iterator[str]:
        for size in sizes:
            yield f"{head_bytes}sI{size}x"

    return struct.Struct(f">{layout.id_bytes + 4}sIQIH{count}" + "".join(steps()))
