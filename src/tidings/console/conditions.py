"""What a condition means, and why an event matches it or does not.

An attribute that the client may not read is unknown to the console, not absent: where the answer depends on one, it
is UNKNOWN, and says which attribute it takes.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tidings.errors import FilterError
from tidings.events import EventType, Value, ValueType
from tidings.filters import DOMAIN, Box, Condition, Intervals, anything, covers, format_tree, parse
from tidings.overlay import check_size

CLAUSES_MAX = 10
EXAMPLES_MAX = 8
BOXES_SHOWN = 50
CUTS_MAX = 40  # Of one axis that is drawn; with more nobody could tell the cells apart.
LABEL_CHARACTERS_MAX = 24
TRY_S_MAX = 1.0  # Of the processor, for one condition against recent events.


class MatchVerdict(NamedTuple):
    """Of one condition for one event."""

    outcome: str
    """TRUE, FALSE, NULL, or UNKNOWN where it depends on what the client may not read."""
    decided_by: list[str]
    needs: list[str]


def describe(text: str, event_type: EventType) -> dict[str, Any]:
    """The condition in canonical form with its boxes; or what is wrong with it, and at which character."""
    wanted = _parsed(text, event_type)
    if isinstance(wanted, FilterError):
        return {"ok": False, "what": wanted.what, "column": wanted.column, "hint": wanted.hint}
    shown = wanted.boxes[:BOXES_SHOWN]
    axes = _axes(shown)
    boxes = [
        {
            "sides": {name: str(side) for name, side in box.sides},
            "residuals": [format_tree(each) for each in box.residuals],
            "cells": {name: _cells(side, axes[name]) for name, side in box.sides if name in axes},
        }
        for box in shown
    ]
    return {
        "ok": True,
        "canonical": str(wanted),
        "attributes": list(wanted.attributes),
        "boxes": boxes,
        "axes": [{"name": name, "cuts": [_label(kind, cut) for cut in cuts]} for name, (kind, cuts) in axes.items()],
        "boxes_total": len(wanted.boxes),
    }


def _axes(boxes: Sequence[Box]) -> dict[str, tuple[ValueType, list[Any]]]:
    """For each attribute that a box bounds, where the boxes cut its axis into cells."""
    found: dict[str, tuple[ValueType, set[Any]]] = {}
    for box in boxes:
        for name, side in box.sides:
            kind, cuts = found.setdefault(name, (side.type, set()))
            cuts.update(key for pair in side.pairs for key in pair if key is not None and key not in DOMAIN[kind])
    return {name: (kind, sorted(cuts)) for name, (kind, cuts) in found.items() if 0 < len(cuts) <= CUTS_MAX}


def _cells(side: Intervals, axis: tuple[ValueType, list[Any]]) -> list[list[int]]:
    """The side as runs of cells, from one up to but not including another."""
    kind, cuts = axis
    end = DOMAIN[kind][1]
    return [
        [bisect_right(cuts, low), len(cuts) + 1 if high is None or high == end else bisect_right(cuts, high)]
        for low, high in side.pairs
    ]


def _label(kind: ValueType, cut: Any) -> str:
    """A cut as people read it."""
    text, _ = anything(kind).bound(cut)
    return text if len(text) <= LABEL_CHARACTERS_MAX else text[:LABEL_CHARACTERS_MAX] + "…"


def related(wanted: Condition, texts: Iterable[str], event_type: EventType) -> list[dict[str, str]]:
    """Those of other conditions that it covers, that cover it, or that mean the same.

    >>> speed = EventType("Plate", plate=str, speed=float)
    >>> related(parse("speed > 20", speed), ["speed > 30", "speed > 20.0", "plate = 'A'", "speed >"], speed)
    [{'condition': 'speed > 30', 'relation': 'covers'}, {'condition': 'speed > 20.0', 'relation': 'equals'}]
    """
    rows = []
    for text in dict.fromkeys(texts):
        other = _parsed(text, event_type)
        if isinstance(other, Condition):
            wide, narrow = covers(wanted, other), covers(other, wanted)
            if wide or narrow:
                relation = "equals" if wide and narrow else "covers" if wide else "is covered by"
                rows.append({"condition": text, "relation": relation})
    return rows


def verdict(wanted: Condition, values: Mapping[str, Value], hidden: Collection[str] = ()) -> MatchVerdict:
    """Whether an event matches, and the smallest parts that decide it.

    >>> speed = EventType("Plate", plate=str, speed=float)
    >>> verdict(parse("plate = 'A' AND speed > 20", speed), {"plate": "A", "speed": 5.0})
    MatchVerdict(outcome='FALSE', decided_by=['speed > 20'], needs=[])
    >>> verdict(parse("plate = 'A' AND speed > 20", speed), {"plate": "A"}, hidden={"speed"}).outcome
    'UNKNOWN'
    """
    parts = wanted.decided_by(values)
    needs = sorted({name for part in parts for name in part.attributes if name in hidden})
    truth = wanted.evaluate(values)
    outcome = "UNKNOWN" if needs else "NULL" if truth is None else str(truth).upper()
    return MatchVerdict(outcome, [str(part) for part in parts][:CLAUSES_MAX], needs)


def explain(
    texts: Sequence[str], event_type: EventType, values: Mapping[str, Value], hidden: Collection[str]
) -> list[dict[str, Any]]:
    """Each condition's verdict for one event, and which of the others it covers and is covered by."""
    parsed = [_parsed(text, event_type) for text in texts]
    rows = []
    for text, wanted in zip(texts, parsed):
        if isinstance(wanted, FilterError):
            error = {"what": wanted.what, "column": wanted.column, "hint": wanted.hint}
            rows.append({"condition": text, "outcome": "ERROR", "error": error})
            continue
        others = [each for each in parsed if isinstance(each, Condition) and each is not wanted]
        rows.append(
            {
                "condition": text,
                **verdict(wanted, values, hidden)._asdict(),
                "covers": [str(each) for each in others if covers(wanted, each)],
                "covered_by": [str(each) for each in others if covers(each, wanted)],
            }
        )
    return rows


def try_on(
    wanted: Condition, events: Sequence[tuple[str, Mapping[str, Value]]], hidden: Collection[str]
) -> dict[str, Any]:
    """How many of these events a condition matches, and the clauses that most often kept one out.

    It begins with the newest, and looks at fewer where the condition is so long that all would take too much time.
    """
    outcomes: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    examples: list[str] = []
    ends = time.thread_time() + TRY_S_MAX
    for id, values in reversed(events):
        if time.thread_time() > ends:
            break
        one = verdict(wanted, values, hidden)
        outcomes[one.outcome] += 1
        if one.outcome == "TRUE":
            examples.append(id)
        else:
            failed.update(one.decided_by)
    return {
        "outcomes": dict(outcomes),
        "failed": failed.most_common(CLAUSES_MAX),
        "matched": examples[:EXAMPLES_MAX],
        "events": outcomes.total(),
        "left_out": len(events) - outcomes.total(),
    }


def _parsed(text: str, event_type: EventType) -> Condition | FilterError:
    """Of a condition that is as long as the network takes it; a longer one is not parsed."""
    try:
        check_size(text)
        return parse(text, event_type)
    except FilterError as wrong:
        return wrong
