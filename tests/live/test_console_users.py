"""Users of the console: logging in by certificate and at a real OpenID Connect provider, and changing rights."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as rsa_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from playwright.sync_api import Browser, Page, expect

from tests.live.console_network import Browserless, Show, network_with_console
from tests.live.console_pages import chromium, chromium_program, go, opened
from tidings.console import Console, OidcSettings
from tidings.console.login import Users, checked_claims
from tidings.errors import Denied, InputError
from tidings.net import RightBundle, read_document, read_identity
from tidings.net.dev_network import free_ports
from tidings.net.transport import tls
from tidings.security import Grant
from tidings.store import Registry

pytestmark = [pytest.mark.live, pytest.mark.slow]

ADA, EVE = "ada@police.example", "eve@elsewhere.example"


@pytest.fixture(scope="module")
def show(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Show]:
    with network_with_console(tmp_path_factory.mktemp("console"), changes_rights=True) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if chromium_program() is None and not os.environ.get("CI"):
        pytest.skip("there is no Chromium; apt-get install chromium")
    with chromium() as found:
        yield found


@contextmanager
def another(show: Show, **changes: Any) -> Iterator[Console]:
    """A console in front of the same network, with other settings."""

    async def start() -> Console:
        return await Console(replace(show.console.settings, **changes)).__aenter__()

    console = show.loop.run(start())
    yield console
    show.loop.run(console.__aexit__(None, None, None))


def actions_in(audit: Path) -> list[str]:
    return [json.loads(line)["action"] for line in audit.read_text().splitlines()]


# ── OpenID Connect ──


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real provider, in a process of its own, with two users of whom one has a verified address."""
    (port,) = free_ports(1)
    users = [
        {"sub": "ada", "email": ADA, "email_verified": True},
        {"sub": "mallory", "email": ADA, "email_verified": False},
    ]
    named = [part for each in users for part in ("--user-claims", json.dumps(each))]
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "oidc_provider_mock",
        "--port",
        str(port),
        "--require-nonce",
        *named,
    ]
    with (tmp_path_factory.mktemp("provider") / "log").open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
    issuer = f"http://localhost:{port}"
    try:
        until = time.monotonic() + 60
        while not _answers(issuer):
            assert process.poll() is None, "the provider has ended"
            assert time.monotonic() < until, "the provider does not start"
        yield issuer
    finally:
        process.terminate()
        process.wait()


