"""Where a broker's journal is kept: in a file beside the broker (SQLite), or in a PostgreSQL database.

`net.broker.journal` decides what is written, in groups, and this package how that becomes durable. There is one text of
each statement, in the SQL that SQLite speaks; `dialect` puts it into PostgreSQL's words.

With PostgreSQL a broker has no state of its own. Several processes may be started with one broker's key; one of them
holds the `lease` of its journal, and the others wait for it. Each transaction checks the lease, so a process that has
lost it writes nothing more, whatever it believes.

Modules in reading order: `interface`, `sqlite`, `dialect`, `session` (one connection, made again after a failure), `lease`,
`postgres`.
"""

from __future__ import annotations
