"""The option that writes golden files anew."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write expected files that are missing or differ; the run still fails (pytest tests/golden ...)",
    )
