"""What files hold, read with care."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidings.errors import Denied, InputError
from tidings.net.ids import read_token


def test_a_token_is_read_with_and_without_its_padding(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for text in ("AAEC_w==\n", "AAEC_w"):
        file.write_text(text)
        assert read_token(file) == b"\x00\x01\x02\xff"


def test_a_token_cut_short_is_refused_and_anything_else_is_wrong_input(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("AAEC_")
    with pytest.raises(Denied, match="cut short"):
        read_token(file)
    file.write_text("-----BEGIN PRIVATE KEY-----")
    with pytest.raises(InputError, match="expected a token") as wrong:
        read_token(file)
    assert "PRIVATE" not in str(wrong.value)
