"""Certificates: an organisation's own authority, and the TLS 1.3 settings that both ends of a link use.

A participant's certificate carries its Ed25519 identity key, so the key that TLS proves is the key
that rights name. An organisation signs the certificates of its own brokers and clients, and lists
in one file the authorities of the organisations it is linked with. There are no host names: whom a
broker talks to is decided by key.

A certificate says in its subject (OU) whether it is a broker's or a client's, so that a client of another
organisation cannot come as a broker. Certificates of version 0.1 do not say, and may be either. A second unit,
`administrator`, gives a client the right to administer its organisation's brokers.

Which organisation a participant belongs to is said by the trust anchor that has signed its certificate, directly: there
are no intermediate authorities, and an anchor whose certificate allows them (no `pathlen:0`) is refused.

An organisation that changes its key has two authorities of one name for a while. The new certificate carries the old
key's signature of the new one; that is what makes it a successor, and not somebody who took the name.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tidings.errors import Denied, InputError, PeerError
from tidings.net.clock import now_ms
from tidings.security import Identity, fingerprint, show_ms, verify_signature, why_not_valid

_ODD = (x509.DuplicateExtension, x509.UnsupportedGeneralNameType, x509.InvalidVersion, UnsupportedAlgorithm)
"""What reading a certificate or a request may raise besides ValueError, if somebody made it on purpose."""

VALID_DAYS = 365  # For development. A real authority decides for itself; nothing here depends on it.
BACKDATED = timedelta(hours=1)  # Clocks differ; a certificate made now must hold on the other machine too.
ROLES = ("broker", "client", "authority")
ADMINISTRATOR = "administrator"
SUCCESSION = x509.ObjectIdentifier("2.25.151730185219066871733486014390926457393")  # Drawn at random, as 2.25 allows.
_SUCCESSION_LABEL = b"tidings/succession/1\0"


def authority(
    domain: str,
    signer: Identity,
    now: datetime | None = None,
    *,
    days: float = VALID_DAYS,
    predecessor: Identity | None = None,
) -> bytes:
    """The certificate of an organisation's authority, signed by itself, as PEM.

    `predecessor` is the key that the organisation had before: its signature makes this one its successor.
    """
    # Two authorities of one organisation need two names: OpenSSL looks for an issuer by its name.
    common = f"{domain} authority" if predecessor is None else f"{domain} authority {signer.public_key.hex()[:8]}"
    name = _name(domain, common)
    builder = _builder(name, name, Ed25519PublicKey.from_public_bytes(signer.public_key), now, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    if predecessor is not None:
        signature = predecessor.sign(_succession(domain, signer.public_key))
        extension = x509.UnrecognizedExtension(SUCCESSION, predecessor.public_key + signature)
        builder = builder.add_extension(extension, critical=False)
    return _signed(builder, signer)


def certificate(
    domain: str,
    subject: str,
    public_key: bytes,
    signer: Identity,
    issuer: bytes,
    now: datetime | None = None,
    *,
    role: str = "",
    administers: bool = False,
    days: float = VALID_DAYS,
) -> bytes:
    """A participant's certificate, as PEM: `issuer` is the authority's, `signer` its key.

    It ends no later than the authority's own. With `administers` it gives the right to administer brokers.
    """
    authority_certificate = x509.load_pem_x509_certificate(issuer)
    name = _name(domain, subject, role, administers=administers)
    key = Ed25519PublicKey.from_public_bytes(public_key)
    builder = _builder(name, authority_certificate.subject, key, now, days, authority_certificate.not_valid_after_utc)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
    hosts = [x509.DNSName("localhost")]  # For browsers and curl at the gateway; links do not look at it.
    builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return _signed(builder, signer)


def web_context(certificate_file: Path, key_file: Path, trusted_file: Path) -> ssl.SSLContext:
    """For a gateway with a certificate for browsers: who asks may show a certificate, or prove itself otherwise."""
    context = server_context(certificate_file, key_file, trusted_file)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def server_context(certificate_file: Path, key_file: Path, trusted_file: Path) -> ssl.SSLContext:
    """For whoever listens: TLS 1.3, and nobody without a certificate of a trusted organisation."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # A resumed session shows no certificate, and ours hashes it into the handshake.
    return _secured(context, certificate_file, key_file, trusted_file)


