"""Every layer once forward and backward on CUDA, for compute-sanitizer: no test runner, no memory pool, few sizes.

    compute-sanitizer --tool memcheck python tests/gpu/sanitize.py

Each array is an allocation of its own, so that an access beyond one is seen. Results are compared with the references.
"""

from __future__ import annotations

import importlib
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from llmc2py.runtime import Tensor
from llmc2py.runtime.dtypes import PRECISIONS

ROWS = (1, 5, 16)
WIDTHS = (1, 33, 768, 1600)


def run(package: str) -> int:
    """Run all layers of a package; return how many results are far from the reference."""
    import cupy

    cupy.cuda.set_allocator(None)
    layers = importlib.import_module(f"{package}.layers")
    references = importlib.import_module(f"{package}.references").REFERENCES
    random = np.random.default_rng(0)
    wrong = 0
    for name in layers.__all__:
        make = getattr(layers, name)
        spec = make.spec
        for precision in spec.dtypes:
            for rows in ROWS:
                for width in WIDTHS:
                    wrong += not agrees(cupy, make, spec, references[spec.name], precision, (rows, width), random)
    print(f"{package}: {wrong} results differ")
    return wrong


def agrees(cupy, make, spec, reference, precision, shape, random) -> bool:
    """Whether one forward and backward pass is near the float64 reference (a coarse look: `verify` does it finely)."""
    dtype = PRECISIONS[precision]
    layer = make(shape[-1]) if spec.parameters else make()
    inputs = [Tensor(cupy.asarray(random.normal(1, 2, shape).astype(dtype))) for _ in spec.inputs]
    results = layer(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    gradient = random.normal(size=shape).astype(dtype)
    results[-1].backward(cupy.asarray(gradient))
    values = {
        key: value.data.get().astype(np.float64)
        for key, value in zip([*spec.inputs, *spec.parameters], [*inputs, *layer.parameters()], strict=True)
    }
    expected = reference.forward(**values)
    worst = max(
        float(np.abs(result.data.get().astype(np.float64) - value).max())
        for result, value in zip(results, expected.values(), strict=True)
    )
    finite = all(bool(np.isfinite(one.grad.get().astype(np.float64)).all()) for one in (*inputs, *layer.parameters()))
    return worst <= 64 * float(np.finfo(np.float32).eps if dtype == np.float32 else 2.0**-8) and finite


if __name__ == "__main__":
    sys.exit(1 if sum(run(package) for package in (sys.argv[1:] or ["generated"])) else 0)
