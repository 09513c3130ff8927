"""A participant's own folder: its key, which never leaves it, and what its organisation has given it.

key.pem, manager.pem    made here; a broker's second key is for the key managers of types that appoint it
managers/*.pem          keys of managers that a broker took over from another (see `handover`)
request.pem             a certificate signing request, for the authority
cert.pem, trusted.pem   from the approval; inside an organisation's folder, ../trusted.pem serves all
rights/*.token          likewise; `types/` and `peers.toml` where there is no organisation's folder around it
broker.toml, client.toml
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidings.errors import Denied, InputError
from tidings.net.config import host_and_port, read_text
from tidings.net.enrolment.documents import Approval, CardBroker, types_of
from tidings.net.ids import read_identity
from tidings.net.transport import tls
from tidings.security import Identity, fingerprint, from_fingerprint

KEY, MANAGER, CERTIFICATE, TRUSTED, REQUEST = "key.pem", "manager.pem", "cert.pem", "trusted.pem", "request.pem"
AUTHORITY = "authority.crt"
RIGHTS, TYPES, PEERS, REGISTRY, MANAGERS = "rights", "types", "peers.toml", "tidings.db", "managers"
CONFIG = {"broker": "broker.toml", "client": "client.toml"}
NAME_BYTES_MAX = 64  # As certificates allow.
REQUEST_BYTES_MAX = 1 << 16
_TAKEN = {AUTHORITY, TRUSTED, PEERS, REGISTRY, "authority.pem", "next.pem", "next.crt", "org.toml"} | {
    "retired",
    "organisations",
}
REQUEST_MS_MAX = 600_000  # As far as clocks may differ.


@dataclass(frozen=True, slots=True)
class EnrolmentRequest:
    """What a participant asks its authority for."""

    organisation: str
    name: str
    role: str
    key: bytes
    address: str = ""
    manager_key: bytes | None = None
    pem: bytes = b""


def read_request(pem: bytes) -> EnrolmentRequest:
    """A request from its file; raises InputError for anything that is not one, or was altered."""
    if len(pem) > REQUEST_BYTES_MAX:
        raise InputError(
            f"expected a request of at most {REQUEST_BYTES_MAX} bytes, as `tidings broker request` writes it"
        )
    organisation, name, role, key, says = tls.read_signing_request(pem)
    if role not in CONFIG:
        raise InputError(f"expected the request of a broker or a client, got {role[:40]!r}")
    manager = from_fingerprint(says["manager"]) if "manager" in says else None
    address = says.get("address", "")
    if address:
        host_and_port(address, "the request: ")
    return EnrolmentRequest(organisation, checked_file_name(name), role, key, address, manager, pem)


def read_request_file(file: Path) -> EnrolmentRequest:
    """Likewise, from a file."""
    with file.open("rb") as stream:
        return read_request(stream.read(REQUEST_BYTES_MAX + 1))


def checked_file_name(name: str) -> str:
    """A name is a folder's, too, and an argument on a command line; and it is not one of the organisation's own files.

    >>> checked_file_name("desk 2")
    'desk 2'
    """
    if not name.isprintable() or "/" in name or name != name.strip() or name.startswith((".", "-", "ed25519:")):
        raise InputError(
            f"expected a name that can be a folder's: printable, no /, not beginning with . or -; got {name[:80]!r}"
        )
    if not 1 <= len(name.encode()) <= NAME_BYTES_MAX:
        raise InputError(f"expected a name of 1 to {NAME_BYTES_MAX} bytes, got {len(name.encode())}: {name[:80]!r}")
    if name.casefold() in _TAKEN or name.casefold().startswith(f"{REGISTRY}-"):
        raise InputError(f"{name} is a file or folder of every organisation; choose another name")
    return name


def prepare(folder: Path, organisation: str, name: str, role: str, address: str = "") -> EnrolmentRequest:
    """Makes a participant's folder, keys and request; what is there already stays."""
    checked_file_name(name)
    if role == "broker":
        host_and_port(address, "--listen: ")
    _check_role(folder, role)
    make_folder(folder)
    key = new_key(folder / KEY)
    says, manager = {}, None
    if role == "broker":
        manager = new_key(folder / MANAGER).public_key
        says = {"address": address, "manager": fingerprint(manager)}
    pem = tls.signing_request(organisation, name, role, key, says)
    write_if_new(folder / REQUEST, pem)
    return EnrolmentRequest(organisation, name, role, key.public_key, address, manager, pem)


