"""What of an event's cost is the node's own: batches published at a `Node` with 1,000 conditions, no links, no disk.

python -m benchmarks.live.node_alone
"""

from __future__ import annotations

import gc
import random
import secrets
import sys
import time

from benchmarks.live.workload import condition, events
from tidings.events import EventType, Required, Timestamp
from tidings.node import LocalIdentity, Node, NodePolicy
from tidings.overlay import Peer, protocol
from tidings.security import Identity

CONDITIONS, EVENTS, BATCH, ROUNDS = 1_000, 20_000, 1_000, 5
TYPE = EventType("Numberplate", plate=Required(str), area=str, speed=float, seen_at=Timestamp)


def main() -> int:
    """Prints microseconds of processor time per event, of the best round."""
    node, said = _node(), events(EVENTS, CONDITIONS)
    gc.freeze()
    gc.disable()  # As good as a broker process does.
    best = min(_round(node, said) for _ in range(ROUNDS))
    print(f"Node.publish_many, {CONDITIONS:,} conditions: {best:.1f} µs/event")
    return 0


def _node() -> Node:
    identity = Identity.make(secrets.token_bytes)
    made = Node(
        LocalIdentity(Peer("alone"), identity),
        protocol("flooding"),
        rng=random.Random(1),
        random=secrets.token_bytes,
        policy=NodePolicy(open_links=True, bind_ids=False),
    )
    made.declare(TYPE, 0.0)
    made.attach("desk", identity.public_key, [], 0.0)
    for number in range(CONDITIONS):
        made.subscribe("desk", TYPE.name, condition(number), 0.0)
    return made


def _round(node: Node, said: list[dict[str, object]]) -> float:
    begun = time.process_time()
    for start in range(0, EVENTS, BATCH):
        node.publish_many("desk", TYPE.name, said[start : start + BATCH], 1.0, keep=True)
    return 1e6 * (time.process_time() - begun) / EVENTS


if __name__ == "__main__":
    sys.exit(main())
