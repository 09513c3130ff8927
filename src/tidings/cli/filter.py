"""`tidings filter …`: checks a condition, explains it, tests it on an event, and writes it for Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from tidings.cli.terminal import Output, OutputOption, show, tell
from tidings.errors import InputError, did_you_mean
from tidings.events import Attribute, EventType, ValueType, read_file, read_record, typed
from tidings.filters import Condition, Node, children, format_tree, guess_type, parse, parse_cesql

app = typer.Typer(
    name="filter",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Try out a condition: check it, explain it, test it on an event, write it for Spark.",
)

ConditionArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="CONDITION", help="SQL, as after WHERE: \"area = 'EC2' AND speed > 20\".")
]
TypeOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--type", metavar="FILE", help="The event type, in TOML or JSON. Without it, types are guessed."),
]
EventOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--event", metavar="JSON", help="The event's attributes as a JSON object; - reads stdin, @FILE a file."
    ),
]
CesqlOption: TypeAlias = Annotated[
    bool, typer.Option("--cesql", help="CESQL 1.0 to the letter: implicit casts, and a value even after an error.")
]


@app.command()
def check(condition: ConditionArgument, type: TypeOption = None, output: OutputOption = Output.TABLE) -> None:
    """Check a condition, and print it in canonical form.

    \b
    Examples:
      tidings filter check "area = 'EC2' AND speed > 20"
      tidings filter check "sped > 20" --type plate.toml       names the column, and what was meant
    """
    wanted = _parsed(condition, type)
    if output is Output.JSON:
        show([{"condition": str(wanted), "attributes": _types(wanted), "boxes": len(wanted.boxes)}], output)
    else:
        print(wanted)


@app.command()
def explain(condition: ConditionArgument, type: TypeOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show a condition's tree, its boxes and its residuals: what an index can look up, and what it must compute.

    A condition matches where any of its boxes does. A box is one set of values per
    attribute; residuals, in «», are checked on what the box lets through.

    \b
    Example:
      tidings filter explain "area IN ('WC1', 'EC2') AND plate LIKE 'A%9'"
    """
    wanted = _parsed(condition, type)
    if output is Output.JSON:
        show(
            [{"tree": _tree_json(wanted.tree), "attributes": _types(wanted), "boxes": list(_boxes_json(wanted))}],
            output,
        )
        return
    print("tree", *_tree_lines(wanted.tree, "  "), sep="\n")
    print("types", *(f"  {name} {kind}" for name, kind in _types(wanted).items()), sep="\n")
    print("boxes", *(f"  {box}" for box in wanted.boxes or ("none: this is never TRUE",)), sep="\n")


@app.command("test")
def try_on(
    condition: ConditionArgument,
    event: EventOption,
    type: TypeOption = None,
    cesql: CesqlOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print TRUE, FALSE or NULL for an event, and which part decided. Only TRUE matches.

    Without --type, the types are those of the event's JSON values, and an attribute
    that the event lacks is NULL. With --cesql the condition is an expression in CESQL
    as its specification has it; its value is printed, with the error if there was one.

    \b
    Examples:
      tidings filter test "speed > 20" --event '{"speed": 31.0}'       TRUE
      tidings filter test "speed > 20" --event '{"speed": null}'       NULL
      cat event.json | tidings filter test "speed > 20" --event -
      tidings filter test --cesql "sequence = 5" --event '{"sequence": "5"}'   TRUE
    """
    record = _read_record(event)
    if cesql:
        _show_cesql(condition, record, type, output)
        return
    event_type = read_file(type) if type else _type_of(record, condition)
    wanted = parse(condition, event_type)
    values = event_type.check(typed(record, event_type))
    outcome = _show_truth(wanted.evaluate(values))
    decided = [str(part) for part in wanted.decided_by(values)]
    if output is Output.JSON:
        show([{"outcome": outcome, "decided_by": decided}], output)
    else:
        print(f"{outcome}  decided by {' and '.join(decided)}")


@app.command("to-spark")
def to_spark(condition: ConditionArgument, type: TypeOption = None, output: OutputOption = Output.TABLE) -> None:
    """Print the Spark SQL expression that gives the same answer for every row.

    \b
    Example:
      tidings filter to-spark "plate LIKE 'A%' AND speed > 20"
    """
    text = _parsed(condition, type).to_spark()
    if output is Output.JSON:
        show([{"spark": text}], output)
    else:
        print(text)


def _show_cesql(text: str, record: Mapping[str, Any], type: Path | None, output: Output) -> None:
    if type is not None:
        raise InputError("--type goes with conditions; CESQL has no event types, leave one of --cesql and --type out")
    result = parse_cesql(text).evaluate(record)
    if output is Output.JSON:
        show([{"value": result.value, "error": result.error, "passes": result.passes}], output)
        return
    shown = str(result.value).upper() if isinstance(result.value, bool) else repr(result.value)
    print(f"{shown}  error: {result.error}" if result.error else shown)


def _parsed(text: str, type: Path | None) -> Condition:
    return parse(text, read_file(type) if type else None)


def _types(wanted: Condition) -> dict[str, str]:
    return {name: str(wanted.event_type[name].type) for name in wanted.attributes}


def _tree_lines(node: Node, indent: str) -> Iterator[str]:
    yield f"{indent}{_label(node)}"
    for child in children(node):
        yield from _tree_lines(child, indent + "  ")


def _label(node: Node) -> str:
    """A leaf as it is written; anything else by its kind, and its operator or name."""
    below = children(node)
    if not below:
        return f"{format_tree(node)}  ({node.type})"
    word = getattr(node, "op", getattr(node, "name", getattr(node, "pattern", "")))
    return f"{type(node).__name__} {word}".rstrip()


def _tree_json(node: Node) -> dict[str, Any]:
    below = [_tree_json(child) for child in children(node)]
    return {"node": _label(node)} | ({"below": below} if below else {})


def _boxes_json(wanted: Condition) -> Iterator[dict[str, Any]]:
    for box in wanted.boxes:
        yield {
            "sides": {name: str(side) for name, side in box.sides},
            "residuals": [format_tree(residual) for residual in box.residuals],
        }


def _read_record(event: str) -> Mapping[str, Any]:
    if event.startswith("@"):
        return read_record(Path(event[1:]).read_bytes())
    try:
        return read_record(sys.stdin.read() if event == "-" else event)
    except UnicodeDecodeError as wrong:
        raise InputError(f"stdin: expected UTF-8, got another byte at {wrong.start}") from None


def _type_of(record: Mapping[str, Any], condition: str) -> EventType:
    """The record's own type, with NULL for other attributes that the condition mentions."""
    shown = EventType.infer(record)
    known = [attribute.name for attribute in shown]
    missing = [a.name for a in guess_type(condition) if shown.find(a.name) is None]
    for name in missing:
        hint = did_you_mean(name, known)
        tell(f"note: the event has no {name!r}, so it is NULL{'; ' + hint if hint else ''}")
    return EventType.of(shown.name, (*shown, *(Attribute(name, ValueType.NULL) for name in missing)))


def _show_truth(outcome: bool | None) -> str:
    return "NULL" if outcome is None else str(outcome).upper()
