"""A network for development in one folder: organisations, brokers, clients, a type, and rights to it.

    DIR/network.pem                          whose join-net tokens make members
    DIR/police/authority.pem, authority.crt  signs the certificates of its own brokers and clients
    DIR/police/web.pem, web.crt              for a browser at the gateway of one of its brokers
    DIR/police/trusted.pem                   the authorities of all organisations it is linked with
    DIR/police/org.toml, tidings.db          with `registry`: its settings and its registry, as of `tidings org create`
    DIR/police/police-1/broker.toml          a broker: key.pem, cert.pem, tokens, data/ beside it
    DIR/police/camera/client.toml            a client: likewise
    DIR/Numberplate.type                     the event type, signed by its owner

The first client of each organisation may administer its brokers. All secrets are in one place here, which a real network must not do.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidings.errors import InputError, SetupError
from tidings.events import EventType, Required, Timestamp, ValueType
from tidings.net.clock import now_ms
from tidings.net.transport import tls
from tidings.security import ANY_TYPE, BiscuitCapability, Grant, Identity, Mode, SignedType, fingerprint, grant

VALID_MS = 365 * 86_400_000
BACKDATED_MS = 3_600_000  # Clocks differ; as much as certificates allow for.
FIRST_PORT = 7401
FREE_PORTS = range(10_240, 32_768)  # Above are those that systems hand out for outgoing connections.
PORTS_APART = 64
REGISTRY, RIGHTS = "tidings.db", "rights"  # As `tidings org create` and `tidings client create` call them.

BOUNDS: dict[ValueType, tuple[Any, Any]] = {
    ValueType.STRING: ("0", "z"),
    ValueType.DOUBLE: (0.0, 100.0),
    ValueType.INT: (0, 100),
}
"""The range over which a development network divides its space evenly; values beyond it fall into the outermost zones."""

NUMBERPLATE = EventType("Numberplate", plate=Required(str), area=str, speed=float, seen_at=Timestamp)


@dataclass(frozen=True, slots=True)
class ReadAccess:
    """What an organisation other than the owner may read; no attributes: all of them."""

    attributes: tuple[str, ...] = ()
    where: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DevNetwork:
    """What to create. The first organisation owns the type and publishes; the others read what they may."""

    brokers: Mapping[str, int] = field(default_factory=lambda: {"police": 1, "ccs": 1, "yard": 1})
    publishers: Sequence[str] = ("camera",)
    subscribers: Sequence[str] = ("desk",)
    readers: Mapping[str, ReadAccess] = field(
        default_factory=lambda: {"ccs": ReadAccess(("plate",)), "yard": ReadAccess(where=("plate = 'AB12CDE'",))}
    )
    event_type: EventType = NUMBERPLATE
    mode: Mode = Mode.PLAIN
    signatures: bool = True
    """Whether encrypted events are signed, too."""
    overlay: str = "irbr"
    overlay_options: Mapping[str, Any] = field(default_factory=dict)
    first_port: int = FIRST_PORT
    """0: ports that are free at this moment."""
    limits: Mapping[str, float] = field(default_factory=dict)
    registry: bool = False
    """Each organisation has a registry with the types and rights, which its brokers share; else each broker its own."""
    in_line: bool = False
    """Each broker knows only the next ones, so that events of a graph overlay take the long way; else everybody."""


@dataclass(frozen=True, slots=True)
class DevNetworkFiles:
    """The files of a development network."""

    folder: Path
    brokers: Mapping[str, Path]
    clients: Mapping[str, Path]
    """By `organisation/name`."""
    signed: SignedType


@dataclass(slots=True)
class _Organisation:
    name: str
    folder: Path
    authority: Identity
    certificate: bytes


def lay_out(folder: Path, layout: DevNetwork | None = None) -> DevNetworkFiles:
    """Creates the files of a network; raises InputError if the folder is not empty."""
    layout = layout or DevNetwork()
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    return _Maker(folder, layout).make()


class _Maker:
    def __init__(self, folder: Path, layout: DevNetwork) -> None:
        self.folder, self.layout = folder, layout
        self.network = Identity.make(secrets.token_bytes)
        self.organisations = [self._organisation(name) for name in layout.brokers]
        self.owner = self.organisations[0]
        self.signed = SignedType.make(
            self.owner.authority, layout.event_type, mode=layout.mode, signatures=layout.signatures
        )
        self.keys: dict[str, Identity] = {}
        self.enrolled: dict[str, dict[str, bytes]] = {name: {} for name in layout.brokers}
        self.given: list[tuple[str, bytes]] = []
        count = sum(layout.brokers.values())
        self.ports = free_ports(count) if not layout.first_port else range(layout.first_port, layout.first_port + count)

    def make(self) -> DevNetworkFiles:
        _write_secret(self.folder / "network.pem", self.network.to_pem())
        trusted = b"".join(each.certificate for each in self.organisations)
        for organisation in self.organisations:
            (organisation.folder / "trusted.pem").write_bytes(trusted)
        type_file = self.folder / f"{self.signed.event_type.name}.type"
        type_file.write_bytes(self.signed.to_bytes())
        addresses = self._addresses()
        for organisation in self.organisations:
            for number in range(self.layout.brokers[organisation.name]):
                self._key(organisation, f"{organisation.name}-{number + 1}")
        brokers = {name: self._broker(name, addresses) for name in addresses}
        clients = {
            f"{org.name}/{name}": self._client(org, name, addresses)
            for org in self.organisations
            for name in self._clients(org)
        }
        if self.layout.registry:
            for organisation in self.organisations:
                self._record(organisation, addresses)
        return DevNetworkFiles(self.folder, brokers, clients, self.signed)

    def _organisation(self, name: str) -> _Organisation:
        folder = self.folder / name
        folder.mkdir()
        authority = Identity.make(secrets.token_bytes)
        certificate = tls.authority(name, authority)
        _write_secret(folder / "authority.pem", authority.to_pem())
        (folder / "authority.crt").write_bytes(certificate)
        web_key, web_certificate = tls.web_pair()
        _write_secret(folder / "web.pem", web_key)
        (folder / "web.crt").write_bytes(web_certificate)
        return _Organisation(name, folder, authority, certificate)

    def _addresses(self) -> dict[str, str]:
        names = [f"{name}-{n + 1}" for name, count in self.layout.brokers.items() for n in range(count)]
        return {name: f"127.0.0.1:{port}" for name, port in zip(names, self.ports, strict=True)}

    def _of(self, broker: str) -> _Organisation:
        return next(each for each in self.organisations if each.name == broker.rpartition("-")[0])

    def _key(self, organisation: _Organisation, name: str) -> Identity:
        """A participant's folder, with its key and its certificate."""
        folder = organisation.folder / name
        folder.mkdir()
        key = self.keys[name] = Identity.make(secrets.token_bytes)
        _write_secret(folder / "key.pem", key.to_pem())
        issued = tls.certificate(
            organisation.name,
            name,
            key.public_key,
            organisation.authority,
            organisation.certificate,
            role="broker" if name.rpartition("-")[0] == organisation.name else "client",
            administers=name == self._clients(organisation)[0],
        )
        (folder / "cert.pem").write_bytes(issued)
        self.enrolled[organisation.name][name] = key.public_key
        return key

    def _record(self, organisation: _Organisation, addresses: Mapping[str, str]) -> None:
        """Puts into an organisation's registry who its own are, what it has given, and what it was given."""
        from tidings.store import EnrolledParticipant, Registry  # Here, so that a client does not load SQLAlchemy.

        by, now = fingerprint(organisation.authority.public_key), now_ms()
        words = {"name": organisation.name, "overlay": self.layout.overlay}
        (organisation.folder / "org.toml").write_text(_table("[organisation]", words))
        with Registry.open(organisation.folder / REGISTRY, now_ms=now) as registry:
            registry.types.declare(self.signed, by=by, now_ms=now)
            for each in self.organisations:
                registry.domains.add(each.name, [each.authority.public_key], by=by, now_ms=now)
                for name, key in self.enrolled[each.name].items():
                    role = "broker" if name in addresses else "client"
                    if each is organisation:
                        certificate = (each.folder / name / "cert.pem").read_bytes()
                        one = EnrolledParticipant(name, role, key, certificate, addresses.get(name, ""))
                        registry.participants.add(one, by=by, now_ms=now)
                    else:
                        registry.domains.add(f"{each.name}/{name}", [key], by=by, now_ms=now)
            for holder, token in self.given:
                if organisation is self.owner or organisation.name == holder:
                    read = BiscuitCapability.from_bytes(base64.urlsafe_b64decode(token), self.signed.owner_key)
                    registry.grants.add(read, by=by, now_ms=now)

    def _broker(self, name: str, addresses: Mapping[str, str]) -> Path:
        organisation = self._of(name)
        folder = organisation.folder / name
        key = self.keys[name].public_key
        tokens = ["member.token"]
        (folder / "member.token").write_bytes(membership(self.network, key))
        for number, right in enumerate(self._rights(organisation, as_broker=True)):
            tokens.append(f"right-{number + 1}.token")
            self._token(folder / tokens[-1], *right, key)
        table = {
            "name": name,
            "domain": organisation.name,
            "listen": addresses[name],
            "key": "key.pem",
            "certificate": "cert.pem",
            "trusted": "../trusted.pem",
            "gateway_certificate": "../web.crt",
            "gateway_key": "../web.pem",
            "data": "data",
            "overlay": self.layout.overlay,
            "network_key": fingerprint(self.network.public_key),
            "types": [f"../../{self.signed.event_type.name}.type"],
            "tokens": self._with_folder(folder, tokens),
        }
        if self.layout.registry:
            table["registry"] = f"../{REGISTRY}"
        if organisation is self.owner and name.endswith("-1") and self.layout.mode is not Mode.PLAIN:
            table["manages"] = ["../authority.pem"]
        parts = [_table("[broker]", table)]
        if options := overlay_options(self.layout, [fingerprint(self.keys[each].public_key) for each in addresses]):
            parts.append(_table("[overlay]", options))
        if self.layout.limits:
            parts.append(_table("[limits]", self.layout.limits))
        names = list(addresses)
        others = [other for other in names if other != name]
        if self.layout.in_line:
            others = [other for other in others if abs(names.index(other) - names.index(name)) == 1]
        parts += [
            _table("[[peer]]", {"address": addresses[other], "key": fingerprint(self.keys[other].public_key)})
            for other in others
        ]
        file = folder / "broker.toml"
        file.write_text("\n".join(parts))
        return file

    def _with_folder(self, folder: Path, tokens: list[str]) -> list[str]:
        """With a registry, rights that are granted later go into a folder."""
        if not self.layout.registry:
            return tokens
        (folder / RIGHTS).mkdir(mode=0o700)
        return [*tokens, RIGHTS]

    def _clients(self, organisation: _Organisation) -> Sequence[str]:
        return (
            [*self.layout.publishers, *self.layout.subscribers]
            if organisation is self.owner
            else self.layout.subscribers
        )

    def _client(self, organisation: _Organisation, name: str, addresses: Mapping[str, str]) -> Path:
        key = self._key(organisation, name)
        folder = organisation.folder / name
        tokens = []
        for number, right in enumerate(
            self._rights(organisation, as_broker=False, publishes=name in self.layout.publishers)
        ):
            tokens.append(f"right-{number + 1}.token")
            self._token(folder / tokens[-1], *right, key.public_key)
        broker = f"{organisation.name}-1"
        table = {
            "name": name,
            "domain": organisation.name,
            "broker": addresses[broker],
            "broker_key": fingerprint(self.keys[broker].public_key),
            "key": "key.pem",
            "certificate": "cert.pem",
            "trusted": "../trusted.pem",
            "tokens": self._with_folder(folder, tokens),
        }
        file = folder / "client.toml"
        file.write_text(_table("[client]", table))
        return file

    def _rights(
        self, organisation: _Organisation, *, as_broker: bool, publishes: bool = True
    ) -> list[tuple[tuple[str, ...], ReadAccess]]:
        """The owner's own brokers may do everything. A broker reads at least what its clients' constraints ask for."""
        if organisation is self.owner:
            actions = ("publish", "subscribe") if publishes else ("subscribe",)
            return [(actions, ReadAccess())]
        reader = self.layout.readers.get(organisation.name, ReadAccess())
        return [(("subscribe",), ReadAccess(reader.attributes) if as_broker else reader)]

    def _token(self, file: Path, actions: Sequence[str], reader: ReadAccess, holder: bytes) -> None:
        visible = frozenset(map(self.signed.attr_id, reader.attributes)) if reader.attributes else None
        token = _token(self.owner.authority, self.signed.type_id, actions, holder, visible, reader.where)
        self.given.append((file.parent.parent.name, token))
        file.write_bytes(token)


