"""Which template arguments are found in the text of a generated module."""

from __future__ import annotations

from llmc2py.verify.launched import launched_values

MODULE = """
@launcher([], template=[TemplateParam("N", "int"), TemplateParam("f", "function")])
def inner(plan, out):
    plan.launch(kernel, 1, 32, 0, out, template=(plan.template["N"], plan.template["f"]))


@launcher([])
def outer(plan, out, kind):
    if kind:
        plan.call(inner, out, template=(8, "square"))
    else:
        plan.call(inner, out, template=(16, "cube"))


@launcher([])
def dispatch(plan, launch, size):
    if size == 64:
        plan.call(launch, 64)
    else:
        plan.call(launch, 32)


@launcher([])
def sized(plan, out, size):
    def launch(threads):
        plan.launch(other, 1, threads, 0, out, template=(threads, True))

    plan.call(dispatch, launch, size)


@launcher([])
def local(plan, out, size):
    chosen = 4
    plan.launch(third, 1, size, 0, out, template=(chosen, size))
"""


def test_values_reach_kernels_through_launchers_and_functions():
    assert launched_values({"m": MODULE}) == {
        "kernel": [{8, 16}, {"square", "cube"}],
        "other": [{32, 64}, {True}],
        "third": [{4}, frozenset()],
    }


def test_a_launcher_that_calls_itself_ends():
    text = (
        '@launcher([], template=[TemplateParam("N", "int")])\ndef f(plan):\n'
        '    plan.launch(k, 1, 1, 0, template=(plan.template["N"],))\n'
        '    plan.call(f, template=(plan.template["N"],))\n'
    )
    assert launched_values({"m": text}) == {"k": [frozenset()]}


def test_launchers_of_other_modules_count() -> None:
    kernels = """
kernel = Kernel("kernel")

@launcher([], template=[TemplateParam("N", "int")])
def inner(plan, out):
    plan.launch(kernel, 1, 32, 0, out, template=(plan.template["N"],))
"""
    other = """
from ..kernels import inner
from .more import kernel as its

@launcher([])
def run(plan, kernel):
    plan.call(inner, kernel, template=(8,))
    plan.launch(its, 1, 32, 0, kernel, template=(True,))
"""
    assert launched_values({"kernels": kernels, "a.run": other}) == {
        "kernels.kernel": [frozenset({8})],
        "a.more.kernel": [frozenset({True})],
    }
