"""What of an event's cost is the node's own: batches published at a `Node` with conditions, no links, no disk.

python -m benchmarks.live.node_alone [--conditions 1000] [--batch 512]

Of a type in clear and of one that is sealed by attribute; signed and with rights, as one by one in a frame and as columns.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.live.workload import condition, events
from tidings.events import EventType, Required, Timestamp, rows_of_records
from tidings.matching import load_kernels
from tidings.node import LocalIdentity, Node, NodePolicy, encode_stored_batch, node_id_of
from tidings.overlay import Peer, protocol
from tidings.security import Mode, SignedType, prepare_columns
from tidings.sim import START_MS, Federation

EVENTS, ROUNDS = 20_000, 5
TYPE = EventType("Numberplate", plate=Required(str), area=str, speed=float, seen_at=Timestamp)


def main() -> int:
    """Prints microseconds of processor time per event, of the best round."""
    parser = argparse.ArgumentParser(description="What an event costs a node.")
    parser.add_argument("--conditions", type=int, default=1_000)
    parser.add_argument("--batch", type=int, default=512)
    asked = parser.parse_args()
    load_kernels()
    prepare_columns()
    said = events(EVENTS, asked.conditions)
    federation = Federation(1)
    for mode in (Mode.PLAIN, Mode.ATTRIBUTE):
        node = _node(federation, federation.type(TYPE, mode), asked.conditions)
        gc.collect()
        gc.freeze()
        gc.disable()  # As good as a broker process does.
        for name, publish in (("one by one", _one_by_one), ("as columns", _as_columns)):
            batches = [said[start : start + asked.batch] for start in range(0, EVENTS, asked.batch)]
            best = min(_round(node, batches, publish) for _ in range(ROUNDS))
            what = "in clear" if mode is Mode.PLAIN else "sealed"
            print(f"{what}, {name}, {asked.conditions:,} conditions: {best:.1f} µs/event")
        gc.enable()
    return 0


def _node(federation: Federation, signed: SignedType, conditions: int) -> Node:
    identity = federation.identity("alone")
    node = Node(
        LocalIdentity(Peer(node_id_of(identity.public_key)), identity, "alone"),
        protocol("flooding"),
        rng=random.Random(1),
        random=random.Random(2).randbytes,
        policy=NodePolicy(network_key=federation.network.public_key, signing="batch", need_signatures=True),
    )
    node.clock_is(START_MS, 0.0)
    node.start(0.0)
    node.declare(signed, 0.0)
    node.hold(federation.membership("alone", identity).to_bytes(), 0.0)
    if signed.mode is not Mode.PLAIN:
        node.host(federation.key_manager(signed), 0.0)
    node.hold(federation.right(signed, identity).to_bytes(), 0.0)
    desk = federation.identity("desk")
    node.attach("desk", desk.public_key, [federation.right(signed, desk).to_bytes()], 0.0)
    for number in range(conditions):
        node.subscribe("desk", TYPE.name, condition(number), 0.0)
    return node


def _one_by_one(node: Node, said: Sequence[dict[str, Any]]) -> None:
    node.publish_many("desk", TYPE.name, said, 1.0, keep=True)


def _as_columns(node: Node, said: Sequence[dict[str, Any]]) -> None:
    known = node.types.find(TYPE.name)
    rows = rows_of_records(said, known.event_type)
    assert rows is not None
    assert node.takes_batch(known, 1.0)
    encode_stored_batch(node.publish_batch("desk", known, rows, 1.0).batch)


def _round(
    node: Node, batches: Sequence[Sequence[dict[str, Any]]], publish: Callable[[Node, Sequence[dict[str, Any]]], None]
) -> float:
    begun = time.process_time()
    for said in batches:
        publish(node, said)
    return 1e6 * (time.process_time() - begun) / EVENTS


if __name__ == "__main__":
    sys.exit(main())
