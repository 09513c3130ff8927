"""broker.toml and client.toml: the identity of a participant, whom it trusts, and its limits.

    [broker]                                   [client]
    name = "police-1"                          name = "camera"
    domain = "police"                          domain = "police"
    listen = "127.0.0.1:7401"                  broker = "127.0.0.1:7401"
    key, certificate, trusted = files          broker_key = "ed25519:…"
    …                                          key, certificate, trusted = files

Paths are relative to the configuration file. `tokens` and `types` may also name folders: then every token or type in
them counts. `peers_file` names a file with further [[peer]] tables. An unknown key is an error that suggests the nearest
known one: a misspelt limit would be a limit not set.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from tidings.errors import InputError, did_you_mean
from tidings.net.ids import broker_id
from tidings.overlay import Peer
from tidings.security import from_fingerprint

CONFIG_BYTES_MAX = 1 << 20
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class PeerConfig:
    """Another broker: where it is reached, and the key that must answer. One with several addresses comes several times."""

    address: str
    key: str

    @property
    def peer(self) -> Peer:
        return Peer(broker_id(from_fingerprint(self.key)), self.address)


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds of memory, disk and time; the defaults suit a machine with a few gigabytes."""

    connections_max: int = 4096
    clients_per_key_max: int = 256  # Connections of one client key: a stolen key cannot take them all.
    link_queue_bytes_max: int = 8 << 20
    client_queue_bytes_max: int = 16 << 20  # Four of the largest frames: a burst fits.
    retention_events_max: int = (
        1_000_000  # Published here and kept for brokers and subscribers that come back; the oldest go first.
    )
    retention_hours: float = 168.0
    queue_events_max: int = 1_000_000  # Waiting for one durable subscriber; more become dead letters.
    dead_letters_max: int = 100_000
    silence_s_max: float = 10.0
    handshake_s_max: float = 10.0
    link_wait_s_max: float = 5.0  # How long publishers wait for a link with a full queue; then it counts as slow.
    client_wait_s_max: float = 1.0  # How long everybody waits for a client with a full queue, likewise.
    unreadable_s_max: float = 60.0  # How long a received event waits for its key before it is a dead letter.
    lapsed_retry_s: float = 10.0  # How often durable subscriptions without a right are tried again.
    key_retry_s: float = 5.0  # How long a broker waits for a key manager before it asks again; then longer.
    cover_bytes_s: int = 0  # What each link to another broker carries, whatever is said; 0: as it comes. See `shaping`.
    padded_links: bool = False  # Writes to other brokers are filled up to a power of two.
    durables_per_client_max: int = 65_536
    durables_max: int = 65_536  # Of all clients; each takes some kilobytes, and is advertised to all brokers.
    client_events_per_s: float = 0.0  # 0: no limit. Of one key, on all its connections and at the gateway.
    organisation_events_per_s: float = 0.0  # Of all clients of this broker together.
    peer_messages_per_s: float = 0.0  # Of all brokers of one organisation: more is read later, and nothing is lost.
    spot_checks: bool = True  # Whether samples of events go straight to brokers with live subscriptions.
    burst_s: float = 2.0  # So many seconds' worth may come at once.
    lease_s: float = 2.5  # How long a process with a journal in PostgreSQL may be silent before another takes over.
    alone_after_s: float = 10.0  # How long a broker waits for peers it does not see before it begins without them.


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """A broker, as its file describes it."""

    name: str
    domain: str
    listen: str
    key: Path
    certificate: Path
    trusted: Path
    data: Path
    overlay: str = "irbr"
    overlay_options: Mapping[str, Any] = field(default_factory=dict)
    network_key: str = ""
    """The key whose join-net tokens make a member; empty on a network that needs none."""
    advertise: str = ""
    """The address at which others reach this broker, where it is not `listen`."""
    tokens: tuple[Path, ...] = ()
    types: tuple[Path, ...] = ()
    manages: tuple[Path, ...] = ()
    """Keys of the key managers that run here, each appointed by one of the types."""
    acs: Path | None = None
    """A file with the names of the rights with an online test that hold now, one to a line; it may change at any time.
    Answers are signed with the keys in `manages`."""
    registry: str = ""
    journal: str = ""
    """The PostgreSQL database that holds the journal, as a URL; empty: a file in `data`."""
    journal_password: str = ""
    """Where its password is, as env:VARIABLE or file:PATH."""
    gateway: str = ""
    gateway_certificate: Path | None = None
    """The gateway's certificate instead of the broker's own, which browsers do not accept; clients may then also
    authenticate by signing (see `dpop`)."""
    gateway_key: Path | None = None
    gateway_origins: tuple[str, ...] = ()
    """Whose pages may use the gateway from a browser, besides its own: `https://host`."""
    gateway_hosts: tuple[str, ...] = ()
    """How clients name the gateway, as `host:port`: proofs for another host are refused. By default, its address and
    the names in its certificate."""
    gateway_sinks: tuple[str, ...] = ()
    """Below which addresses clients may have webhooks, as https://host/path/; none by default."""
    metrics: str = ""
    traces: str = ""
    """The OpenTelemetry collector that spans are sent to, as http://host:4318; none if empty."""
    traces_ratio: float = 1.0
    """The share of events that are traced, from 0 to 1."""
    capture: Path | None = None
    """A folder for captures of what is sent to other brokers; see `transport.capture`."""
    peers: tuple[PeerConfig, ...] = ()
    peers_file: Path | None = None
    """Further peers, as the organisation keeps them for all its brokers."""
    enrolment: str = ""
    """Where the organisation renews certificates and rights, as host:port; the broker asks there before they end."""
    authority: Path | None = None
    """The organisation's authority, which must have signed the certificate of whoever answers there."""
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """A client, as its file describes it."""

    name: str
    domain: str
    broker: str
    """Where its broker is; addresses of several processes of one broker are separated by commas."""
    key: Path
    certificate: Path
    trusted: Path
    broker_key: str = ""
    tokens: tuple[Path, ...] = ()
    enrolment: str = ""
    """As of a broker."""
    authority: Path | None = None