def membership(network: Identity, holder: bytes) -> bytes:
    """A token that makes a broker a member of a network, as its file holds it; for as long as certificates last."""
    return _token(network, ANY_TYPE, ("join-net",), holder)


def _token(
    owner: Identity,
    type_id: bytes | str,
    actions: Sequence[str],
    holder: bytes,
    attributes: frozenset[bytes] | None = None,
    where: tuple[str, ...] = (),
) -> bytes:
    now = now_ms()
    given = Grant(
        type_id=type_id,
        actions=frozenset(actions),
        holder=holder,
        attributes=attributes,
        not_before=now - BACKDATED_MS,
        not_after=now + VALID_MS,
        constraints=where,
    )
    return base64.urlsafe_b64encode(grant(owner, given, secrets.token_bytes).to_bytes()) + b"\n"


def overlay_options(layout: DevNetwork, brokers: Sequence[str]) -> dict[str, Any]:
    """The options that all brokers must agree on; `brokers` are their keys.

    Spanhop needs to know the space, whose axes are the type's attributes, and for `gnp` also the landmarks.
    """
    options = dict(layout.overlay_options)
    if layout.overlay == "spanhop" and "axes" not in options:
        kinds = {attribute.name: attribute.type for attribute in layout.event_type}
        options["axes"] = {name: list(BOUNDS[kind]) for name, kind in kinds.items() if kind in BOUNDS}
    if options.get("proximity") == "gnp" and "landmarks" not in options:
        options["landmarks"] = _landmarks(brokers, len(options["axes"]) + 1)
    return options


