"""The CloudEvents Subscriptions API: a client's durable subscriptions as JSON objects to create, list, change and delete.

    protocol `SSE`     the client reads the events at the gateway, at the address in `sink`
    protocol `HTTP`    a webhook: the broker posts them to the address in `sink`, where its operator allows that
    types              exactly one: a subscription is to one event type
    filters            all must let an event pass; they become one condition, by which the overlay routes
    config.name        the name of the durable subscription, otherwise made up

What a subscription says when it is read is what the broker holds, so all its filters appear as one of the dialect
`tidings`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from tidings.errors import InputError, did_you_mean
from tidings.events import EventType, ValueType, describe, read_record
from tidings.filters import parse, quote_name, quote_string
from tidings.net.broker.durable_queues import DurableQueues
from tidings.net.broker.journal import DurableSubscription
from tidings.net.broker.subscriptions import BrokerSubscriptions
from tidings.net.gateway.http import BadRequest
from tidings.net.gateway.webhooks import Webhooks
from tidings.node import RegisteredType, TypeRegistry

FILTERS_DEPTH_MAX: Final = 20  # Of filters in filters; people write two.
_KNOWN = ("id", "types", "filters", "config", "protocol", "sink")
_CONTEXT = ("id", "source", "specversion", "time", "subject", "datacontenttype", "dataschema")
_SINK = re.compile(r"/events(\?.*)?")
_NUMBER = re.compile(r"[+-]?\d{1,18}(?:\.\d{1,18})?", re.ASCII)


class SubscriptionsApi:
    """The subscriptions of one broker's clients, each for whoever owns it."""

    def __init__(
        self, types: TypeRegistry, subscriptions: BrokerSubscriptions, queues: DurableQueues, webhooks: Webhooks
    ) -> None:
        self._types, self._subscriptions, self._queues, self._webhooks = types, subscriptions, queues, webhooks

    def query(self, owner: bytes) -> list[dict[str, Any]]:
        return [self._shown(durable) for durable in self._queues.all.values() if durable.owner == owner]

    def retrieve(self, owner: bytes, id: str) -> dict[str, Any]:
        return self._shown(self._owned(owner, id))

    async def create(self, body: bytes, client: str, owner: bytes, tokens: Sequence[bytes]) -> dict[str, Any]:
        """Raises BadRequest (400, 409) or Denied."""
        asked = _read(body)
        name = asked["config"].get("name") or f"api-{secrets.token_hex(8)}"
        if self._queues.find(owner, name) is not None:
            raise BadRequest(409, f"you have a durable subscription {name!r} already; PUT changes it")
        known, condition = self._wanted(asked)
        self._subscriptions.check(client, known, condition)
        if address := _webhook(asked):
            await self._webhooks.agree(address)
        made = await self._subscriptions.subscribe_durable(owner, name, known, condition, -1, tokens)
        if address:
            self._webhooks.attach(made, address)
        return self._shown(made)

    async def update(self, id: str, body: bytes, client: str, owner: bytes, tokens: Sequence[bytes]) -> dict[str, Any]:
        """Replaces a subscription under its name, from now on; one that would not be accepted changes nothing."""
        before, asked = self._owned(owner, id), _read(body)
        if asked.get("id", id) != id or asked["config"].get("name", before.name) != before.name:
            raise InputError("id and config.name of a subscription cannot be changed; make another one")
        known, condition = self._wanted(asked)
        self._subscriptions.check(client, known, condition)
        if address := _webhook(asked):
            await self._webhooks.agree(address)
        self._webhooks.detach(before.id)
        await self._subscriptions.forget_durable(before)
        made = await self._subscriptions.subscribe_durable(owner, before.name, known, condition, -1, tokens)
        if address:
            self._webhooks.attach(made, address)
        return self._shown(made)

    async def delete(self, owner: bytes, id: str) -> dict[str, Any]:
        durable = self._owned(owner, id)
        shown = self._shown(durable)
        self._webhooks.detach(id)
        await self._subscriptions.forget_durable(durable)
        return shown

    def _owned(self, owner: bytes, id: str) -> DurableSubscription:
        durable = self._queues.all.get(id)
        if durable is None or durable.owner != owner:
            raise BadRequest(404, f"you have no subscription {id[:100]!r}; GET /subscriptions lists yours")
        return durable

    def _wanted(self, asked: Mapping[str, Any]) -> tuple[RegisteredType, str]:
        known = self._types.find(asked["types"][0])
        condition = condition_of(asked["filters"], known.event_type)
        parse(condition, known.event_type)
        return known, condition

    def _shown(self, durable: DurableSubscription) -> dict[str, Any]:
        type = self._types.event_type(durable.type)
        name = type.name if type else durable.type
        address = self._webhooks.address_of(durable.id)
        here = "/events?" + urlencode({"type": name, "where": durable.condition, "durable": durable.name})
        return {
            "id": durable.id,
            "types": [name],
            "filters": [{"tidings": durable.condition}],
            "config": {"name": durable.name},
            "protocol": "HTTP" if address else "SSE",
            "sink": address or here,
        }


# ── The object ──


def _read(body: bytes) -> dict[str, Any]:
    found = read_record(body)
    for name in found:
        if name not in _KNOWN:
            hint = did_you_mean(name[:100], _KNOWN)
            raise InputError(f"this gateway takes no {name[:100]!r} of a subscription{hint and '; ' + hint}")
    _check_sink(found)
    types, config = found.get("types"), found.get("config", {})
    if not isinstance(types, list) or len(types) != 1 or not isinstance(types[0], str):
        raise InputError('expected exactly one event type in types: {"types": ["Numberplate"]}')
    if not isinstance(config, dict) or not config.keys() <= {"name"} or not isinstance(config.get("name", "n"), str):
        raise InputError('expected nothing but a name in config: {"config": {"name": "evening"}}')
    if config.get("name") == "":
        raise InputError("expected a name of at least one character in config.name")
    filters = found.get("filters", [])
    if not isinstance(filters, list):
        raise InputError(f"expected a list of filters, got {describe(filters)}")
    return {**found, "config": config, "filters": filters}


