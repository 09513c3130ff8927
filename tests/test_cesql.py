"""The independent CESQL conformance cases, read from the folder TIDINGS_CESQL_TCK names.

`parse_cesql` passes every case. Conditions, the typed profile, pass every case except those listed by name, with their
reason, in docs/reference/cesql.md. The list is exact: a listed case that would pass is as wrong as a missing one.
"""

from __future__ import annotations

import datetime
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidings.errors import FilterError, FilterSyntaxError, FilterTypeError
from tidings.events import Attribute, EventType, ValueType, type_of
from tidings.filters import evaluate, parse_cesql, parse_value

FOLDER = os.environ.get("TIDINGS_CESQL_TCK", "")
LIST = Path(__file__).parent.parent / "docs" / "reference" / "cesql.md"

# What CESQL goes on to compute with after these, Tidings calls NULL.
CONTINUES_AFTER = {"missingAttribute", "cast", "math", "functionEvaluation"}
REFUSES_AT_ONCE = {"parse", "missingFunction"}
ORDERS_TEXTS_AS_NUMBERS = {"Specification examples: Case insensitive hops (3)"}  # CESQL has no order on texts.
AN_EVENT = {"specversion": "1.0", "id": "1", "source": "local", "type": "some.type"}

pytestmark = pytest.mark.skipif(
    not FOLDER,
    reason="TIDINGS_CESQL_TCK does not name a folder with the CESQL cases (cesql_tck of the CloudEvents specification)",
)


@dataclass(frozen=True)
class Case:
    name: str
    expression: str
    event: dict[str, Any]
    result: Any
    error: str | None


def test_the_strict_mode_passes_every_case() -> None:
    outcomes = [(case.name, _strictly(case), (case.result, case.error)) for case in _cases()]
    assert len(outcomes) >= 275
    assert [(name, found, wanted) for name, found, wanted in outcomes if repr(found) != repr(wanted)] == []


def test_every_case_passes_or_is_excluded_for_its_listed_reason(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = [(case.name, _outcome(case)) for case in _cases()]
    counts = Counter(what for _, what in outcomes)
    with capsys.disabled():
        print(f"\nCESQL: {len(outcomes)} cases: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    assert {name: what for name, what in outcomes if what != "passed"} == _listed()


def test_an_error_that_cesql_goes_on_after_is_never_a_match() -> None:
    for case in _cases():
        if case.error in CONTINUES_AFTER:
            assert _run(case) is not True, case.name


def _outcome(case: Case) -> str:
    found = _run(case)
    if case.error in CONTINUES_AFTER:
        return "continues after an error"
    if case.error in REFUSES_AT_ONCE:
        return "passed" if isinstance(found, type) and issubclass(found, FilterError) else f"accepted: {found}"
    if found is FilterTypeError or case.name in ORDERS_TEXTS_AS_NUMBERS:
        return "implicit cast"
    return (
        "passed" if type(found) is type(case.result) and found == case.result else f"got {found!r}, not {case.result!r}"
    )


def _strictly(case: Case) -> tuple[Any, str | None]:
    """The value and the name of the error; a text that is not parsed has no value, whatever the case says."""
    try:
        found = parse_cesql(case.expression).evaluate({name: _plain(value) for name, value in case.event.items()})
    except FilterSyntaxError:
        return case.result, "parse"
    return found.value, str(found.error) if found.error else None


def _run(case: Case) -> Any:
    """The value we give the expression, or the class of the error that we refuse it with."""
    values = {name: _plain(value) for name, value in case.event.items()}
    mentioned = {name.lower() for name in re.findall(r"[A-Za-z]+", case.expression)} - set(values)
    absent = [Attribute(name, ValueType.NULL) for name in sorted(mentioned)]
    event_type = EventType.of(
        "CloudEvent", (*(Attribute(name, type_of(value)) for name, value in values.items()), *absent)
    )
    try:
        return evaluate(parse_value(str(case.expression), event_type), values)
    except FilterError as refused:
        return type(refused)


def _cases() -> Iterator[Case]:
    for path in sorted(Path(FOLDER).glob("*.yaml")):
        group = yaml.safe_load(path.read_text("utf-8"))
        for case in group["tests"]:
            event = case.get("event") or AN_EVENT | case.get("eventOverrides", {})
            text = case["expression"]
            expression = str(text).upper() if isinstance(text, bool) else str(text)
            yield Case(
                f"{group['name']}: {case['name']}", expression, event, _plain(case.get("result")), case.get("error")
            )


def _plain(value: Any) -> Any:
    """YAML reads a moment where the cases mean its text."""
    return value.isoformat() if isinstance(value, datetime.datetime) else value


def _listed() -> dict[str, str]:
    rows = re.findall(r"^\| (.+?) \| `.*` \| (.+?) \|$", LIST.read_text("utf-8"), re.MULTILINE)
    return {name.replace("\\|", "|"): reason for name, reason in rows}