def _landmarks(brokers: Sequence[str], count: int) -> list[str]:
    """The first brokers, one more than there are axes."""
    if len(brokers) < count:
        raise InputError(f"gnp needs {count} brokers as landmarks for {count - 1} axes, and there are {len(brokers)}")
    return list(brokers[:count])


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at this moment, and that no system gives to connections while a broker is down."""
    found: list[int] = []
    # Processes that ask at the same time look in different places: nothing keeps a port for who has found it free.
    port = FREE_PORTS[os.getpid() * PORTS_APART % (len(FREE_PORTS) // 2)] + secrets.randbelow(PORTS_APART // 2)
    while len(found) < count and port in FREE_PORTS:
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            found.append(port)
        port += 1
    if len(found) < count:
        raise SetupError(f"no {count} free ports between {FREE_PORTS.start} and {FREE_PORTS.stop - 1}")
    return found


def _write_secret(file: Path, content: bytes) -> None:
    with open(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as stream:
        stream.write(content)


def _table(head: str, content: Mapping[str, Any]) -> str:
    return "\n".join([head, *(f"{name} = {_toml(value)}" for name, value in content.items()), ""])


def _toml(value: Any) -> str:
    """JSON's texts, numbers and lists of them are TOML's too; its tables are not."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml(each)}" for name, each in value.items()) + "}"
    return json.dumps(value)
