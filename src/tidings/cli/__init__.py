"""`tidings …`: the command line. Each command reads its options and calls one package.

In reading order:

    terminal                     what all commands share: the option `-o`, tables and JSON lines, errors, exit codes
    units                        amounts, sizes and durations as people read them
    lazy                         commands that are imported when they are used
    spark                        Spark as commands use it: Ctrl-C ends the program at once
    doctor, filter, match, run, compact   one command or group of commands each
    lab                          `tidings lab …`
    console                      `tidings console`
    network/                     brokers, contexts, publishing, subscribing, traces, dead letters
    organisation/                an organisation, its brokers and clients, roles, who can, why
    registry/                    identities, domains, types, grants, subscriptions, the registry itself
"""

from tidings.cli import terminal
from tidings.cli.lazy import LazyEntry

__all__ = ["app", "main"]

COMMANDS = (
    LazyEntry("doctor", "tidings.cli.doctor:doctor", "Check that this machine can run Tidings."),
    LazyEntry("filter", "tidings.cli.filter:app", "Try out a condition: check it, explain it, test it."),
    LazyEntry("match", "tidings.cli.match:match", "Match events in files against subscriptions in files."),
    LazyEntry("run", "tidings.cli.run:run", "Match a stream of events against changing subscriptions."),
    LazyEntry("compact", "tidings.cli.compact:compact", "Merge small files of deliveries."),
    LazyEntry("lab", "tidings.cli.lab:app", "Repeat the experiments of the papers, on Spark."),
    LazyEntry("init", "tidings.cli.network.init:init", "Create a network of three organisations, for development."),
    LazyEntry("org", "tidings.cli.organisation.org:app", "Create an organisation, trust others, enrol its own."),
    LazyEntry("broker", "tidings.cli.network.broker:app", "Create a broker, run it, show its status, drain it."),
    LazyEntry("client", "tidings.cli.organisation.participants:client_app", "Create, renew and remove clients."),
    LazyEntry("context", "tidings.cli.network.context:app", "Name the clients that you act as, and select one."),
    LazyEntry("publish", "tidings.cli.network.publish:publish", "Publish events from arguments, files or stdin."),
    LazyEntry("pub", "tidings.cli.network.publish:publish", "The same as publish.", hidden=True),
    LazyEntry("subscribe", "tidings.cli.network.subscribe:subscribe", "Print matching events as they arrive."),
    LazyEntry("sub", "tidings.cli.network.subscribe:subscribe", "The same as subscribe.", hidden=True),
    LazyEntry("ls", "tidings.cli.network.ls:app", "List types, brokers or your durable subscriptions."),
    LazyEntry("bench", "tidings.cli.network.bench:app", "Measure a live network: throughput and latency."),
    LazyEntry("trace", "tidings.cli.network.trace:trace", "Show the route of a recent event, broker by broker."),
    LazyEntry("console", "tidings.cli.console:console", "Show network, events and rights in a browser."),
    LazyEntry("dlq", "tidings.cli.network.dlq:app", "List dead letters, and try them again."),
    LazyEntry("envelope", "tidings.cli.network.envelope:envelope", "Show what an envelope reveals without a key."),
    LazyEntry("identity", "tidings.cli.registry.identity:app", "Create a key pair, and show its public key."),
    LazyEntry("domain", "tidings.cli.registry.domain:app", "Name and link organisations."),
    LazyEntry("type", "tidings.cli.registry.type:app", "Event types, signed by their owners."),
    LazyEntry("grant", "tidings.cli.registry.grant:app", "Grant, narrow, inspect and revoke rights."),
    LazyEntry("role", "tidings.cli.organisation.role:app", "Named sets of rights, and who has them."),
    LazyEntry("who", "tidings.cli.organisation.who:app", "Who can read what, and until when."),
    LazyEntry("why", "tidings.cli.organisation.why:why", "Why a client may or may not do something."),
    LazyEntry("subscription", "tidings.cli.registry.subscription:app", "Subscriptions in the registry."),
    LazyEntry("registry", "tidings.cli.registry.registry:app", "Look into a registry's audit trail and clock."),
)
"""All commands, in the order in which `tidings --help` lists them. Each help fits on one line of a terminal."""

app = terminal.new_app(COMMANDS)


def main() -> None:
    """The program `tidings`: runs the command that the arguments name, and exits with its code."""
    terminal.run(app)
