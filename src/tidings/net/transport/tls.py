"""Certificates: an organisation's own authority, and the TLS 1.3 settings that both ends of a link use.

A participant's certificate carries its Ed25519 identity key, so the key that TLS proves is the key
that rights name. An organisation signs the certificates of its own brokers and clients, and lists
in one file the authorities of the organisations it is linked with. There are no host names: whom a
broker talks to is decided by key.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tidings.errors import InputError, PeerError
from tidings.security import Identity

VALID_DAYS = 365  # For development. A real authority decides for itself; nothing here depends on it.
BACKDATED = timedelta(hours=1)  # Clocks differ; a certificate made now must hold on the other machine too.


def authority(domain: str, signer: Identity, now: datetime | None = None) -> bytes:
    """The certificate of an organisation's authority, signed by itself, as PEM."""
    name = _name(domain, f"{domain} authority")
    builder = _builder(name, name, Ed25519PublicKey.from_public_bytes(signer.public_key), now)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _signed(builder, signer)


def certificate(
    domain: str, subject: str, public_key: bytes, signer: Identity, issuer: bytes, now: datetime | None = None
) -> bytes:
    """A participant's certificate, as PEM: `issuer` is the authority's, `signer` its key."""
    authority_name = x509.load_pem_x509_certificate(issuer).subject
    builder = _builder(_name(domain, subject), authority_name, Ed25519PublicKey.from_public_bytes(public_key), now)
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
        context.load_verify_locations(trusted_file)
    except ssl.SSLError as wrong:
        files = f"{certificate_file}, {key_file} and {trusted_file}"
        raise InputError(f"expected a certificate, its key and trusted authorities in {files}: {wrong}") from None
    return context


def key_and_domain(certificate_der: bytes) -> tuple[bytes, str]:
    """Whose certificate this is: the Ed25519 key it certifies, and the organisation whose authority signed it.

    TLS has checked the signature; the organisation is the issuer's, so a certificate cannot claim another.
    """
    try:
        read = x509.load_der_x509_certificate(certificate_der)
        key = read.public_key()
        (domain,) = read.issuer.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    except ValueError:
        raise PeerError("certificate: expected one with an organisation") from None
    if not isinstance(key, Ed25519PublicKey):
        raise PeerError(f"certificate: expected an Ed25519 key, got {type(key).__name__}")
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw), str(domain.value)


def der(pem: bytes) -> bytes:
    """A PEM certificate's bytes, as the other side of a link sees them."""
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def domains_in(trusted: bytes) -> dict[str, bytes]:
    """The organisations in a file of authorities, each with its authority's key; raises InputError for two of a name."""
    found: dict[str, bytes] = {}
    for read in x509.load_pem_x509_certificates(trusted):
        key, domain = key_and_domain(read.public_bytes(Encoding.DER))
        if found.setdefault(domain, key) != key:
            raise InputError(f"two authorities call themselves {domain!r}; only one can be trusted by that name")
    return found


def authority_of(domain: str, trusted: bytes) -> x509.Certificate:
    """The authority of an organisation, in a file of authorities; raises InputError if it is not there."""
    for read in x509.load_pem_x509_certificates(trusted):
        if key_and_domain(read.public_bytes(Encoding.DER))[1] == domain:
            return read
    raise InputError(f"the trusted authorities lack that of {domain}")


def web_pair(now: datetime | None = None) -> tuple[bytes, bytes]:
    """A key and a self-signed certificate that browsers can be configured to trust for this machine; as PEM."""
    key = generate_private_key(SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    builder = _builder(name, name, key.public_key(), now)
    issued = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False).sign(key, SHA256())
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return secret, issued.public_bytes(Encoding.PEM)


def _name(domain: str, subject: str) -> x509.Name:
    parts = [(NameOID.ORGANIZATION_NAME, domain), (NameOID.COMMON_NAME, subject)]
    return x509.Name([x509.NameAttribute(oid, text) for oid, text in parts])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, now: datetime | None
) -> x509.CertificateBuilder:
    begins = (now or datetime.now(UTC)) - BACKDATED
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=VALID_DAYS))
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
