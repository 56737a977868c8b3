"""Every lowered launcher of the vendored tree, as C++ and as a plan: the same operations, refusals and bytes."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from llmc2py.runtime import host
from llmc2py.runtime.csemantics import c_scalar
from llmc2py.runtime.launcher import Launcher
from llmc2py.runtime.params import Param, array_dtype, scalar_type
from llmc2py.verify.launch_oracle import Argument, check_call
from tests.oracle.launchers import INNER, ROWS, RUNNING_BLOCKS, Row

EXAMPLES = 4
#: How often other examples are drawn, each time from a seed of its own, until one of them is accepted and run.
ATTEMPTS = 8
#: Both 16-bit formats take the same way through a launcher: the second one is tried on those of the training program.
CASES = [
    (*key, precision)
    for key, row in ROWS.items()
    for precision in row.precisions
    if precision != "float16" or key[0].startswith("llmc/")
]


def drawn_sizes(data: st.DataObject, row: Row, multiprocessors: int) -> dict[str, Any]:
    known = {"multiprocessors": multiprocessors, "max": max}
    sizes: dict[str, Any] = {}
    for name, size in row.sizes.items():
        sizes[name] = eval(size, known | sizes) if isinstance(size, str) else data.draw(size, label=name)
    return known | sizes


def element_type(param: Param, precision: str, template: set[str]) -> np.dtype[Any]:
    dtype = array_dtype("floatX" if param.base in template else param.base, precision)
    assert dtype is not None
    return dtype


def random_array(rng: np.random.Generator, dtype: np.dtype[Any], count: int, below: int) -> np.ndarray[Any, Any]:
    array = host.empty((count,), dtype)
    array[:] = rng.integers(0, below, count) if dtype.kind in "iu" else rng.normal(0.5, 1.5, count).astype(dtype)
    return array


def copied(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    copy = host.empty(value.shape, value.dtype)
    copy[:] = value
    return copy


def python_arguments(
    data: st.DataObject, launcher: Launcher, row: Row, sizes: dict[str, Any], precision: str, others: dict[Any, Any]
) -> list[Any]:
    """Draw the arguments of the Python launcher; null where it may be."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31), label="seed of the arrays"))
    types = {one.name for one in launcher.template if one.kind == "type"}
    values: list[Any] = []
    for param in launcher.params:
        if param.is_launcher:
            values.append(others[row.callees[param.name]])
        elif not param.is_pointer:
            ctype = scalar_type(param.base, precision) if param.tag is None else "bool"
            values.append(c_scalar(sizes[param.name], ctype, param.name))
        elif param.nullable and is_null(data, row, sizes, param.name):
            values.append(None)
        else:
            count = eval(row.lengths[param.name], dict(sizes))
            below = eval(row.below.get(param.name, "1"), dict(sizes))
            values.append(random_array(rng, element_type(param, precision, types), count, below))
    return values


def is_null(data: st.DataObject, row: Row, sizes: dict[str, Any], name: str) -> bool:
    if name in row.nulls:
        return bool(eval(row.nulls[name], dict(sizes)))
    return data.draw(st.booleans(), label=f"{name} is null")


def may_run(row: Row, sizes: dict[str, Any]) -> bool:
    whole_warps = sizes.get("block_size", 32) in RUNNING_BLOCKS and sizes.get("sqrt_block_size", 8) in (8, 16, 32)
    return whole_warps and bool(eval(row.runs, dict(sizes)))


def cpp_arguments(launcher: Launcher, values: list[Any], names: list[str], precision: str) -> list[Argument]:
    """Return what the C++ launcher takes: the stream, which Python leaves to the caller, is null."""
    given_by_name = dict(zip((param.name for param in launcher.params), values, strict=True))
    params = {param.name: param for param in launcher.params}
    arguments = []
    for name in (*names, *(name for name in params if name not in names)):
        param = params.get(name)
        if param is None or param.tag is not None or param.is_launcher or given_by_name[name] is None:
            arguments.append(Argument())
        else:
            value = given_by_name[name]
            arguments.append(Argument(value, None if param.is_pointer else scalar_type(param.base, precision)))
    return arguments


def check_example(subjects: Any, key: tuple[str, str], precision: str, data: st.DataObject, processors: int) -> str:
    subject, row = subjects.subject(key, precision), ROWS[key]
    sizes = drawn_sizes(data, row, processors)
    others = {name: subjects.python[key[0], name] for name in row.callees.values()}
    values = python_arguments(data, subject.python, row, sizes, precision, others)
    originals = [copied(value) for value in values]
    tags = tuple(sizes[param.name] for param in subject.python.params if param.tag is not None)
    names = [parameter.name for parameter in subject.cpp.parameters]
    return check_call(
        subject.library,
        subject.entries[tags],
        subject.python,
        cpp_arguments(subject.python, values, names, precision),
        lambda: originals,
        runs=may_run(row, sizes),
    )


@pytest.mark.parametrize(("file", "name", "precision"), CASES)
def test_plan_does_what_the_launcher_does(subjects, multiprocessors, file, name, precision):
    assert (file, name) in subjects.python, "the launcher has a row but is not lowered any more"

    outcomes: collections.Counter[str] = collections.Counter()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(st.data())
    def check(data):
        outcomes[check_example(subjects, (file, name), precision, data, multiprocessors)] += 1

    for attempt in range(ATTEMPTS):
        seed(attempt)(check)()
        if outcomes["ran"]:
            break
    assert outcomes["ran"], f"no example of {name} was accepted and run, so that no bytes were compared: {outcomes}"


def test_every_lowered_launcher_has_a_row(subjects):
    missing = sorted(set(subjects.python) - set(ROWS) - set(INNER))
    assert not missing, f"say in tests/oracle/launchers.py what these launchers take: {missing}"
