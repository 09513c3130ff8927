"""An organisation's folder: its key, whom it trusts, its registry, and what it does for its brokers and clients.

    org.toml                       name, overlay, how long certificates last, where it enrols
    authority.pem, authority.crt   signs certificates and rights; the certificates of former authorities stand first
    next.pem, next.crt             while the key is being changed: the next authority, trusted already
    retired/*.pem                  former keys, which still own the types that were declared with them
    trusted.pem                    the authorities of this and of all trusted organisations
    organisations/*.org            the public files of the organisations that it trusts
    organisations/*.rights         of those that it exchanges only rights with: no broker connects to them
    peers.toml                     the brokers that its own brokers connect to
    tidings.db                     the registry
    NAME/                          a broker or a client on this machine (see `participant`)

`Organisation` needs the private key, so it belongs on one machine that few can reach. Brokers and clients elsewhere
send a request and get an approval. `refresh` brings everything up to date after a change, and may be called at any time.
"""

from __future__ import annotations

import base64
import secrets
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from tidings.errors import Denied, InputError, PeerError, TidingsError
from tidings.net.clock import now_ms
from tidings.net.config import host_and_port, read_text
from tidings.net.enrolment.documents import (
    Approval,
    CardBroker,
    OrganisationCard,
    RightBundle,
    read,
    read_bytes,
    read_file,
    sign,
    type_text,
    types_of,
)
from tidings.net.enrolment.folder_lock import FolderLock, one_at_a_time
from tidings.net.enrolment.participant import (
    AUTHORITY,
    CONFIG,
    PEERS,
    REGISTRY,
    RIGHTS,
    TRUSTED,
    EnrolmentRequest,
    checked_file_name,
    install,
    make_folder,
    move_client,
    new_key,
    peers_text,
    put_tokens,
    read_request,
    table,
    write_if_new,
    write_secret,
)
from tidings.net.ids import read_identity
from tidings.net.transport import tls
from tidings.security import BiscuitCapability, Identity, fingerprint, from_fingerprint
from tidings.store import EnrolledParticipant, IssuedChanges, Issuer, Registry

SECRET, NEXT_SECRET, NEXT, SETTINGS = "authority.pem", "next.pem", "next.crt", "org.toml"
RETIRED, CARDS = "retired", "organisations"
AUTHORITY_DAYS = 5 * 365  # Changed by hand, with overlap; `tidings org rotate`.
CERTIFICATE_DAYS = 7.0  # Of brokers and clients. Renewed by themselves when a third is left.
CARD_BROKERS_MAX = 256  # Our brokers try to connect to each of them.
CARD_TYPES_MAX = 512  # Of the 4096 that a broker knows: one organisation cannot use them all up.
RIGHT_DEPTH = 1  # A right for an organisation is for its brokers and clients: it delegates it once.


@dataclass(frozen=True, slots=True)
class OrganisationSettings:
    """What an organisation's org.toml says."""

    name: str
    overlay: str = "irbr"
    certificate_days: float = CERTIFICATE_DAYS
    enrolment: str = ""
    registry: str = ""


