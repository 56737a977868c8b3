"""Names of the source as Python can use them."""

from __future__ import annotations

import keyword

from llmc2py.ir.blas import PRODUCT_CALLS

#: Names that generated modules import; what the source calls so gets an underscore.
RUNTIME_NAMES = frozenset(
    {
        "ceil_div", "idiv", "imod", "wrap", "c_cast", "elementwise", "launcher", "math", "LtMatmulDesc",
        "LtMatrixLayout", *(call.function for call in PRODUCT_CALLS.values()),
    }
)  # fmt: skip
#: Functions and dtypes of the runtime that a layer's passes use under these names.
OP_NAMES = frozenset(
    {
        "accumulator", "as_float32", "as_type", "assign", "bfloat16", "boolean", "cast", "clear", "contiguous",
        "copy", "cropped", "crossentropy_gradient", "cudnn", "device_of", "dtype", "empty", "empty_like", "fitted",
        "float16", "float32", "int32", "lead", "length", "mend_losses", "next_seed", "ones", "own", "part", "put",
        "require", "rows", "scale", "softmax_gradient", "softmax_of", "take", "take_indices", "take_like", "vector",
        "writable", "zeros", "zeros_like",
    }
)  # fmt: skip
#: Modules that a package may have beside those of sources and ops.
PACKAGE_MODULES = frozenset({"__init__", "layers", "optim", "references", "torch_layers", "tricycle_layers"})
#: What these modules define, import or take from Python.
PACKAGE_NAMES = frozenset(
    {
        "CHECKS", "CReference", "Check", "GeneratedLayer", "Layer", "Module", "ONE_PRODUCT", "OpSpec", "Operator",
        "Parameter", "REFERENCES", "Reference", "Replacement", "Stored", "VARIANTS", "ValueError", "Variant",
        "annotations", "call", "check_made", "classmethod", "dict", "len", "nn", "normal", "np", "parameter",
        "scaled_loss", "staticmethod", "str", "super", "tricycle", "tuple", "unchanged",
    }
)  # fmt: skip
#: Arguments of generated functions and constructors beside those that an entry names.
ARGUMENT_NAMES = frozenset({"ctx", "device", "dtype", "lead", "like", "self", "starts_alone", "stored", "N"})
#: Attributes of the runtime's Context, on which a function keeps values for its backward pass.
CONTEXT_NAMES = frozenset(
    {"saved", "save", "accumulator", "needs_grad", "starts_alone", "lead", "dtype", "N"}
)  # fmt: skip
#: Attributes of the runtime's layers and of PyTorch's modules.
LAYER_NAMES = frozenset(
    {
        "add_module", "apply", "bfloat16", "buffers", "call_super_init", "children", "compile", "cpu", "cuda", "double",
        "dump_patches", "eval", "extra_repr", "float", "forward", "get_buffer", "get_extra_state", "get_parameter",
        "get_submodule", "half", "ipu", "load_state_dict", "modules", "mtia", "named_buffers", "named_children",
        "named_modules", "named_parameters", "parameters", "register_backward_hook", "register_buffer",
        "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
        "register_full_backward_pre_hook", "register_load_state_dict_post_hook", "register_load_state_dict_pre_hook",
        "register_module", "register_parameter", "register_state_dict_post_hook", "register_state_dict_pre_hook",
        "requires_grad_", "set_extra_state", "set_submodule", "share_memory", "spec", "state_dict", "to", "to_empty",
        "train", "training", "type", "xpu", "zero_grad",
    }
)  # fmt: skip
_LOCAL = RUNTIME_NAMES | {"plan", "min", "max", "range"}
_GLOBAL = _LOCAL | {
    "Any", "Array", "Context", "DTYPES", "Function", "Kernel", "KernelSource", "Launcher", "Param", "Plan", "Pointer",
    "SOURCE", "TemplateParam", "Tensor", "bool", "float", "int", "replacements",
}  # fmt: skip


def is_name(value: object) -> bool:
    """Whether a value is a name that a person may give: no keyword, and not one of Python's own (``__x__``)."""
    if not isinstance(value, str) or not value.isidentifier() or value.startswith("__"):
        return False
    return not (keyword.iskeyword(value) or keyword.issoftkeyword(value))


def python_name(name: str) -> str:
    """Return the name of a C variable as Python can use it."""
    return f"{name}_" if keyword.iskeyword(name) or name in _LOCAL else name


def is_taken(name: str) -> bool:
    """Whether modules of a package use a name themselves, so that nothing of an entry can have it."""
    return is_reserved(name) or name in OP_NAMES | PACKAGE_MODULES | PACKAGE_NAMES


def is_reserved(name: str) -> bool:
    """Whether a generated module cannot define this name: Python or the module itself needs it."""
    return keyword.iskeyword(name) or name in _GLOBAL