def _answers(issuer: str) -> bool:
    try:
        with urllib.request.urlopen(f"{issuer}/.well-known/openid-configuration", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        time.sleep(0.05)  # Nothing tells when a process of somebody else listens.
        return False


@pytest.fixture
def with_provider(show: Show, provider: str, tmp_path: Path) -> Iterator[Console]:
    settings = OidcSettings(provider, "console", "secret of the console")
    users = [(ADA, "police/desk"), (EVE, "police/camera")]
    with another(show, oidc=settings, users=users, audit=tmp_path / "audit.jsonl", org=None) as console:
        yield console


def log_in_at_provider(page: Page, console: Console, sub: str) -> None:
    page.goto(f"http://{console.address}/")
    page.click("text=Log in at localhost")
    page.click(f"button[value='{sub}']")


def test_a_user_logs_in_at_a_provider_and_acts_only_as_itself(with_provider: Console, browser: Browser) -> None:
    page = browser.new_page()
    log_in_at_provider(page, with_provider, "ada")
    page.wait_for_selector("svg.map a.node")
    assert page.locator("#client option").all_inner_texts() == ["police/desk"]
    assert page.locator("#logout").get_attribute("title") == f"Logged in as {ADA}"
    asked = "client => fetch(`/api/rights?client=${client}`).then(answer => answer.status)"
    assert page.evaluate(asked, "police/desk") == 200
    assert page.evaluate(asked, "police/camera") == 400
    assert page.evaluate("() => fetch('/api/pipelines').then(answer => answer.status)") == 403
    seen = page.evaluate("() => fetch('/api/network').then(answer => answer.text())")
    assert "police/camera" not in seen
    page.click("#logout")
    expect(page.locator("main")).to_contain_text("You are not logged in")
    page.context.close()
    audit = with_provider.settings.audit
    assert audit is not None
    assert actions_in(audit) == ["log in", "log out"]
    assert {json.loads(line)["user"] for line in audit.read_text().splitlines()} == {ADA}


def test_who_logs_in_at_a_provider_comes_back_to_the_link_that_was_followed(
    with_provider: Console, browser: Browser
) -> None:
    page = browser.new_page()
    page.goto(f"http://{with_provider.address}/#/why?type=Numberplate&where=speed+%3E+7")
    page.click("text=Log in at localhost")
    page.click("button[value='ada']")
    expect(page.locator("#tried")).to_have_value("speed > 7")
    page.context.close()


def test_an_address_that_the_provider_has_not_verified_is_nobodys(with_provider: Console, browser: Browser) -> None:
    page = browser.new_page()
    log_in_at_provider(page, with_provider, "mallory")
    expect(page.locator("body")).to_contain_text("not as a user of this console")
    page.goto(f"http://{with_provider.address}/")
    expect(page.locator("main")).to_contain_text("You are not logged in")
    page.context.close()


def test_an_answer_to_a_login_that_this_browser_has_not_begun_is_refused(with_provider: Console) -> None:
    stranger = Browserless(with_provider)
    stranger.cookie = ""
    status, headers, _ = stranger.ask("GET", "/login/oidc")
    assert status == 303
    for cookie, query in (("", "code=x&state=y"), (headers["set-cookie"].partition(";")[0], "code=x&state=y")):
        stranger.cookie = cookie
        status, answer, _ = stranger.ask("GET", f"/login/oidc/callback?{query}")
        assert (status, "set-cookie" in answer) == (403, False)


def test_a_page_of_another_site_may_return_only_by_navigation(with_provider: Console) -> None:
    stranger = Browserless(with_provider)
    for mode in ("cors", "no-cors"):
        sent = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": mode}
        assert stranger.ask("GET", "/login/oidc/callback?code=x", **sent)[2]["error"] == "Denied"
    assert stranger.ask("GET", "/api/me", **{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})[0] == 403


PROVIDER_KEY = rsa_key(65537, 2048)


def id_token(**changes: Any) -> str:
    claims: dict[str, Any] = {
        "iss": "https://id.example",
        "aud": "console",
        "sub": "ada",
        "nonce": "n",
        "iat": time.time(),
    }
    claims |= {"exp": time.time() + 300, **changes}
    alg, key, kid = claims.pop("alg", "RS256"), claims.pop("key", PROVIDER_KEY), claims.pop("kid", "k")
    return jwt.encode(claims, key, algorithm=alg, headers={"kid": kid})


def keys_of_provider() -> jwt.PyJWKSet:
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(PROVIDER_KEY.public_key()))
    return jwt.PyJWKSet.from_dict({"keys": [{**public, "kid": "k", "use": "sig"}]})


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://other.example"},
        {"aud": "another program"},
        {"aud": ["console", "another program"]},
        {"exp": 1_000_000_000},
        {"nonce": "of another login"},
        {"kid": "unknown"},
        {"key": rsa_key(65537, 2048)},
        {"alg": "HS256", "key": b"a shared secret that is long enough."},
        {"alg": "none", "key": None},
    ],
    ids=["issuer", "audience", "audiences", "expired", "nonce", "key id", "key", "shared secret", "unsigned"],
)
def test_an_id_token_that_is_not_for_this_login_is_refused(changes: dict[str, Any]) -> None:
    settings, keys = OidcSettings("https://id.example", "console"), keys_of_provider()
    assert checked_claims(id_token(), keys, settings, "n")["sub"] == "ada"
    with pytest.raises(Denied):
        checked_claims(id_token(**changes), keys, settings, "n")


