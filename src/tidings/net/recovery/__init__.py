"""Backup and restore of a broker.

`backup` writes one file while the broker runs: its journal and its registry, each as of one moment (SQLite's backup API),
the state of its key managers, its configuration, keys, certificates and rights. `restore` makes a folder of it, on this
host or another, that a broker can run from.

What a backup does not know is what the broker did afterwards. A restored broker must not repeat any of it with another
meaning, so `restore` changes what would be repeated:

    journal      a new id, which names the old one as its ancestor: receivers skip what they had from it
    incarnation  jumps, so that no event id is given twice; so does the version of its interest advertisement
    positions    of durable queues jump, and those that subscribers remember are translated
    sender ids   and key epochs jump, so that no nonce is used twice and no epoch has two keys
    copy number  the time of the restore: an earlier copy stops when it hears of it (`transport.copies`)

What other brokers sent after the backup and the broker acknowledged is sent again, as far as they keep it (`delivery`).
What the broker's own clients published after the backup is not in it; a part may have reached others.

Modules in reading order: `backup`, `restore`.
"""

from __future__ import annotations

from tidings.net.recovery.backup import Backup, write_backup
from tidings.net.recovery.restore import Restored, restore

__all__ = ["Backup", "Restored", "restore", "write_backup"]
