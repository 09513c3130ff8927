"""`tidings registry …`: the audit trail and the clock; and what all commands that use a registry share.

They share the options for a registry, a key or a time, and the display of times and keys.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import stat
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from tidings.cli.terminal import Output, OutputOption, Row, show, tell
from tidings.errors import InputError, TidingsError
from tidings.security import fingerprint

if TYPE_CHECKING:
    from tidings.security import Identity
    from tidings.store import AuditHead, Registry

DEFAULT_REGISTRY = "tidings.db"
KEY_FILE_BYTES_MAX = 16_384  # A PEM with one key is a few hundred bytes.
FOR_EVER_MS = 2**63 - 1


def _of_organisation(ctx: typer.Context, given: str) -> str:
    """The registry of the organisation that --org or TIDINGS_ORG names, unless another was given."""
    org = ctx.params.get("org") or os.environ.get("TIDINGS_ORG")
    if given != DEFAULT_REGISTRY or not org:
        return given
    from tidings.net import Organisation

    return Organisation(Path(org)).registry_address


RegistryOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--registry",
        metavar="URL",
        envvar="TIDINGS_REGISTRY",
        help="A file, or postgresql://user:password@host/name; with --org, the organisation's own.",
        callback=_of_organisation,
    ),
]
OrgOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--org",
        metavar="FOLDER",
        envvar="TIDINGS_ORG",
        help="Your organisation's folder, from `tidings org create`. [default: this folder]",
        is_eager=True,
    ),
]
KeyOption: TypeAlias = Annotated[
    Path, typer.Option("--key", metavar="FILE", help="Your private key, from `tidings identity new`.")
]
FromOption: TypeAlias = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="When it begins: 2026-12-01T00:00:00Z, or +2h from now.")
]
UntilOption: TypeAlias = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="When it ends: 2026-12-31T00:00:00Z, or +30d from now.")
]

app = typer.Typer(
    name="registry", no_args_is_help=True, rich_markup_mode=None, help="Look into a registry's audit trail and clock."
)

POSITION_MAX = 2**63 - 1  # What a column of the database holds.


@app.command()
def audit(
    after: Annotated[int, typer.Option("--after", metavar="POSITION", help="Only entries after this one.")] = 0,
    org: OrgOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    output: OutputOption = Output.TABLE,
) -> None:
    """List every change to the registry: when, by whom, what.

    \b
    Examples:
      tidings registry audit
      tidings registry audit --after 100 -o json | jq 'select(.action == "revoke")'
    """
    with open_registry(registry, any_clock=True) as opened:
        after = min(max(after, 0), POSITION_MAX)
        show((_entry(opened, output, after)), output, ("position", "at", "actor", "action", "subject", "details"))


@app.command()
def verify(
    noted: Annotated[
        str | None, typer.Option("--noted", metavar="POSITION:HASH", help="What this command printed before.")
    ] = None,
    org: OrgOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check that no entry of the audit trail was altered or removed, and print its head.

    Store what it prints outside the registry, and pass it with --noted the next time: then a
    truncated trail is detected, too. Exits with 3 if the trail is broken.

    \b
    Example:
      tidings registry verify --noted 41:9b2c…
    """
    with open_registry(registry, any_clock=True) as opened:
        head = opened.audit.verify(_head(noted) if noted else None)
    if output is Output.JSON:
        show([{"position": head.position, "hash": head.hash.hex()}], output)
    else:
        print(f"{head.position}:{head.hash.hex()}")