def client_context(certificate_file: Path, key_file: Path, trusted_file: Path) -> ssl.SSLContext:
    """For whoever dials: likewise. Which key answers is checked in the handshake, not the host's name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    return _secured(context, certificate_file, key_file, trusted_file)


def _secured(context: ssl.SSLContext, certificate_file: Path, key_file: Path, trusted_file: Path) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(certificate_file, key_file)
    except ssl.SSLError as wrong:
        if wrong.reason == "KEY_VALUES_MISMATCH":
            raise InputError(f"{certificate_file} is not the certificate of the key {key_file}") from None
        raise InputError(f"{certificate_file}, {key_file}: expected a certificate and its key: {wrong}") from None
    try:
        context.load_verify_locations(trusted_file)
    except ssl.SSLError:
        raise _no_authorities(trusted_file) from None
    try:
        anchors_in(trusted_file)
    except (InputError, PeerError) as wrong:
        raise InputError(f"{trusted_file}: {wrong}") from None
    return context


def _no_authorities(file: Path) -> InputError:
    return InputError(f"{file}: expected the certificates of trusted authorities, as PEM")


_ALERTS = {
    "UNKNOWN_CA": "it does not trust the authority of our certificate",
    "CERTIFICATE_EXPIRED": "our certificate has expired, by its clock",
    "BAD_CERTIFICATE": "it does not accept our certificate",
    "CERTIFICATE_REQUIRED": "it expects a certificate",
    "CERTIFICATE_UNKNOWN": "it does not accept our certificate",
    "WRONG_VERSION_NUMBER": "no TLS is spoken there; is it another program's port?",
}


def why_unreached(error: Exception) -> str:
    """Why the other end of a connection could not be reached or did not accept, in words for an operator."""
    match error:
        case ssl.SSLCertVerificationError():
            return _why_not_verified(error.verify_message)
        case ssl.SSLError():
            reason = str(error.reason or error)
            return next((said for word, said in _ALERTS.items() if word in reason), f"TLS failed: {reason}")
        case TimeoutError():
            return str(error) or "no answer; is that machine up, and its port open to this one?"
        case socket.gaierror():
            return "no such host is known"
        case ConnectionRefusedError():
            return "nobody listens there; is that broker running?"
        case ConnectionError():
            return "it closed the connection"
        case OSError() if "Connect call failed" in str(error):  # At each of several addresses.
            return "nobody listens there; is that broker running?"
        case OSError():
            return error.strerror or str(error)
    return str(error) or type(error).__name__


def _why_not_verified(openssl: str) -> str:
    if "expired" in openssl:
        return "its certificate has expired, by this machine's clock; its organisation must renew it"
    if "not yet valid" in openssl:
        return "its certificate is not valid yet, by this machine's clock; compare both clocks"
    if "issuer" in openssl or "self-signed" in openssl or "signature" in openssl:
        return "its certificate is from an authority that is not in our file of trusted ones"
    return f"its certificate does not hold: {openssl}"


def key_and_domain(certificate_der: bytes) -> tuple[bytes, str]:
    """Whose certificate this claims to be: the Ed25519 key it certifies, and the organisation that its issuer names.

    Of somebody else's certificate ask `certified_by`: an issuer below a trusted one could go by any name.
    """
    try:
        read = x509.load_der_x509_certificate(certificate_der)
        key = read.public_key()
        (domain,) = read.issuer.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    except (ValueError, *_ODD):
        raise PeerError("certificate: expected one with an organisation and an Ed25519 key") from None
    if not isinstance(key, Ed25519PublicKey):
        raise PeerError(f"certificate: expected an Ed25519 key, got {type(key).__name__}")
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw), str(domain.value)


def certified_by(certificate_der: bytes, anchors: Iterable[TrustAnchor]) -> tuple[bytes, str]:
    """The key that a certificate is for, and the organisation whose trust anchor has signed it, directly.

    Raises PeerError if none of these has. The organisation is the anchor's, whatever the certificate says.
    """
    key, claimed = key_and_domain(certificate_der)
    for anchor in anchors:
        if anchor.domain == claimed:
            with contextlib.suppress(PeerError):
                check_issued(certificate_der, anchor.key)
                return key, anchor.domain
    raise PeerError(f"certificate: not issued by the authority of {claimed[:80]!r} that is trusted here, directly")


def der(pem: bytes) -> bytes:
    """A PEM certificate's bytes, as the other side of a link sees them."""
    try:
        return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
    except (ValueError, *_ODD):
        raise InputError("expected a certificate as PEM; it is cut short, altered or none") from None


