"""Errors carry a code, by which programs decide; the text is for people."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from tidings import errors
from tidings.errors import Denied, ErrorCode, EventError, FilterSyntaxError, InputError, PeerError, TidingsError
from tidings.net.transport.frames import as_error, refusal
from tidings.node.type_crypto import UnknownPublisher
from tidings.security import NotYet, UnknownEpoch

ONE_OF_EACH: list[TidingsError] = [
    InputError("expected a number"),
    EventError("speed: expected a number"),
    FilterSyntaxError("expected a number", "price > cheap", 9, "a hint"),
    PeerError("cache: says otherwise than the sealed event"),
    PeerError("not under any check"),
    Denied("signature: not a valid token"),
    Denied("some other text", code=ErrorCode.KEY),
    NotYet("key: none yet", 5, code=ErrorCode.KEY),
    NotYet("clock: it stepped back", 5),
    UnknownEpoch(b"g", 3),
    UnknownPublisher("publisher: no right has been seen"),
]


def test_a_class_has_a_code_and_the_raiser_may_give_another() -> None:
    assert [error.code for error in ONE_OF_EACH] == [
        ErrorCode.INPUT,
        ErrorCode.EVENT,
        ErrorCode.FILTER_SYNTAX,
        ErrorCode.CACHE,
        ErrorCode.PEER,
        ErrorCode.SIGNATURE,
        ErrorCode.KEY,
        ErrorCode.KEY,
        ErrorCode.CLOCK,
        ErrorCode.EPOCH,
        ErrorCode.PUBLISHER,
    ]


def test_every_class_of_error_has_a_code_of_its_own() -> None:
    classes = [
        found for name in dir(errors) if isinstance(found := getattr(errors, name), type) and not name.startswith("_")
    ]
    codes = [found.code for found in classes if issubclass(found, TidingsError)]
    assert len(codes) == len(set(codes)) == 13


def test_only_the_word_before_the_colon_is_a_code() -> None:
    assert ErrorCode.of("key: none held") is ErrorCode.KEY
    assert ErrorCode.of("key none held") is None
    assert ErrorCode.of("keys: none held") is None


RAISED = re.compile(r"""(?:PeerError|Denied)\(\s*f?"([a-z_]+):""")


def test_every_check_that_a_text_begins_with_is_a_code() -> None:
    sources = Path(errors.__file__).parent.rglob("*.py")
    checks = {check for path in sources for check in RAISED.findall(path.read_text())}
    assert len(checks) > 50
    assert sorted(check for check in checks if ErrorCode.named(check) is None) == []


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=repr)
def test_an_error_survives_pickling(error: TidingsError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args, again.code, str(again)) == (type(error), error.args, error.code, str(error))


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=repr)
def test_an_error_crosses_the_client_link_with_its_code(error: TidingsError) -> None:
    again = as_error(refusal(1, error))
    assert (again.code, str(again)) == (error.code, str(error))
