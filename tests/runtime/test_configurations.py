"""Kernels called by hand: which configurations are taken, what a kernel says of itself, and names of parameters."""

import inspect
import itertools
import pathlib
import pydoc
from typing import Any

import numpy as np
import pytest

from llmc2py.runtime.errors import LaunchError
from llmc2py.runtime.kernel import ConfiguredKernel, Kernel, KernelInstance
from llmc2py.runtime.launcher import Launcher, launcher
from llmc2py.runtime.ops import require
from llmc2py.runtime.params import Param, TemplateParam
from llmc2py.runtime.plan import Plan, Pointer
from llmc2py.runtime.source import KernelSource

SOURCE = KernelSource(pathlib.Path("ops.cu"))
X = np.zeros(4, np.float32)

RIGHT = [(1, 4), (np.int64(1), np.uint8(4)), ((1,), [4]), ((np.int32(1), 1), (4, 1, 1)), (1, 4, 0), (1, 4, np.int16(0))]
WRONG = [
    ((1.0, 4), "grid is 1.0; it is an integer or a tuple of one to three"),
    ((True, 4), "grid is True; it is an integer"),
    ((1, 4.0), "block is 4.0"),
    (((1, True), 4), r"grid is \(1, True\)"),
    ((1, (4, 1.0)), r"block is \(4, 1.0\)"),
    ((np.float32(1), 4), "grid is .*1.0"),
    ((1, np.bool_(True)), "block is .*True"),
    ((1, 4, False), "shared_bytes is False; it is an integer"),
    ((1, 4, 0.0), "shared_bytes is 0.0"),
    (("a", 1), "grid is 'a'"),
    ((float, 1), "grid is <class 'float'>"),
    (((1, 1, 1, 1), 4), r"grid is \(1, 1, 1, 1\)"),
    (((), 4), r"grid is \(\)"),
    ((1,), r"\[grid, block\] or \[grid, block, shared_bytes\] is taken"),
    (1, r"\[grid, block\] or"),
    ((1, 2, 3, 4), r"\[grid, block\] or"),
]


def add_kernel(name: str = "add") -> Kernel:
    return Kernel(SOURCE, name, [Param("x", "float*", intent="inout"), Param("n", "int")], origin="llmc/add.cuh:3")


@pytest.mark.parametrize(("wrong", "message"), WRONG)
@pytest.mark.parametrize("of", ["kernel", "instance"])
def test_a_wrong_configuration_says_so_before_and_after_right_ones(
    fake: Any, wrong: Any, message: str, of: str
) -> None:
    kernel = add_kernel() if of == "kernel" else add_kernel().instantiate(precision="bfloat16")
    for right in RIGHT:
        with pytest.raises(TypeError, match=f"add.*{message}"):
            kernel[wrong]
        kernel[right](X, 4)
    with pytest.raises(TypeError, match=f"add.*{message}"):
        kernel[wrong]
    assert {launch[1:4] for launch in fake.launches} == {((1, 1, 1), (4, 1, 1), 0)}


def test_configurations_that_are_equal_are_one(fake: Any) -> None:
    kernel = add_kernel()
    assert kernel[1, 4] is kernel[np.int64(1), np.int64(4)] is kernel[1, 4, 0]
    assert kernel[(1, 2), 4] is kernel[[np.int32(1), 2], 4]
    assert kernel[1, 4] is not kernel[1, 4, 16]


def test_a_configuration_that_no_device_has_is_told_at_every_call(fake: Any) -> None:
    kernel = add_kernel()
    for _ in range(2):
        with pytest.raises(LaunchError, match="add: block"):
            kernel[1, 2048](X, 4)
        with pytest.raises(LaunchError, match="add: -1 bytes of shared memory"):
            kernel[1, 32, -1](X, 4)
    kernel[1, 32](X, 4)
    assert len(fake.launches) == 1


#: What Python, NumPy and this runtime call things; C++ parameters may be called so as well.
NAMES = (
    "self", "cls", "args", "kwargs", "grid", "block", "shared_bytes", "stream", "plan", "kernel", "launch",
    "precision", "function", "launcher", "name", "origin", "params", "holds", "condition", "op", "text", "key", "value",
)  # fmt: skip


def test_parameters_may_have_any_name(fake: Any) -> None:
    params = [Param("x", "float*"), *(Param(name, "int") for name in NAMES)]
    kernel = Kernel(SOURCE, "named", params)
    values = {name: number for number, name in enumerate(NAMES)}

    def forward(plan: Plan, *given: Any) -> None:
        plan.require(True, "nothing", **values)
        inner = dict(zip(("x", *NAMES), given, strict=True))
        plan.call(helper, **inner)

    def record(plan: Plan, *given: Any) -> None:
        plan.launch(kernel, 1, 32, 0, *given)

    for function in (forward, record):
        function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("the_plan", "x", *NAMES)]
        )
    helper: Launcher = launcher(params)(record)
    outer: Launcher = launcher(params)(forward)
    kernel[1, 32](x=X, **values)
    kernel[1, 32].warmup(x=X, **values)
    assert kernel[1, 32].plan(x=X, **values).operations
    outer(X, **values)
    assert [launch[4][1:] for launch in fake.launches] == [list(values.values())] * 2
    for refuse in (lambda **given: kernel[1, 32].plan(X, **given), lambda **given: kernel(**given)):
        with pytest.raises(TypeError, match=r"^named"):
            refuse(**{"self": 1})
    with pytest.raises(ValueError, match="f needs a, but self = 1, op = 2, condition = 3, text = 4"):
        require("f", False, "a", **{"self": 1, "op": 2, "condition": 3, "text": 4})


