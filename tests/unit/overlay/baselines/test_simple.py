"""Simple on a few nodes: it floods, or forwards every copy to some peers."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.unit.overlay.harness import Bench
from tidings.errors import InputError
from tidings.overlay import Count, EventId, Header, Packet, Peer, Place, Ranges, Send, View, protocol
from tidings.overlay.baselines.simple import PROTOCOL, RelayEvent, Simple, SimpleOptions

IDS = [f"n{k}" for k in range(20)]


def a_bench(**options: Any) -> Bench:
    return Bench(PROTOCOL, IDS, delay_s=0.01, period_s=0, **options)


def relayed(bench: Bench) -> int:
    return sum(isinstance(message, RelayEvent) for _, _, message in bench.sent)


def test_a_flood_reaches_every_node_exactly_once() -> None:
    bench = a_bench()
    for id in IDS:
        bench.subscribe(id, Ranges.of(x=(0, 9)))
    event = bench.publish("n0", x=3)
    bench.run(10.0)
    assert sorted(bench.delivered) == sorted((id, event) for id in IDS)
    assert relayed(bench) <= 20 * 10


def test_without_dedupe_copies_multiply_up_to_the_hop_limit() -> None:
    bench = a_bench(fan_out=2.0, dedupe=False, hops_max=5)
    bench.publish("n0", x=3)
    bench.run(10.0)
    assert relayed(bench) == 2 + 4 + 8 + 16 + 32


def test_a_fan_out_between_two_numbers_is_one_or_the_other() -> None:
    node = Simple(Peer("me"), Random(1), SimpleOptions(fan_out=1.73, period_s=0))
    node.graph.sampler.fill(Peer(id) for id in IDS)
    sent = [len(copies_of(node, seq)) for seq in range(2000)]
    assert set(sent) == {1, 2}
    assert sum(sent) / len(sent) == pytest.approx(1.73, abs=0.05)


def copies_of(node: Simple, seq: int) -> list[Send]:
    packet = Packet(Header(EventId("me", 0, seq), "Event"), View({"x": 3}))
    return [effect for effect in node.publish(packet, 0.0) if isinstance(effect, Send)]


def test_every_visited_node_compares_all_its_subscriptions() -> None:
    """The paper's m × s."""
    bench = a_bench()
    bench.subscribe("n0", Ranges.of(x=(0, 9), y=(0, 9)))
    bench.subscribe("n0", Ranges.of(x=(0, 9)))
    router = bench.routers["n0"]
    effects = router.receive("n1", RelayEvent(next(iter_packet(bench)), 3), 0.0)
    assert [each.by for each in effects if isinstance(each, Count)] == [3]
    assert any(isinstance(each, Send) for each in effects)


def iter_packet(bench: Bench) -> Any:
    bench.publish("n5", x=3)
    yield from (message.packet for _, _, message in bench.sent if isinstance(message, RelayEvent))


@pytest.mark.parametrize("options", [{"fan_out": 0.5}, {"hops_max": 0}, {"wings": 2}], ids=str)
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        protocol("simple").build(Place(Peer("a"), (), Random(0)), **options)