def _check_role(folder: Path, role: str) -> None:
    """Raises InputError for the folder of a participant of the other role: neither may use the key of the other."""
    taken = next((other for other in CONFIG if other != role and (folder / CONFIG[other]).exists()), "")
    with contextlib.suppress(OSError, InputError):
        taken = taken or read_request_file(folder / REQUEST).role
    if taken not in ("", role):
        raise InputError(
            f"{folder} is the folder of a {taken}, and this is for a {role}; choose another name, or delete it"
        )


def request_again(folder: Path, name: str, role: str, now_ms: int) -> EnrolmentRequest:
    """The request of a participant that is enrolled, for a renewal."""
    _, organisation = tls.key_and_domain(tls.der((folder / CERTIFICATE).read_bytes()))
    key = read_identity(folder / KEY)
    pem = tls.signing_request(organisation, name, role, key, {"at": str(now_ms)})
    return EnrolmentRequest(organisation, name, role, key.public_key, pem=pem)


def checked_request_age(pem: bytes, now_ms: int) -> None:
    """Returns if a request was made just now; raises Denied for one that somebody may have recorded."""
    said = tls.read_signing_request(pem)[4].get("at", "")
    if not said.isascii() or not said.isdecimal() or abs(now_ms - int(said)) > REQUEST_MS_MAX:
        raise Denied("fresh: the request was not made within the last ten minutes; compare both clocks")


def install(
    folder: Path,
    approval: Approval,
    authority_key: bytes,
    *,
    listen: str = "",
    broker: str = "",
    shared: bool = False,
) -> list[Path]:
    """Puts an approval into a participant's folder; the files that changed.

    `listen` is a broker's address and `broker` a client's broker, for the first time only. `shared`: the folder lies
    in its organisation's, which has the authorities, peers and types for all. Raises Denied for an approval of another
    key.
    """
    key = read_identity(folder / KEY).public_key
    certified, organisation = tls.key_and_domain(tls.der(approval.certificate.encode()))
    if certified != key or organisation != approval.organisation:
        raise Denied(f"holder: the approval is for {fingerprint(certified)}, and the key here is {fingerprint(key)}")
    tls.check_issued(tls.der(approval.certificate.encode()), authority_key)
    _check_parts(approval)
    changed = [write_if_new(folder / CERTIFICATE, approval.certificate.encode())]
    changed += put_tokens(folder / RIGHTS, approval.tokens)
    if not shared:
        changed += _install_public(folder, approval)
    if not (folder / CONFIG[approval.role]).exists():
        changed.append(_write_config(folder, approval, listen or broker, shared))
    elif approval.enrolment:
        changed.append(_note_enrolment(folder / CONFIG[approval.role], approval, "../" if shared else ""))
    (folder / REQUEST).unlink(missing_ok=True)
    return [file for file in changed if file is not None]


def _check_parts(approval: Approval) -> None:
    """Raises InputError or Denied for what a broker or a client could not use; before anything is written."""
    tls.authority_keys(approval.trusted.encode())
    types_of(approval.types)
    for peer in approval.peers:
        host_and_port(peer.address, "the approval: ")
        from_fingerprint(peer.key)


def _install_public(folder: Path, approval: Approval) -> list[Path | None]:
    make_folder(folder / TYPES)
    changed = [
        write_if_new(folder / TYPES / f"{each.event_type.name}-{each.type_id.hex()[:8]}.type", each.to_bytes())
        for each in types_of(approval.types)
    ]
    return [
        *changed,
        write_if_new(folder / AUTHORITY, approval.authority.encode()),
        write_if_new(folder / TRUSTED, approval.trusted.encode()),
        write_if_new(folder / PEERS, peers_text(approval.peers)),
    ]


def put_tokens(folder: Path, tokens: Iterable[str]) -> list[Path | None]:
    """Makes a folder hold exactly these tokens of ours: rights that have ended, or were revoked, go."""
    make_folder(folder)
    wanted = {folder / f"{_digest(token)}.token": f"{token}\n".encode() for token in tokens}
    gone = [file for file in sorted(folder.glob("*.token")) if file not in wanted]
    for file in gone:
        file.unlink()
    return [*(write_if_new(file, content) for file, content in wanted.items()), *gone]


