"""Log-ins to the console."""

from __future__ import annotations

import pytest

from tidings.console.sessions import LOGINS_PER_MINUTE, WebSessions
from tidings.errors import Denied
from tidings.net import BadRequest


def test_wrong_login_keys_are_refused_and_do_not_keep_out_who_has_the_right_one() -> None:
    sessions = WebSessions()
    for n in range(LOGINS_PER_MINUTE):
        with pytest.raises(Denied):
            sessions.open(f"guess {n}", 1.0)
    with pytest.raises(BadRequest, match="too many"):
        sessions.open("one more", 2.0)
    assert sessions.open(sessions.key, 2.0).is_operator
    with pytest.raises(Denied):
        sessions.open("one more", 62.0)


def test_a_key_that_is_no_text_is_a_wrong_key() -> None:
    with pytest.raises(Denied):
        WebSessions().open("\ud800", 0.0)