def _check_sink(found: Mapping[str, Any]) -> None:
    protocol, sink = found.get("protocol"), found.get("sink", "/events")
    if protocol not in ("SSE", "HTTP"):
        raise InputError(f"expected the protocol SSE or HTTP, got {describe(protocol)}")
    if protocol == "HTTP" and not isinstance(found.get("sink"), str):
        raise InputError("expected the address of the webhook in sink")
    if protocol == "SSE" and (not isinstance(sink, str) or not _SINK.fullmatch(sink)):
        raise InputError("expected no sink, or /events: the gateway says where the events of a subscription are read")
    if not isinstance(found.get("id", ""), str):
        raise InputError("expected id to be a text")


def _webhook(asked: Mapping[str, Any]) -> str:
    return str(asked["sink"]) if asked["protocol"] == "HTTP" else ""


# ── Filters ──


def condition_of(filters: Sequence[Any], type: EventType) -> str:
    """The condition that holds where all these filters let an event pass; raises InputError.

    A filter is true or false, never NULL: `not` of a comparison with an absent attribute is true.

    >>> plate = EventType("Plate", plate="string", speed="int")
    >>> condition_of([{"prefix": {"plate": "A"}}, {"not": {"exact": {"speed": "30"}}}], plate)
    "(plate LIKE 'A%') AND (speed IS DISTINCT FROM 30)"
    """
    return _joined(filters, type, True, " AND ", 0) if filters else "TRUE"


def _joined(filters: Sequence[Any], type: EventType, wanted: bool, word: str, depth: int) -> str:
    return word.join(f"({_text(each, type, wanted, depth + 1)})" for each in filters)


def _text(filter: Any, type: EventType, wanted: bool, depth: int) -> str:
    """The condition that holds where a filter is true, or false where that is `wanted`."""
    if not isinstance(filter, dict) or len(filter) != 1 or depth > FILTERS_DEPTH_MAX:
        raise InputError(f"expected a filter as an object with one dialect, at most {FILTERS_DEPTH_MAX} in each other")
    ((dialect, content),) = filter.items()
    match dialect:
        case "all" | "any":
            if not isinstance(content, list) or not content:
                raise InputError(f"expected a list of at least one filter in {dialect}")
            return _joined(content, type, wanted, " AND " if (dialect == "all") is wanted else " OR ", depth)
        case "not":
            return _text(content, type, not wanted, depth)
        case "exact" | "prefix" | "suffix":
            return _compared(dialect, content, type, wanted)
        case "tidings":
            return _condition(content, type, wanted)
    why = "; CESQL is for context attributes, use tidings" if dialect == "sql" else ""
    raise InputError(f"expected exact, prefix, suffix, all, any, not or tidings, got {dialect[:100]!r}{why}")


def _condition(content: Any, type: EventType, wanted: bool) -> str:
    if not isinstance(content, str):
        raise InputError(f"expected a condition as a text, got {describe(content)}")
    parse(content, type)  # By itself, so that it cannot end the parentheses around it.
    return content if wanted else f"({content}) IS DISTINCT FROM TRUE"


def _compared(dialect: str, content: Any, type: EventType, wanted: bool) -> str:
    if not isinstance(content, dict) or not content:
        raise InputError(f"expected an object with attributes and their values in {dialect}")
    parts = [_one(dialect, name, value, type, wanted) for name, value in content.items()]
    return (" AND " if wanted else " OR ").join(parts)


def _one(dialect: str, name: str, value: Any, type: EventType, wanted: bool) -> str:
    if not name or not isinstance(value, str) or not value:
        raise InputError(f"expected texts that are not empty in {dialect}")
    attribute = type.find(name)
    if attribute is None and name == "type":
        return str(_ON_TEXTS[dialect](type.name, value) is wanted).upper()
    if attribute is None:
        where = "is not kept" if name in _CONTEXT else "is no attribute of this type"
        hint = did_you_mean(name[:100], [each.name for each in type])
        raise InputError(f"{dialect}: {name[:100]!r} {where}{hint and '; ' + hint}")
    column = quote_name(attribute.name)
    if dialect == "exact":
        return f"{column} {'=' if wanted else 'IS DISTINCT FROM'} {_literal(name, attribute.type, value)}"
    if attribute.type is not ValueType.STRING:
        raise InputError(f"{dialect}: {name!r} is no string, but {attribute.type}")
    plain = re.sub(r"([\\%_])", r"\\\1", value)
    pattern = quote_string(f"{plain}%" if dialect == "prefix" else f"%{plain}")
    return f"{column} LIKE {pattern}" if wanted else f"({column} IS NULL OR {column} NOT LIKE {pattern})"


_ON_TEXTS: dict[str, Callable[[str, str], bool]] = {
    "exact": str.__eq__,
    "prefix": str.startswith,
    "suffix": str.endswith,
}


def _literal(name: str, type: ValueType, value: str) -> str:
    match type:
        case ValueType.STRING:
            return quote_string(value)
        case ValueType.BOOL if value in ("true", "false"):
            return value.upper()
        case ValueType.INT | ValueType.DOUBLE if _NUMBER.fullmatch(value):
            return value.removeprefix("+")
        case ValueType.TIMESTAMP:
            return f"TIMESTAMP {quote_string(value)}"
    raise InputError(f"exact: {value[:100]!r} is no value of {name!r}, which is {type}; or use the dialect tidings")
