"""The lab's verdicts and figures, from the files that `tidings lab run` writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tidings.errors import InputError

CLAIMS = "claims.json"
CLAIMS_BYTES_MAX = 8 << 20
FIGURE_BYTES_MAX = 8 << 20
_FIGURE = re.compile(r"/figures/([a-z0-9_-]{1,40})/([A-Za-z0-9_-]{1,60})\.(svg|png)")
_KINDS = {"svg": "image/svg+xml", "png": "image/png"}
FIELDS = ("paper", "figure", "claim", "expected", "conditions", "measured", "verdict", "why")


def claims(folder: Path | None) -> dict[str, Any]:
    """All claims with their verdicts, and the figures that are there; nothing where the lab has not been run."""
    if folder is None or not (folder / CLAIMS).is_file():
        return {"claims": [], "figures": []}
    with (folder / CLAIMS).open("rb") as stream:
        text = stream.read(CLAIMS_BYTES_MAX)
    try:
        rows = [{field: str(row.get(field, "")) for field in FIELDS} for row in json.loads(text)]
    except (ValueError, AttributeError) as wrong:
        raise InputError(f"{folder / CLAIMS}: not what `tidings lab run` writes ({wrong})") from None
    figures = sorted(f"/figures/{file.parent.name}/{file.name}" for file in folder.glob("*/*.svg"))
    return {"claims": rows, "figures": [each for each in figures if _FIGURE.fullmatch(each)]}


def figure(folder: Path | None, path: str) -> tuple[bytes, str] | None:
    """A figure and its media type; None if there is none. The path is matched whole, so it cannot leave the folder."""
    named = _FIGURE.fullmatch(path)
    if folder is None or named is None:
        return None
    paper, name, kind = named.groups()
    file = folder / paper / f"{name}.{kind}"
    if not file.is_file() or file.stat().st_size > FIGURE_BYTES_MAX:
        return None
    return file.read_bytes(), _KINDS[kind]
