"""Two organisations linked: each trusts the other's authority, knows its brokers, and is in one network with it.

    trusted.pem     the other's authority, beside one's own
    [[peer]]        in each broker.toml, the other's brokers: where they are reached, and the keys that must answer
    network_key     one for both; the brokers that are new to that network get `join-net` tokens of it
    types           the signed types of each, known to the other, so that rights to them can be given and used

What the other may publish and read is said by rights alone; none is given here.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidings.errors import Denied, InputError
from tidings.net.config import BrokerConfig, PeerConfig, files_in, read_broker, read_client, read_text
from tidings.net.dev_network import membership
from tidings.net.ids import read_identity, read_token
from tidings.net.transport.tls import domains_in
from tidings.net.type_files import TypeDefinition, read_type
from tidings.security import BiscuitCapability, Identity, fingerprint, from_fingerprint

NETWORK = "network.pem"  # As `tidings init` calls it.
TYPES = "types"


def trust_authority(folder: Path, authority: bytes) -> list[Path]:
    """Adds an authority to all files of trusted ones in an organisation's folder; those it was not in yet."""
    ((name, key),) = domains_in(authority).items()
    changed = {}
    for file in _trusted_files(folder):
        content = file.read_bytes().rstrip() + b"\n"
        if domains_in(content).get(name) != key:
            changed[file] = content + authority
            domains_in(changed[file])  # Raises where somebody else goes by that name already.
    for file, content in changed.items():
        _replace(file, content)
    return list(changed)


def introduce(ours: Path, theirs: Path, network: Path | None = None) -> list[Path]:
    """Has the brokers of two organisations' folders know each other, their types, and one network; the files changed.

    `network` holds the private key of the network, where it is not found beside the organisations. Raises InputError,
    and nothing is changed, where it cannot be done.
    """
    both = _Folder.read(ours), _Folder.read(theirs)
    _check_overlay(*both)
    host, guest = both if both[0].network_key or not both[1].network_key else both[::-1]
    written = _let_in(host, guest, network) if host.network_key != guest.network_key else {}
    for one, other in (both, both[::-1]):
        _learn(one, other, written)
    for broker in (*both[0].brokers, *both[1].brokers):
        broker.check()
    for file, content in written.items():
        _replace(file, content)
    return [*written, *(b.file for side in both for b in side.brokers if b.save())]


@dataclass(slots=True)
class _BrokerFile:
    """A broker.toml, and what it is to become."""

    file: Path
    config: BrokerConfig
    changes: dict[str, Any]
    peers: list[PeerConfig]

    @property
    def peer(self) -> PeerConfig:
        return PeerConfig(self.config.advertise or self.config.listen, fingerprint(self.key))

    @property
    def key(self) -> bytes:
        return read_identity(self.config.key).public_key

    def add(self, word: str, files: Iterable[Path]) -> None:
        """Add files to one of the lists in [broker]."""
        known = self.changes.get(word) or [self._relative(file) for file in getattr(self.config, word)]
        self.changes[word] = [*known, *(self._relative(file) for file in files)]

    def without(self, word: str, files: Iterable[Path]) -> None:
        gone = {self._relative(file) for file in files}
        self.changes[word] = [each for each in map(self._relative, getattr(self.config, word)) if each not in gone]

    def _relative(self, file: Path) -> str:
        return os.path.relpath(file.resolve(), self.file.resolve().parent)

    def check(self) -> None:
        """Raises InputError where the file is written in a way that cannot be changed here."""
        read = tomllib.loads(self._text())["broker"]
        for word, value in self.changes.items():
            if read.get(word) != value:
                raise InputError(f"{self.file}: expected {word} in one line of [broker]; set it to {json.dumps(value)}")

    def save(self) -> bool:
        """Whether there was something to be changed."""
        if self.changes or self.peers:
            _replace(self.file, self._text().encode())
        return bool(self.changes or self.peers)

    def _text(self) -> str:
        text = read_text(self.file)
        for word, value in self.changes.items():
            text = _with_line(text, word, json.dumps(value))
        peers = (f'[[peer]]\naddress = "{peer.address}"\nkey = "{peer.key}"\n' for peer in self.peers)
        return "\n".join([text, *peers])


