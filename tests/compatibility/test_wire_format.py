"""What crosses a link is as version 0.1 had it: the tag and the fields of every message, whatever its class is called."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

import tidings

WRITTEN = Path(__file__).parent / "written_by_0_1" / "wire_format.json"
# Between brokers, 0.1 and later versions refuse each other in the handshake (`BETWEEN_BROKERS`), since 0.1 signs nothing.
# NearAnswer carries records that are sealed by their brokers (docs/decisions/0272); Hermes names an interest by what it
# says, too, so that nobody confirms or withdraws another one under the same id.
REPLACED = {"NearAnswer", "Unwant", "Risen"}


def test_every_message_of_version_0_1_is_still_spoken_and_old_fields_are_what_they_were() -> None:
    now = [as_json(shape) for shape in shapes()]
    spoken = set(now)
    missing = [shape for shape in json.loads(WRITTEN.read_text()) if not known(as_json(shape), spoken)]
    assert {tag for _, tag, *_ in missing} == REPLACED


def known(old: str, now: set[str]) -> bool:
    """Whether a message is as it was, or has only got more fields, which 0.1 did not send, at the end of a part."""
    return old in now or any(has_grown(json.loads(old), json.loads(candidate)) for candidate in now)


def has_grown(old: Any, now: Any) -> bool:
    """Whether what was written as `old` is read as `now`: each part has its old fields, and only optional ones after."""
    match old, now:
        case ["struct", tag, is_array, before], ["struct", tag_now, is_array_now, after]:
            return (tag, is_array) == (tag_now, is_array_now) and has_grown_fields(before, after)
        case ["tuple", before], ["tuple", after, *required]:
            fields = [[shape, at < (required or [len(after)])[0]] for at, shape in enumerate(after)]
            return has_grown_fields([[shape, True] for shape in before], fields)
        case [str(kind), *before], [str(kind_now), *after] if kind == kind_now and len(before) == len(after):
            return all(has_grown(*each) for each in zip(before, after, strict=True))
        case [list(), *_], [list(), *_]:  # The members of a union; a new one is nothing that 0.1 sent.
            return all(any(has_grown(one, other) for other in now) for one in old)
        case _:
            return bool(old == now)


def has_grown_fields(old: list[Any], now: list[Any]) -> bool:
    """The same for the fields of a part: each is a shape and whether it is required, after its name if that is sent."""
    were_kept = len(now) >= len(old) and all(
        has_grown(one[-2], other[-2]) and one[:-2] == other[:-2] and one[-1] >= other[-1]
        for one, other in zip(old, now, strict=False)
    )
    return were_kept and not any(required for *_, required in now[len(old) :])


def test_a_field_that_was_not_sent_may_come_at_the_end_if_it_is_optional_and_nothing_else_may_change() -> None:
    was = ["struct", "M", True, [["IntType", True], [["tuple", ["StrType", "IntType"]], True]]]
    pair, more = ["tuple", ["StrType", "IntType"]], ["tuple", ["StrType", "IntType", "IntType"]]
    assert has_grown(was, ["struct", "M", True, [["IntType", True], [pair, True], ["StrType", False]]])
    assert has_grown(was, ["struct", "M", True, [["IntType", True], [[*more, 2], True]]])
    for wrong in (
        ["struct", "N", True, was[3]],
        ["struct", "M", True, [["IntType", True]]],
        ["struct", "M", True, [["StrType", True], [pair, True]]],
        ["struct", "M", True, [["IntType", True], [pair, True], ["StrType", True]]],
        ["struct", "M", True, [["IntType", True], [more, True]]],
        ["struct", "M", True, [["IntType", True], [[*more, 3], True]]],
    ):
        assert not has_grown(was, wrong), wrong


def as_json(shape: object) -> str:
    return json.dumps(shape, separators=(",", ":"))


def shapes() -> list[Any]:
    for module in pkgutil.walk_packages(tidings.__path__, "tidings."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    ours = {each for each in subclasses(msgspec.Struct) if each.__module__.startswith("tidings.")}
    return [shape_of(inspect.type_info(each)) for each in ours if each.__struct_config__.tag is not None]


def subclasses(root: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for each in root.__subclasses__():
        yield each
        yield from subclasses(each)


def shape_of(declared: inspect.Type, inside: tuple[type, ...] = ()) -> Any:
    """A type as the bytes show it: no names of classes, and of fields only where those are written."""
    match declared:
        case inspect.StructType(cls=cls) if cls in inside:
            return ["again", cls.__struct_config__.tag]
        case inspect.StructType(cls=cls, fields=fields):
            config = cls.__struct_config__
            names = [[] if config.array_like else [field.encode_name] for field in fields]
            shown = [
                [*name, shape_of(field.type, (*inside, cls)), field.required]
                for name, field in zip(names, fields, strict=True)
            ]
            return ["struct", config.tag, config.array_like, shown]
        case inspect.NamedTupleType(fields=fields):
            required = sum(field.required for field in fields)
            shown = [shape_of(field.type, inside) for field in fields]
            return ["tuple", shown] if required == len(fields) else ["tuple", shown, required]
        case inspect.TupleType(item_types=types):
            return ["tuple", [shape_of(each, inside) for each in types]]
        case inspect.UnionType(types=types):
            return ["union", sorted((shape_of(each, inside) for each in types), key=json.dumps)]
        case (
            inspect.VarTupleType(item_type=each)
            | inspect.ListType(item_type=each)
            | inspect.SetType(item_type=each)
            | inspect.FrozenSetType(item_type=each)
        ):
            return ["list", shape_of(each, inside)]
        case inspect.DictType(key_type=key, value_type=value):
            return ["dict", shape_of(key, inside), shape_of(value, inside)]
        case inspect.EnumType(cls=cls):
            return ["enum", sorted(str(each.value) for each in cls)]
        case _:
            return type(declared).__name__
