"""Which addresses a broker may be made to call: those that its operator has allowed, however they are written."""

from __future__ import annotations

import pytest

from tidings.errors import Denied, InputError
from tidings.net.gateway.webhooks import SinkPolicy

POLICY = SinkPolicy(("https://hooks.example/in/", "http://127.0.0.1:8080/one"))


@pytest.mark.parametrize(
    "address",
    [
        "https://hooks.example/in/",
        "https://HOOKS.example:443/in/plates?key=5",
        "http://127.0.0.1:8080/one",
        "http://127.0.0.1:8080/one/two",
    ],
)
def test_what_is_below_an_allowed_address_is_allowed(address: str) -> None:
    assert POLICY.check(address).hostname


@pytest.mark.parametrize(
    "address",
    [
        "http://hooks.example/in/",
        "https://hooks.example:8443/in/",
        "https://hooks.example/out",
        "https://hooks.example/inside",
        "https://hooks.example.evil.example/in/",
        "http://127.0.0.1:8080/oneself",
        "http://169.254.169.254/latest/meta-data/",
        "http://localhost:8080/one",
    ],
)
def test_every_other_address_is_denied(address: str) -> None:
    with pytest.raises(Denied):
        POLICY.check(address)
    with pytest.raises(Denied):
        SinkPolicy(()).check(address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "file:///etc/passwd",
        "https://",
        "https://hooks.example/in/../out",
        "https://hooks.example/in/%2e%2e/out",
        "https://hooks.example/in/..",
        "https://evil.example@hooks.example/in/",
        "https://hooks.example\\@evil.example/in/",
        "https://hooks.example/in/ x",
        "https://hooks.example/in/\r\nX: y",
        "https://hooks.example:99999/in/",
        "https://hooks.example/in/#x",
        "https://[::1/in/",
    ],
)
def test_what_could_be_read_in_two_ways_is_no_address(address: str) -> None:
    with pytest.raises(InputError):
        POLICY.check(address)


def test_a_mistake_in_the_configuration_is_named_at_the_start() -> None:
    with pytest.raises(InputError, match="gateway_sinks"):
        SinkPolicy(("hooks.example",))
