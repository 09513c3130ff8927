"""`tidings type asyncapi`: valid by AsyncAPI's own schema, true to the events, and no wider than a right."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given

from tests.strategies import typed_events
from tests.unit.cli.registry_shell import Shell, a_shell
from tidings.events import Event, EventType, json_schema, to_record

SUBSCRIBE = ("--to", "ccs", "--action", "subscribe")
OFFICIAL = Path(__file__).with_name("asyncapi-3.0.0.json.gz")
"""The schema of AsyncAPI 3.0.0, by the AsyncAPI Initiative, under the Apache License 2.0."""


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return a_shell(tmp_path, monkeypatch, capsys)


def data_of(document: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = document["components"]["messages"]["event"]["payload"]["properties"]["data"]
    return schema


def test_a_type_is_valid_asyncapi_and_a_right_shows_less_of_it(shell: Shell) -> None:
    official = jsonschema_rs.validator_for(json.loads(gzip.decompress(OFFICIAL.read_bytes())))
    whole = json.loads(shell.done("type", "asyncapi", "Numberplate").out)
    official.validate(whole)
    assert whole["operations"].keys() == {"publish", "subscribe"}
    assert data_of(whole)["properties"].keys() == {"plate", "location", "speed"}
    only = ("--attribute", "plate", "--attribute", "speed", "--where", "speed > 20")
    token = shell.token("ccs", *SUBSCRIBE, *only)
    shown = json.loads(shell.done("type", "asyncapi", "Numberplate", "--right", token).out)
    official.validate(shown)
    assert shown["operations"].keys() == {"subscribe"}
    assert data_of(shown)["properties"].keys() == {"plate", "speed"}
    assert "speed > 20" in shown["info"]["description"]


def test_what_is_no_right_to_the_type_is_refused(shell: Shell) -> None:
    (shell.folder / "bad.token").write_text("nonsense")
    assert shell("type", "asyncapi", "Numberplate", "--right", "bad.token").code in (2, 3)
    assert shell("type", "asyncapi", "Nothing").code == 2
    history = shell.token("ccs", "--to", "ccs", "--action", "history")
    assert shell("type", "asyncapi", "Numberplate", "--right", history).code == 3


@given(typed_events())
def test_every_record_that_is_written_is_valid_by_its_types_schema(case: tuple[EventType, Event]) -> None:
    event_type, event = case
    jsonschema_rs.validator_for(json_schema(event_type)).validate(to_record(event.values))
