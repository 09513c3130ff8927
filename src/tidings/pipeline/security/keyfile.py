"""Keys for Spark: in a file that only its owner reads, never in a plan.

Whatever is part of a plan ends up somewhere: in `explain`, in the web page, in event logs, in
checkpoints, in the text of an error. So a plan holds the path of a key file, and each worker
reads the file itself, once, as a daemon reads its keytab. Executors on other hosts need the file
under the same path. A file that others may read is refused, not warned about.
"""

from __future__ import annotations

import os
import stat
import uuid
from dataclasses import dataclass
from pathlib import Path

from tidings.errors import InputError, PeerError, SetupError
from tidings.security import BatchOpener, BatchSealer, Keyring, PublisherRights, SignedType, suite_of

KEY_FILE_BYTES_MAX = 2**24  # A hundred thousand epochs.

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class KeyFile:
    """Where a keyring lies. All that travels with a plan."""

    path: str

    def read(self, signed_type: SignedType) -> Keyring:
        """The keyring; raises SetupError where the file is missing, or not its owner's alone, or damaged."""
        try:
            return Keyring.from_bytes(self._bytes(), signed_type)
        except OSError as wrong:
            raise SetupError(f"cannot read the key file {self.path!r}: {wrong.strerror}") from None
        except PeerError as wrong:
            raise SetupError(f"{self.path!r} is no key file of {signed_type.event_type.name}: {wrong}") from None

    def opener(self, signed_type: SignedType, publishers: PublisherRights | None = None) -> BatchOpener:
        """Built once per worker process and state of the file; its ciphers are used again and again."""
        held = self._held(signed_type)
        if publishers is None:
            return held.opener
        if held.signed is None or held.signed[0] != publishers:
            held.signed = publishers, BatchOpener(signed_type, held.ring, publishers)
        return held.signed[1]

    def sealer(self, signed_type: SignedType) -> BatchSealer:
        return self._held(signed_type).sealer

    def _bytes(self) -> bytes:
        file = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(file, "rb") as opened:
            about = os.fstat(opened.fileno())
            if about.st_mode & _OTHERS or about.st_uid != os.getuid():
                raise SetupError(f"{self.path!r} holds keys and is not its owner's alone; expected mode 600")
            return opened.read(KEY_FILE_BYTES_MAX)

    def _held(self, signed_type: SignedType) -> _Held:
        name = (self.path, signed_type.type_id)
        state = self._state()
        held = _held.get(name)
        if held is None or held.state != state:
            ring = self.read(signed_type)
            opener, sealer = BatchOpener(signed_type, ring), BatchSealer(signed_type, ring)
            held = _held[name] = _Held(state, ring, opener, sealer)
        return held

    def _state(self) -> tuple[int, int, int]:
        """Changes whenever the file is replaced; new epochs are taken up with the next task."""
        try:
            about = Path(self.path).stat()
        except OSError as wrong:
            raise SetupError(f"cannot read the key file {self.path!r}: {wrong.strerror}") from None
        return about.st_ino, about.st_mtime_ns, about.st_mode


@dataclass(slots=True)
class _Held:
    """What was made of a key file, in this process. `signed` opens only what known publishers have signed."""

    state: tuple[int, int, int]
    ring: Keyring
    opener: BatchOpener
    sealer: BatchSealer
    signed: tuple[PublisherRights, BatchOpener] | None = None


_held: dict[tuple[str, bytes], _Held] = {}


def write_keys(path: str | Path, keyring: Keyring) -> KeyFile:
    """Puts a keyring where workers find it, for its owner alone, in one step: nobody reads half of it."""
    target = Path(path).absolute()
    aside = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
    try:
        file = os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(file, "wb") as opened:
            opened.write(keyring.to_bytes())
            opened.flush()
            os.fsync(opened.fileno())
        aside.replace(target)
    except OSError as wrong:
        aside.unlink(missing_ok=True)
        raise SetupError(f"cannot write the key file {str(target)!r}: {wrong.strerror}") from None
    return KeyFile(str(target))


def for_spark(signed_type: SignedType) -> SignedType:
    """The type as workers get it, which have its attributes in the order of their names.

    Raises InputError for a cipher that Spark lacks: what is sealed here must be readable with Spark alone.
    """
    suite = suite_of(signed_type.suite)
    if not suite.in_spark:
        raise InputError(
            f"{signed_type.event_type.name}: {suite.name} is for live use only; "
            "expected AES-256-GCM or AES-128-GCM, which Spark has"
        )
    return SignedType.from_bytes(signed_type.to_bytes())
