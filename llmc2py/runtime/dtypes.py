"""The element types that kernels use, as NumPy dtypes, by the names that C and Python give them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

float32 = np.dtype(np.float32)
float16 = np.dtype(np.float16)
bfloat16 = np.dtype(ml_dtypes.bfloat16)
int32 = np.dtype(np.int32)
boolean = np.dtype(np.bool_)

#: The precisions that llm.c's ``floatX`` can take, by the macro that chooses each.
PRECISION_MACROS = {"float32": "ENABLE_FP32", "float16": "ENABLE_FP16", "bfloat16": "ENABLE_BF16"}

PRECISIONS = {"float32": float32, "float16": float16, "bfloat16": bfloat16}

#: Canonical C type names of scalars and of what pointers point to.
C_DTYPES: dict[str, np.dtype] = {
    "bool": np.dtype(np.bool_),
    "char": np.dtype(np.int8),
    "signed char": np.dtype(np.int8),
    "unsigned char": np.dtype(np.uint8),
    "short": np.dtype(np.int16),
    "unsigned short": np.dtype(np.uint16),
    "int": np.dtype(np.int32),
    "unsigned int": np.dtype(np.uint32),
    "long": np.dtype(np.int64),
    "unsigned long": np.dtype(np.uint64),
    "long long": np.dtype(np.int64),
    "unsigned long long": np.dtype(np.uint64),
    "float": float32,
    "double": np.dtype(np.float64),
    "half": float16,
    "bfloat16": bfloat16,
}


def c_dtype(ctype: str, precision: str) -> np.dtype:
    """Return the dtype of a canonical C type; ``floatX`` is the dtype of ``precision``.

    Raises KeyError for a type that is no element type (a struct, an unresolved template parameter).
    """
    return PRECISIONS[precision] if ctype == "floatX" else C_DTYPES[ctype]
