"""Commands that are imported when they are used, so that `tidings --help` does not load every package."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class LazyEntry(NamedTuple):
    """A command or a group of commands: where it is, and what the list of commands prints about it."""

    name: str
    place: str
    """`module:attribute`, of a function or of a `typer.Typer`."""
    help: str
    hidden: bool = False

    def load(self) -> Any:
        """The command itself."""
        module, _, attribute = self.place.partition(":")
        found = getattr(import_module(module), attribute)
        if isinstance(found, typer.Typer):
            group = typer.main.get_group(found)
            for command in group.commands.values():
                command.short_help = first_sentence(command.help or "")
            return group
        alone = typer.Typer(rich_markup_mode=None, add_completion=False)
        alone.command(self.name)(found)
        return typer.main.get_command(alone)


def first_sentence(help: str) -> str:
    """What a list of commands says about one; left to itself, Typer cuts it off at the end of the line.

    >>> first_sentence("Take it back:\\n    at once. It is undone.")
    'Take it back: at once.'
    """
    paragraph = " ".join(help.partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".") + "."


class _Placeholder(TyperCommand):
    """Stands for a command in lists and completions; `LazyGroup` puts the command in its place to run it."""

    entry: LazyEntry


def lazy_group(entries: Sequence[LazyEntry]) -> type[TyperGroup]:
    """A class for `typer.Typer(cls=…)`: a group with these commands."""

    class LazyGroup(TyperGroup):
        """A group whose commands are imported one at a time."""

        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            for entry in entries:
                placeholder = _Placeholder(
                    entry.name, help=entry.help, hidden=entry.hidden, rich_markup_mode=None, add_help_option=False
                )
                placeholder.entry = entry
                self.add_command(placeholder)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name, command, rest = super().resolve_command(ctx, args)
            return (name, command.entry.load(), rest) if isinstance(command, _Placeholder) else (name, command, rest)

    return LazyGroup
