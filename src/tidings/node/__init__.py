"""One participant of the network: it checks rights, seals and opens events, runs a router, and matches locally. No I/O.

A live broker and the simulator drive the same `Node`. It takes what happens, with the moment it happens, and returns
effects for the driver to carry out in order. Here, and only here, rights and routing meet: routers see views and never
keys, the security package knows no routes.

**Publish.** A client publishes. The node checks the client's right and its own, seals the event, and hands the packet
to the router with as much of its content as the router may see. The router returns where to send it, and whether this
node's own subscribers may want it. Bytes for a neighbour are made at the moment they are written, with the plaintext
that this neighbour may have right then.

**Receive.** A frame comes in. The node checks that the neighbour is a member, opens packets and interests as far as its
keys allow, and hands the message to the router. A packet that the router delivers is matched with the local
subscriptions, and each client gets the attributes that it may see.

**Keys.** A node that is granted a right joins the key groups of the type over the overlay itself, by control types
whose names begin with `~`. Events whose key is late wait; filters are sealed again when keys change.

**Trust.** The driver vouches for who is at the other end of a link. Everything else is proven by signatures and tokens,
checked when used, and revocable at any moment.

Modules, in reading order:

    node                  the facade; carries out what the parts return
    effects               what the driver has to do
    type_registry         the declared types, by name
    outbound              values to packets, messages to frames, events to disk
    trust_boundary        what the router and each neighbour may read
    inbound               frames to messages for the router
    local_delivery        local subscriptions, matching, waiting for keys
    subscriptions         interests advertised to the overlay, and their summary
    client_authorization  what clients may publish, subscribe to and see
    credentials           presented tokens, revocation state
    neighbours            the link handshake, neighbours' credentials
    key_distribution      joining key groups, hosting key managers
    type_crypto           sealing and opening for one type
    filter_encoding       filters split by attribute
    trace_log             what happened to recent events
"""

from tidings.node.credentials import Credentials, HeldToken, RevocationState, node_id_of
from tidings.node.effects import (
    BatchDelivery,
    BatchIds,
    Delivery,
    Direct,
    Ended,
    Joined,
    Keep,
    KeepKeys,
    LinkReady,
    NodeEffect,
    NotJoined,
    PublishedBatch,
    Rejected,
)
from tidings.node.local_delivery import LocalSubscription
from tidings.node.neighbours import memberships_first
from tidings.node.node import LocalIdentity, Node, NodePolicy
from tidings.node.outbound import decode_stored, decode_stored_batch, encode_stored_batch, stored_values
from tidings.node.subscriptions import INTERESTS_MAX
from tidings.node.trace_log import TraceHop
from tidings.node.type_crypto import sealed_by
from tidings.node.type_registry import RegisteredType, TypeRegistry

__all__ = [
    "INTERESTS_MAX",
    "BatchDelivery",
    "BatchIds",
    "Credentials",
    "Delivery",
    "Direct",
    "Ended",
    "HeldToken",
    "Joined",
    "Keep",
    "KeepKeys",
    "LinkReady",
    "LocalIdentity",
    "LocalSubscription",
    "Node",
    "NodeEffect",
    "NodePolicy",
    "NotJoined",
    "PublishedBatch",
    "RegisteredType",
    "Rejected",
    "RevocationState",
    "TraceHop",
    "TypeRegistry",
    "decode_stored",
    "decode_stored_batch",
    "encode_stored_batch",
    "memberships_first",
    "node_id_of",
    "sealed_by",
    "stored_values",
]