def own_certificate(file: Path, key: bytes, domain: str, role: str) -> bytes:
    """One's own certificate, as the other end of a link sees it, checked before others refuse it.

    Raises InputError unless it certifies `key` in `domain` and has not expired, Denied if it is of the future: then the
    clock is wrong. `role` is `broker` or `client`.
    """
    try:
        read = x509.load_pem_x509_certificate(file.read_bytes())
        certified, issuer = key_and_domain(read.public_bytes(Encoding.DER))
    except (ValueError, PeerError):
        raise InputError(f"{file}: expected a certificate, as PEM, for an Ed25519 key in an organisation") from None
    if certified != key:
        raise InputError(f"{file} is not the certificate of this key: it is for {fingerprint(certified)}")
    if issuer != domain:
        raise InputError(f"{file} is a certificate of {issuer}, and the configuration says domain = {domain!r}")
    _check_dates(read, file, role)
    return read.public_bytes(Encoding.DER)


def _check_dates(read: x509.Certificate, file: Path, role: str) -> None:
    begins, ends = (int(at.timestamp() * 1000) for at in (read.not_valid_before_utc, read.not_valid_after_utc))
    now = now_ms()
    if now < begins:
        raise Denied(f"clock: it shows {show_ms(now)}, but {file} is valid only from {show_ms(begins)}; set the clock")
    if why := why_not_valid(begins, ends, now):
        raise InputError(f"{file} {why}; `tidings {role} renew {file.parent}` renews it, if the clock is right")


def check_trusted(certificate_file: Path, trusted_file: Path) -> None:
    """Raises InputError unless an authority in `trusted_file` has signed the certificate: one's own clients would fail."""
    read = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    try:
        authorities = x509.load_pem_x509_certificates(trusted_file.read_bytes())
    except ValueError:
        raise _no_authorities(trusted_file) from None
    for authority in authorities:
        with contextlib.suppress(ValueError, TypeError, InvalidSignature):
            read.verify_directly_issued_by(authority)
            return
    raise InputError(
        f"{trusted_file} lacks the authority that signed {certificate_file}; add the certificate of your own authority"
    )


def role_of(certificate_der: bytes) -> str:
    """Whether a certificate is a `broker`'s, a `client`'s or an enrolment `authority`'s; empty where it does not say."""
    units = x509.load_der_x509_certificate(certificate_der).subject.get_attributes_for_oid(
        NameOID.ORGANIZATIONAL_UNIT_NAME
    )
    return str(units[0].value) if units else ""


def is_administrator(certificate_der: bytes) -> bool:
    """Whether a certificate gives the right to administer brokers."""
    units = x509.load_der_x509_certificate(certificate_der).subject.get_attributes_for_oid(
        NameOID.ORGANIZATIONAL_UNIT_NAME
    )
    return [unit.value for unit in units[1:]] == [ADMINISTRATOR]


