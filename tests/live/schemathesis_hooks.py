"""What schemathesis is told about the gateway: a stream must end, and a type that exists gets further than one that does not."""

from __future__ import annotations

from typing import Any

import schemathesis

TYPE = "Numberplate"


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    query, body = case.query, case.body
    if case.method.upper() == "GET" and case.operation.path == "/events":
        case.query = query = {"wait_s": 0, **(query or {})}
        if str(query["wait_s"]).isdecimal():
            query["wait_s"] = 0  # Otherwise a test would wait as long as it says.
    if query and _is_text(query.get("type")):
        query["type"] = TYPE
    if isinstance(body, dict) and isinstance(body.get("types"), list) and list(map(_is_text, body["types"])) == [True]:
        body["types"] = [TYPE]
    if isinstance(body, dict) and _is_text(body.get("type")):
        body["type"] = TYPE


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""
