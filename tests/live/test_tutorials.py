"""The tutorials, word for word: real brokers, real certificates, each organisation in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.terminals import Terminals

pytestmark = pytest.mark.live
DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.slow
@pytest.mark.parametrize(
    "document", ["guide/two-organisations.md", "guide/three-organisations.md", "operating/backup.md"]
)
def test_a_tutorial_does_what_it_says(document: str, tmp_path: Path) -> None:
    with Terminals(tmp_path) as terminals:
        terminals.run(DOCS / document)
