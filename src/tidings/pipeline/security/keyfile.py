"""Keys for Spark: in a file that only its owner can read, never in a query plan.

Whatever is part of a plan shows up somewhere: in `explain`, in Spark's web UI, in event logs, in checkpoints, in error
messages. So a plan holds the path of a key file, and each worker reads the file itself, as a daemon reads its
keytab. Executors on other hosts need the file under the same path. A file that others can read is refused.
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
    """The path of a keyring: all that a plan contains of it.

    A job that encrypts is planned for one set of keys, named by its fingerprint (see `pinned`). A worker that finds others
    in the file refuses to work: frames of other keys under the same nonces would reveal GCM's authentication key.
    """

    path: str
    fingerprint: str = ""

    def pinned(self, signed_type: SignedType) -> KeyFile:
        """The same file, for the keys that it holds now and no others."""
        return KeyFile(self.path, self.read(signed_type).fingerprint())

    def read(self, signed_type: SignedType) -> Keyring:
        """The keyring. Raises SetupError if the file is missing, damaged, or readable by others."""
        try:
            return Keyring.from_bytes(self._bytes(), signed_type)
        except OSError as wrong:
            raise SetupError(f"cannot read the key file {self.path!r}: {wrong.strerror}") from None
        except PeerError as wrong:
            raise SetupError(f"{self.path!r} is not a key file of {signed_type.event_type.name}: {wrong}") from None

    def opener(self, signed_type: SignedType, publishers: PublisherRights | None = None) -> BatchOpener:
        """Built once per worker process and version of the file, since ciphers are expensive to set up."""
        loaded = self._loaded(signed_type)
        if publishers is None:
            return loaded.opener
        if loaded.signed is None or loaded.signed[0] != publishers:
            loaded.signed = publishers, BatchOpener(signed_type, loaded.ring, publishers)
        return loaded.signed[1]

    def sealer(self, signed_type: SignedType) -> BatchSealer:
        return self._loaded(signed_type).sealer

    def _bytes(self) -> bytes:
        file = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(file, "rb") as opened:
            about = os.fstat(opened.fileno())
            if about.st_mode & _OTHERS or about.st_uid != os.getuid():
                raise SetupError(f"{self.path!r} holds keys but others can read it; expected mode 600")
            return opened.read(KEY_FILE_BYTES_MAX)

    def _loaded(self, signed_type: SignedType) -> _LoadedKeys:
        name = (self.path, signed_type.type_id)
        state = self._state()
        loaded = _loaded.get(name)
        if loaded is None or loaded.state != state:
            ring = self.read(signed_type)
            opener, sealer = BatchOpener(signed_type, ring), BatchSealer(signed_type, ring)
            loaded = _loaded[name] = _LoadedKeys(state, ring, opener, sealer, ring.fingerprint())
        if self.fingerprint and loaded.fingerprint != self.fingerprint:
            raise SetupError(f"the key file {self.path!r} was replaced while the job ran; start it again")
        return loaded

    def _state(self) -> tuple[int, int, int]:
        """Changes whenever the file is replaced, so the next task uses new epochs."""
        try:
            about = Path(self.path).stat()
        except OSError as wrong:
            raise SetupError(f"cannot read the key file {self.path!r}: {wrong.strerror}") from None
        return about.st_ino, about.st_mtime_ns, about.st_mode


@dataclass(slots=True)
class _LoadedKeys:
    """A key file as this process has loaded it. `signed` opens only what known publishers have signed."""

    state: tuple[int, int, int]
    ring: Keyring
    opener: BatchOpener
    sealer: BatchSealer
    fingerprint: str
    signed: tuple[PublisherRights, BatchOpener] | None = None


_loaded: dict[tuple[str, bytes], _LoadedKeys] = {}


def write_keys(path: str | Path, keyring: Keyring) -> KeyFile:
    """Writes a keyring for workers to a file that only its owner can read, atomically."""
    target = Path(path).absolute()
    temporary = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
    try:
        file = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(file, "wb") as opened:
            opened.write(keyring.to_bytes())
            opened.flush()
            os.fsync(opened.fileno())
        temporary.replace(target)
    except OSError as wrong:
        temporary.unlink(missing_ok=True)
        raise SetupError(f"cannot write the key file {str(target)!r}: {wrong.strerror}") from None
    return KeyFile(str(target))


def for_spark(signed_type: SignedType) -> SignedType:
    """The type as workers need it, with attributes in the order of their names.

    Raises InputError for a cipher that Spark lacks: Spark alone must be able to decrypt what is encrypted here.
    """
    suite = suite_of(signed_type.suite)
    if not suite.in_spark:
        raise InputError(
            f"{signed_type.event_type.name}: {suite.name} is for live use only; "
            "expected AES-256-GCM or AES-128-GCM, which Spark has"
        )
    return SignedType.from_bytes(signed_type.to_bytes())
