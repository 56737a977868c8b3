"""Which classes of the runtime a generated package binds, and to what."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any

from llmc2py.ir.bound import BoundClass, BoundUse


def builtin_bound() -> list[BoundClass]:
    """Return the classes that come with llmc2py."""
    folder = resources.files("llmc2py.catalog") / "bound"
    files = sorted((item for item in folder.iterdir() if item.name.endswith(".toml")), key=lambda item: item.name)
    return [one for item in files for one in parse_bound(item.read_text(encoding="utf-8"))]


def parse_bound(text: str) -> list[BoundClass]:
    """Parse a file of them. Raises KeyError or ValueError for one that is malformed: they are part of llmc2py."""
    return [
        BoundClass(
            table["class"],
            tuple(_use(attribute, use) for attribute, use in table["uses"].items()),
            tuple(table.get("functions", ())),
        )
        for table in tomllib.loads(text)["bound"]
    ]


def _use(attribute: str, use: dict[str, Any]) -> BoundUse:
    name, _, parameters = use["call"].rstrip(")").partition("(")
    return BoundUse(attribute, use["source"], name, tuple(one.strip() for one in parameters.split(",")))
