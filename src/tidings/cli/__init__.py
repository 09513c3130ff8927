"""`tidings …`: the command line. Each command reads its options and calls one package.

In reading order:

    terminal                     what all commands share: the option `-o`, tables and JSON lines, errors, exit codes
    doctor, filter, match, run   one command or group of commands each
    lab                          `tidings lab …`
    network/                     brokers, publishing, subscribing, traces, dead letters
    registry/                    identities, domains, types, grants, subscriptions, the registry itself
"""

from tidings.cli import doctor, terminal
from tidings.cli.filter import app as filter_app
from tidings.cli.lab import app as lab_app
from tidings.cli.match import match
from tidings.cli.network.broker import app as broker_app
from tidings.cli.network.dlq import app as dlq_app
from tidings.cli.network.envelope import envelope
from tidings.cli.network.init import init
from tidings.cli.network.publish import publish
from tidings.cli.network.subscribe import subscribe
from tidings.cli.network.trace import trace
from tidings.cli.registry.domain import app as domain_app
from tidings.cli.registry.grant import app as grant_app
from tidings.cli.registry.identity import app as identity_app
from tidings.cli.registry.registry import app as registry_app
from tidings.cli.registry.subscription import app as subscription_app
from tidings.cli.registry.type import app as type_app
from tidings.cli.run import run as run_pipeline

__all__ = ["app", "main"]

app = terminal.new_app()
app.command("doctor")(doctor.doctor)
app.add_typer(filter_app)
app.add_typer(lab_app)
app.command("match")(match)
app.command("run")(run_pipeline)
app.command("init")(init)
app.add_typer(broker_app)
app.command("publish")(publish)
app.command("subscribe")(subscribe)
app.command("trace")(trace)
app.command("envelope")(envelope)
app.add_typer(dlq_app)
for registry_command in (identity_app, domain_app, type_app, grant_app, subscription_app, registry_app):
    app.add_typer(registry_command)


def main() -> None:
    """The program `tidings`: runs the command that the arguments name, and exits with its code."""
    terminal.run(app)
