"""What was delivered is not delivered again, whoever kept it, also after the receiver's broker has started anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.test_liars import SEALED, WithLiar, plates, relabelled, take
from tidings.delivery.messages import Ack, Announce, Announced, Retransmit
from tidings.errors import SetupError
from tidings.net.broker.durable_queues import DurableQueues, QueueCipher
from tidings.net.broker.journal import Journal
from tidings.net.transport.frames import OverlayMessages
from tidings.node.outbound import encode_stored
from tidings.security import Identity

pytestmark = [pytest.mark.live, pytest.mark.slow]


def test_a_sealed_event_is_not_delivered_again_after_a_restart_of_the_receiver(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with WithLiar(tmp_path, SEALED) as network:
            camera, desk = await network.client("police/camera"), await network.client("ccs/desk")
            kept = await desk.subscribe("Numberplate", "speed >= 0", durable="all").ready()
            live = await desk.subscribe("Numberplate", "speed >= 0").ready()
            ids = await camera.publish_many("Numberplate", plates(3))
            assert await take(kept, 3) == ids
            assert set(await take(live, 3)) == set(ids)
            await kept.close()  # Its acknowledgements are on disk; what was not acknowledged would rightly come again.
            overheard = network.overheard()
            await network.restart("ccs-1")
            desk = await network.client("ccs/desk")
            kept = await desk.subscribe("Numberplate", "speed >= 0", durable="all").ready()
            live = await desk.subscribe("Numberplate", "speed >= 0").ready()
            await network.say("ccs-1", *(OverlayMessages((raw,)) for raw in overheard))
            own = [relabelled(packet, network.liar.me.id) for packet in list(overheard.values())[:3]]
            listed = tuple(Announced(1 + n, packet.header.id) for n, packet in enumerate(own))
            await network.say("ccs-1", Announce(b"k" * 16, 1, listed))
            await network.say("ccs-1", *(Retransmit(1 + n, encode_stored(packet)) for n, packet in enumerate(own)))
            await network.answers_with("ccs-1", Ack(4))
            ids = await camera.publish_many("Numberplate", plates(2))
            assert await take(kept, 2) == ids
            assert set(await take(live, 2)) == set(ids)

    asyncio.run(scenario())


def in_a_journal(folder: Path, act: Callable[[Journal, DurableQueues], None]) -> None:
    async def run() -> None:
        journal = Journal(folder / "journal.db")
        queues = DurableQueues(journal, QueueCipher(Identity(bytes(range(32)))), 100, lambda: 0)
        act(journal, queues)
        await journal.committed()
        journal.close()

    asyncio.run(run())


def test_what_was_queued_is_known_on_disk_until_its_subscription_is_deleted(tmp_path: Path) -> None:
    def first(journal: Journal, queues: DurableQueues) -> None:
        for moment in range(5):
            journal.note_seal("d", 7, moment)
        journal.note_seal("d", 7, 3)

    def second(journal: Journal, queues: DurableQueues) -> None:
        assert journal.seals(2) == ([("d", 7, 3), ("d", 7, 4)], 2)
        assert journal.has_seal("d", 7, 0)
        assert not journal.has_seal("other", 7, 0)
        durable = queues.make(b"owner", "all", "T", "TRUE", 0, ())
        journal.note_seal(durable.id, 7, 1)
        queues.forget(durable)

    def third(journal: Journal, queues: DurableQueues) -> None:
        assert [durable for durable, _, _ in journal.seals(10)[0]] == ["d"] * 5

    for life in (first, second, third):
        in_a_journal(tmp_path, life)


def test_an_entry_at_rest_opens_for_its_own_subscription_only() -> None:
    cipher = QueueCipher(Identity(bytes(range(32))))
    kept = cipher.seal("one", b"event")
    assert cipher.open("one", kept) == b"event"
    with pytest.raises(SetupError, match="altered"):
        cipher.open("other", kept)