@dataclass(frozen=True, slots=True)
class _Folder:
    """An organisation's folder."""

    folder: Path
    brokers: list[_BrokerFile]

    @classmethod
    def read(cls, folder: Path) -> _Folder:
        files = sorted(folder.rglob("broker.toml"))
        if not files:
            raise InputError(f"{folder}: expected an organisation's folder, with a broker.toml somewhere in it")
        found = cls(folder, [_BrokerFile(file, read_broker(file), {}, []) for file in files])
        if len({broker.config.network_key for broker in found.brokers}) > 1:
            raise InputError(f"{folder}: its brokers are not all in one network")
        return found

    @property
    def network_key(self) -> str:
        return self.brokers[0].config.network_key

    @property
    def keys(self) -> set[str]:
        return {broker.peer.key for broker in self.brokers}

    def types(self) -> dict[str, tuple[TypeDefinition, Path]]:
        files = {file.resolve() for broker in self.brokers for file in files_in(broker.config.types, ".type")}
        known = [(read_type(file), file) for file in sorted(files)]
        return {each.name: (each, file) for each, file in known if each.signed is not None}


def _check_overlay(one: _Folder, other: _Folder) -> None:
    names = sorted({broker.config.overlay for side in (one, other) for broker in side.brokers})
    if len(names) > 1:
        raise InputError(f"all brokers of a network run the same overlay; these run {' and '.join(names)}")


def _let_in(host: _Folder, guest: _Folder, network: Path | None) -> dict[Path, bytes]:
    """Tokens that make the guest's brokers members of the host's network, by their files."""
    strangers = {peer.key for broker in guest.brokers for peer in broker.config.peers} - guest.keys - host.keys
    if strangers and guest.network_key:
        raise InputError(
            f"{guest.folder}: its brokers are in a network of their own, with {len(strangers)} others, which would"
            " all have to change to the other network; to keep this one, name its organisation first"
        )
    signer, written = _network(host, network), {}
    for broker in guest.brokers:
        file = broker.file.parent / f"member-{fingerprint(signer.public_key)[-8:]}.token"
        written[file] = membership(signer, broker.key)
        broker.without("tokens", _memberships(broker.config))
        broker.add("tokens", [file])
        broker.changes["network_key"] = fingerprint(signer.public_key)
    return written


def _network(host: _Folder, given: Path | None) -> Identity:
    places = [given] if given is not None else [host.folder / NETWORK, host.folder.resolve().parent / NETWORK]
    for file in places:
        if file.exists() and fingerprint((found := read_identity(file)).public_key) == host.network_key:
            return found
    looked = " or ".join(map(str, places))
    raise InputError(
        f"expected the private key of the network {host.network_key} in {looked}; name its file with --network"
    )


def _memberships(config: BrokerConfig) -> list[Path]:
    """The tokens of the network that a broker leaves."""
    if not config.network_key:
        return []
    owner = from_fingerprint(config.network_key)
    return [file for file in config.tokens if file.is_file() and _is_given_by(owner, file)]


def _is_given_by(owner: bytes, file: Path) -> bool:
    try:
        BiscuitCapability.from_bytes(read_token(file), owner)
    except (Denied, InputError):
        return False
    return True


def _learn(one: _Folder, other: _Folder, written: dict[Path, bytes]) -> None:
    """One side gets to know the brokers and the types of the other."""
    known, new = one.types(), []
    for name, (each, file) in other.types().items():
        if name not in known:
            new.append(one.folder / TYPES / f"{each.event_type.name}-{name[:8]}.type")
            written[new[-1]] = file.read_bytes()
    for broker in one.brokers:
        have = {peer.key for peer in broker.config.peers}
        broker.peers += [each.peer for each in other.brokers if each.peer.key not in have]
        if new:
            broker.add("types", new)


def _with_line(text: str, word: str, value: str) -> str:
    """A file in which [broker] says this of a word, in the place of what it said."""
    head, broker, rest = text.partition("[broker]\n")
    table, bracket, others = re.match(r"(.*?)(^\[|\Z)(.*)", rest, re.DOTALL | re.MULTILINE).groups()  # type: ignore[union-attr]
    line, old = f"{word} = {value}\n", re.compile(rf"^{word}[ \t]*=.*\n", re.MULTILINE)
    table = old.sub(lambda _: line, table, count=1) if old.search(table) else line + table
    return head + broker + table + bracket + others


def _trusted_files(folder: Path) -> list[Path]:
    brokers = [read_broker(file).trusted for file in folder.rglob("broker.toml")]
    if not brokers:
        raise InputError(f"{folder}: expected an organisation's folder, with a broker.toml somewhere in it")
    clients = [read_client(file).trusted for file in folder.rglob("client.toml")]
    return sorted({file.resolve() for file in (*brokers, *clients)})


def _replace(file: Path, content: bytes) -> None:
    """At once: nobody reads half a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}")
    aside.write_bytes(content)
    aside.replace(file)
