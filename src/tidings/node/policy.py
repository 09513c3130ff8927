"""How careful a node is: what its operator decides."""

from __future__ import annotations

from dataclasses import dataclass

from tidings.node.customs import CacheTrustPolicy
from tidings.security import DELAY_MS, Signing


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePolicy:
    """How careful a node is."""

    network_key: bytes | None = None
    """Whose `join-net` rights make a node a member of the network; None: nobody needs to be one."""
    cache_trust: CacheTrustPolicy = "same-domain"
    """Whose plaintext is taken for true without opening what is sealed: that of one's own organisation, that
    of anybody who may read it (and is compared now and then), or nobody's."""
    signing: Signing = "none"
    """Whether events are signed by this broker, beside being sealed."""
    late_ms: int = DELAY_MS
    """How late an event may come: so long its key is kept, and it is told to nobody later. Longer where events are
    kept for those who are away."""
    need_signatures: bool = False
    """Clients are told only of sealed events signed by a broker that may publish them: keys alone do not tell who of
    their holders sealed an event."""
    open_links: bool = False
    """Links need no introduction: for networks of one organisation, without rights."""
    bind_ids: bool = True
    """A node's id must be that of its key (`node_id_of`)."""
    apart_max: int | None = None
    """Beyond so many subscriptions of one sealed type the overlay is told only that all its events are wanted (see
    `wanting`); None: each is told by itself, however many."""
    traced_max: int = 4096
    """Recent events that `hop` can tell of; 0 for none."""