@pytest.mark.parametrize("issuer", ["http://id.example", "ftp://id.example", "https://", "id.example", "http://[::1"])
def test_a_provider_is_asked_over_tls_or_on_loopback_only(issuer: str) -> None:
    with pytest.raises(InputError):
        OidcSettings(issuer, "console")


def test_a_user_is_of_a_client_that_the_console_acts_as() -> None:
    with pytest.raises(InputError, match="does not act as"):
        Users([("ada", "police/desk")], ["ccs/desk"])


# ── Certificates ──


def certificate(
    name: str, folder: Path, issuer: tuple[x509.Certificate, EllipticCurvePrivateKey] | None = None
) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    """A certificate that browsers can use, for a user or, without an issuer, of an authority."""
    key, now = generate_private_key(SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    by, signer = (issuer[0].subject, issuer[1]) if issuer else (subject, key)
    builder = x509.CertificateBuilder(by, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))
    made = builder.add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    signed = made.sign(signer, SHA256())
    (folder / f"{name}.crt").write_bytes(signed.public_bytes(Encoding.PEM))
    (folder / f"{name}.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return signed, key


@pytest.fixture
def over_tls(show: Show, tmp_path: Path) -> Iterator[tuple[Console, Path]]:
    """A console over TLS; `ada` has a certificate of its authority, `eve` one of another, `bob` is nobody's user."""
    key, own = tls.web_pair()
    (tmp_path / "web.pem").write_bytes(key)
    (tmp_path / "web.crt").write_bytes(own)
    authority, other = certificate("authority", tmp_path), certificate("other", tmp_path)
    certificate("ada", tmp_path, authority)
    certificate("bob", tmp_path, authority)
    (tmp_path / "eve").mkdir()
    certificate("ada", tmp_path / "eve", other)
    with another(
        show,
        certificate=tmp_path / "web.crt",
        key=tmp_path / "web.pem",
        user_authority=tmp_path / "authority.crt",
        users=[("ada", "police/desk")],
        audit=tmp_path / "audit.jsonl",
        org=None,
    ) as console:
        yield console, tmp_path


def asked_over_tls(console: Console, folder: Path, name: str | None) -> tuple[int, dict[str, Any]]:
    """What who shows this certificate gets for it."""
    context = ssl.create_default_context(cafile=console.settings.certificate)
    context.check_hostname = False
    if name is not None:
        context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.pem")
    request = urllib.request.Request(f"https://{console.address}/api/session", b'{"certificate": true}')
    try:
        with urllib.request.urlopen(request, context=context, timeout=30) as answer:
            return answer.status, {"cookie": answer.headers["set-cookie"]}
    except urllib.error.HTTPError as refused:
        return refused.code, json.loads(refused.read())


def test_a_certificate_logs_in_its_user_and_nobody_else(over_tls: tuple[Console, Path]) -> None:
    console, folder = over_tls
    status, said = asked_over_tls(console, folder, "ada")
    assert status == 200
    assert {"Secure", "HttpOnly", "SameSite=Strict"} <= set(said["cookie"].split("; "))
    assert asked_over_tls(console, folder, "bob")[0] == 403
    assert asked_over_tls(console, folder, None)[0] == 403
    with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):  # TLS refuses the other authority.
        asked_over_tls(console, folder / "eve", "ada")
    assert actions_in(folder / "audit.jsonl") == ["log in", "log in refused"]


def test_a_browser_logs_in_with_its_certificate(over_tls: tuple[Console, Path], browser: Browser) -> None:
    console, folder = over_tls
    context = browser.new_context(
        ignore_https_errors=True,
        client_certificates=[
            {
                "origin": f"https://{console.address}",
                "certPath": folder / "ada.crt",
                "keyPath": folder / "ada.pem",
            }
        ],
    )
    page = context.new_page()
    page.goto(f"https://{console.address}/")
    page.click("text=Log in with your certificate")
    page.wait_for_selector("svg.map a.node")
    assert page.locator("#client option").all_inner_texts() == ["police/desk"]
    context.close()