class Organisation:
    """One organisation, on the machine that has its key."""

    def __init__(self, folder: Path) -> None:
        """Raises InputError for a folder without an organisation in it."""
        self.folder, self.lock = folder, FolderLock(folder)
        if not (folder / SECRET).exists() or not (folder / AUTHORITY).exists():
            raise InputError(
                f"{folder}: there is no organisation here, with {SECRET} and {AUTHORITY}; `tidings org create NAME` "
                "makes one, --org or TIDINGS_ORG names the folder of another"
            )
        self.authority = read_identity(folder / SECRET)
        self.certificates = (folder / AUTHORITY).read_bytes()
        known = tls.authority_keys(folder / AUTHORITY)
        if len(known) != 1:
            raise InputError(f"{folder / AUTHORITY}: expected the authorities of one organisation, got {len(known)}")
        ((self.name, self.authority_keys),) = known.items()
        self.settings = _settings(folder / SETTINGS, self.name)

    @classmethod
    def create(cls, folder: Path, settings: OrganisationSettings) -> tuple[Organisation, bool]:
        """An organisation with a new key, in a new folder; the one that is there, and False, if it is this one."""
        if (folder / AUTHORITY).exists():
            found = cls(folder)
            if found.name != settings.name:
                raise InputError(f"{folder} is the folder of {found.name}; name another one with --folder")
            found.name_itself()
            return found, False
        checked_file_name(settings.name)
        make_folder(folder)
        with FolderLock(folder).held():  # Whatever an interrupted one has left is used.
            authority = new_key(folder / SECRET)
            words = {"name": settings.name, "overlay": settings.overlay, "certificate_days": settings.certificate_days}
            words |= {word: value for word in ("enrolment", "registry") if (value := getattr(settings, word))}
            write_if_new(folder / SETTINGS, table("[organisation]", words).encode())
            if not (folder / AUTHORITY).exists():
                certificate = tls.authority(settings.name, authority, days=AUTHORITY_DAYS)
                write_if_new(folder / TRUSTED, certificate)
                write_if_new(folder / AUTHORITY, certificate)
        made = cls(folder)
        made.name_itself()
        return made, True

    def name_itself(self) -> None:
        """In its registry, its key goes by its name."""
        with self.registry(create=True) as registry:
            if all(domain.name != self.name for domain in registry.domains.all()):
                registry.domains.add(self.name, [self.authority.public_key], by=self.by, now_ms=now_ms())

    # ── Parts ──

    @property
    def by(self) -> str:
        """Who changes the registry."""
        return fingerprint(self.authority.public_key)

    @property
    def keys(self) -> list[Identity]:
        """Its key, then the next one, then former ones."""
        retired = sorted((self.folder / RETIRED).glob("*.pem")) if (self.folder / RETIRED).exists() else []
        others = [self.folder / NEXT_SECRET] if (self.folder / NEXT_SECRET).exists() else []
        return [self.authority, *(read_identity(file) for file in (*others, *retired))]

    @property
    def anchors(self) -> list[tls.TrustAnchor]:
        """Its authorities: former ones, the present one, and the next."""
        next_one = (self.folder / NEXT).read_bytes() if (self.folder / NEXT).exists() else b""
        return tls.anchors_in(self.certificates + next_one)

    @property
    def registry_address(self) -> str:
        return self.settings.registry or str(self.folder / REGISTRY)

    @contextmanager
    def registry(self, *, create: bool = False) -> Iterator[Registry]:
        """Raises InputError if it is not there: a new one would know of no right that was revoked."""
        if not create and not self.settings.registry and not (self.folder / REGISTRY).exists():
            raise InputError(
                f"{self.folder / REGISTRY} is missing, the registry of {self.name}: restore it from a backup; if "
                "`tidings org create` was interrupted, repeat it"
            )
        with Registry.open(self.registry_address, now_ms=now_ms()) as opened:
            opened.clock.check(now_ms())
            opened.types.own_keys = frozenset(key.public_key for key in self.keys)
            yield opened

    def issuer(self, registry: Registry) -> Issuer:
        return Issuer(registry, self.keys, secrets.token_bytes)

    def cards(self, *, connected: bool = False) -> dict[str, OrganisationCard]:
        """The organisations that it trusts, by name; with `connected`, those that its brokers connect to."""
        place, kinds = self.folder / CARDS, (".org",) if connected else (".org", ".rights")
        files = [file for file in sorted(place.iterdir()) if file.suffix in kinds] if place.exists() else []
        found = [read_file(file, OrganisationCard)[0] for file in files]
        return {card.name: card for card in found}

    # ── Enrolment ──

    @one_at_a_time
    def approve(self, request: EnrolmentRequest, *, renew: bool = False, administers: bool | None = None) -> Approval:
        """Enrols a participant; its certificate and everything else that it needs.

        `administers` gives a client the right to administer the organisation's brokers, or takes it; None: as it was.

        One who is enrolled keeps its certificate until it ends soon, or with `renew` gets another.
        Raises InputError for a request to another organisation, and for a name that another key has.
        """
        if request.organisation != self.name:
            raise InputError(f"the request is to {request.organisation[:80]!r}, and this is {self.name}")
        now = now_ms()
        with self.registry() as registry:
            known = registry.participants.with_key(request.key)
            did = known is not None and tls.is_administrator(tls.der(known.certificate))
            does = did if administers is None else administers
            keeps = known is not None and not renew and does == did and self._is_good(known)
            one = EnrolledParticipant(
                request.name,
                request.role,
                request.key,
                known.certificate if known and keeps else self._certificate(request, administers=does),
                request.address or (known.address if known else ""),
                request.manager_key or (known.manager_key if known else None),
            )
            if known != replace(one, added_ms=known.added_ms if known else 0):
                registry.participants.add(one, by=self.by, now_ms=now)
            self.issuer(registry).equip_brokers(now)
            self.issuer(registry).renew(now, one.key)
            self._write_peers(registry)
            return self._approval(registry, one)

    @one_at_a_time
    def renew(self, request: EnrolmentRequest) -> Approval:
        """As `approve`, for one who is enrolled; raises Denied for others: those who were removed are not renewed."""
        with self.registry() as registry:
            known = registry.participants.with_key(request.key)
        if known is None or (known.name, known.role) != (request.name, request.role):
            raise Denied(
                f"member: {self.name} has no {request.role} {request.name[:64]} with this key, or has removed it"
            )
        return self.approve(request, renew=True)

    @one_at_a_time
    def enrol(self, secret: bytes, pem: bytes) -> Approval:
        """Enrols who shows the secret of an invitation; raises Denied for a wrong or used one."""
        request = read_request(pem)
        with self.registry() as registry:
            registry.participants.redeem(secret, request.key, request.name, request.role, now_ms=now_ms())
        return self.approve(request)

    def invite(self, name: str, role: str, *, expires_ms: int) -> str:
        """A code that enrols one participant, once; raises InputError where there is no address to enrol at."""
        checked_file_name(name)
        if not self.settings.enrolment:
            raise InputError(
                f'{self.folder / SETTINGS} names no address to enrol at; add enrolment = "HOST:PORT" to it, or use '
                f"files: `tidings {role} request` and `tidings org approve`"
            )
        secret = secrets.token_bytes(16)
        with self.registry() as registry:
            registry.participants.invite(secret, name, role, expires_ms=expires_ms, by=self.by, now_ms=now_ms())
        return f"{self.settings.enrolment}/{self.authority.public_key.hex()}/{secret.hex()}"

    def uninvite(self, name: str, role: str) -> int:
        """Makes the codes for this name void that nobody has used; how many."""
        with self.registry() as registry:
            return registry.participants.uninvite(name, role, by=self.by, now_ms=now_ms())

    @one_at_a_time
    def install_here(self, approval: Approval, *, listen: str = "", broker: str = "") -> list[Path]:
        """Puts an approval into the participant's folder below this one."""
        folder = self.folder / approval.name
        return install(folder, approval, self.authority.public_key, listen=listen, broker=broker, shared=True)

    def sign(self, document: OrganisationCard | Approval | RightBundle) -> bytes:
        """The document as its file holds it, signed by the newest key that its readers know of."""
        card = isinstance(document, OrganisationCard) and (self.folder / NEXT_SECRET).exists()
        return sign(document, read_identity(self.folder / NEXT_SECRET) if card else self.authority)

    def _is_good(self, known: EnrolledParticipant) -> bool:
        """Whether its certificate is of the present authority, and lasts."""
        try:
            tls.check_issued(tls.der(known.certificate), self.authority.public_key)
        except PeerError:
            return False
        return not is_due(known.certificate)

    def _certificate(self, request: EnrolmentRequest, *, administers: bool) -> bytes:
        issuer = next(anchor.pem for anchor in self.anchors if anchor.key == self.authority.public_key)
        return tls.certificate(
            self.name,
            request.name,
            request.key,
            self.authority,
            issuer,
            role=request.role,
            administers=administers,
            days=self.settings.certificate_days,
        )

    def _approval(self, registry: Registry, one: EnrolledParticipant) -> Approval:
        tls.authority_keys(self.folder / TRUSTED)  # Raises here, where the file can be named.
        own = self._own_brokers(registry)
        others = [broker for card in self.cards(connected=True).values() for broker in card.brokers]
        return Approval(
            organisation=self.name,
            authority=self.certificates.decode(),
            name=one.name,
            role=one.role,
            certificate=one.certificate.decode(),
            trusted=read_text(self.folder / TRUSTED),
            peers=tuple(own if one.role == "client" else [*(b for b in own if b.name != one.name), *others]),
            types=tuple(type_text(signed) for signed in registry.types.all()),
            tokens=tuple(self._tokens(registry, one.key)),
            overlay=self.settings.overlay,
            enrolment=self.settings.enrolment,
        )

    def _tokens(self, registry: Registry, holder: bytes) -> list[str]:
        now = now_ms()
        live = [known for known in registry.grants.all(holder=holder) if known.refusal(now) is None]
        return [token_text(known.token) for known in live]

    def _own_brokers(self, registry: Registry) -> list[CardBroker]:
        brokers = registry.participants.all("broker")
        return [CardBroker(one.name, one.address, fingerprint(one.key)) for one in brokers]

    # ── Changes ──

    @one_at_a_time
    def refresh(self, *, renew_all: bool = False) -> IssuedChanges:
        """Brings up to date what depends on the registry: brokers' rights, roles, renewals, peers, files here."""
        now = now_ms()
        with self.registry() as registry:
            issuer = self.issuer(registry)
            changes = issuer.equip_brokers(now) + issuer.apply_roles(now)
            changes += issuer.renew(now, within_ms=2**62 if renew_all else None)
            self._write_peers(registry)
            self.hand_out(registry)
        return changes

    @one_at_a_time
    def hand_out(self, registry: Registry) -> None:
        """Puts the rights of those whose folders are here into their folders."""
        for one in registry.participants.all():
            folder = self.folder / one.name
            if (folder / CONFIG[one.role]).exists():
                put_tokens(folder / RIGHTS, self._tokens(registry, one.key))

    @one_at_a_time
    def renew_certificates(self, *, within_days: float | None = None, of_former_keys: bool = False) -> list[str]:
        """Renews the certificates that end soon, of those whose folders are here; their names.

        With `of_former_keys`, also those that the present authority has not signed.
        """
        with self.registry() as registry:
            known = registry.participants.all()
        renewed = []
        for one in known:
            folder = self.folder / one.name
            due = is_due(one.certificate, within_days) or (of_former_keys and not self._is_good(one))
            if (folder / CONFIG[one.role]).exists() and due:
                request = EnrolmentRequest(self.name, one.name, one.role, one.key)
                self.install_here(self.approve(request, renew=True))
                renewed.append(one.name)
        return renewed

    @one_at_a_time
    def move_client(self, name: str, broker: str) -> bool:
        """Has a client here use another broker of this organisation; False if it does so already."""
        with self.registry() as registry:
            client, one = registry.participants.find(name), registry.participants.find(broker)
        folder = self.folder / client.name
        if (client.role, one.role) != ("client", "broker") or not (folder / CONFIG["client"]).exists():
            raise InputError(
                f"expected a client with its folder in {self.folder} and a broker, got {name} and {broker}"
            )
        return move_client(folder, CardBroker(one.name, one.address, fingerprint(one.key)))

    @one_at_a_time
    def remove(self, name: str, role: str, *, purge: bool = False) -> list[str]:
        """Removes a participant and revokes its rights; the revocation ids. With `purge`, its folder goes, too.

        Idempotent: for one that was removed before, there is nothing more to revoke.
        """
        now = now_ms()
        with self.registry() as registry:
            if registry.participants.was_removed(name):
                return self._purge(name, role) if purge else []
            one = registry.participants.find(name)
            if one.role != role:
                raise InputError(f"{name} is a {one.role}; use `tidings {one.role} remove {name}`")
            registry.participants.remove(name, by=self.by, now_ms=now)
            revoked = self._revoke_all(registry, [one.key], f"{name} was removed")
            self._write_peers(registry)
        if purge:
            self._purge(name, role)
        return revoked

    def _purge(self, name: str, role: str) -> list[str]:
        folder = self.folder / checked_file_name(name)
        if (folder / CONFIG[role]).exists() and not folder.is_symlink():
            shutil.rmtree(folder)
        return []

    def _revoke_all(self, registry: Registry, holders: Sequence[bytes], why: str) -> list[str]:
        issuer, now, revoked = self.issuer(registry), now_ms(), list[str]()
        for holder in holders:
            for known in registry.grants.all(holder=holder):
                if known.may_hold(now) and known.owner_key != holder:
                    revoked += issuer.revoke(known, now, why)
        return revoked

    def _write_peers(self, registry: Registry) -> None:
        others = [broker for card in self.cards(connected=True).values() for broker in card.brokers]
        write_if_new(self.folder / PEERS, peers_text([*self._own_brokers(registry), *others]))

    # ── Other organisations ──

    def card(self) -> OrganisationCard:
        """What it shows to others."""
        next_one = (self.folder / NEXT).read_bytes() if (self.folder / NEXT).exists() else b""
        own = {key.public_key for key in self.keys}
        with self.registry() as registry:
            return OrganisationCard(
                name=self.name,
                authority=(self.certificates + next_one).decode(),
                made_ms=now_ms(),
                brokers=tuple(self._own_brokers(registry)),
                types=tuple(type_text(each) for each in registry.types.all() if each.owner_key in own),
                overlay=self.settings.overlay,
                enrolment=self.settings.enrolment,
            )

    @one_at_a_time
    def trust(
        self, file: Path, expected: str | None = None, *, only_rights: bool = False
    ) -> tuple[OrganisationCard, bytes, bool]:
        """Trusts another organisation by its public file; the card, its key, and whether anything changed.

        With `only_rights`, its types and rights can be used, and no broker connects to its brokers.
        Raises Denied if `expected` is given and is not its fingerprint, and InputError for one that took the name of
        another.
        """
        raw = read_bytes(file)
        card, key = read(raw, OrganisationCard, str(file))
        checked_file_name(card.name)
        if expected is not None and fingerprint(key) != expected:
            raise Denied(
                f"holder: the fingerprint of {file} is {fingerprint(key)}, not {expected[:80]}; do not trust it"
            )
        with self.registry() as registry:
            self._check_card(card, registry, str(file))
            for signed in types_of(card.types):  # All are read before the first is stored.
                registry.types.declare(signed, by=self.by, now_ms=now_ms())
            self._name_keys(registry, card, key)
            place = self.folder / CARDS / f"{card.name}{'.rights' if only_rights else '.org'}"
            make_folder(place.parent)
            changed = write_if_new(place, raw) is not None
            place.with_suffix(".org" if only_rights else ".rights").unlink(missing_ok=True)
            self._write_trusted(card, is_anchor=not only_rights)
            self._write_peers(registry)
        return card, key, changed

    def _check_card(self, card: OrganisationCard, registry: Registry, where: str) -> None:
        """Raises InputError for a public file that this organisation cannot work with; before anything is changed."""
        if card.name == self.name:
            raise InputError(f"{where} is the public file of {self.name} itself")
        if card.overlay != self.settings.overlay:
            raise InputError(
                f"{card.name} runs the overlay {card.overlay[:40]!r}, and {self.name} runs {self.settings.overlay}; all "
                "brokers of a network run the same"
            )
        known = self.cards()
        if card.name in known and known[card.name].made_ms > card.made_ms:
            raise InputError(
                f"{where} is older than the file of {card.name} that you have; ask for a new one (`tidings org export`)"
            )
        if len(card.brokers) > CARD_BROKERS_MAX or len(card.types) > CARD_TYPES_MAX:
            raise InputError(f"{where}: expected at most {CARD_BROKERS_MAX} brokers and {CARD_TYPES_MAX} types")
        if card.enrolment:
            host_and_port(card.enrolment, f"{where}: ")
        taken = [broker for name, other in known.items() if name != card.name for broker in other.brokers]
        self._check_brokers(card, {broker.key for broker in (*self._own_brokers(registry), *taken)}, where)
        self._check_name(card)

    def _check_brokers(self, card: OrganisationCard, taken: set[str], where: str) -> None:
        for broker in card.brokers:
            host_and_port(broker.address, f"{where}: ")
            key = fingerprint(from_fingerprint(broker.key))
            if key in taken:
                raise InputError(f"{where}: the key {key} is that of a broker of another organisation; do not trust it")

    def trusted_keys(self, name: str) -> list[bytes]:
        """The keys that an organisation is trusted by, newest last; none if it is not."""
        card = self.cards().get(name)
        in_card = [anchor.key for anchor in tls.anchors_in(card.authority.encode())] if card else []
        anchored = tls.authority_keys(self.folder / TRUSTED).get(name, [])
        return list(dict.fromkeys([*anchored, *in_card]))

    def _check_name(self, card: OrganisationCard) -> None:
        """Raises InputError where somebody else goes by that name already."""
        known = self.cards().get(card.name)
        before = known.authority.encode() if known else b""
        tls.authority_keys((self.folder / TRUSTED).read_bytes() + before + card.authority.encode())

    def _write_trusted(self, card: OrganisationCard, *, is_anchor: bool) -> None:
        """With an organisation's authorities as anchors of connections, or without them."""
        kept = tls.anchors_in(self.folder / TRUSTED)
        if is_anchor:
            kept += [anchor for anchor in tls.anchors_in(card.authority.encode()) if anchor not in kept]
        else:
            kept = [anchor for anchor in kept if anchor.domain != card.name]
        write_if_new(self.folder / TRUSTED, b"".join(anchor.pem for anchor in kept))

    def _name_keys(self, registry: Registry, card: OrganisationCard, key: bytes) -> None:
        """Its newest key goes by its name; former ones by the name and when they were replaced."""
        for known in registry.domains.all():
            if known.name == card.name and known.keys != (key,):
                registry.domains.remove(card.name, by=self.by, now_ms=now_ms())
                today = datetime.now(UTC).date().isoformat()
                registry.domains.add(f"{card.name} until {today}", known.keys, by=self.by, now_ms=now_ms())
        registry.domains.add(card.name, [key], by=self.by, now_ms=now_ms())

    def trusts(self) -> list[str]:
        """The names of all organisations that it trusts, connected or not."""
        anchored = tls.authority_keys(self.folder / TRUSTED)
        return sorted({*anchored, *self.cards()} - {self.name})

    @one_at_a_time
    def distrust(self, name: str) -> list[str]:
        """Trusts an organisation no longer, and revokes the rights that it was given; the revocation ids."""
        keys = self.trusted_keys(name)
        if not keys and self._was_trusted(name):
            return []
        if not keys or name == self.name:
            known = ", ".join(self.trusts()) or "none"
            raise InputError(f"{self.name} does not trust {name[:80]!r}; it trusts {known}")
        anchors = tls.anchors_in(self.folder / TRUSTED)
        write_if_new(self.folder / TRUSTED, b"".join(anchor.pem for anchor in anchors if anchor.domain != name))
        for kind in ("org", "rights"):
            (self.folder / CARDS / f"{name}.{kind}").unlink(missing_ok=True)
        with self.registry() as registry:
            revoked = self._revoke_all(registry, keys, f"{name} is not trusted any more")
            self._write_peers(registry)
        return revoked

    def _was_trusted(self, name: str) -> bool:
        """Whether it trusted somebody of that name before: its registry still has their key."""
        with self.registry() as registry:
            return name != self.name and any(domain.name == name for domain in registry.domains.all())

    def bundle(self, tokens: Sequence[BiscuitCapability]) -> bytes:
        """Rights for another organisation, as a file."""
        with self.registry() as registry:
            ids = {right.type_id for right in (token.right() for token in tokens)}
            types = [type_text(registry.types.with_id(id)) for id in ids if isinstance(id, bytes)]
        certificates = self.certificates.decode()
        texts = tuple(token_text(token) for token in tokens)
        return self.sign(RightBundle(self.name, certificates, texts, tuple(types)))

    def renew_rights(self, pem: bytes) -> bytes:
        """The rights that another organisation holds, renewed where they end soon, as a file; for its own request.

        Raises Denied for an organisation that is not trusted.
        """
        name, _, role, key, _ = tls.read_signing_request(pem)
        if role != "authority" or key not in self.trusted_keys(name):
            raise Denied(f"member: {name[:80]!r} is not an organisation that {self.name} trusts")
        now = now_ms()
        with self.registry() as registry:
            self.issuer(registry).renew(now, key)
            live = [known.token for known in registry.grants.all(holder=key) if known.refusal(now) is None]
        return self.bundle(live)

    def renew_received(self) -> dict[str, str]:
        """Asks the organisations that have granted rights for new ones; why that failed, by organisation."""
        from tidings.net.enrolment.renewal import fetch_rights  # Which knows how organisations are called.

        failed = {}
        for card in self.cards().values():
            if not card.enrolment:
                continue
            keys = [anchor.key for anchor in tls.anchors_in(card.authority.encode())]
            pem = tls.signing_request(self.name, "rights", "authority", self.authority, {"at": str(now_ms())})
            try:
                self.accept(*fetch_rights(card.enrolment, keys, pem))
            except TidingsError as wrong:
                failed[card.name] = str(wrong)
        return failed

    @one_at_a_time
    def accept(self, bundle: RightBundle, key: bytes) -> list[BiscuitCapability]:
        """Takes rights that another organisation has granted; raises Denied if it is not trusted, or they are not ours."""
        if key not in self.trusted_keys(bundle.organisation):
            raise Denied(
                f"issuer: {bundle.organisation[:80]} is not trusted; exchange public files first: tidings org trust FILE"
            )
        mine, taken = {each.public_key for each in self.keys}, []
        with self.registry() as registry:
            if len(bundle.types) > CARD_TYPES_MAX:
                raise InputError(f"expected rights to at most {CARD_TYPES_MAX} types in one file")
            types = types_of(bundle.types)
            for signed in types:
                registry.types.declare(signed, by=self.by, now_ms=now_ms())
            for text in bundle.tokens:
                token = _read_token(text, [signed.owner_key for signed in types])
                if token.right().holder not in mine:
                    raise Denied(f"holder: the right is {fingerprint(token.right().holder)}'s, not {self.name}'s")
                registry.grants.add(token, by=self.by, now_ms=now_ms())
                taken.append(token)
        return taken

    # ── A new key ──

    @one_at_a_time
    def rotate(self) -> bytes:
        """Makes the next authority, which everybody here trusts from now on; its key. Idempotent."""
        if not (self.folder / NEXT).exists():
            next_one = Identity.make(secrets.token_bytes)
            certificate = tls.authority(self.name, next_one, days=AUTHORITY_DAYS, predecessor=self.authority)
            (self.folder / NEXT_SECRET).unlink(missing_ok=True)
            write_secret(self.folder / NEXT_SECRET, next_one.to_pem())
            write_if_new(self.folder / NEXT, certificate)
        trusted = (self.folder / TRUSTED).read_bytes().rstrip() + b"\n"
        key = read_identity(self.folder / NEXT_SECRET).public_key
        if key not in tls.authority_keys(trusted)[self.name]:
            write_if_new(self.folder / TRUSTED, trusted + (self.folder / NEXT).read_bytes())
        return key

    @one_at_a_time
    def cancel_rotation(self) -> str | None:
        """Drops the next authority, which has not signed anything yet; its key, or None if there is none."""
        if not (self.folder / NEXT_SECRET).exists():
            if (self.folder / NEXT).exists():
                raise InputError(f"{self.name} has begun to use its next key; go on with `tidings org rotate --finish`")
            return None
        key = read_identity(self.folder / NEXT_SECRET).public_key
        anchors = tls.anchors_in(self.folder / TRUSTED)
        write_if_new(self.folder / TRUSTED, b"".join(anchor.pem for anchor in anchors if anchor.key != key))
        (self.folder / NEXT).unlink(missing_ok=True)
        (self.folder / NEXT_SECRET).unlink()
        return fingerprint(key)

    @one_at_a_time
    def finish_rotation(self) -> list[str]:
        """The next authority signs from now on, and certifies everybody here anew; who that is.

        Repeated, it completes what was interrupted; nobody is certified twice.
        """
        if (self.folder / NEXT).exists():
            self._use_next()
        elif len(self.authority_keys) < 2:
            raise InputError(f"{self.name} has no next key; begin with `tidings org rotate`")
        renewed = Organisation(self.folder)
        renewed.lock = self.lock
        with renewed.registry() as registry:
            renewed._name_keys(registry, renewed.card(), renewed.authority.public_key)
        return renewed.renew_certificates(of_former_keys=True)

    def _use_next(self) -> None:
        """Each step may be repeated after it was interrupted; the next certificate's file goes last."""
        make_folder(self.folder / RETIRED)
        next_one = (self.folder / NEXT).read_bytes()
        if (self.folder / NEXT_SECRET).exists():
            former = self.folder / RETIRED / f"{self.authority.public_key.hex()[:16]}.pem"
            if not former.exists():
                write_secret(former, self.authority.to_pem())
            (self.folder / NEXT_SECRET).replace(self.folder / SECRET)
        if tls.anchors_in(self.certificates)[-1] != tls.anchors_in(next_one)[-1]:
            write_if_new(self.folder / AUTHORITY, self.certificates + next_one)
        (self.folder / NEXT).unlink()

    @one_at_a_time
    def retire(self) -> list[str]:
        """Trusts the former authorities no longer; their keys. They still own the types that they declared."""
        *former, _ = self.authority_keys
        for file in (self.folder / AUTHORITY, self.folder / TRUSTED):
            anchors = tls.anchors_in(file)
            write_if_new(file, b"".join(anchor.pem for anchor in anchors if anchor.key not in former))
        return [fingerprint(key) for key in former]