def peers_text(peers: Iterable[CardBroker]) -> bytes:
    tables = (table("[[peer]]", {"address": each.address, "key": each.key}) for each in peers)
    return "\n".join(
        ["# Written by Tidings: the brokers that those of this organisation connect to.\n", *tables]
    ).encode()


def _write_config(folder: Path, approval: Approval, where: str, shared: bool) -> Path:
    around = "../" if shared else ""
    words: dict[str, Any] = {"name": approval.name, "domain": approval.organisation}
    if approval.role == "broker":
        asked = read_request((folder / REQUEST).read_bytes()).address
        words |= {"listen": where or asked, "overlay": approval.overlay, "data": "data"}
        words |= {"advertise": asked} if asked != words["listen"] else {}
        words |= {"peers_file": around + PEERS, "manages": [MANAGER, MANAGERS]}
        make_folder(folder / MANAGERS)
        words |= {"registry": f"../{REGISTRY}"} if shared else {"types": [TYPES]}
    else:
        words |= _own_broker(approval, where)
    words |= {"key": KEY, "certificate": CERTIFICATE, "trusted": around + TRUSTED, "tokens": [RIGHTS]}
    if approval.enrolment:
        words |= {"enrolment": approval.enrolment, "authority": around + AUTHORITY}
    file = folder / CONFIG[approval.role]
    write_if_new(file, table(f"[{approval.role}]", words).encode())
    return file


def _note_enrolment(file: Path, approval: Approval, around: str) -> Path | None:
    """Has a participant renew where its organisation does so now: it may have moved, or begun to, since it enrolled."""
    text = read_text(file)
    for word, value in (("authority", around + AUTHORITY), ("enrolment", approval.enrolment)):
        line = f"{word} = {json.dumps(value, ensure_ascii=False)}"
        text, found = re.subn(rf"^{word}[ \t]*=.*$", lambda _, line=line: line, text, count=1, flags=re.MULTILINE)  # type: ignore[misc]
        if not found:
            text = text.replace(f"[{approval.role}]\n", f"[{approval.role}]\n{line}\n", 1)
    return write_if_new(file, text.encode())


def move_client(folder: Path, broker: CardBroker) -> bool:
    """Has a client use another broker of its organisation from its next start on; False if it does so already."""
    file = folder / CONFIG["client"]
    text = read_text(file)
    for word, value in (("broker", broker.address), ("broker_key", broker.key)):
        text = re.sub(rf"^{word}[ \t]*=.*$", f"{word} = {json.dumps(value)}", text, count=1, flags=re.MULTILINE)
    return write_if_new(file, text.encode()) is not None


def _own_broker(approval: Approval, name: str) -> dict[str, str]:
    fit = [peer for peer in approval.peers if name in ("", peer.name)]
    if not fit:
        wanted = f"no broker {name!r}" if name else "no broker yet that a client could use"
        raise InputError(f"{approval.organisation} has {wanted}; make one: tidings broker create")
    return {"broker": fit[0].address, "broker_key": fit[0].key}


# ── Files ──


def make_folder(folder: Path) -> None:
    """A folder for its owner only."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_secret(file: Path, content: bytes) -> None:
    """A new file for its owner only, at once; raises FileExistsError if there is one."""
    aside = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.link(aside, file)
    finally:
        aside.unlink(missing_ok=True)


def write_if_new(file: Path, content: bytes) -> Path | None:
    """Writes a file at once, so that nobody reads half of it; None if it has this content already."""
    if file.exists() and file.read_bytes() == content:
        return None
    aside = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        aside.write_bytes(content)
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)
    return file


def table(head: str, content: Mapping[str, Any]) -> str:
    r"""A table of TOML: JSON's texts, numbers and lists of them are TOML's, too, if no character is written as two.

    >>> table("[broker]", {"name": "\N{SHIP}"})
    '[broker]\nname = "🚢"\n'
    """
    return "\n".join([head, *(f"{name} = {_toml(value)}" for name, value in content.items()), ""])


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml(each)}" for name, each in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def new_key(file: Path) -> Identity:
    """The key in a file, made if there is none."""
    if not file.exists():
        with contextlib.suppress(FileExistsError):  # Another command was faster.
            write_secret(file, Identity.make(secrets.token_bytes).to_pem())
    return read_identity(file)


def _digest(token: str) -> str:
    return hashlib.sha256(base64.urlsafe_b64decode(token)).hexdigest()[:16]
