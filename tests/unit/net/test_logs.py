"""Lines that others can cause are written sparingly."""

from __future__ import annotations

import json
import logging

from tidings.net.observability.logs import BURST, KINDS_MAX, PER_S, JsonLines, Sparingly


def a_record(what: str, at: float, **facts: object) -> logging.LogRecord:
    record = logging.makeLogRecord({"name": "tidings.broker", "msg": what, "levelno": logging.WARNING, **facts})
    record.created = at
    return record


def test_of_a_kind_that_comes_without_end_some_are_written_and_the_others_counted() -> None:
    sparingly = Sparingly()
    written = [
        record for n in range(10_000) if sparingly.filter(record := a_record("refused", n / 1000, neighbour=str(n)))
    ]
    assert BURST + 9 * PER_S <= len(written) <= BURST + 10 * PER_S + 1
    assert sparingly.filter(a_record("the disk is full", 10.0)), "another kind"
    last = a_record("refused", 20.0)
    assert sparingly.filter(last)
    shown = json.loads(JsonLines().format(last))
    assert len(written) + sum(vars(each).get("left_out", 0) for each in written) + shown["left_out"] == 10_000


def test_what_comes_now_and_then_is_all_written() -> None:
    sparingly = Sparingly()
    records = [a_record("refused", float(n)) for n in range(1000)]
    assert all(map(sparingly.filter, records))
    assert not any(hasattr(record, "left_out") for record in records)


def test_kinds_without_end_are_not_remembered_without_end() -> None:
    sparingly = Sparingly()
    for number in range(3 * KINDS_MAX):
        sparingly.filter(a_record(f"kind {number}", 1.0))
    assert len(sparingly._kinds) <= KINDS_MAX
