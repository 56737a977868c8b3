"""Descriptors of cuBLASLt, which launchers fill, and the product that they describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmc2py.runtime.gemm import (
    BIAS_GRADIENTS,
    BIASED,
    EPILOGUES,
    READING_AUX,
    STORING_AUX,
    Epilogue,
    Gemm,
    Matrix,
    compute_type_named,
    is_transposed,
)

if TYPE_CHECKING:
    from llmc2py.runtime.plan import Pointer

_EPILOGUE_PREFIX = "CUBLASLT_EPILOGUE_"


class _Attributes:
    """A descriptor: attributes by name, with the ones that there are and their values at the start."""

    prefix: str

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def set(self, attribute: str, value: Any) -> None:
        """Set an attribute by its enumerator. Raises ValueError for one that has no meaning here."""
        name = attribute.removeprefix(self.prefix)
        if name not in self.values:
            raise ValueError(f"{attribute} is not supported; there are {', '.join(self.values)}")
        self.values[name] = value


class LtMatmulDesc(_Attributes):
    """``cublasLtMatmulDesc_t``: how the product is computed, transposes, epilogue."""

    prefix = "CUBLASLT_MATMUL_DESC_"

    def __init__(self, compute_type: str, scale_type: str = "CUDA_R_32F") -> None:
        super().__init__(
            {
                "COMPUTE_TYPE": compute_type,
                "SCALE_TYPE": scale_type,
                "TRANSA": "CUBLAS_OP_N",
                "TRANSB": "CUBLAS_OP_N",
                "EPILOGUE": "CUBLASLT_EPILOGUE_DEFAULT",
                "BIAS_POINTER": None,
                "BIAS_DATA_TYPE": None,
                "BIAS_BATCH_STRIDE": 0,
                "EPILOGUE_AUX_POINTER": None,
                "EPILOGUE_AUX_LD": None,
                "EPILOGUE_AUX_DATA_TYPE": None,
                "EPILOGUE_AUX_BATCH_STRIDE": 0,
            }
        )

    def epilogue(self, d: Matrix) -> Epilogue:
        """Return the epilogue of a product with this D. Raises ValueError for one that is not known."""
        values = self.values
        name = values["EPILOGUE"].removeprefix(_EPILOGUE_PREFIX)
        if name not in EPILOGUES:
            raise ValueError(
                f"epilogue {values['EPILOGUE']} is not supported; there are {', '.join(sorted(EPILOGUES))}"
            )
        bias = aux = None
        if name in BIASED | BIAS_GRADIENTS:
            length = d.cols if name == "BGRADB" else d.rows
            dtype = values["BIAS_DATA_TYPE"] or d.dtype
            bias = Matrix(values["BIAS_POINTER"], dtype, length, 1, length, values["BIAS_BATCH_STRIDE"])
        if name in STORING_AUX | READING_AUX:
            ld = values["EPILOGUE_AUX_LD"]
            dtype = values["EPILOGUE_AUX_DATA_TYPE"] or d.dtype
            stride = values["EPILOGUE_AUX_BATCH_STRIDE"]
            aux = Matrix(values["EPILOGUE_AUX_POINTER"], dtype, d.rows, d.cols, d.rows if ld is None else ld, stride)
        return Epilogue(name, bias, aux)


class LtMatrixLayout(_Attributes):
    """``cublasLtMatrixLayout_t``: element type, rows, columns and leading dimension of a column-major matrix."""

    prefix = "CUBLASLT_MATRIX_LAYOUT_"

    def __init__(self, dtype: str, rows: int, cols: int, ld: int) -> None:
        super().__init__(
            {"TYPE": dtype, "ROWS": rows, "COLS": cols, "LD": ld, "BATCH_COUNT": 1, "STRIDED_BATCH_OFFSET": 0}
        )

    @property
    def batch_count(self) -> int:
        """How many matrices there are."""
        return int(self.values["BATCH_COUNT"])

    def matrix(self, pointer: Pointer) -> Matrix:
        """Return the matrix of this layout at a place."""
        rows, cols, ld, stride = (int(self.values[name]) for name in ("ROWS", "COLS", "LD", "STRIDED_BATCH_OFFSET"))
        return Matrix(pointer, self.values["TYPE"], rows, cols, ld, stride)


# cublasLtMatmul(handle, desc, &alpha, A, Adesc, B, Bdesc, &beta, C, Cdesc, D, Ddesc, algo, workspace, size, stream)
def lt_matmul(
    desc: LtMatmulDesc,
    alpha: float,
    a: Pointer,
    a_layout: LtMatrixLayout,
    b: Pointer,
    b_layout: LtMatrixLayout,
    beta: float,
    c: Pointer,
    c_layout: LtMatrixLayout,
    d: Pointer,
    d_layout: LtMatrixLayout,
) -> Gemm:
    """Return the product that ``cublasLtMatmul`` computes. Raises ValueError for descriptors that do not agree."""
    operands = a_layout.matrix(a), b_layout.matrix(b), c_layout.matrix(c), d_layout.matrix(d)
    counts = {layout.batch_count for layout in (a_layout, b_layout, c_layout, d_layout)}
    if len(counts) > 1:
        raise ValueError(f"the matrices of a batched product have different batch counts: {sorted(counts)}")
    transa, transb = is_transposed(desc.values["TRANSA"]), is_transposed(desc.values["TRANSB"])
    return Gemm(
        *operands, transa, transb, alpha, beta, counts.pop(),
        compute_type_named(desc.values["COMPUTE_TYPE"]), desc.epilogue(operands[3]),
    )  # fmt: skip
