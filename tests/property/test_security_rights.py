"""The law of rights and the tokens' Datalog say the same of every chain and every request (2.4)."""

from __future__ import annotations

import pytest
from biscuit_auth import Algorithm, Biscuit, BiscuitBuilder, BlockBuilder, PrivateKey, PublicKey
from hypothesis import assume, given, settings
from hypothesis import event as note
from hypothesis import strategies as st

from tests.unit.security.london import person
from tidings.errors import Denied
from tidings.security import AccessRequest, BiscuitCapability, Grant, Identity, OnlineTest, Right, reduce
from tidings.security.rights.biscuit import datalog_of

PEOPLE = [person(number) for number in range(4)]
OWNER = PEOPLE[0]
TYPES = [bytes([number]) * 32 for number in range(2)]
ATTRIBUTES = [bytes([number]) * 32 for number in range(4)]
ACTIONS = ("publish", "subscribe", "history")
URLS = ("https://a", "https://b")

actions = st.just(frozenset(ACTIONS)) | st.sets(st.sampled_from(ACTIONS), min_size=1).map(frozenset)
attributes = (
    st.none() | st.just(frozenset(ATTRIBUTES)) | st.sets(st.sampled_from(ATTRIBUTES), min_size=1).map(frozenset)
)
tests = st.just(()) | st.lists(st.builds(OnlineTest, st.sampled_from(URLS), st.integers(0, 5)), max_size=1).map(tuple)


@st.composite
def links(draw: st.DrawFn, holder: st.SearchStrategy[bytes | None]) -> Grant:
    start = draw(st.just(0) | st.integers(0, 10))
    return Grant(
        type_id=draw(st.sampled_from([TYPES[0]] * 24 + [TYPES[1]])),
        actions=draw(actions),
        holder=draw(holder),
        attributes=draw(attributes),
        not_before=start,
        not_after=start + draw(st.just(20) | st.integers(1, 12)),
        delegate=draw(st.booleans() | st.just(True)),
        max_depth=draw(st.just(3) | st.integers(0, 3)),
        online=draw(tests),
        constraints=draw(st.lists(st.sampled_from(["a = 1", "b > 'x;\n'"]), max_size=2, unique=True).map(tuple)),
    )


holders = st.sampled_from([someone.public_key for someone in PEOPLE[1:]])


@st.composite
def chains(draw: st.DrawFn) -> list[tuple[Grant, Identity | None]]:
    """Links with their signers: mostly the holder at that point, now and then somebody else."""
    chain: list[tuple[Grant, Identity | None]] = [(draw(links(holders)), OWNER)]
    holder = chain[0][0].holder
    for _ in range(draw(st.integers(0, 3))):
        link = draw(links(st.none() | holders))
        signer = None
        if link.holder is not None:
            signer = (
                next(p for p in PEOPLE if p.public_key == holder)
                if draw(st.integers(0, 9))
                else draw(st.sampled_from(PEOPLE))
            )
            holder = link.holder
        chain.append((link, signer))
    return chain


requests = st.builds(
    AccessRequest,
    st.sampled_from([TYPES[0]] * 24 + [TYPES[1]]),
    st.sampled_from(ACTIONS),
    st.sets(st.sampled_from(ATTRIBUTES), min_size=1, max_size=2).map(frozenset),
)


def token_of(chain: list[tuple[Grant, Identity | None]]) -> BiscuitCapability:
    """The chain as a token, made with the bare library: it refuses nothing that the law would."""
    token, level = BiscuitBuilder(*datalog_of(chain[0][0], 0)).build(_private(OWNER)), 0
    for link, signer in chain[1:]:
        level += link.holder is not None
        token = _appended(token, link, signer, level)
    return BiscuitCapability.from_bytes(bytes(token.to_bytes()), OWNER.public_key)


def _appended(token: Biscuit, link: Grant, signer: Identity | None, level: int) -> Biscuit:
    block = BlockBuilder(*datalog_of(link, level))
    if signer is None:
        return token.append(block)
    third = token.third_party_request().create_block(_private(signer), block)
    return token.append_third_party(
        PublicKey.from_bytes(signer.public_key, Algorithm.Ed25519),  # type: ignore[call-arg, attr-defined]
        third,
    )


def _private(identity: Identity) -> PrivateKey:
    return PrivateKey.from_bytes(identity.secret, Algorithm.Ed25519)  # type: ignore[call-arg, attr-defined]


def signed_links(chain: list[tuple[Grant, Identity | None]]) -> tuple[Grant, ...]:
    from dataclasses import replace

    return tuple(replace(link, issuer=signer.public_key if signer else None) for link, signer in chain)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    chains(),
    requests,
    st.integers(0, 15),
    st.none() | holders,
    st.dictionaries(st.sampled_from(URLS), st.integers(0, 15), max_size=2),
)
def test_the_law_and_the_token_agree_on_every_request(
    chain: list[tuple[Grant, Identity | None]],
    request: AccessRequest,
    now: int,
    someone: bytes | None,
    online: dict[str, int],
) -> None:
    proven = someone or [link.holder for link, _ in chain if link.holder][-1] or b""
    law = token = "allowed"
    try:
        reduce(signed_links(chain), OWNER.public_key).check(request, now, proven, online)
    except Denied as refused:
        law = str(refused)
    try:
        token_of(chain).verify(request, now_ms=now, proven_key=proven, online=online)
    except Denied as refused:
        token = str(refused)
    note(law.partition(":")[0])
    assert (law == "allowed") == (token == "allowed"), f"law: {law}; token: {token}"


@settings(max_examples=100)
@given(chains())
def test_a_token_shows_the_links_it_was_made_of(chain: list[tuple[Grant, Identity | None]]) -> None:
    assert token_of(chain).inspect() == signed_links(chain)


@pytest.mark.slow
@settings(max_examples=200)
@given(chains(), links(st.none()))
def test_a_narrowed_right_never_reaches_further(chain: list[tuple[Grant, Identity | None]], more: Grant) -> None:
    wide = _right(chain)
    assume(wide is not None)
    narrow = _right([*chain, (more, None)])
    if wide is None or narrow is None:
        return
    assert narrow.actions <= wide.actions
    assert wide.attributes is None or (narrow.attributes is not None and narrow.attributes <= wide.attributes)
    assert wide.not_before <= narrow.not_before < narrow.not_after <= wide.not_after
    assert narrow.depth <= wide.depth
    assert set(narrow.constraints) >= set(wide.constraints)
    assert set(narrow.online) >= set(wide.online)
    assert narrow.holder == wide.holder


def _right(chain: list[tuple[Grant, Identity | None]]) -> Right | None:
    try:
        return reduce(signed_links(chain), OWNER.public_key)
    except Denied:
        return None
