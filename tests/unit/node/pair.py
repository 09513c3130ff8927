"""Two brokers side by side, with a cable between them that can be watched."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from tests.city import Sighting
from tidings.node import Joined, LocalIdentity, Node, NodeEffect, NodePolicy, node_id_of
from tidings.overlay import Peer, Router, Send, protocol
from tidings.security import BiscuitCapability, Identity, Mode, SignedType
from tidings.sim import START_MS, Federation

FEDERATION = Federation(42)
PLATES = FEDERATION.type(Sighting, Mode.ATTRIBUTE)


def a_node(
    name: str,
    neighbours: Sequence[str] = (),
    *,
    policy: NodePolicy | None = None,
    protocol_name: str = "flooding",
    router: Router[Any] | None = None,
) -> Node:
    """A broker by this name, that floods to its neighbours."""
    identity = FEDERATION.identity(name)
    node = Node(
        LocalIdentity(peer_of(identity), identity, name),
        protocol(protocol_name),
        rng=Random(name),
        random=Random(f"bytes {name}").randbytes,
        neighbours=[peer_of(FEDERATION.identity(other)) for other in neighbours],
        policy=policy or NodePolicy(network_key=FEDERATION.network.public_key),
        router=router,
    )
    node.clock_is(START_MS, 0.0)
    node.start(0.0)
    return node


def peer_of(identity: Identity) -> Peer:
    return Peer(node_id_of(identity.public_key))


def membership(node: Node, organisation: str = "police") -> BiscuitCapability:
    return FEDERATION.membership(organisation, node.identity)


class Cable:
    """Carries what two nodes say to each other, at once; `frames` keeps all of it."""

    def __init__(self, one: Node, other: Node) -> None:
        self.nodes = {one.me.id: one, other.me.id: other}
        self.one, self.other = one, other
        self.now = 0.0
        self.frames: list[tuple[str, bytes]] = []
        self.effects: list[NodeEffect] = []

    def up(self) -> None:
        """What happens when TLS stands."""
        first = self.one.link_up(self.other.me, self.now, my_cert=b"one", their_cert=b"other", dialled=True)
        second = self.other.link_up(self.one.me, self.now, my_cert=b"other", their_cert=b"one", dialled=False)
        self.carry_all([(self.one, each) for each in first] + [(self.other, each) for each in second])

    def carry(self, node: Node, effects: Sequence[NodeEffect]) -> list[NodeEffect]:
        """Carry out effects, and those that follow from them; gives all but what was sent."""
        return self.carry_all([(node, effect) for effect in effects])

    def carry_all(self, waiting: list[tuple[Node, NodeEffect]]) -> list[NodeEffect]:
        done: list[NodeEffect] = []
        while waiting:
            speaker, effect = waiting.pop(0)
            if not isinstance(effect, Send):
                done.append(effect)
                continue
            raw = speaker.frame_for(effect.to, effect.message, self.now)
            self.frames.append((effect.to, raw))
            listener = self.nodes[effect.to]
            waiting += [(listener, each) for each in listener.receive(speaker.me.id, raw, self.now)]
        self.effects += done
        return done


def two(
    first: Sequence[str] | None = (),
    second: Sequence[str] | None = (),
    *,
    signed: SignedType = PLATES,
    organisations: tuple[str, str] = ("police", "police"),
    policy: NodePolicy | None = None,
) -> Cable:
    """Two members of the network that know the type and hold what is said here; the first hosts the key manager."""
    one, other = a_node("one", ["other"], policy=policy), a_node("other", ["one"], policy=policy)
    cable = Cable(one, other)
    for node, organisation in zip((one, other), organisations, strict=True):
        node.declare(signed, 0.0)
        node.hold(membership(node, organisation).to_bytes(), 0.0)
    cable.up()
    cable.carry(one, one.host(FEDERATION.key_manager(signed), 0.0))
    for node, names in ((one, first), (other, second)):
        if names is None or names:
            token = FEDERATION.right(signed, node.identity, names).to_bytes()
            effects = cable.carry(node, node.hold(token, 0.0))
            assert any(isinstance(effect, Joined) for effect in effects)
    return cable


def attach(cable: Cable, node: Node, client: str, names: Sequence[str] | None = None, **how: Any) -> None:
    """A client with a right of its own."""
    right = FEDERATION.right(how.pop("signed", PLATES), FEDERATION.identity(client), names, **how)
    node.attach(client, FEDERATION.identity(client).public_key, [right.to_bytes()], cable.now)
