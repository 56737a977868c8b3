"""Kernels and launchers in copies and pickles of what refers to them: without what calls have prepared."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import generated
from generated.dev.cuda.gelu_forward import gelu_forward1, gelu_forward_kernel1
from generated.llmc.adamw import adamw_update
from llmc2py.runtime import Kernel, Launcher


def through_a_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def members(kind: type) -> Iterator[Any]:
    """Yield what the modules of the package define of a class."""
    for found in pkgutil.walk_packages(generated.__path__, "generated."):
        if found.name.endswith("torch_layers"):
            continue
        module = importlib.import_module(found.name)
        yield from (value for value in vars(module).values() if isinstance(value, kind))


def test_every_launcher_is_found_again_by_its_name() -> None:
    launchers = list(members(Launcher))
    assert launchers
    for launcher in launchers:
        assert through_a_pickle(launcher) is launcher
    instance = adamw_update[np.float32, np.float32]
    assert through_a_pickle(instance) is instance


def test_every_kernel_is_declared_again() -> None:
    kernels = list(members(Kernel))
    assert kernels
    for kernel in kernels:
        other = through_a_pickle(kernel)
        assert repr(other) == repr(kernel)
        declared = {name: value for name, value in vars(kernel).items() if name not in ("_plain", "_instances")}
        differences = [name for name, value in declared.items() if vars(other)[name] != value]
        assert not differences


@pytest.mark.parametrize("what", [gelu_forward1, gelu_forward_kernel1, gelu_forward_kernel1[2, 32]], ids=repr)
def test_what_refers_to_a_kernel_can_be_copied(what: Any) -> None:
    owner = {"kernel": what}
    assert copy.deepcopy(owner)["kernel"] is copy.copy(what) is what


def test_a_configured_kernel_runs_after_it_was_called_and_pickled() -> None:
    inp = np.linspace(-3, 3, 64, dtype=np.float32)
    results = np.zeros((2, 64), np.float32)
    configured = gelu_forward_kernel1[2, 32]
    configured(results[0], inp, 64)
    through_a_pickle(configured)(results[1], inp, 64)
    assert results[0].any()
    np.testing.assert_array_equal(results[1], results[0])