@app.command()
def clock(
    accept: Annotated[bool, typer.Option("--accept", help="Accept this machine's clock as right.")] = False,
    org: OrgOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare this machine's clock with the registry's last change; exit with 3 if it is an hour behind or more.

    All commands refuse to act by such a clock: expired rights would be valid again. If this
    clock is right, and the clock of the last change was ahead, use --accept; the audit trail
    records that.

    \b
    Example:
      tidings registry clock
    """
    now = now_ms()
    with open_registry(registry, any_clock=True) as opened:
        if accept:
            opened.clock.accept(by=actor(), now_ms=now)
        opened.clock.check(now)
        last = opened.clock.last_change_ms()
    show([{"clock": show_moment(now), "last change": None if last is None else show_moment(last)}], output)


def _entry(opened: Registry, output: Output, after: int) -> list[Row]:
    return [
        {
            "position": entry.position,
            "at": show_moment(entry.at_ms),
            "actor": entry.actor,
            "action": entry.action,
            "subject": entry.subject,
            "details": entry.details,
            **({"hash": entry.hash.hex()} if output is Output.JSON else {}),
        }
        for entry in opened.audit.entries(after)
    ]


def _head(noted: str) -> AuditHead:
    from tidings.store import AuditHead

    position, _, digits = noted.partition(":")
    try:
        return AuditHead(int(position), bytes.fromhex(digits))
    except ValueError:
        raise InputError(
            f"expected POSITION:HASH as printed by `tidings registry verify`, got {noted[:80]!r}"
        ) from None


# ── Shared by the commands that use a registry ───────────────────────────────


def open_registry(address: str, *, create: bool = False, any_clock: bool = False) -> Registry:
    """The registry that `--registry` names; created only with `create`.

    Raises Denied if this machine's clock is behind the registry's last change, unless `any_clock` is set.
    """
    from tidings.store import Registry  # Here, so that other commands do not load SQLAlchemy.

    opened = Registry.open(address, now_ms=now_ms(), create=create)
    if not any_clock:
        _check_clock(opened)
    opened.types.own_keys = _own_keys(address)
    return opened


def _own_keys(address: str) -> frozenset[bytes]:
    """The keys of the organisation in whose folder a registry is; none if it is elsewhere, or they cannot be read."""
    folder = Path(address).parent
    if "://" in address or not (folder / "authority.pem").exists():
        return frozenset()
    from tidings.net import Organisation

    with contextlib.suppress(TidingsError, OSError):
        return frozenset(key.public_key for key in Organisation(folder).keys)
    return frozenset()


def _check_clock(opened: Registry) -> None:
    try:
        opened.clock.check(now_ms())
    except BaseException:
        opened.close()
        raise


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def actor() -> str:
    """Who changes the registry if no key says so: the user of this machine."""
    try:
        return f"user {getpass.getuser()}"
    except (KeyError, OSError):  # A container may run under a number without a name.
        return f"user {os.getuid()}"


def read_key(file: Path) -> Identity:
    """The private key in a file; TIDINGS_KEY_PASSWORD decrypts one that has a password."""
    from tidings.security import Identity

    with file.open("rb") as stream:
        is_open = stat.S_IMODE(os.fstat(stream.fileno()).st_mode) & 0o077
        pem = stream.read(KEY_FILE_BYTES_MAX)
    try:
        read = Identity.from_pem(pem, key_password())
    except InputError as wrong:
        raise InputError(
            f"{file}: {wrong}; `tidings identity new` creates one, TIDINGS_KEY_PASSWORD is for its password"
        ) from None
    if is_open:
        tell(f"note: others can read the private key in {file}; to fix: chmod 600 {file}")
    return read


def key_password() -> bytes | None:
    return os.environ.get("TIDINGS_KEY_PASSWORD", "").encode(errors="surrogateescape") or None


_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_FROM_NOW = re.compile(r"\+([0-9]{1,9})([smhdw])")


def moment(text: str | None, otherwise_ms: int, now: int) -> int:
    """A time in ms since 1970: ISO 8601, or +30d from `now`; `otherwise_ms` if none was given."""
    if text is None:
        return otherwise_ms
    if match := _FROM_NOW.fullmatch(text):
        return now + int(match[1]) * _UNITS_MS[match[2]]
    from tidings.events import Timestamp

    try:
        return Timestamp(text) // 1000
    except InputError:
        raise InputError(f"expected a time as 2026-12-31T00:00:00Z, or +30d, +12h, +90m; got {text[:60]!r}") from None


def show_moment(ms: int) -> str | None:
    """ISO 8601; None for the extreme values that mean no limit."""
    from tidings.events import Timestamp

    return None if ms in (0, FOR_EVER_MS) or abs(ms) > FOR_EVER_MS // 1000 else Timestamp(ms * 1000).iso()


def local_and_utc(ms: int) -> str:
    """A time as people read it: on this machine's clock, and in UTC.

    >>> local_and_utc(2**63 - 1)
    'no limit'
    """
    if ms <= 0 or ms > FOR_EVER_MS // 1000:
        return "no limit"
    try:
        here = datetime.fromtimestamp(ms / 1000).astimezone()
    except (OverflowError, ValueError, OSError):
        return "no limit"
    utc = datetime.fromtimestamp(ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")
    return utc if here.utcoffset() is not None and not here.utcoffset() else f"{here:%Y-%m-%d %H:%M %Z} ({utc})"


def show_key(key: bytes, names: dict[bytes, str], output: Output = Output.TABLE) -> str:
    """A key as its domain's name if it has one, else as its fingerprint; in JSON always the latter."""
    return fingerprint(key) if output is Output.JSON else names.get(key, fingerprint(key))
