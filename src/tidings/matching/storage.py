"""A saved index: a folder with flat arrays that are mapped into memory, and a manifest that describes them.

    manifest.json     format and version, the event type, and of every array its type, shape, place and checksum
    arrays.bin        the arrays, each at a multiple of 64 bytes

`open_segment` reads the manifest, which ends with its own checksum, and checks the sizes. The
operating system loads pages of the arrays when they are touched, and all processes that map
them share them (they are mapped copy-on-write, and nobody writes). With `verify`,
`open_segment` also reads and checks every byte.

`save` writes the folder beside its final place and renames it when it is complete. Readers
that have the old folder open keep it.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidings.errors import IndexFileError, InputError
from tidings.events import Attribute, EventType, ValueType, from_declaration, to_declaration
from tidings.matching.axes import Axes
from tidings.matching.box_table import Array, writable
from tidings.matching.grid import CellBoxes
from tidings.matching.id_dictionary import IdDictionary
from tidings.matching.kernels import build as build_kernels
from tidings.matching.kernels import match as match_kernels
from tidings.matching.residuals.words import NO_WORDS, WordIndex
from tidings.matching.segment import Segment

FORMAT = "tidings-index"
VERSION = 3  # 2 did not know axes that read texts backwards, nor words; what it wrote is read as it is.
OLDEST = 2  # 1 did not know attributes that were only ever null, and would put others in their places.
ALIGNMENT = 64
MANIFEST_BYTES_MAX = 1 << 28  # Residual texts are in the manifest; a larger one is not ours.
MANIFEST, ARRAYS = "manifest.json", "arrays.bin"


def save(path: Path, segment: Segment, names: IdDictionary, event_type: EventType) -> None:
    """Writes a segment and its ids as the folder `path`."""
    if path.exists() and not (path / MANIFEST).is_file():
        raise InputError(f"expected a new folder or a saved index, got {path}")
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    with (fresh / ARRAYS).open("wb") as file:
        places = {name: _append(file, array) for name, array in _arrays(segment, names).items()}
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        **_declared(event_type),
        "subscriptions": len(segment),
        "residuals": segment.residuals,
        "arrays_size": size,
        "arrays": places,
    }
    _write_manifest(fresh / MANIFEST, manifest)
    _put_in_place(fresh, path)


def open_segment(path: Path, *, verify: bool = False) -> tuple[Segment, IdDictionary, EventType]:
    """The segment saved in the folder `path`, its ids, and its event type. Raises IndexFileError if it is damaged."""
    manifest = _read_manifest(path / MANIFEST)
    try:
        content = np.memmap(path / ARRAYS, np.uint8, "c") if manifest["arrays_size"] else np.zeros(0, np.uint8)
    except (OSError, ValueError) as wrong:
        raise _refused(path, f"{ARRAYS} cannot be read: {wrong}") from None
    if len(content) != manifest["arrays_size"]:
        raise _refused(path, f"expected {manifest['arrays_size']:,} bytes in {ARRAYS}, got {len(content):,}")
    arrays = {name: _array(path, name, content, place, verify) for name, place in manifest["arrays"].items()}
    try:
        event_type = _event_type(manifest)
        segment = _segment(arrays, manifest)
        return segment, IdDictionary(segment.ids, arrays["names.slots"]), event_type
    except (KeyError, TypeError) as wrong:
        raise _refused(path, f"an array is missing or of another type: {wrong}") from None


def _declared(event_type: EventType) -> dict[str, Any]:
    """The event type, and by place the attributes that were only ever null: no declaration has a word for these."""
    known = tuple(a for a in event_type if a.type is not ValueType.NULL)
    nulls = {str(place): a.name for place, a in enumerate(event_type) if a.type is ValueType.NULL}
    return {"event_type": to_declaration(EventType.of(event_type.name, known)), "null_attributes": nulls}


def _event_type(manifest: Mapping[str, Any]) -> EventType:
    known = from_declaration(manifest["event_type"])
    attributes = list(known.attributes)
    for place, name in manifest.get("null_attributes", {}).items():  # In the order of their places.
        attributes.insert(int(place), Attribute(name, ValueType.NULL))
    return EventType.of(known.name, tuple(attributes))


def _arrays(segment: Segment, names: IdDictionary) -> dict[str, Array]:
    """All arrays of a segment by name."""
    return {
        **_named("axes", segment.axes.arrays),
        "axes.attribute": segment.axes.attribute,
        **_named("sides", segment.boxes.sides),
        "boxes.owner": segment.boxes.owner,
        "boxes.residual": segment.boxes.residual,
        **{name: array for name, array in _named("layout", segment.layout).items() if "piece" not in name},
        **_text_arrays("ids", segment.ids),
        **_text_arrays("texts", segment.texts),
        "names.slots": names.slots,
        **_named("words", segment.words),
    }


def _segment(arrays: Mapping[str, Array], manifest: Mapping[str, Any]) -> Segment:
    sides = _tuple(build_kernels.Sides, "sides", arrays)
    layout = {**arrays, "layout.piece_low": sides.piece_low, "layout.piece_high": sides.piece_high}
    return Segment(
        ids=_texts("ids", arrays),
        texts=_texts("texts", arrays),
        axes=Axes(arrays["axes.attribute"], _tuple(match_kernels.AxisArrays, "axes", arrays)),
        boxes=CellBoxes(arrays["boxes.owner"], arrays["boxes.residual"], sides),
        layout=_tuple(match_kernels.GridLayout, "layout", layout),
        residuals=tuple(tuple(texts) for texts in manifest["residuals"]),
        words=_tuple(WordIndex, "words", arrays) if manifest["version"] > OLDEST else NO_WORDS,
    )


def _named(prefix: str, arrays: NamedTuple) -> dict[str, Array]:
    return {f"{prefix}.{name}": array for name, array in arrays._asdict().items()}


def _tuple(kind: Any, prefix: str, arrays: Mapping[str, Array]) -> Any:
    return kind(*(arrays[f"{prefix}.{name}"] for name in kind._fields))


def _text_arrays(name: str, texts: pa.Array) -> dict[str, Array]:
    whole = pa.concat_arrays([texts]) if not texts.offset else pa.array(texts.to_pylist(), pa.string())
    _, offsets, content = whole.buffers()
    count = len(whole) + 1
    ends = np.frombuffer(offsets, np.int32)[:count] if len(whole) else np.zeros(1, np.int32)
    raw = np.frombuffer(content, np.uint8)[: ends[-1]] if ends[-1] else np.zeros(0, np.uint8)
    return {f"{name}.offsets": ends, f"{name}.content": raw}


def _texts(name: str, arrays: Mapping[str, Array]) -> pa.Array:
    offsets, content = arrays[f"{name}.offsets"], arrays[f"{name}.content"]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.StringArray.from_buffers(len(offsets) - 1, buffers[1], buffers[2])


def _append(file: Any, array: Array) -> dict[str, Any]:
    """Writes an array at the next aligned place; returns what is needed to find and check it."""
    file.write(b"\0" * (-file.tell() % ALIGNMENT))
    raw = np.ascontiguousarray(array)
    place = {
        "at": file.tell(),
        "type": raw.dtype.str,
        "shape": raw.shape,
        "crc32": zlib.crc32(raw.data if raw.size else b""),
    }
    file.write(raw.data if raw.size else b"")
    return place


def _array(path: Path, name: str, content: Array, place: Mapping[str, Any], verify: bool) -> Array:
    kind, shape = np.dtype(place["type"]), tuple(place["shape"])
    size = int(np.prod(shape)) * kind.itemsize
    raw = content[place["at"] : place["at"] + size]
    if len(raw) != size or (verify and zlib.crc32(raw.data if size else b"") != place["crc32"]):
        raise _refused(path, f"array {name} is damaged")
    array = np.frombuffer(raw, kind).reshape(shape) if size else np.zeros(shape, kind)
    return writable(array)


def _write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    body = json.dumps(manifest, ensure_ascii=False, indent=1)
    with path.open("wb") as file:
        file.write(f"{body}\n{zlib.crc32(body.encode()):08x}\n".encode())
        file.flush()
        os.fsync(file.fileno())


def _read_manifest(path: Path) -> dict[str, Any]:
    folder = path.parent
    try:
        with path.open("rb") as file:
            raw = file.read(MANIFEST_BYTES_MAX + 1)
        body, checksum, end = raw.decode().rsplit("\n", 2)
        manifest = json.loads(body)
    except (OSError, ValueError) as wrong:
        raise _refused(folder, f"{MANIFEST} cannot be read: {wrong}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _refused(folder, f"{MANIFEST} does not describe an index")
    if manifest.get("version") not in range(OLDEST, VERSION + 1):
        raise _refused(folder, f"expected format version {VERSION}, got {manifest.get('version')}; save it anew")
    if end or checksum != f"{zlib.crc32(body.encode()):08x}":
        raise _refused(folder, f"the checksum of {MANIFEST} does not fit")
    return manifest


def _put_in_place(fresh: Path, path: Path) -> None:
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    if path.exists():
        path.rename(old)
    fresh.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def _refused(path: Path, why: str) -> IndexFileError:
    return IndexFileError(f"{path} is not a whole index: {why}")