def read_broker(file: Path) -> BrokerConfig:
    """The broker that a file describes; raises InputError naming what is wrong in it."""
    return _with_shared_peers(_described(file))


def _described(file: Path) -> BrokerConfig:
    tables = _tables(file, ("broker", "peer", "limits", "overlay"))
    here = _only(tables, "broker", file)
    given = _fields(BrokerConfig, here, file, "broker", file.parent)
    given["peers"] = tuple(_peers(tables, file))
    if (registry := given.get("registry", "")) and "://" not in registry:
        given["registry"] = str(file.parent / registry)
    if (secret := given.get("journal_password", "")).startswith("file:"):
        given["journal_password"] = f"file:{file.parent / secret.removeprefix('file:')}"
    given["limits"] = Limits(**_fields(Limits, tables.get("limits", {}), file, "limits", file.parent))
    given["overlay_options"] = dict(tables.get("overlay", {}))
    return BrokerConfig(**given)


def _with_shared_peers(config: BrokerConfig) -> BrokerConfig:
    """With the peers of `peers_file` besides its own."""
    own = (config.listen, config.advertise)
    return replace(config, peers=config.peers + read_peers(config.peers_file, but=config.peers, not_at=own))


def read_peers(file: Path | None, but: Iterable[PeerConfig] = (), not_at: Iterable[str] = ()) -> tuple[PeerConfig, ...]:
    """The peers in a file of their own; none if there is no such file.

    Without those that are known already, and those at these addresses: all brokers of an organisation have one file.
    """
    if file is None or not file.exists():
        return ()
    tables = _tables(file, ("peer",))
    known, own = {peer.key for peer in but}, set(not_at)
    return tuple(peer for peer in _peers(tables, file) if peer.key not in known and peer.address not in own)


