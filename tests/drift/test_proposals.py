"""What is proposed for catalogue entries whose callees changed."""

from __future__ import annotations

import pytest

from llmc2py.drift.compare import compare
from llmc2py.ir.catalog import CatalogEntry
from llmc2py.upstream.proposals import misfits

KERNEL = "__global__ void k(float* out, const float* inp, int n) { if (threadIdx.x < n) out[threadIdx.x] = inp[0]; }\n"
LAUNCHER = "void run(float* out, const float* inp, int n) { k<<<1, n>>>(out, inp, n); }\n"
ENTRY = '''\
name = "op"
layer = "Op"
summary = "An op."
source = "a.cu"
launchers = ["run"]
kernels = ["k"]
inputs = { inp = "* C" }
outputs = { out = "* C" }

[extents]
run = { out = "n", inp = "n" }

[forward]
recipe = """
out = empty_like(inp)
if C % 4 == 0:
    elementwise(run, out, inp, N * C)
else:
    k[ceil_div(N, 8), 256](out, inp, N * C)  # one block a row
"""

[reference]
forward = "out = inp"
'''


@pytest.fixture
def propose(snapshot):
    """Return the misfit of the entry where the source changes from one text to another."""
    from llmc2py.catalog import parse_entry

    def run(new: dict[str, str]):
        old = snapshot("old", {"a.cu": KERNEL + LAUNCHER, "op.toml": ENTRY})
        assert "Op" in old.layers
        after = snapshot("new", new | {"op.toml": ENTRY})
        renamed = {one.former: f"{one.file}:{one.name}" for one in compare(old, after) if one.former}
        entry: CatalogEntry = parse_entry(ENTRY, "op.toml")
        (found,) = misfits([entry], {"op": ENTRY}, (), old, after, renamed)
        return found

    return run


def test_arguments_follow_their_parameters(propose):
    source = KERNEL.replace("float* out, const float* inp", "const float* inp, float* out")
    source += LAUNCHER.replace("(float* out, const float* inp, int n)", "(int n, float* out, const float* inp, int C)")
    found = propose({"a.cu": source.replace("(out, inp, n);", "(inp, out, n);")})
    assert "    elementwise(run, N * C, out, inp, C)\n" in found.proposed
    assert "    k[ceil_div(N, 8), 256](inp, out, N * C)  # one block a row\n" in found.proposed
    assert [(one.name, one.new) for one in found.callees] == [
        ("a.cu:run", "run(int n, float* out, const float* inp, int C)"),
        ("a.cu:k", "k(const float* inp, float* out, int n)"),
    ]


def test_names_follow(propose):
    source = (
        (KERNEL + LAUNCHER).replace(" k(", " row_kernel(").replace("k<<<", "row_kernel<<<").replace(" run(", " rows(")
    )
    found = propose({"a.cu": source})
    assert 'launchers = ["rows"]\nkernels = ["row_kernel"]\n' in found.proposed
    assert 'rows = { out = "n", inp = "n" }' in found.proposed
    assert "elementwise(rows, out, inp, N * C)" in found.proposed
    assert "row_kernel[ceil_div(N, 8), 256](out, inp, N * C)" in found.proposed


def test_nothing_is_proposed_where_something_is_gone(propose):
    found = propose({"a.cu": KERNEL})
    assert found.proposed is None
    assert ("a.cu:run", None) in [(one.name, one.new) for one in found.callees]
