"""Who may: identities, signed event types, rights, keys, and events sealed so that only rights open them.

A participant is a key (`Identity`). A type's owner signs what its events look like and how they
are protected (`SignedType`), and gives rights as tokens (`grant`, `Capability`). The type's
`KeyManager` hands keys to whoever shows a right; they end up on a `Keyring`. With it a `Sealer`
makes frames of events, an `Opener` reads of them what the ring allows, and a `FilterSealer` and
`FilterOpener` do the same for subscriptions.

Nothing here reads a clock or draws randomness by itself: `now_ms` and a source of bytes come from
the caller, who gives `secrets.token_bytes`. A broken or forged message raises `PeerError`, a right
that was not given `Denied`; both start with the name of the check that failed.
"""

from tidings.security.envelope.batch import BatchMoments, BatchOpener, BatchSealer, OpenedBatch, State
from tidings.security.envelope.frame import FLAG_CACHE, FRAME_BYTES_MAX, Frame, split
from tidings.security.envelope.nonce import Moments, NotYet
from tidings.security.envelope.opener import CacheTrust, Opened, Opener, UnknownEpoch
from tidings.security.envelope.plaintext_cache import cached, project, uncached
from tidings.security.envelope.replay import ReplayWindow
from tidings.security.envelope.sealed_filter import FilterOpener, FilterSealer, Subscription
from tidings.security.envelope.sealer import Sealer, Signing
from tidings.security.formats import MODERN, PAPER, PROFILES, Profile, manifest_of, profile_of
from tidings.security.identity import (
    Identity,
    RandomBytes,
    SealingKey,
    fingerprint,
    from_fingerprint,
    seal_to,
    verify_signature,
)
from tidings.security.keys.group import Beacon, GroupMember, GroupPolicy, KeyGroup, KeyUpdate
from tidings.security.keys.keyring import DELAY_MS, KeyEpoch, Keyring, content_key
from tidings.security.keys.manager import (
    Broadcast,
    KeyManager,
    Persist,
    Reply,
    Welcome,
    make_join,
    open_welcome,
    verify_refusal,
)
from tidings.security.keys.manager import Effect as ManagerEffect
from tidings.security.keys.tree_member import MEMBERS, TreeMember
from tidings.security.keys.trees import TREES, KeyTree, NeedResync
from tidings.security.rights.biscuit import BiscuitCapability, Capability, Verifier, grant, token_of
from tidings.security.rights.publishers import Publishers
from tidings.security.rights.reduction import ACTIONS, ANY_TYPE, Grant, OnlineTest, Request, Right, reduce
from tidings.security.signed_type import Mode, PadPolicy, SignedType
from tidings.security.suites import SUITES, Cipher, Suite, suite_of

__all__ = [
    "ACTIONS",
    "ANY_TYPE",
    "DELAY_MS",
    "FLAG_CACHE",
    "FRAME_BYTES_MAX",
    "MEMBERS",
    "MODERN",
    "PAPER",
    "PROFILES",
    "SUITES",
    "TREES",
    "BatchMoments",
    "BatchOpener",
    "BatchSealer",
    "Beacon",
    "BiscuitCapability",
    "Broadcast",
    "CacheTrust",
    "Capability",
    "Cipher",
    "FilterOpener",
    "FilterSealer",
    "Frame",
    "Grant",
    "GroupMember",
    "GroupPolicy",
    "Identity",
    "KeyEpoch",
    "KeyGroup",
    "KeyManager",
    "KeyTree",
    "KeyUpdate",
    "Keyring",
    "ManagerEffect",
    "Mode",
    "Moments",
    "NeedResync",
    "NotYet",
    "OnlineTest",
    "Opened",
    "OpenedBatch",
    "Opener",
    "PadPolicy",
    "Persist",
    "Profile",
    "Publishers",
    "RandomBytes",
    "ReplayWindow",
    "Reply",
    "Request",
    "Right",
    "Sealer",
    "SealingKey",
    "SignedType",
    "Signing",
    "State",
    "Subscription",
    "Suite",
    "TreeMember",
    "UnknownEpoch",
    "Verifier",
    "Welcome",
    "cached",
    "content_key",
    "fingerprint",
    "from_fingerprint",
    "grant",
    "make_join",
    "manifest_of",
    "open_welcome",
    "profile_of",
    "project",
    "reduce",
    "seal_to",
    "split",
    "suite_of",
    "token_of",
    "uncached",
    "verify_refusal",
    "verify_signature",
]