def _peers(tables: Mapping[str, Any], file: Path) -> Iterator[PeerConfig]:
    """The [[peer]] tables of a file. One with a list of addresses counts as a peer at each of them."""
    for each in _list(tables.get("peer", []), file):
        addresses = each.get("address")
        for address in addresses if isinstance(addresses, list) and addresses else [addresses]:
            table = {**each, "address": address} if isinstance(addresses, list) else each
            yield PeerConfig(**_fields(PeerConfig, table, file, "peer", file.parent))


def files_in(named: Iterable[Path], *suffixes: str) -> list[Path]:
    """The files among these, and those with such a suffix in the folders among these."""
    found: list[Path] = []
    for path in named:
        within = sorted(path.iterdir()) if path.is_dir() else [path]
        found += [file for file in within if file == path or file.suffix in suffixes]
    return found


def broker_with(
    file: Path | None,
    given: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    limits: Iterable[str] = (),
) -> BrokerConfig:
    """The broker of a file, of variables of the environment and of the given options; the later counts more.

    Variables are `TIDINGS_BROKER_LISTEN` for `listen`, and so on, and `TIDINGS_LIMITS_BURST_S` for a limit; lists are
    separated by commas, and paths start at the working folder. `limits` are options as `burst_s=2`. Raises InputError
    naming the options that are missing, or the variable that is wrong.
    """
    from_outside, set_limits = read_environment(environment or {})
    set_limits |= dict(_limit(each) for each in limits)
    given = {**from_outside, **given}
    if file is not None:
        described = _described(file)
        return _with_shared_peers(replace(described, **given, limits=replace(described.limits, **set_limits)))
    given = {**given, "limits": Limits(**set_limits)}
    missing = [each.name for each in fields(BrokerConfig) if _is_needed(each) and each.name not in given]
    if missing:
        raise InputError(f"a broker needs --config, or these options: {', '.join(f'--{name}' for name in missing)}")
    return _with_shared_peers(BrokerConfig(**given))


ENVIRONMENT = {"TIDINGS_BROKER_": BrokerConfig, "TIDINGS_LIMITS_": Limits}
CONFIG_VARIABLE = "TIDINGS_BROKER_CONFIG"  # The file itself; an option of the command.
_LEFT_TO_THE_FILE = ("limits", "overlay_options")