def validity(certificate_pem: bytes) -> tuple[datetime, datetime]:
    """From when until when a certificate holds."""
    read = x509.load_pem_x509_certificate(certificate_pem)
    return read.not_valid_before_utc, read.not_valid_after_utc


def validity_der(certificate: bytes) -> tuple[datetime, datetime]:
    """Likewise, of one in DER."""
    read = x509.load_der_x509_certificate(certificate)
    return read.not_valid_before_utc, read.not_valid_after_utc


def certificate_end_ms(certificate_pem: bytes) -> int:
    """When a certificate ends, in milliseconds since 1970."""
    return int(validity(certificate_pem)[1].timestamp() * 1000)


def check_issued(certificate_der: bytes, authority_key: bytes) -> None:
    """Returns if this key has signed the certificate; raises PeerError otherwise."""
    read = x509.load_der_x509_certificate(certificate_der)
    verify_signature(authority_key, read.signature, read.tbs_certificate_bytes, "the certificate")


def domains_in(trusted: bytes | Path) -> dict[str, bytes]:
    """The organisations in a file of authorities, each with its authority's key; raises InputError for two of a name.

    Of an authority and its successor, the successor's.
    """
    return {domain: keys[-1] for domain, keys in authority_keys(trusted).items()}


def authority_keys(trusted: bytes | Path) -> dict[str, list[bytes]]:
    """All authority keys of each organisation in a file, predecessors first; likewise."""
    found: dict[str, list[bytes]] = {}
    for read in load_certificates(trusted):
        key, domain = key_and_domain(read.public_bytes(Encoding.DER))
        known = found.setdefault(domain, [])
        if key in known:
            continue
        if known and predecessor_of(read) not in known:
            raise InputError(f"two authorities call themselves {domain!r}; only one can be trusted by that name")
        known.append(key)
    return found


class TrustAnchor(NamedTuple):
    """One authority in a file of them: its organisation, its key, and its certificate as PEM."""

    domain: str
    key: bytes
    pem: bytes


def anchors_in(trusted: bytes | Path) -> list[TrustAnchor]:
    """The authorities in a file, which an error then names, or in its content; in their order."""
    found = []
    for read in load_certificates(trusted):
        key, domain = key_and_domain(read.public_bytes(Encoding.DER))
        found.append(TrustAnchor(domain, key, read.public_bytes(Encoding.PEM)))
    return found


def load_certificates(pem: bytes | Path) -> list[x509.Certificate]:
    """The authorities in a PEM file; raises InputError for anything else, and for one that allows others below it."""
    raw, where = (pem.read_bytes(), f"{pem}: ") if isinstance(pem, Path) else (pem, "")
    try:
        found = x509.load_pem_x509_certificates(raw)
    except (ValueError, *_ODD):  # What is wrong in terms of ASN.1 helps nobody.
        raise InputError(
            f"{where}expected certificates of authorities as PEM; they are cut short, altered or none"
        ) from None
    for read in found:
        _check_authority(read)
    return found


def _check_authority(read: x509.Certificate) -> None:
    try:
        limits = read.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (x509.ExtensionNotFound, ValueError, *_ODD):
        limits = None
    if limits is None or not limits.ca or limits.path_length != 0:
        raise InputError(
            f"expected an authority that certifies participants itself (CA:TRUE, pathlen:0), got {_shown(read)}; "
            "`tidings org create` makes one"
        )


def _shown(read: x509.Certificate) -> str:
    return read.subject.rfc4514_string()[:120]


def predecessor_of(read: x509.Certificate) -> bytes | None:
    """The key that has declared this authority its successor; None if there is none, or its signature is wrong."""
    key, domain = key_and_domain(read.public_bytes(Encoding.DER))
    try:
        extension = read.extensions.get_extension_for_oid(SUCCESSION).value
    except x509.ExtensionNotFound:
        return None
    assert isinstance(extension, x509.UnrecognizedExtension)
    predecessor, signature = extension.value[:32], extension.value[32:]
    try:
        verify_signature(predecessor, signature, _succession(domain, key), "the succession")
    except (PeerError, ValueError):
        return None
    return predecessor


