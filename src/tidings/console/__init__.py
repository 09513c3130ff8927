"""The web console: the network, the events and the rights, as the client whose rights it uses may see them.

A `Console` serves pages on loopback. It acts as one or more ordinary clients: what it shows is what their rights
allow, and it knows no other way to a broker. It reads; publishing has to be allowed when it is started. The pages
are plain HTML, CSS and ES modules in `web/`, without a build step and without anything from elsewhere. Why:
docs/decisions/0190-pages-without-a-framework.md.

In reading order:

    server       listens, routes requests, and sends the pages
    sessions     who may ask: login keys, cookies, CSRF tokens, hosts
    login        users that log in by a certificate or with OpenID Connect
    participants the clients that it acts as, and what their brokers answer
    feeds        events as they arrive, and the last of them
    topology     the map: brokers and links, put together from what several brokers report
    conditions   what a condition means, and why an event matches or does not
    rights       who may see what until when
    grants       rights changed from a page, in an organisation's name
    pipelines    jobs of `tidings run`: batches, quarantine, deliveries
    papers       the lab's verdicts and figures
    simulations  simulated networks that a page watches and breaks
    audit        a line for each action
    demo         a network to look at: London, with made-up traffic
"""

from tidings.console.demo import London
from tidings.console.login import OidcSettings
from tidings.console.server import Console, ConsoleSettings

__all__ = ["Console", "ConsoleSettings", "London", "OidcSettings"]
