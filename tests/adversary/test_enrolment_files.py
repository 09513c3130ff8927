"""Files that strangers hand in: requests, public files, approvals. Whatever is in them is refused with a typed error."""

from __future__ import annotations

import base64
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.errors import InputError, TidingsError
from tidings.net import (
    Approval,
    Organisation,
    OrganisationCard,
    OrganisationSettings,
    parse_document,
    prepare_participant,
    read_request,
)
from tidings.net.enrolment.documents import CardBroker, sign
from tidings.net.transport import tls
from tidings.security import Identity

ME = Identity(bytes([7] * 32))


@cache
def files() -> tuple[bytes, bytes, bytes]:
    """A request (DER), a public file and an approval, as they should be."""
    org, _ = Organisation.create(Path(mkdtemp()) / "police", OrganisationSettings("police"))
    request = prepare_participant(org.folder / "police-1", "police", "police-1", "broker", "127.0.0.1:7401")
    raw = base64.b64decode(b"".join(request.pem.splitlines()[1:-1]))
    return raw, org.sign(org.card()), org.sign(org.approve(request))


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_an_altered_file_is_refused_with_a_typed_error(data: st.DataObject) -> None:
    which = data.draw(st.sampled_from([0, 1, 2]))
    raw = bytearray(files()[which])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    with suppress(TidingsError):
        match which:
            case 0:
                read_request(pem(bytes(raw)))
            case 1:
                parse_document(bytes(raw), OrganisationCard, "the file")
            case _:
                parse_document(bytes(raw), Approval, "the file")


def pem(der: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE REQUEST-----\n%b\n-----END CERTIFICATE REQUEST-----\n" % base64.b64encode(der)


@given(
    st.text(min_size=1, max_size=64), st.text(max_size=20), st.dictionaries(st.text(max_size=9), st.text(max_size=30))
)
@settings(max_examples=200, deadline=None)
def test_a_request_says_what_its_maker_likes_and_a_name_that_is_taken_is_a_folders(
    name: str, role: str, says: dict[str, str]
) -> None:
    with suppress(TidingsError, ValueError):  # ValueError: no such request can be made.
        made = tls.signing_request("police", name, role or "client", ME, {**says, "address": says.get("", "")})
        with suppress(TidingsError):
            taken = read_request(made).name
            assert taken == name
            assert Path("/org", taken).resolve() == Path("/org") / taken
            assert taken.isprintable()


@pytest.mark.parametrize("odd", ["rsa", "no names", "huge"])
def test_a_request_of_another_kind_is_refused(odd: str) -> None:
    names = [] if odd == "no names" else [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "police")]
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names))
    request = builder.sign(rsa.generate_private_key(65537, 2048), SHA256()).public_bytes(Encoding.PEM)
    with pytest.raises(InputError, match="expected a request"):
        read_request(request * (1000 if odd == "huge" else 1))


@pytest.mark.parametrize(
    "changes",
    [
        {"certificate": "none"},
        {"certificate": ""},
        {"types": ("!",)},
        {"peers": (CardBroker("b", "127.0.0.1:1", "zzz"),)},
        {"peers": ()},
        {"trusted": "none"},
    ],
)
def test_an_approval_that_its_authority_has_made_badly_leaves_no_participant(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    from tidings.net import install_approval

    org, _ = Organisation.create(tmp_path / "police", OrganisationSettings("police"))
    broker = prepare_participant(org.folder / "police-1", "police", "police-1", "broker", "127.0.0.1:7401")
    org.approve(broker)
    request = prepare_participant(tmp_path / "desk", "police", "desk", "client")
    bad = msgspec.structs.replace(org.approve(request), **changes)
    approval, key = parse_document(sign(bad, org.authority), Approval, "the file")
    with pytest.raises(TidingsError):
        install_approval(tmp_path / "desk", approval, key)
    assert not (tmp_path / "desk" / "client.toml").exists()