def _succession(domain: str, successor: bytes) -> bytes:
    return _SUCCESSION_LABEL + domain.encode() + b"\0" + successor


def authority_of(domain: str, trusted: bytes) -> x509.Certificate:
    """The authority of an organisation, in a file of authorities; raises InputError if it is not there."""
    for read in load_certificates(trusted):
        if key_and_domain(read.public_bytes(Encoding.DER))[1] == domain:
            return read
    raise InputError(f"the trusted authorities lack that of {domain}")


def names_in(certificate: bytes) -> list[str]:
    """The host names and addresses in a PEM certificate."""
    extensions = x509.load_pem_x509_certificate(certificate).extensions
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]


def web_pair(now: datetime | None = None) -> tuple[bytes, bytes]:
    """A key and a self-signed certificate that browsers can be configured to trust for this machine; as PEM."""
    key = generate_private_key(SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    builder = _builder(name, name, key.public_key(), now)
    issued = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False).sign(key, SHA256())
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return secret, issued.public_bytes(Encoding.PEM)


def signing_request(domain: str, subject: str, role: str, signer: Identity, says: Mapping[str, str]) -> bytes:
    """A certificate signing request (PKCS#10), as PEM; `says` is what the authority needs to know besides, as URIs."""
    uris = [x509.UniformResourceIdentifier(f"tidings:{word}:{value}") for word, value in says.items()]
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(domain, subject, role))
    if uris:
        builder = builder.add_extension(x509.SubjectAlternativeName(uris), critical=False)
    signed = builder.sign(Ed25519PrivateKey.from_private_bytes(signer.secret), algorithm=None)
    return signed.public_bytes(Encoding.PEM)


def read_signing_request(pem: bytes) -> tuple[str, str, str, bytes, dict[str, str]]:
    """Organisation, name, role, key and the rest of a signing request; raises InputError unless that key has signed it."""
    try:
        read = x509.load_pem_x509_csr(pem)
        key = read.public_key()
        domain, role, subject = (
            str(read.subject.get_attributes_for_oid(oid)[0].value)
            for oid in (NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.COMMON_NAME)
        )
        if not isinstance(key, Ed25519PublicKey) or not read.is_signature_valid:
            raise ValueError("its signature is not that of its Ed25519 key")
        return domain, subject, role, key.public_bytes_raw(), _said(read)
    except (ValueError, IndexError, TypeError, *_ODD) as wrong:
        raise InputError(f"expected a request as `tidings broker request` writes it: {wrong}") from None


def _said(read: x509.CertificateSigningRequest) -> dict[str, str]:
    try:
        names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return {}
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    parts = [uri.split(":", 2) for uri in uris if uri.startswith("tidings:") and uri.count(":") >= 2]
    return {word: value for _, word, value in parts}


def _name(domain: str, subject: str, role: str = "", *, administers: bool = False) -> x509.Name:
    units = [*([role] if role else []), *([ADMINISTRATOR] if administers else [])]
    parts = [(NameOID.ORGANIZATION_NAME, domain), *((NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in units)]
    parts.append((NameOID.COMMON_NAME, subject))
    return x509.Name([x509.NameAttribute(oid, text) for oid, text in parts])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: CertificatePublicKeyTypes,
    now: datetime | None,
    days: float = VALID_DAYS,
    ends_max: datetime | None = None,
) -> x509.CertificateBuilder:
    begins = (now or datetime.now(UTC)) - BACKDATED
    ends = begins + BACKDATED + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(min(ends, ends_max) if ends_max else ends)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(builder: x509.CertificateBuilder, signer: Identity) -> bytes:
    key = Ed25519PrivateKey.from_private_bytes(signer.secret)
    return builder.sign(key, algorithm=None).public_bytes(Encoding.PEM)
