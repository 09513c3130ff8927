"""Identities, signed event types, rights, keys, and events sealed so that only rights open them.

A participant is a key (`Identity`). A type's owner signs what its events look like and how they
are protected (`SignedType`), and grants rights as tokens (`grant`, `Capability`). The type's
`KeyManager` gives keys to holders that show a right; they keep them on a `Keyring`. With it a
`Sealer` turns events into frames, an `Opener` reads of them what the ring allows, and a
`FilterSealer` and a `FilterOpener` do the same for subscriptions.

Nothing here reads a clock or draws randomness by itself: the caller passes `now_ms` and a source of
bytes, such as `secrets.token_bytes`. A broken or forged message raises `PeerError`, a missing right
`Denied`; both start with the name of the check that failed.

In reading order:

    suites        ciphers and key derivation
    formats       the two profiles, modern and paper: identifiers, nonces, associated data
    identity      signing keys, sealing keys, fingerprints
    validity      whether something holds at a moment
    signed_type   event types with their protection, signed by their owner
    rights        what a chain of grants allows, and its tokens
    keys          key groups, key trees, the key manager, the keyring
    envelope      frames: sealing and opening events and filters
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidings.security.envelope.batch import (
        BatchMoments,
        BatchOpener,
        BatchSealer,
        OpenedBatch,
        State,
        prepare_columns,
        seal_rows,
    )
    from tidings.security.envelope.frame import FLAG_CACHE, FLAG_SIGNATURE, FRAME_BYTES_MAX, Frame, split
    from tidings.security.envelope.nonce import NonceClock, NotYet
    from tidings.security.envelope.opener import CacheTrust, Opened, Opener, UnknownEpoch
    from tidings.security.envelope.plaintext_cache import cached, project, uncached
    from tidings.security.envelope.replay import ReplayWindow
    from tidings.security.envelope.sealed_filter import FilterOpener, FilterSealer, SealedSubscription
    from tidings.security.envelope.sealer import Sealer, Signing
    from tidings.security.envelope.signing import SignatureReader, digest_of, signatures_of
    from tidings.security.formats import MODERN, PAPER, PROFILES, Profile, manifest_of, profile_of
    from tidings.security.identity import (
        SIGNATURE_BYTES,
        Identity,
        RandomBytes,
        SealingKey,
        fingerprint,
        from_fingerprint,
        seal_to,
        verify_signature,
    )
    from tidings.security.keys.group import EpochBeacon, GroupMember, GroupPolicy, KeyGroup, KeyUpdate
    from tidings.security.keys.keyring import DELAY_MS, KeyEpoch, Keyring, content_key
    from tidings.security.keys.manager import (
        Broadcast,
        JoinWelcome,
        KeyManager,
        ManagerEffect,
        Persist,
        Reply,
        make_join,
        open_welcome,
        verify_refusal,
    )
    from tidings.security.keys.tree_member import MEMBERS, TreeMember
    from tidings.security.keys.trees import TREES, KeyTree, NeedResync
    from tidings.security.rights.actions import ACTIONS, ANY_TYPE
    from tidings.security.rights.biscuit import BiscuitCapability, Capability, Verifier, grant, token_of
    from tidings.security.rights.online import OnlineAnswer, online_url, read_answer, sign_answer, verify_answer
    from tidings.security.rights.publishers import PublisherRights
    from tidings.security.rights.reduction import AccessRequest, Grant, OnlineTest, Right, reduce
    from tidings.security.rights.revocation import (
        RECORD_BYTES_MAX,
        RevocationRecord,
        RevocationTable,
        VerifiedRevocation,
        check_may_revoke,
        read_revocation,
        sign_revocation,
        verify_revocation,
    )
    from tidings.security.rights.revocation import in_batches as revocations_in_batches
    from tidings.security.signed_type import Mode, PadPolicy, SignedType
    from tidings.security.suites import SUITES, Cipher, Suite, suite_of
    from tidings.security.validity import show_ms, why_not_valid

__all__ = [
    "ACTIONS",
    "ANY_TYPE",
    "DELAY_MS",
    "FLAG_CACHE",
    "FLAG_SIGNATURE",
    "FRAME_BYTES_MAX",
    "MEMBERS",
    "MODERN",
    "PAPER",
    "PROFILES",
    "RECORD_BYTES_MAX",
    "SIGNATURE_BYTES",
    "SUITES",
    "TREES",
    "AccessRequest",
    "BatchMoments",
    "BatchOpener",
    "BatchSealer",
    "BiscuitCapability",
    "Broadcast",
    "CacheTrust",
    "Capability",
    "Cipher",
    "EpochBeacon",
    "FilterOpener",
    "FilterSealer",
    "Frame",
    "Grant",
    "GroupMember",
    "GroupPolicy",
    "Identity",
    "JoinWelcome",
    "KeyEpoch",
    "KeyGroup",
    "KeyManager",
    "KeyTree",
    "KeyUpdate",
    "Keyring",
    "ManagerEffect",
    "Mode",
    "NeedResync",
    "NonceClock",
    "NotYet",
    "OnlineAnswer",
    "OnlineTest",
    "Opened",
    "OpenedBatch",
    "Opener",
    "PadPolicy",
    "Persist",
    "Profile",
    "PublisherRights",
    "RandomBytes",
    "ReplayWindow",
    "Reply",
    "RevocationRecord",
    "RevocationTable",
    "Right",
    "SealedSubscription",
    "Sealer",
    "SealingKey",
    "SignatureReader",
    "SignedType",
    "Signing",
    "State",
    "Suite",
    "TreeMember",
    "UnknownEpoch",
    "VerifiedRevocation",
    "Verifier",
    "cached",
    "check_may_revoke",
    "content_key",
    "digest_of",
    "fingerprint",
    "from_fingerprint",
    "grant",
    "make_join",
    "manifest_of",
    "online_url",
    "open_welcome",
    "prepare_columns",
    "profile_of",
    "project",
    "read_answer",
    "read_revocation",
    "reduce",
    "revocations_in_batches",
    "seal_rows",
    "seal_to",
    "show_ms",
    "sign_answer",
    "sign_revocation",
    "signatures_of",
    "split",
    "suite_of",
    "token_of",
    "uncached",
    "verify_answer",
    "verify_refusal",
    "verify_revocation",
    "verify_signature",
    "why_not_valid",
]

# Loaded when they are first used: who only shows a fingerprint waits neither for NumPy and Arrow nor for conditions.
_NAMES_IN = {
    "tidings.security.envelope.batch": (
        "BatchMoments",
        "BatchOpener",
        "BatchSealer",
        "OpenedBatch",
        "State",
        "prepare_columns",
        "seal_rows",
    ),
    "tidings.security.envelope.frame": ("FLAG_CACHE", "FLAG_SIGNATURE", "FRAME_BYTES_MAX", "Frame", "split"),
    "tidings.security.envelope.nonce": ("NonceClock", "NotYet"),
    "tidings.security.envelope.opener": ("CacheTrust", "Opened", "Opener", "UnknownEpoch"),
    "tidings.security.envelope.plaintext_cache": ("cached", "project", "uncached"),
    "tidings.security.envelope.replay": ("ReplayWindow",),
    "tidings.security.envelope.sealed_filter": ("FilterOpener", "FilterSealer", "SealedSubscription"),
    "tidings.security.envelope.sealer": ("Sealer", "Signing"),
    "tidings.security.envelope.signing": ("SignatureReader", "digest_of", "signatures_of"),
    "tidings.security.formats": ("MODERN", "PAPER", "PROFILES", "Profile", "manifest_of", "profile_of"),
    "tidings.security.identity": (
        "SIGNATURE_BYTES",
        "Identity",
        "RandomBytes",
        "SealingKey",
        "fingerprint",
        "from_fingerprint",
        "seal_to",
        "verify_signature",
    ),
    "tidings.security.keys.group": ("EpochBeacon", "GroupMember", "GroupPolicy", "KeyGroup", "KeyUpdate"),
    "tidings.security.keys.keyring": ("DELAY_MS", "KeyEpoch", "Keyring", "content_key"),
    "tidings.security.keys.manager": (
        "Broadcast",
        "JoinWelcome",
        "KeyManager",
        "ManagerEffect",
        "Persist",
        "Reply",
        "make_join",
        "open_welcome",
        "verify_refusal",
    ),
    "tidings.security.keys.tree_member": ("MEMBERS", "TreeMember"),
    "tidings.security.keys.trees": ("TREES", "KeyTree", "NeedResync"),
    "tidings.security.rights.actions": ("ACTIONS", "ANY_TYPE"),
    "tidings.security.rights.biscuit": ("BiscuitCapability", "Capability", "Verifier", "grant", "token_of"),
    "tidings.security.rights.online": ("OnlineAnswer", "online_url", "read_answer", "sign_answer", "verify_answer"),
    "tidings.security.rights.publishers": ("PublisherRights",),
    "tidings.security.rights.reduction": ("AccessRequest", "Grant", "OnlineTest", "Right", "reduce"),
    "tidings.security.rights.revocation": (
        "RECORD_BYTES_MAX",
        "RevocationRecord",
        "RevocationTable",
        "VerifiedRevocation",
        "check_may_revoke",
        "read_revocation",
        "sign_revocation",
        "verify_revocation",
        "revocations_in_batches",
    ),
    "tidings.security.signed_type": ("Mode", "PadPolicy", "SignedType"),
    "tidings.security.suites": ("SUITES", "Cipher", "Suite", "suite_of"),
    "tidings.security.validity": ("show_ms", "why_not_valid"),
}
_MODULE_OF = {name: module for module, names in _NAMES_IN.items() for name in names}
_NAME_THERE = {"revocations_in_batches": "in_batches"}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tidings.security' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_MODULE_OF[name]), _NAME_THERE.get(name, name))
    return found


def __dir__() -> list[str]:
    return __all__
