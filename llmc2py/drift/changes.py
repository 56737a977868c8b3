"""One change, and what it means to those who use the package."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Meaning(enum.StrEnum):
    """What a change does to callers, the worst first."""

    BREAKING = "breaking"
    NUMBERS = "numbers"
    SPEED = "speed"
    ADDITION = "addition"
    COSMETIC = "cosmetic"


#: The headings of the groups.
TITLES = {
    Meaning.BREAKING: "Breaking for callers",
    Meaning.NUMBERS: "Changes numbers",
    Meaning.SPEED: "Speed only",
    Meaning.ADDITION: "New",
    Meaning.COSMETIC: "Cosmetic",
}

#: How the text of a change begins that many kernels share.
SHARED_CODE = "code that it uses changed"


@dataclass(frozen=True)
class Change:
    """A change of one kernel, launcher, reference, layer or file (the ``subject``).

    ``kind`` says what changed (``parameter-added``), ``text`` says it to people; ``old`` and ``new`` are the two states
    as far as they can be spelled. ``former`` is the ``file:name`` that a subject with another name or place had.
    ``files`` are the source files that the change comes from.
    """

    meaning: Meaning
    kind: str
    subject: str
    name: str
    file: str
    text: str
    old: str | None = None
    new: str | None = None
    former: str | None = None
    files: frozenset[str] = field(default_factory=frozenset, repr=False)