def is_due(certificate: bytes, within_days: float | None = None) -> bool:
    """Whether a certificate ought to be renewed: a third of its time is left, or less than so many days."""
    begins, ends = tls.validity(certificate)
    left = ends - datetime.now(UTC)
    if within_days is None:
        return left <= (ends - begins - tls.BACKDATED) / 3
    return left.total_seconds() <= within_days * 86_400


def token_text(token: BiscuitCapability) -> str:
    return base64.urlsafe_b64encode(token.to_bytes()).decode()


def _read_token(text: str, owners: Sequence[bytes]) -> BiscuitCapability:
    refused: Denied | None = None
    for owner in owners:
        try:
            return BiscuitCapability.from_bytes(base64.urlsafe_b64decode(text), owner)
        except Denied as wrong:
            refused = wrong
        except ValueError:
            break
    raise refused or Denied("form: the file holds something that is not a token")


def _settings(file: Path, name: str) -> OrganisationSettings:
    if not file.exists():  # A folder of `tidings init`.
        return OrganisationSettings(name)
    try:
        said = tomllib.loads(read_text(file))["organisation"]
        return OrganisationSettings(**said)
    except (ValueError, KeyError, TypeError, RecursionError) as wrong:
        raise InputError(f"{file}: expected [organisation] with name, overlay, certificate_days: {wrong}") from None