def read_environment(variables: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of a broker, and its limits, in variables of the environment; raises InputError for unknown ones."""
    found: dict[str, dict[str, Any]] = {prefix: {} for prefix in ENVIRONMENT}
    for variable, text in variables.items():
        prefix = next((each for each in ENVIRONMENT if variable.startswith(each)), None)
        if prefix is None or variable == CONFIG_VARIABLE:
            continue
        known = {each.name: each for each in fields(ENVIRONMENT[prefix]) if each.name not in _LEFT_TO_THE_FILE}
        word = variable.removeprefix(prefix).lower()
        if word not in known:
            hint = did_you_mean(word, known) or f"there are {', '.join(known)}"
            raise InputError(f"{variable}: there is no setting {word!r}; {hint}")
        found[prefix][word] = _from_text(text, known[word], variable)
    settings, limits = found.values()
    return settings, limits


def _limit(described: str) -> tuple[str, Any]:
    word, equals, text = described.partition("=")
    known = {each.name: each for each in fields(Limits)}
    if not equals or word not in known:
        raise InputError(f"--limit: expected NAME=VALUE, got {described[:100]!r}; {did_you_mean(word, known)}")
    return word, _from_text(text, known[word], f"--limit {word}")


def _from_text(text: str, setting: Field[Any], where: str) -> Any:
    """A value as TOML would have it, from a text."""
    declared = str(setting.type)
    if declared == "tuple[PeerConfig, ...]":
        return tuple(peer_at(each.strip()) for each in text.split(",") if each.strip())
    value: Any = text
    if declared.startswith("tuple"):
        value = [each.strip() for each in text.split(",") if each.strip()]
    elif declared == "bool" and text in ("true", "false"):
        value = text == "true"
    elif declared in ("int", "float"):
        try:
            value = int(text) if declared == "int" else float(text)
        except ValueError:
            raise InputError(f"{where}: expected {declared}, got {text[:100]!r}") from None
    return _typed(value, setting, where, Path())


def peer_at(described: str) -> PeerConfig:
    """A peer written as `host:port=ed25519:…`; raises InputError for anything else."""
    address, _, key = described.partition("=")
    host_and_port(address, "peer: ")
    from_fingerprint(key)
    return PeerConfig(address, key)


def read_client(file: Path) -> ClientConfig:
    """The client that a file describes; likewise."""
    tables = _tables(file, ("client",))
    table = dict(_only(tables, "client", file))
    if isinstance(given := table.get("broker"), list) and given and all(isinstance(each, str) for each in given):
        table["broker"] = ",".join(given)
    return ClientConfig(**_fields(ClientConfig, table, file, "client", file.parent))


def addresses_in(listed: str, where: str = "") -> list[tuple[str, int]]:
    """The addresses in a list with commas, of which there is at least one; raises InputError likewise.

    >>> addresses_in("10.0.0.7:7401,10.0.0.8:7401")
    [('10.0.0.7', 7401), ('10.0.0.8', 7401)]
    """
    return [host_and_port(each.strip(), where) for each in listed.split(",")]


def host_and_port(address: str, where: str = "") -> tuple[str, int]:
    """The two parts of `host:port`, IPv6 hosts in brackets; raises InputError for anything else.

    >>> host_and_port("[::1]:7401")
    ('::1', 7401)
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"{where}expected an address as host:port, got {address[:100]!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def read_text(file: Path) -> str:
    """A file of text; raises InputError for another."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as wrong:
        raise InputError(f"{file}: expected text in UTF-8, got another byte at {wrong.start}") from None


def _tables(file: Path, known: tuple[str, ...]) -> dict[str, Any]:
    with file.open("rb") as stream:
        raw = stream.read(CONFIG_BYTES_MAX)
    try:
        tables = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise InputError(f"{file}: {wrong}") from None
    for name in tables:
        if name not in known:
            raise InputError(f"{file}: there is no [{name}]; {did_you_mean(name, known) or 'expected ' + str(known)}")
    return tables


def _only(tables: dict[str, Any], name: str, file: Path) -> Mapping[str, Any]:
    table = tables.get(name)
    if not isinstance(table, dict):
        raise InputError(f"{file}: expected a table [{name}]")
    return table


def _list(value: Any, file: Path) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InputError(f"{file}: expected [[peer]] tables")
    return value


def _fields(of: type[Any], table: Mapping[str, Any], file: Path, where: str, folder: Path) -> dict[str, Any]:
    known = {each.name: each for each in fields(of) if each.name not in ("peers", "limits", "overlay_options")}
    for word in table:
        if word not in known:
            hint = did_you_mean(word, known) or f"there are {', '.join(known)}"
            raise InputError(f"{file}: [{where}] has no {word!r}; {hint}")
    typed = {word: _typed(value, known[word], f"{file}: [{where}] {word}", folder) for word, value in table.items()}
    for name, each in known.items():
        if name not in table and _is_needed(each):
            raise InputError(f"{file}: [{where}] needs {name!r}")
    return typed


def _is_needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


_ZERO_IS_A_VALUE = ("traces_ratio",)


def _typed(value: Any, setting: Field[Any], where: str, folder: Path) -> Any:
    """Raises InputError for a value of another type; a number is above zero, or zero where that means none."""
    declared, may_be_zero = str(setting.type), setting.default == 0 or setting.name in _ZERO_IS_A_VALUE
    least = 0 if may_be_zero else 1 if declared == "int" else math.ulp(0.0)
    match declared:
        case "str" if isinstance(value, str):
            return value
        case "Path" | "Path | None" if isinstance(value, str):
            return folder / value
        case "tuple[Path, ...]" if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return tuple(folder / each for each in value)
        case "tuple[str, ...]" if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return tuple(value)
        case "bool" if isinstance(value, bool):
            return value
        case "int" if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        case "float" if isinstance(value, int | float) and not isinstance(value, bool) and least <= value < math.inf:
            return float(value)
    raise InputError(f"{where}: expected {declared.replace('Path', 'file')}, got {value!r}")
