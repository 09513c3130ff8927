"""The caller's side of enrolment over HTTPS: with a code, and again before a certificate or a right ends.

What comes back goes into the participant's folder, where whoever runs notices it (see `live_files`).
"""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path

from tidings.errors import Denied, InputError, PeerError, SetupError, TidingsError
from tidings.net.clock import now_ms
from tidings.net.config import BrokerConfig, ClientConfig, host_and_port, read_broker, read_client
from tidings.net.enrolment.documents import DOCUMENT_BYTES_MAX, Approval, RightBundle, read
from tidings.net.enrolment.participant import CONFIG, install, prepare, request_again
from tidings.net.enrolment.server import check_server, server_name
from tidings.net.transport import tls

CALL_S_MAX = 15.0


def enrol_with_code(
    folder: Path, name: str, role: str, code: str, *, listen: str = "", advertise: str = ""
) -> Approval:
    """Makes a participant's key here, and has it enrolled by whom the code names; raises Denied for a wrong code."""
    try:
        address, key_text, secret = code.split("/")
        key, _ = bytes.fromhex(key_text), bytes.fromhex(secret)
    except ValueError:
        raise InputError("expected a code as `tidings org invite` prints it: HOST:PORT/…/…") from None
    organisation = _name_at(address, key)
    request = prepare(folder, organisation, name, role, advertise or listen)
    raw = post(address, [key], "/enrol", {"code": secret, "request": request.pem.decode()})
    approval, signer = read(raw, Approval, address)
    install(folder, approval, signer, listen=listen)
    return approval


def renew_participant(folder: Path, role: str) -> Approval:
    """Renews a participant's certificate and rights at its organisation's endpoint, and puts them into its folder."""
    file = folder / CONFIG[role]
    config: BrokerConfig | ClientConfig = read_broker(file) if role == "broker" else read_client(file)
    if not config.enrolment or config.authority is None:
        raise InputError(
            f"{file} names no address to renew at; renew with files: `tidings {role} request`, then `tidings org approve`"
            f" and `tidings {role} accept`; or, where the organisation's folder is: tidings org renew"
        )
    keys = [anchor.key for anchor in tls.anchors_in(config.authority)]
    request = request_again(folder, config.name, role, now_ms())
    raw = post(config.enrolment, keys, "/renew", {"request": request.pem.decode()})
    approval, signer = read(raw, Approval, config.enrolment)
    if signer not in keys and keys[-1] not in (a.key for a in tls.anchors_in(approval.authority.encode())):
        raise Denied("signature: the answer is from a key that the organisation's known one has not signed")
    install(folder, approval, signer, shared=config.trusted.resolve().parent != folder.resolve())
    return approval


def fetch_rights(address: str, keys: list[bytes], pem: bytes) -> tuple[RightBundle, bytes]:
    """The rights that another organisation has granted ours, renewed."""
    return read(post(address, keys, "/rights", {"request": pem.decode()}), RightBundle, address)


def post(address: str, keys: list[bytes], path: str, content: object) -> bytes:
    """One call, to whoever has a certificate of one of these keys, newest last; raises Denied before anything is sent to others."""
    connection = _connected(address, keys)
    try:
        connection.request("POST", path, json.dumps(content), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        raw = answer.read(DOCUMENT_BYTES_MAX)
    except (OSError, http.client.HTTPException) as wrong:
        raise PeerError(f"{address} did not answer: {wrong}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise _refusal(answer.status, raw, address)
    return raw


def _connected(address: str, keys: list[bytes]) -> http.client.HTTPSConnection:
    host, port = host_and_port(address)
    refused: Denied | None = None
    for key in reversed(keys):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # By key instead, below.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        connection = _NamedConnection(host, port, context=context, timeout=CALL_S_MAX)
        connection.server_name = server_name(key)
        try:
            connection.connect()
            check_server(connection.sock.getpeercert(binary_form=True), [key])
        except Denied as wrong:
            refused = wrong
            connection.close()
        except OSError as wrong:
            why = wrong.strerror or wrong
            raise SetupError(f"cannot reach {address}: {why}; is `tidings org serve` running there?") from None
        else:
            return connection
    raise refused or InputError("expected a key of the organisation")


class _NamedConnection(http.client.HTTPSConnection):
    """A connection whose server name says which key the caller knows."""

    server_name = ""

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        context: ssl.SSLContext = self._context  # type: ignore[attr-defined]
        self.sock = context.wrap_socket(self.sock, server_hostname=self.server_name)


def _name_at(address: str, key: bytes) -> str:
    """The name of the organisation that answers there with a certificate of this key."""
    connection = _connected(address, [key])
    try:
        certificate = connection.sock.getpeercert(binary_form=True)
    finally:
        connection.close()
    return tls.key_and_domain(certificate or b"")[1]


def _refusal(status: int, raw: bytes, address: str) -> TidingsError:
    try:
        why = str(json.loads(raw)["why"])
    except (ValueError, KeyError, TypeError, RecursionError):
        why = f"status {status}"
    if status == 403:
        return Denied(why)
    return InputError(f"{address}: {why}") if status == 400 else PeerError(f"{address}: {why}")
