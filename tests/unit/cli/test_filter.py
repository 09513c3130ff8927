"""`tidings filter …`, as a shell sees it: what is printed where, and the exit code."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tidings.cli import main

PLATE = """
name = "Plate"
[attributes]
plate = "string"
speed = "double"
seen = "timestamp"
"""


@pytest.fixture
def plate_type(tmp_path: Path) -> str:
    path = tmp_path / "plate.toml"
    path.write_text(PLATE)
    return str(path)


def tidings(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tidings", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("condition", "event", "line"),
    [
        ("speed > 20", '{"speed": 31.0}', "TRUE  decided by speed > 20"),
        ("speed > 20 AND plate = 'A'", '{"speed": 9, "plate": "A"}', "FALSE  decided by speed > 20"),
        ("speed > 20", '{"speed": null}', "NULL  decided by speed > 20"),
        ("position.lat < 52", '{"position": {"lat": 51.5}}', "TRUE  decided by position.lat < 52"),
        ("EXISTS colour", "{}", "FALSE  decided by colour IS NOT NULL"),
    ],
)
def test_an_event_is_tried_and_the_deciding_part_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], condition: str, event: str, line: str
) -> None:
    assert tidings(monkeypatch, "filter", "test", condition, "--event", event) == 0
    assert capsys.readouterr().out == line + "\n"


def test_an_attribute_the_event_lacks_is_null_and_a_note_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tidings(monkeypatch, "filter", "test", "sped > 20", "--event", '{"speed": 31}') == 0
    out, err = capsys.readouterr()
    assert out.startswith("NULL")
    assert "did you mean 'speed'?" in err


def test_with_a_type_the_event_is_checked_against_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], plate_type: str
) -> None:
    after = "seen > TIMESTAMP '2026-01-01T00:00:00Z'"
    event = '{"seen": "2026-06-01T00:00:00Z"}'
    assert tidings(monkeypatch, "filter", "test", after, "--event", event, "--type", plate_type) == 0
    assert capsys.readouterr().out.startswith("TRUE")
    assert tidings(monkeypatch, "filter", "test", after, "--event", '{"sped": 1}', "--type", plate_type) == 2
    assert "did you mean 'speed'?" in capsys.readouterr().err


@pytest.mark.parametrize("event", ["{", "[1]", "3", '{"speed": 1e999}', '{"speed": [1]}'])
def test_an_event_that_is_none_is_refused_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], event: str, plate_type: str
) -> None:
    assert tidings(monkeypatch, "filter", "test", "speed > 20", "--event", event, "--type", plate_type) == 2
    assert "Error: " in capsys.readouterr().err


def test_the_event_may_come_from_stdin_or_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"speed": 31.0}'))
    assert tidings(monkeypatch, "filter", "test", "speed > 20", "--event", "-") == 0
    (tmp_path / "event.json").write_text('{"speed": 3.0}')
    assert tidings(monkeypatch, "filter", "test", "speed > 20", "--event", f"@{tmp_path}/event.json") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["TRUE", "FALSE"]


def test_a_wrong_condition_shows_the_spot_on_stderr_and_exits_with_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tidings(monkeypatch, "filter", "check", "price > cheap >") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[2] == " " * 16 + "^"


def test_explain_shows_tree_types_boxes_and_residuals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tidings(monkeypatch, "filter", "explain", "speed > 20 AND plate LIKE '%9'") == 0
    shown = capsys.readouterr().out
    for part in ("  And\n", "speed  (double)", "speed double", "speed ∈ (20.0, ∞)", "«plate LIKE '%9'»"):
        assert part in shown


def test_every_command_speaks_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["check"], ["explain"], ["to-spark"], ["test", "--event", '{"a": 1}']):
        assert tidings(monkeypatch, "filter", command[0], "a = 1", *command[1:], "-o", "json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[0]["condition"] == "a = 1"
    assert rows[1]["boxes"] == [{"sides": {"a": "{1.0}"}, "residuals": []}]
    assert rows[2] == {"spark": "(`a` = 1.0D)"}
    assert rows[3] == {"outcome": "TRUE", "decided_by": ["a = 1"]}


@pytest.mark.parametrize(
    ("expression", "line"),
    [("sequence = 5", "TRUE"), ("missing * 5", "0  error: missingAttribute"), ("LEFT(sequence, 1)", "'5'")],
)
def test_cesql_to_the_letter_casts_and_goes_on_after_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], expression: str, line: str
) -> None:
    assert tidings(monkeypatch, "filter", "test", "--cesql", expression, "--event", '{"sequence": "5"}') == 0
    assert capsys.readouterr().out == line + "\n"