# ── Rights ──


def previewed(ours: Browserless, **asked: Any) -> dict[str, Any]:
    content = {"client": "police/camera", **asked}
    return {**content, "mark": ours.post("/api/rights/preview", content)["mark"]}


def state_of(ours: Browserless, digest: str) -> str:
    rows = ours.ask("GET", "/api/rights?client=police/camera")[2]["rows"]
    return next(str(row["state"]) for row in rows if row["digest"] == digest)


def test_only_administrators_of_the_organisation_change_its_rights(show: Show) -> None:
    ours = Browserless(show.console)
    asked = {
        "kind": "grant",
        "type": "Numberplate",
        "to": "police/desk",
        "actions": ["subscribe"],
        "attributes": ["area"],
    }
    for client in ("police/desk", "ccs/desk"):
        for path in ("preview", "change"):
            content = {**asked, "client": client, "mark": ""}
            status, _, said = ours.ask("POST", f"/api/rights/{path}", content, **{"X-Tidings-CSRF": ours.csrf})
            assert (status, said["error"]) == (403, "Denied")
    assert {each["name"] for each in ours.ask("GET", "/api/me")[2]["clients"] if each["may_change_rights"]} == {
        "police/camera"
    }


def test_a_right_is_given_narrowed_and_revoked_and_each_is_in_both_audit_trails(show: Show) -> None:
    ours = Browserless(show.console)
    given = ours.post(
        "/api/rights/change",
        previewed(
            ours, kind="grant", type="Numberplate", to="police/desk", actions=["subscribe"],
            attributes=["area", "speed"], days=2, may_pass_on=True,
        ),
    )  # fmt: skip
    narrowed = ours.post(
        "/api/rights/change",
        previewed(
            ours,
            kind="narrow",
            digest=given["digest"],
            actions=["subscribe"],
            attributes=["area"],
            where="area = 'EC1'",
        ),
    )
    assert state_of(ours, given["digest"]) == "revoked"
    assert state_of(ours, narrowed["digest"]) == "valid"
    with Registry.open(show.console.settings.registry, now_ms=time.time_ns() // 1_000_000) as registry:
        right = registry.grants.find(narrowed["digest"]).right
        assert right.constraints == ("area = 'EC1'",)
        assert len(right.attributes or ()) == 1
        revoked = ours.post(
            "/api/rights/change", previewed(ours, kind="revoke", digest=narrowed["digest"], reason="the case is closed")
        )
        assert len(revoked["revoked"]) == 1
        trail = [entry for entry in registry.audit.entries() if entry.action in ("grant", "revoke")]
    assert [entry.action for entry in trail][-4:] == ["grant", "grant", "revoke", "revoke"]
    assert "the case is closed (by police/camera, in the console)" in trail[-1].details
    assert state_of(ours, narrowed["digest"]) == "revoked"
    audit = show.console.settings.audit
    assert audit is not None
    assert [each for each in actions_in(audit) if each.endswith("right done")] == [
        "grant right done",
        "narrow right done",
        "revoke right done",
    ]


def test_a_preview_names_whose_rights_would_end_and_holds_only_as_long_as_it_is_true(show: Show) -> None:
    ours = Browserless(show.console)
    grant = {"kind": "grant", "type": "Numberplate", "actions": ["subscribe"], "may_pass_on": True}
    given = ours.post("/api/rights/change", previewed(ours, **grant, to="police/desk", attributes=["plate"]))
    revoke = previewed(ours, kind="revoke", digest=given["digest"])
    assert ours.post("/api/rights/preview", {**revoke})["ends"] == []
    # The holder passes it on; the registry learns of it.
    now = time.time_ns() // 1_000_000
    config = show.console.clients["police/desk"].config
    with Registry.open(show.console.settings.registry, now_ms=now) as registry:
        known = registry.grants.find(given["digest"])
        derived = known.token.narrow(
            Grant(
                type_id=known.right.type_id,
                actions=known.right.actions,
                holder=registry.domains.key_of("ccs/desk"),
                attributes=None,
                not_before=known.right.not_before,
                not_after=known.right.not_after,
                delegate=False,
                max_depth=0,
            ),
            read_identity(config.key),
        )
        registry.grants.add(derived, by="police/desk", now_ms=now)
    assert ours.post("/api/rights/preview", {**revoke})["ends"] == ["ccs/desk"]
    status, _, said = ours.ask("POST", "/api/rights/change", revoke, **{"X-Tidings-CSRF": ours.csrf})
    assert (status, "is not what was shown" in said["why"]) == (400, True)
    assert state_of(ours, given["digest"]) == "valid"
    ours.post("/api/rights/change", previewed(ours, kind="revoke", digest=given["digest"]))
    assert state_of(ours, derived.digest.hex()[:16]) == "revoked"


@pytest.mark.parametrize(
    "asked",
    [
        {"kind": "grant", "type": "Numberplate", "to": "nobody", "actions": ["subscribe"]},
        {"kind": "grant", "type": "Numberplate", "to": "police/desk", "actions": ["join-net"]},
        {"kind": "grant", "type": "Numberplate", "to": "police/desk", "actions": ["subscribe"], "attributes": ["x"]},
        {"kind": "grant", "type": "Numberplate", "to": "police/desk", "actions": ["subscribe"], "where": "sped > 1"},
        {
            "kind": "grant",
            "type": "Numberplate",
            "to": "police/desk",
            "actions": ["subscribe"],
            "attributes": ["area"],
            "where": "speed > 1",
        },
        {"kind": "grant", "type": "Numberplate", "to": "police/desk", "actions": ["subscribe"], "days": 1e9},
        {"kind": "revoke", "digest": ""},
        {"kind": "revoke", "digest": "%" * 64},
        {"kind": "grow"},
    ],
    ids=lambda asked: " ".join(map(str, asked.values()))[:60],
)
def test_changes_that_cannot_be_are_refused_before_anything_happens(show: Show, asked: dict[str, Any]) -> None:
    ours = Browserless(show.console)
    content = {"client": "police/camera", **asked}
    status, _, said = ours.ask("POST", "/api/rights/preview", content, **{"X-Tidings-CSRF": ours.csrf})
    assert (status, said["error"]) in ((400, "InputError"), (400, "FilterError"), (400, "FilterTypeError"))


def test_a_right_of_another_organisation_is_a_file_that_it_takes(show: Show, browser: Browser) -> None:
    page = opened(browser, show.console.url)
    go(page, "rights", "client=police/camera")
    page.click("text=Give a right")
    page.fill("input[list=holders]", "ccs/desk")
    page.click("text=Give it…")
    page.click("text=Give it now")
    with page.expect_download() as saved:
        page.click("text=Save police.right")
    bundle, _ = read_document(Path(saved.value.path()), RightBundle)
    assert len(bundle.tokens) == 1
    page.context.close()


def test_revoking_on_the_page_shows_what_ends_and_then_who_has_heard(show: Show, browser: Browser) -> None:
    ours = Browserless(show.console)
    given = ours.post(
        "/api/rights/change",
        previewed(ours, kind="grant", type="Numberplate", to="police/desk", actions=["publish"], attributes=["area"]),
    )
    page = opened(browser, show.console.url)
    go(page, "rights", "client=police/camera")
    row = page.locator("tr", has_text="publish").filter(has_text="police/desk").last
    row.locator("summary", has_text="Revoke").click()
    row.get_by_role("button", name="Show what would end").click()
    expect(row).to_contain_text("police/desk loses this right")
    row.get_by_role("button", name="Revoke it now").click()
    expect(row).to_contain_text("ccs/ccs-1 has heard", timeout=30_000)
    assert state_of(ours, given["digest"]) == "revoked"
    page.context.close()