TEMPLATED = Kernel(
    SOURCE,
    "tk",
    [Param("x", "float*")],
    template=[TemplateParam("N", "int"), TemplateParam("T", "type", "float"), TemplateParam("U", "type", "T")],
)
SCALED = Kernel(
    SOURCE,
    "scaled",
    [Param("x", "T*")],
    template=[TemplateParam("T"), TemplateParam("Width", "int", 4)],
    origin="s.cu:1",
)


@pytest.mark.parametrize(
    ("index", "why"),
    [
        ((1, 32), "`T` is 32; it takes a type"),
        (((1, 2), 32), r"`N` is \(1, 2\), a tuple"),
        ((1, 32, 0, 0), "tk takes 3 template arguments, 4 are given"),
    ],
)
def test_a_configuration_in_the_place_of_template_arguments_is_told(index: Any, why: str) -> None:
    with pytest.raises(TypeError, match=rf"{why}.*taken for template arguments; .* as tk\[N, T, U\]\[grid, block\]"):
        TEMPLATED[index]


def test_template_arguments_without_a_configuration_are_told() -> None:
    with pytest.raises(TypeError, match=r"tk<8> has its template arguments, and needs a launch configuration"):
        TEMPLATED[8](X)


def test_types_have_defaults_too_which_may_be_types_before_them(fake: Any) -> None:
    TEMPLATED[8][1, 32](X)
    TEMPLATED[8, np.float16][1, 32](X)
    TEMPLATED[8, "half", "int"][1, 32](X)
    assert [launch[0] for launch in fake.launches] == ["tk<8, float, float>", "tk<8, half, half>", "tk<8, half, int>"]


def test_one_number_gives_a_template_argument_though_all_follow(fake: Any) -> None:
    wide = Kernel(SOURCE, "wide", [Param("x", "float*")], template=[TemplateParam("Width", "int", 4)])
    wide[8][1, 32](X)
    wide[1, 32](X)
    assert [launch[0] for launch in fake.launches] == ["wide<8>", "wide<4>"]


def test_what_kernels_say_of_themselves() -> None:
    add, half = add_kernel(), SCALED["half"]
    parameters = "(float* x, int n) of llmc/add.cuh:3>"
    assert repr(add) == f"<Kernel add{parameters}"
    assert repr(add[1, np.int64(32)]) == f"<Kernel add[1, 32]{parameters}"
    assert repr(add[(1, 2), 32, 16]) == f"<Kernel add[(1, 2), 32, 16]{parameters}"
    assert repr(half) == "<Kernel scaled<half>(T* x) of s.cu:1>"
    assert repr(SCALED[np.float32, 8][1, 32]) == "<Kernel scaled<float, 8>[1, 32](T* x) of s.cu:1>"
    for one, shown in itertools.chain(
        zip((add, add[1, 32], add.instantiate()), itertools.repeat("(x: 'float*', n: 'int')")),
        zip((SCALED, half, half[1, 32]), itertools.repeat("(x: 'T*')")),
    ):
        assert str(inspect.signature(one)) == shown
    for cls in (Kernel, KernelInstance, ConfiguredKernel, Launcher):
        assert "SignatureOf" not in str(inspect.signature(cls))


def test_help_of_a_kernel_is_about_the_kernel() -> None:
    for one in (add_kernel(), add_kernel()[1, 32]):
        shown = pydoc.render_doc(one, renderer=pydoc.plaintext)
        assert "CUDA kernel of llmc/add.cuh:3" in shown
        assert "add[grid, block](x, n)" in shown
        assert "float* x (inout)" in shown
    shown = pydoc.render_doc(SCALED, renderer=pydoc.plaintext)
    assert "type T, int Width = 4" in shown
    assert "scaled[T, Width][grid, block]" in shown
    assert "Template types follow" in inspect.getdoc(Kernel)  # type: ignore[operator]


def test_a_pointer_stays_one_where_names_collide(fake: Any) -> None:
    @launcher([Param("self", "float*"), Param("args", "int")])
    def named(plan: Plan, self: Pointer, args: int) -> None:
        plan.launch(add_kernel(), 1, 32, 0, self, args)

    named(self=X, args=3)
    assert fake.launches[0][4] == [X.ctypes.data, 3]
