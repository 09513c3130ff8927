"""A catalogue of mistakes an operator can make. Each is answered by one line that says what, where and what helps."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import secrets
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.live.disks import SmallDisk
from tests.live.together import Together
from tests.unit.cli.registry_shell import Said, Shell
from tidings.net import DevNetwork, read_broker, read_client
from tidings.net.clock import now_ms
from tidings.net.ids import read_identity
from tidings.net.transport import tls
from tidings.security import Grant, Mode, SignedType, grant
from tidings.store import Registry

pytestmark = pytest.mark.live

DAY_MS = 86_400_000
NOT_FOR_PEOPLE = re.compile(r"Traceback|Errno|\b\d{13}\b|0x[0-9a-f]{6}|Error\(|_ssl\.c|object at")


class Site:
    """A police with a broker and clients, as files; the tests spoil copies of them."""

    def __init__(self, folder: Path, network: Together) -> None:
        self.folder, self.network = folder, network
        self.police = network.laid.folder / "police"

    def broker(self, **changes: str) -> list[str]:
        """`broker run` with the broker's file, on a journal and a port of its own, and with these options instead."""
        options = {"listen": "127.0.0.1:0", "data": str(self.folder / "data"), **changes}
        pairs = [text for name, value in options.items() for text in (f"--{name}", value)]
        return ["broker", "run", "--config", str(self.police / "police-1" / "broker.toml"), "--log", "error", *pairs]

    def client(self, name: str = "camera", **changes: str) -> list[str]:
        """`--as` a copy of a client whose file says this instead; the value `-` removes a line."""
        here, there = self.police / name, self.folder / "client"
        there.mkdir(exist_ok=True)
        for file in here.iterdir():
            (there / file.name).write_bytes(file.read_bytes())
        lines = (here / "client.toml").read_text().replace("../trusted", str(self.police / "trusted")).splitlines()
        for word, value in changes.items():
            lines = [f"{word} = {value}" if line.startswith(f"{word} =") else line for line in lines]
        (there / "client.toml").write_text("\n".join(line for line in lines if not line.endswith("= -")))
        return ["--as", str(there)]

    def file(self, name: str, content: str | bytes) -> str:
        raw = content.encode() if isinstance(content, str) else content
        (self.folder / name).write_bytes(raw)
        return str(self.folder / name)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Together]:
    """A running broker of the police, in a thread of its own; and files of ccs, whose broker does not run."""
    layout = DevNetwork(first_port=0, brokers={"police": 1, "ccs": 1}, limits={"alone_after_s": 0.1})
    network = Together(tmp_path_factory.mktemp("mistakes"), layout)
    loop, started = asyncio.new_event_loop(), threading.Event()

    async def run() -> None:
        broker = await network.start("police-1")
        await broker.is_joined.wait()
        started.set()
        await broker.ended()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert started.wait(120)
    yield network
    asyncio.run_coroutine_threadsafe(network.brokers["police-1"].stop(), loop).result(60)
    thread.join(60)
    loop.close()


