"""One participant: checks rights, opens and seals, runs a router, matches locally. No I/O.

`Node` is what a live broker and a simulated world both run. It takes what happens, with the moment it
happens, and gives effects to be carried out in order. Here, and only here, rights and routing meet:
routers see views and never keys, the security room knows no routes.
"""

from tidings.node.credentials import Credentials, Held, Truth
from tidings.node.effects import (
    Ended,
    Joined,
    Keep,
    KeepKeys,
    LinkReady,
    NodeEffect,
    Notify,
    NotJoined,
    Refused,
)
from tidings.node.local_subscriptions import LocalSubscription
from tidings.node.neighbours import node_id_of
from tidings.node.node import Node
from tidings.node.policy import NodePolicy
from tidings.node.stored_event import kept_values, read_kept
from tidings.node.trace_log import Hop

__all__ = [
    "Credentials",
    "Ended",
    "Held",
    "Hop",
    "Joined",
    "Keep",
    "KeepKeys",
    "LinkReady",
    "LocalSubscription",
    "Node",
    "NodeEffect",
    "NodePolicy",
    "NotJoined",
    "Notify",
    "Refused",
    "Truth",
    "kept_values",
    "node_id_of",
    "read_kept",
]
