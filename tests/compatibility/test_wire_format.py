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


def test_every_message_of_version_0_1_is_still_spoken_and_old_fields_are_what_they_were() -> None:
    now = [as_json(shape) for shape in shapes()]
    spoken = set(now)
    missing = [shape for shape in map(as_json, json.loads(WRITTEN.read_text())) if not known(shape, spoken)]
    assert missing == []


def known(old: str, now: set[str]) -> bool:
    """Whether a message is as it was, or has only got more fields at its end, which older brokers need not send."""
    if old in now:
        return True
    kind, tag, is_array, fields = json.loads(old)
    for candidate in map(json.loads, now):
        if candidate[:3] == [kind, tag, is_array] and candidate[3][: len(fields)] == fields:
            return all(not required for *_, required in candidate[3][len(fields) :])
    return False


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
            return ["tuple", [shape_of(field.type, inside) for field in fields]]
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
