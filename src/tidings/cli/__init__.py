"""`tidings …`: the terminal. Each command reads its options and calls one room.

`frame` holds what all commands share: the option `-o`, tables and JSON lines, errors and
exit codes. Every other file here is one command or one group of commands, and this page
is their list.
"""

from tidings.cli import doctor
from tidings.cli.filter import app as filter_app
from tidings.cli.frame import new_app, run

__all__ = ["app", "main"]

app = new_app()
app.command("doctor")(doctor.doctor)
app.add_typer(filter_app)


def main() -> None:
    """The program `tidings`: runs the command that the arguments name, and exits with its code."""
    run(app)
