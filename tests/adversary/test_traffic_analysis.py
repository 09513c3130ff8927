"""Traffic analysis: whoever watches a link sees sizes and times. With cover traffic, they do not depend on what is said."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.live.test_liars import plates, take
from tests.live.together import Together
from tidings.net import DevNetwork
from tidings.net.transport.frames import FrameReader, OverlayMessages, encoded
from tidings.net.transport.shaping import FRAME_BYTES, CoverTraffic, class_of, filler, in_class

WINDOWS, TICKS = 200, 40


@given(st.integers(FRAME_BYTES, 70_000))
def test_filler_has_exactly_the_size_that_was_asked_for(size: int) -> None:
    assert len(filler(size)) == size


@given(st.integers(1, 200_000))
def test_a_padded_write_has_the_size_of_a_class(size: int) -> None:
    assert class_of(len(in_class(bytes(size)))) == len(in_class(bytes(size)))


def captured(busy: bool, rng: Random, *, covered: bool, padded: bool = False) -> list[int]:
    """The sizes of what a link writes in each tick of a window, in an hour with many events or with few."""
    cover, sizes = CoverTraffic(20_000), []
    for _ in range(TICKS):
        said = b"".join(
            encoded(OverlayMessages((rng.randbytes(rng.randrange(100, 500)),)))
            for _ in range(rng.randrange(4) if busy else rng.random() < 0.05)
        )
        cover.add(said)
        sizes.append(len(cover.take()) if covered else len(in_class(said) if padded and said else said))
    return sizes


def accuracy(windows: Sequence[tuple[bool, Sequence[int]]]) -> float:
    """How often a classifier by the nearest mean, trained on one half of the windows, is right about the other."""
    known, asked = windows[: len(windows) // 2], windows[len(windows) // 2 :]
    features = {busy: fmean(fmean(sizes) for b, sizes in known if b is busy) for busy in (True, False)}
    guesses = [abs(fmean(s) - features[True]) < abs(fmean(s) - features[False]) for _, s in asked]
    return fmean(guess is busy for guess, (busy, _) in zip(guesses, asked, strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_a_classifier_tells_a_busy_hour_from_a_quiet_one_without_cover_and_not_with_it(seed: int) -> None:
    rng = Random(seed)
    hours = [index % 2 == 0 for index in range(WINDOWS)]
    assert accuracy([(busy, captured(busy, rng, covered=False)) for busy in hours]) > 0.95
    assert accuracy([(busy, captured(busy, rng, covered=True)) for busy in hours]) == 0.5


@given(st.lists(st.binary(max_size=3000), max_size=30))
def test_every_frame_arrives_whole_and_in_order_between_the_filler(said: list[bytes]) -> None:
    cover, sent = CoverTraffic(10_000), bytearray()
    for raw in said:
        cover.add(encoded(OverlayMessages((raw,))))
        sent += cover.take()
    sent += cover.rest()
    assert asyncio.run(_read(bytes(sent))) == said


async def _read(sent: bytes) -> list[bytes]:
    stream = asyncio.StreamReader()
    stream.feed_data(sent)
    stream.feed_eof()
    reader, found = FrameReader(stream), list[bytes]()
    reader.expect("broker")
    while True:
        for frame in await reader.some():
            if frame is None:
                return found
            found += frame.messages if isinstance(frame, OverlayMessages) else ()


@pytest.mark.live
@pytest.mark.parametrize("limits", [{"cover_bytes_s": 400_000}, {"padded_links": True}], ids=str)
def test_a_network_with_shaped_links_delivers_everything(limits: dict[str, float], tmp_path: Path) -> None:
    async def run() -> None:
        async with Together(
            tmp_path, DevNetwork(first_port=0, brokers={"police": 1, "ccs": 1}, limits=limits)
        ) as network:
            camera, desk = await network.client("police/camera"), await network.client("ccs/desk")
            heard = await desk.subscribe("Numberplate", "plate <> 'none'").ready()
            ids = await camera.publish_many("Numberplate", plates(50))
            assert sorted(await take(heard, 50)) == sorted(ids)

    asyncio.run(run())
