"""The backward pass: nodes in topological order, gradients summed where a tensor was used several times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

from llmc2py.runtime.arrays import array_module
from llmc2py.runtime.ownership import is_exclusive

if TYPE_CHECKING:
    from llmc2py.runtime.autograd import Context, Tensor

    #: Where an input came from: a leaf, an output of a node, or (None) something that needs no gradient.
    Edge: TypeAlias = Tensor | tuple[Context, int] | None


def run_backward(root: Tensor, grad: Any) -> None:
    """Go through the graph below ``root`` once and leave gradients in its leaves. Raises as `Tensor.backward`."""
    node = root.node
    if node is None:
        _store(root, [grad], 0)
        return
    incoming: list[Any] = [None] * len(node.outputs_)
    incoming[root.output] = grad
    uses = _count_uses(node)
    if not uses:
        _run_node(node, incoming, None)
        return
    sums = _Sums(uses)
    sums.ready.append((node, incoming))
    while sums.ready:
        _run_node(*sums.ready.pop(), sums)


class _Sums:
    """Gradients of the outputs of nodes that wait. A summand is never written: the first sum is a new array."""

    def __init__(self, uses: dict[Context, int]) -> None:
        self.ready: list[tuple[Context, list[Any]]] = []
        self._uses = uses
        self._grads: dict[Context, list[Any]] = {}
        self._owned: set[tuple[Context, int]] = set()

    def add(self, node: Context, output: int, grad: Any) -> None:
        grads = self._grads.get(node)
        if grads is None:
            grads = self._grads[node] = [None] * len(node.outputs_)
        present = grads[output]
        if present is None:
            grads[output] = grad
        elif (node, output) in self._owned:
            present += grad
        else:
            grads[output] = present + grad
            self._owned.add((node, output))
        self._uses[node] -= 1
        if not self._uses[node]:
            self.ready.append((node, self._grads.pop(node)))


def _count_uses(root: Context) -> dict[Context, int]:
    """Return how many gradients each node below the root waits for. Raises RuntimeError for a graph that is gone."""
    uses: dict[Context, int] = {}
    stack = [root]
    while stack:
        node = stack.pop()
        if node.edges_ is None:
            raise RuntimeError(
                f"backward: the graph through {node.function_.__name__} was freed by an earlier backward pass; "
                f"compute the output again, or add up the outputs and go back once"
            )
        for edge in node.edges_:
            if edge.__class__ is tuple:
                parent = edge[0]
                if parent in uses:
                    uses[parent] += 1
                else:
                    uses[parent] = 1
                    stack.append(parent)
    return uses


def _run_node(node: Context, incoming: list[Any], sums: _Sums | None) -> None:
    """Go back through one node and hand its gradients on; its graph and saved arrays are freed."""
    for grad in incoming:
        if grad is None:
            _fill_with_zeros(node, incoming)
            break
    grad = None
    for index in node.function_.overwrites:
        if is_exclusive(incoming, index):
            node.owned_.append(incoming[index])
    result = node.function_.backward(node, *incoming)
    node.owned_.clear()
    # A gradient that is passed on has fewer holders without these two, and may become a leaf's own.
    incoming.clear()
    grads = list(result) if result.__class__ is tuple or result.__class__ is list else [result]
    result = None
    edges = node.edges_ or []
    if len(grads) != len(edges):
        raise RuntimeError(
            f"{node.function_.__name__}.backward returned {len(grads)} gradients for {len(edges)} inputs; "
            f"return one for each, None where none is needed"
        )
    for index, edge in enumerate(edges):
        if edge is not None:
            _check_result(node, index, edge, grads[index])
    for index, edge in enumerate(edges):
        if edge.__class__ is tuple:
            parent, output = edge
            cast(_Sums, sums).add(parent, output, grads[index])
        elif edge is not None:
            _store(cast("Tensor", edge), grads, index)
    node.edges_ = None
    node.saved = ()


def _fill_with_zeros(node: Context, incoming: list[Any]) -> None:
    """Give outputs that nothing was computed from a gradient of zeros."""
    module = array_module(next(grad for grad in incoming if grad is not None))
    for index, form in enumerate(node.outputs_):
        if incoming[index] is None and form is not None:
            incoming[index] = module.zeros(*form)


def _check_result(node: Context, index: int, edge: Edge, grad: Any) -> None:
    if edge.__class__ is tuple:
        parent, output = edge
        shape, dtype = parent.outputs_[output]
    else:
        data = cast("Tensor", edge).data
        shape, dtype = data.shape, data.dtype
    if grad is None:
        name = node.function_.__name__
        raise RuntimeError(f"{name}.backward returned no gradient for input {index}, which needs one")
    if grad.shape != shape or grad.dtype != dtype:
        check_form(grad, shape, dtype, f"{node.function_.__name__}.backward, input {index}")


def check_form(grad: Any, shape: tuple[int, ...], dtype: Any, what: str) -> None:
    """Raise ValueError for a gradient of another shape, TypeError for one of another dtype."""
    if grad.shape != shape:
        raise ValueError(f"{what}: the gradient has shape {grad.shape}, its array has {shape}")
    if grad.dtype != dtype:
        raise TypeError(f"{what}: the gradient is {grad.dtype}, its array is {dtype}; convert it with `.astype`")


def _store(leaf: Tensor, grads: list[Any], index: int) -> None:
    """Add a gradient to a leaf's. What is kept is an array that nobody else has."""
    present = leaf.grad_
    if present is None:
        keeps = is_exclusive(grads, index) and grads[index].flags.c_contiguous
        leaf.grad_ = grads[index] if keeps else grads[index].copy()
    elif present is not grads[index]:
        present += grads[index]