@pytest.fixture
def site(tmp_path: Path, network: Together) -> Site:
    return Site(tmp_path, network)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("TIDINGS_CLIENT", "TIDINGS_CONTEXT", "TIDINGS_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    return Shell(tmp_path, monkeypatch, capsys)


Mistake = tuple[Callable[[Site], list[str]], int, list[str]]
PUBLISH = ["publish", "Numberplate", '{"plate": "AB12CDE"}']


# ── Starting a broker ──


def _listens(site: Site) -> str:
    return read_broker(site.police / "police-1" / "broker.toml").listen


def _port_in_use(site: Site) -> list[str]:
    return site.broker(listen=_listens(site))


def _folder_in_use(site: Site) -> list[str]:
    return site.broker(data=str(site.police / "police-1" / "data"))


def _newer_journal(site: Site) -> list[str]:
    (site.folder / "data").mkdir()
    with sqlite3.connect(site.folder / "data" / "journal.db") as journal:
        journal.execute("PRAGMA user_version = 99")
    journal.close()
    return site.broker()


def _no_journal(site: Site) -> list[str]:
    (site.folder / "data").mkdir()
    (site.folder / "data" / "journal.db").write_text("not a database " * 100)
    return site.broker()


def _clock_set_back(site: Site) -> list[str]:
    (site.folder / "data").mkdir()
    later = now_ms() + DAY_MS
    with Registry.open(site.folder / "data" / "registry.db", now_ms=later) as registry:
        registry.domains.add("tfl", [os.urandom(32)], by="me", now_ms=later)
    return site.broker()


def _certificate(site: Site, made: datetime, domain: str = "police") -> str:
    authority = site.network.laid.folder / domain
    key = read_identity(site.police / "police-1" / "key.pem").public_key
    signer, issuer = read_identity(authority / "authority.pem"), (authority / "authority.crt").read_bytes()
    return site.file("cert.pem", tls.certificate(domain, "police-1", key, signer, issuer, made))


STARTING: dict[str, Mistake] = {
    "port in use": (_port_in_use, 2, ["SetupError: listen: cannot listen at", "is in use", "ss -ltnp", "--listen"]),
    "port in use by another than the enrolment": (
        lambda site: ["org", "serve", "--org", str(site.police), "--listen", _listens(site)],
        2,
        ["SetupError: listen: cannot listen at", "is in use", "ss -ltnp", "--listen"],
    ),
    "enrolment without an address": (
        lambda site: ["org", "serve", "--org", str(site.police)],
        2,
        ["expected --listen HOST:PORT, or enrolment in org.toml"],
    ),
    "address of another machine": (
        lambda site: site.broker(listen="192.0.2.1:7401"),
        2,
        ["listen: cannot listen at 192.0.2.1:7401", "not an address of this machine"],
    ),
    "unknown host": (
        lambda site: site.broker(listen="nowhere.invalid:7401"),
        2,
        ["no host 'nowhere.invalid' is known"],
    ),
    "no address": (
        lambda site: site.broker(listen="7401"),
        2,
        ["listen: expected an address as host:port, got '7401'"],
    ),
    "metrics port in use": (
        lambda site: site.broker(metrics=site.network.brokers["police-1"].address),
        2,
        ["metrics: cannot listen at", "--metrics"],
    ),
    "folder in use": (_folder_in_use, 2, ["is in use by another broker, process", "--data"]),
    "journal of a newer version": (_newer_journal, 2, ["journal.db is a journal of a newer version, 99"]),
    "file that is no journal": (
        _no_journal,
        2,
        ["journal.db as a journal: file is not a database", "restore a backup"],
    ),
    "data is a file": (
        lambda site: site.broker(data=site.file("data", "")),
        2,
        ["cannot use", "journal", "File exists"],
    ),
    "clock set back": (_clock_set_back, 3, ["Denied: clock: it shows", "tidings registry clock --accept"]),
    "no configuration": (lambda site: ["broker", "run"], 2, ["a broker needs --config, or these options: --name"]),
    "missing file": (
        lambda site: ["broker", "run", "--config", "broker.toml"],
        2,
        ["cannot use 'broker.toml': No such file or directory"],
    ),
    "folder for a file": (lambda site: ["broker", "run", "--config", "."], 2, ["cannot use '.': Is a directory"]),
    "bad TOML": (
        lambda site: ["broker", "run", "--config", site.file("b.toml", "[broker\nname = 1")],
        2,
        ["b.toml: Expected ']'", "line 1, column 8"],
    ),
    "no text": (lambda site: ["broker", "run", "--config", site.file("b.toml", b"\xff\xfe")], 2, ["b.toml: ", "utf-8"]),
    "misspelt setting": (
        lambda site: ["broker", "run", "--config", site.file("b.toml", '[broker]\nlisten_on = "x"')],
        2,
        ["[broker] has no 'listen_on'; did you mean 'listen'?"],
    ),
    "unknown overlay": (
        lambda site: site.broker(overlay="irbrr"),
        2,
        ["there is no protocol 'irbrr'; did you mean 'irbr'?"],
    ),
    "no such log level": (lambda site: [*site.broker()[:-6], "--log", "loud"], 2, ["'loud' is not", "debug"]),
    "another key": (
        lambda site: site.broker(key=str(site.police / "camera" / "key.pem")),
        2,
        ["cert.pem is not the certificate of this key: it is for ed25519:"],
    ),
    "key of another kind": (
        lambda site: site.broker(key=str(site.police / "web.pem")),
        2,
        ["web.pem: expected an Ed25519 private key"],
    ),
    "no certificate": (
        lambda site: site.broker(certificate=site.file("cert.pem", "hello")),
        2,
        ["cert.pem: expected a certificate, as PEM"],
    ),
    "expired certificate": (
        lambda site: site.broker(certificate=_certificate(site, datetime.now(UTC) - timedelta(days=400))),
        2,
        ["cert.pem expired at 20", "Z, and it is 20", "tidings broker renew"],
    ),
    "certificate from tomorrow": (
        lambda site: site.broker(certificate=_certificate(site, datetime.now(UTC) + timedelta(days=1))),
        3,
        ["Denied: clock: it shows 20", "cert.pem is valid only from 20", "set the clock"],
    ),
    "certificate of another organisation": (
        lambda site: site.broker(certificate=_certificate(site, datetime.now(UTC), "ccs")),
        2,
        ["cert.pem is a certificate of ccs, and the configuration says domain = 'police'"],
    ),
    "own authority not trusted": (
        lambda site: site.broker(trusted=str(site.network.laid.folder / "ccs" / "authority.crt")),
        2,
        ["lacks the authority that signed", "add the certificate of your own authority"],
    ),
    "no authorities": (
        lambda site: site.broker(trusted=site.file("trusted.pem", "")),
        2,
        ["trusted.pem: expected the certificates of trusted authorities"],
    ),
    "no token": (lambda site: site.broker(token=site.file("t", "a token")), 2, ["t: expected a token"]),
    "no type": (
        lambda site: site.broker(type=site.file("t.type", "\x01")),
        3,
        ["type: expected a signed event type", "t.type"],
    ),
    "no key manager": (
        lambda site: site.broker(manages=str(site.police / "camera" / "key.pem")),
        2,
        ["no type that this broker knows appoints"],
    ),
    "no PostgreSQL": (
        lambda site: site.broker(registry="postgresql://u:sesame@127.0.0.1:1/x"),
        2,
        ["cannot be reached: is the server running"],
    ),
    "another database": (
        lambda site: site.broker(registry="mysql://u:sesame@127.0.0.1:1/x"),
        2,
        ["a registry is a file or a postgresql:// URL"],
    ),
}


def one_line(said: Said) -> str:
    """What an error must look like."""
    assert said.err.count("\n") == 1, said.err
    assert NOT_FOR_PEOPLE.search(said.err) is None, said.err
    assert "sesame" not in said.err
    return said.err


@pytest.mark.parametrize("name", STARTING)
def test_a_broker_that_cannot_start_says_what_is_wrong_and_what_helps(shell: Shell, site: Site, name: str) -> None:
    mistake, code, shown = STARTING[name]
    said = shell(*mistake(site))
    assert said.code == code, said.err
    usage = said.err.startswith("Usage: ")  # Wrong usage has its own form.
    assert [each for each in shown if each not in (said.err if usage else one_line(said))] == [], said.err


# ── Being a client ──


def _right(site: Site, **changed: object) -> list[str]:
    """A camera whose only right is another one."""
    signed = SignedType.from_bytes((site.network.laid.folder / "Numberplate.type").read_bytes())
    arguments = site.client()
    holder = read_identity(site.police / "camera" / "key.pem").public_key
    given = Grant(**{"type_id": signed.type_id, "actions": frozenset({"publish"}), "holder": holder, **changed})  # type: ignore[arg-type]
    token = grant(read_identity(site.police / "authority.pem"), given, secrets.token_bytes).to_bytes()
    (site.folder / "client" / "right-1.token").write_bytes(base64.urlsafe_b64encode(token))
    return arguments


def _address_of_nobody(site: Site) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f'"127.0.0.1:{free.getsockname()[1]}"'


def _stranger(site: Site) -> list[str]:
    """A client whose organisation has the police's name, and another authority."""
    arguments = site.client()
    key = read_identity(site.police / "camera" / "key.pem").public_key
    other = read_identity(site.police / "police-1" / "key.pem")
    issued = tls.certificate("police", "camera", key, other, tls.authority("police", other))
    (site.folder / "client" / "cert.pem").write_bytes(issued)
    return arguments


CLIENTS: dict[str, Mistake] = {
    "nobody named": (lambda site: PUBLISH, 2, ["no client is named", "--as", "tidings context create"]),
    "neither file nor context": (
        lambda site: [*PUBLISH, "--as", "camra"],
        2,
        ["'camra' is neither a file nor a context"],
    ),
    "missing file": (
        lambda site: [*PUBLISH, "--as", "no/client.toml"],
        2,
        ["cannot use 'no/client.toml': No such file"],
    ),
    "stopped broker": (
        lambda site: [*PUBLISH, *site.client(broker=_address_of_nobody(site))],
        1,
        ["PeerError: cannot reach the broker at 127.0.0.1:", "nobody listens there; is that broker running?"],
    ),
    "unknown host": (
        lambda site: [*PUBLISH, *site.client(broker='"nowhere.invalid:7401"')],
        1,
        ["cannot reach the broker at nowhere.invalid:7401: no such host is known"],
    ),
    "key of another broker": (
        lambda site: [*PUBLISH, *site.client(broker_key=f'"ed25519:{"0" * 64}"')],
        1,
        ["another broker answers, or this one has a new key", "client.toml names the broker's address and key"],
    ),
    "another authority": (
        lambda site: [*PUBLISH, *_stranger(site)],
        1,
        ["may not trust the authority of our certificate", "its organisation must trust"],
    ),
    "broker of another authority": (
        lambda site: [*PUBLISH, *site.client(trusted=f'"{site.network.laid.folder}/ccs/authority.crt"')],
        1,
        ["certificate is from an authority that is not in our file of trusted ones"],
    ),
    "expired right": (
        lambda site: [*PUBLISH, *_right(site, not_before=0, not_after=now_ms() - DAY_MS)],
        3,
        ["validity: the right expired at 20", "Z, and it is 20", "compare this machine's clock", "names the tokens"],
    ),
    "right from tomorrow": (
        lambda site: [*PUBLISH, *_right(site, not_before=now_ms() + DAY_MS)],
        3,
        ["validity: the right is not valid before 20", "by this clock"],
    ),
    "right to another action": (
        lambda site: [*PUBLISH, *_right(site, actions=frozenset({"subscribe"}))],
        3,
        ["action: publish is not allowed by this right, only subscribe", "tidings grant inspect"],
    ),
    "right of another holder": (
        lambda site: [*PUBLISH, *_right(site, holder=os.urandom(32))],
        3,
        ["right: none for this type was shown by ed25519:", "tidings grant inspect"],
    ),
    "unknown type": (
        lambda site: ["publish", "Numberplat", "{}", *site.client()],
        2,
        ["this broker knows no event type 'Numberplat'; did you mean 'Numberplate'?"],
    ),
    "no such type at all": (lambda site: ["publish", "Quake", "{}", *site.client()], 2, ["tidings ls types"]),
    "no events": (lambda site: ["publish", "Numberplate", *site.client()], 2, ["expected events as JSON, --file FILE"]),
    "missing events": (
        lambda site: ["publish", "Numberplate", "--file", "seen.jsonl", *site.client()],
        2,
        ["cannot use 'seen.jsonl': No such file"],
    ),
    "missing table": (
        lambda site: ["publish", "Numberplate", "--file", "seen.parquet", *site.client()],
        2,
        ["cannot use 'seen.parquet': No such file"],
    ),
    "no table": (
        lambda site: ["publish", "Numberplate", "--file", site.file("seen.parquet", "no"), *site.client()],
        2,
        ["seen.parquet: "],
    ),
    "full disk": (
        lambda site: ["bench", "publish", *PUBLISH[1:], "-n", "1", "--csv", "/dev/full", *site.client()],
        2,
        ["No space left on device; free some space"],
    ),
    "time in the past without a name": (
        lambda site: ["subscribe", "Numberplate", "--from", "2026-01-01T00:00:00Z", *site.client("desk")],
        2,
        ["only a durable subscription can begin in the past"],
    ),
    "no event id": (lambda site: ["trace", "17", *site.client()], 2, ["expected an event id"]),
    "no such context": (lambda site: ["context", "select", "desk"], 2, ["there is no context 'desk'"]),
    "no name for a context": (
        lambda site: ["context", "create", "../x", *site.client()[1:]],
        2,
        ["expected a name of letters, digits"],
    ),
    "folder without a client": (
        lambda site: ["context", "create", "x", str(site.police)],
        2,
        ["cannot use", "client.toml"],
    ),
    "event that is no text": (
        lambda site: ["filter", "test", "a > 1", "--event", f"@{site.file('e.json', bytes([255]))}"],
        2,
        ["expected UTF-8, got another byte at 0"],
    ),
    "missing type": (
        lambda site: ["filter", "check", "a > 1", "--type", "plate.toml"],
        2,
        ["plate.toml: cannot be read: No such file"],
    ),
    "registry that is not there": (
        lambda site: ["registry", "audit", "--registry", "none.db"],
        2,
        ["there is no registry none.db", "--registry"],
    ),
    "wrong URL": (
        lambda site: ["registry", "audit", "--registry", "postgresql://u:sesame@h:port/x"],
        2,
        ["expected postgresql://user:password@host:port/name"],
    ),
    "folder that is not empty": (lambda site: ["init", str(site.police)], 2, ["is not empty; name a new folder"]),
    "folder below a file": (lambda site: ["init", site.file("f", "") + "/x"], 2, ["cannot use", "Not a directory"]),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_that_is_refused_reads_why_and_what_helps(shell: Shell, site: Site, name: str) -> None:
    mistake, code, shown = CLIENTS[name]
    said = shell(*mistake(site))
    assert (said.code, said.out) == (code, ""), said.err
    assert [each for each in shown if each not in one_line(said)] == [], said.err


def test_a_durable_subscription_is_deleted_without_its_condition_and_twice_is_no_error(
    shell: Shell, site: Site
) -> None:
    durable = ("subscribe", "Numberplate", "--durable", "fines", *site.client("desk"))
    shell.done(*durable, "speed > 20", "--timeout", "0.05")
    assert "'fines' has the condition 'speed > 20'" in one_line(shell(*durable, "speed > 50", "--timeout", "0.05"))
    assert "yes" in shell.done("ls", "subscriptions", *site.client("desk")).out
    (event,) = shell.done(*PUBLISH, *site.client(), "-o", "json").rows
    assert "durable fines: not TRUE" in shell.done("trace", event["id"], *site.client("desk")).out
    assert shell.done(*durable, "--forget").err == ""
    assert shell.done("ls", "subscriptions", *site.client("desk"), "-o", "json").rows == []
    assert "there is no durable subscription 'fines'" in shell.done(*durable, "--forget").err
    shell.done(*durable, "speed > 20", "--timeout", "0.05")
    known = site.network.brokers["police-1"].admin._known
    shell.patch.delitem(known, "forget")  # As in version 0.1.
    assert shell.done(*durable, "--forget").err == ""
    assert shell.done("ls", "subscriptions", *site.client("desk"), "-o", "json").rows == []
    unnamed = shell("subscribe", "Numberplate", "--forget", *site.client("desk"))
    assert (unnamed.code, "name it with --durable" in one_line(unnamed)) == (2, True)


def test_a_condition_is_shown_with_the_spot(shell: Shell, site: Site) -> None:
    said = shell("subscribe", "Numberplate", "sped > 20", *site.client("desk"))
    assert (said.code, said.err.splitlines()[-1]) == (2, "did you mean 'speed'?")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of its own, without room for anything."""
    folder = tmp_path / "full"
    disk = SmallDisk(folder, 1, os.getpid)
    if not disk.is_real:
        pytest.skip("no right to mount a disk that can be filled")
    try:
        disk.fill()
        yield folder
    finally:
        disk.close()


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (
            lambda site, disk: site.broker(data=f"{disk}/data"),
            ["full/data/journal.db", "full; free some space", "--data"],
        ),
        (lambda site, disk: site.broker(data=str(disk)), ["full/journal.db", "full; free some space", "--data"]),
        (lambda site, disk: ["identity", "new", f"{disk}/key.pem"], ["full/key.pem", "free some space"]),
        (lambda site, disk: ["org", "create", "tfl", "--folder", f"{disk}/tfl"], ["full/tfl", "free some space"]),
        (lambda site, disk: ["init", f"{disk}/london"], ["full/london", "No space left on device; free some space"]),
    ],
)
def test_on_a_full_disk_it_says_which_and_what_helps(
    shell: Shell, site: Site, full_disk: Path, command: Callable[[Site, Path], list[str]], shown: list[str]
) -> None:
    said = shell(*command(site, full_disk))
    assert said.code == 2
    assert [each for each in shown if each not in one_line(said)] == [], said.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_of_somebody_else_names_the_permissions(shell: Shell, site: Site) -> None:
    arguments = site.client()
    (site.folder / "client" / "key.pem").chmod(0)
    said = shell(*PUBLISH, *arguments)
    assert (said.code, "Permission denied; the file and its folder must be open" in one_line(said)) == (2, True)


# ── A type that is encrypted as one ──


def test_who_may_read_some_attributes_of_an_event_encrypted_as_one_reads_why_it_gets_nothing(
    shell: Shell, tmp_path: Path
) -> None:
    layout = DevNetwork(first_port=0, mode=Mode.EVENT, brokers={"police": 1, "ccs": 1})

    async def scenario() -> None:
        async with Together(tmp_path, layout) as network:
            desk = str(network.laid.clients["ccs/desk"])
            said = await asyncio.to_thread(shell, "subscribe", "Numberplate", "--as", desk)
            assert said.code == 3
            assert "this broker holds no keys of Numberplate, and gets none" in one_line(said)
            assert "encrypted as one; it needs a right to all of them" in said.err

    asyncio.run(scenario())


def test_init_takes_options_of_the_overlay_and_says_which_it_cannot_read(shell: Shell) -> None:
    shell.done("init", "paris", "--overlay-option", "network=tapestry", "--overlay-option", "heartbeat_s=2.5")
    assert read_broker(Path("paris/ccs/ccs-1/broker.toml")).overlay_options == {
        "network": "tapestry",
        "heartbeat_s": 2.5,
    }
    assert "expected NAME=VALUE" in shell("init", "rome", "--overlay-option", "network").err


def test_init_gives_readers_whole_events_where_events_are_encrypted_as_one(shell: Shell) -> None:
    assert "ccs may read all of it" in shell.done("init", "london", "--mode", "event").err
    layout = read_client(Path("london/ccs/desk/client.toml"))
    (right,) = shell.done("grant", "inspect", str(layout.tokens[0]), "--owner", _owner(), "-o", "json").rows
    assert right["attributes"] in (None, "all")


def _owner() -> str:
    from tidings.security import fingerprint

    return fingerprint(read_identity(Path("london/police/authority.pem")).public_key)
