"""Messages speak of the source: no name of a class of ours is in them."""

from __future__ import annotations

import pathlib
import re

import pytest

import llmc2py.lower
from llmc2py.diagnostics import SourceError, SourceSpan
from llmc2py.ir import expressions as ex
from llmc2py.ir import statements as ir
from llmc2py.ir.library import Scope
from llmc2py.lower.environment import Environment
from llmc2py.lower.hostcalls import HostCallLowering
from llmc2py.lower.launchers import _LauncherLowering
from llmc2py.lower.values import WORDS

LOWER = pathlib.Path(llmc2py.lower.__file__).parent
SPAN = SourceSpan("a.cu", 1)


def _all(base: type) -> list[type]:
    return [one for kind in base.__subclasses__() for one in (kind, *_all(kind))]


@pytest.mark.parametrize("kind", _all(ex.Expression))
def test_each_expression_is_lowered_or_has_words(kind: type) -> None:
    has_method = hasattr(HostCallLowering, f"_{kind.__name__.lower()}")
    assert has_method != (kind in WORDS)


@pytest.mark.parametrize("kind", _all(ir.Statement))
def test_each_statement_is_lowered(kind: type) -> None:
    assert hasattr(_LauncherLowering, f"_on_{kind.__name__.lower()}")


def test_reasons_are_made_without_names_of_classes() -> None:
    for path in LOWER.glob("*.py"):
        for found in re.finditer(r"SourceError\(.*?\)\n", path.read_text(), re.DOTALL):
            assert "__name__" not in found[0], path.name


def test_a_function_as_a_value_is_called_so() -> None:
    lowering = HostCallLowering(Environment(Scope({}, {}, {}, {}, {}, {}, {})), lambda *_: "", lambda _: None)
    with pytest.raises(SourceError, match="a function as a value cannot be lowered here"):
        lowering.lower(ex.TemplateName(SPAN, "k", ()))
