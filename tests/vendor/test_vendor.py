"""The vendored kernels: every file holds the functions that its callers expect, and compiles in each precision."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2] / "vendor" / "llm.c"

CONTENTS = {
    "llmc/cuda_common.h": "cudaCheck_ cudaFreeCheck NvtxRange device_to_file file_to_device",
    "llmc/cuda_utils.cuh": (
        "load128 load128cs store128 store128cs store128cg sizeof_dtype dtype_of cast_value copy_and_cast_kernel "
        "warpReduceSum warpReduceMax blockReduce global_sum_single_block_kernel global_sum_deterministic "
        "cudaMallocConditionallyManaged SquirrelNoise5 Get2dNoiseUint stochastic_rounding"
    ),
    "llmc/gelu.cuh": "gelu_forward_kernel2 gelu_backward_inplace_kernel gelu_forward gelu_backward_inplace",
    "llmc/layernorm.cuh": (
        "layernorm_forward_kernel3 layernorm_forward_kernel6 fused_residual_forward_kernel5 residual_forward_kernel "
        "layernorm_backward_kernel10 layernorm_forward residual_forward fused_residual_forward5 layernorm_backward"
    ),
    "llmc/encoder.cuh": (
        "encoder_forward_kernel3 wte_backward_kernel wpe_backward_kernel encoder_forward encoder_backward"
    ),
    "llmc/cublas_common.h": "cublasCheck",
    "llmc/matmul.cuh": (
        "matmul_backward_bias_kernel9 reduce_add_sum_kernel matmul_cublaslt matmul_forward_cublaslt matmul_backward"
    ),
    "llmc/attention.cuh": (
        "permute_kernel permute_kernel_backward unpermute_kernel unpermute_kernel_backward softmax_forward_kernel5 "
        "softmax_autoregressive_backward_inplace_kernel attention_forward attention_backward"
    ),
    "llmc/fused_classifier.cuh": "prepare_softmax_blockwide3 fused_classifier_kernel5 fused_classifier",
    "llmc/adamw.cuh": "lerp adamw_update adamw_kernel3 init_from_master_kernel init_from_master",
    "llmc/global_norm.cuh": (
        "global_norm_squared_for_range global_norm_squared_kernel global_norm_aggregate_kernel get_max_num_block_sums "
        "global_norm_squared"
    ),
    "dev/cuda/common.h": (
        "ceil_div warpReduceSum blockReduce cuda_check load128 load128cs store128 store128cs store128cg "
        "make_random_float_01 make_random_float make_random_int make_zeros_float make_ones_float memcpy_convert "
        "setup_main validate_result benchmark_kernel"
    ),
    "dev/cuda/gelu_forward.cu": (
        "gelu_forward_cpu gelu_forward_kernel1 gelu_forward_kernel2 gelu_forward1 gelu_forward2 gelu_forward main"
    ),
    "dev/cuda/gelu_backward.cu": "gelu_backward_cpu gelu_backward1 gelu_backward2 gelu_backward main",
    "dev/cuda/residual_forward.cu": (
        "residual_forward_cpu residual_forward_kernel1 residual_forward_kernel2 residual_forward1 residual_forward2 "
        "residual_forward main"
    ),
    "dev/cuda/layernorm_forward.cu": " ".join(
        ["layernorm_forward_cpu", "mean_kernel", "rstd_kernel", "normalization_kernel", "layernorm_forward", "main"]
        + [f"layernorm_forward_kernel{n}" for n in (1, 3, 4, 5, 6)]
        + [f"layernorm_forward{n}" for n in range(1, 7)]
    ),
    "dev/cuda/layernorm_backward.cu": " ".join(
        ["layernorm_forward_cpu", "layernorm_backward_cpu", "atomicAddX", "copy_to_dweight_dbias"]
        + ["layernorm_backward", "main"]
        + [f"layernorm_backward_kernel{n}" for n in range(1, 11)]
        + [f"layernorm_backward{n}" for n in range(1, 11)]
    ),
    "dev/cuda/permute.cu": "permute_cpu permute_kernel main",
    "dev/cuda/softmax_forward.cu": " ".join(
        ["softmax_forward_cpu", "softmax_forward_online_cpu", "reduce_sum_max_op", "softmax_forward", "main"]
        + [f"softmax_forward_kernel{n}" for n in (1, 2, 3, 4, 7)]
        + [f"softmax_forward{n}" for n in (1, 2, 3, 4, 7)]
        + [f"softmax_forward_online_kernel{n}" for n in (1, 2, 8)]
        + [f"softmax_forward_online{n}" for n in (1, 2, 8)]
    ),
    "dev/cuda/attention_backward.cu": " ".join(
        ["attention_forward_cpu", "attention_backward_cpu", "permute_kernel", "permute_kernel_backward"]
        + ["unpermute_kernel", "unpermute_kernel_backward", "vec_at", "softmax_forward_kernel5", "dispatch_launch"]
        + ["attention_forward", "attention_backward1", "attention_backward", "main"]
        + [f"softmax_autoregressive_backward_kernel{n}" for n in range(1, 9)]
        + [f"launch_softmax_{n}" for n in range(1, 9)]
    ),
    "dev/cuda/attention_forward.cu": (
        "attention_forward_cpu attention_query_key_kernel1 attention_softmax_kernel1 softmax_forward_kernel4 vec_at "
        "softmax_forward_kernel5 attention_value_kernel1 attention_forward_kernel2 permute_kernel unpermute_kernel "
        "scale_kernel attention_forward_fused1 attention_forward1 attention_forward2 attention_forward3 "
        "attention_forward4 softmax_forward_kernel5_lowp permute_kernel_lowp unpermute_kernel_lowp attention_forward5 "
        "fp32_to_lowp_kernel lowp_to_fp32_kernel attention_forward main"
    ),
    "dev/cuda/trimat_forward.cu": (
        "trimul_cpu permute_kernel trimul_cublas trimul_global trimul_launcher matmul_tri_naive matmul_tri_registers "
        "ld_vec st_vec matmul_tri3 matmul_tri4 trimul_gpu main"
    ),
    "dev/cuda/fused_residual_forward.cu": " ".join(
        ["residual_forward_cpu", "layernorm_forward_cpu", "residual_forward_kernel1", "layernorm_forward_kernel1"]
        + [f"fused_residual_forward_kernel{n}" for n in (4, 5, 6)]
        + [f"fused_residual_forward{n}" for n in range(1, 7)]
        + ["fused_residual_forward", "main"]
    ),
    "dev/cuda/crossentropy_forward.cu": (
        "crossentropy_forward_cpu crossentropy_forward_kernel1 crossentropy_forward1 crossentropy_forward main"
    ),
    "dev/cuda/crossentropy_softmax_backward.cu": (
        "crossentropy_softmax_backward_cpu crossentropy_softmax_backward_kernel1 crossentropy_softmax_backward1 "
        "crossentropy_softmax_backward main"
    ),
    "dev/cuda/encoder_forward.cu": (
        "encoder_forward_cpu encoder_forward_kernel1 encoder_forward_kernel2 encoder_forward_kernel3 encoder_forward1 "
        "encoder_forward2 encoder_forward3 encoder_forward main"
    ),
    "dev/cuda/encoder_backward.cu": (
        "encoder_backward_cpu encoder_backward_kernel1 encoder_backward_kernel2 encoder_backward1 encoder_backward2 "
        "encoder_backward main"
    ),
    "dev/cuda/adamw.cu": ("adamw_cpu lerp adamw_kernel1 adamw_kernel2 adamw_dispatch1 adamw_dispatch2 adamw main"),
    "dev/cuda/global_norm.cu": " ".join(
        ["global_norm_cpu", "global_norm_aggregate_kernel", "global_norm", "main"]
        + [f"norm_kernel{n}" for n in range(1, 5)]
        + [f"global_norm{n}" for n in range(1, 5)]
    ),
    "dev/cuda/matmul_forward.cu": (
        "matmul_forward_cpu matmul_forward_kernel1 add_bias ld_vec st_vec matmul_forward_kernel4 matmul_forward1 "
        "matmul_forward2 matmul_forward3 matmul_forward4 matmul_forward main"
    ),
    "dev/cuda/matmul_backward.cu": (
        "matmul_backward_cpu matmul_backward_bias_kernel_naive matmul_backward_bias_kernel_faster matmul_backward1 "
        "matmul_backward main"
    ),
    "dev/cuda/classifier_fused.cu": " ".join(
        ["softmax_forward_cpu", "crossentropy_forward_cpu", "crossentropy_softmax_backward_cpu", "vec_at"]
        + [f"prepare_softmax{suffix}" for suffix in ("", *(f"_blockwide{n}" for n in ("", "_nofloat4", "2", "3")))]
        + [f"fused_classifier_kernel{n}" for n in range(1, 6)]
        + [f"fused_classifier{n}" for n in range(1, 6)]
        + ["fused_classifier", "main"]
    ),
    "dev/cuda/matmul_backward_bias.cu": " ".join(
        ["isPowerOfTwo", "largestPowerOfTwoLessOrEqual", "matmul_backward_bias_cpu", "cast_and_add_kernel"]
        + [f"matmul_backward_bias_kernel{n}" for n in (1, 2, 3, 4, 5, 7, 8, 9)]
        + ["reduce_add_sum_kernel"]
        + [f"matmul_backward_bias{n}" for n in (1, 2, 3, 4, 5, 7, 8, 9)]
        + ["matmul_backward_bias", "main"]
    ),
    "train_gpt2.c": " ".join(
        f"{op}_{way}"
        for op in ("encoder", "layernorm", "matmul", "attention", "gelu", "residual")
        for way in ("forward", "backward")
    )
    + " matmul_forward_naive softmax_forward crossentropy_forward crossentropy_softmax_backward",
}


def defined_functions(text: str) -> set[str]:
    """Names that are followed by a parameter list and a body, or a constructor's initialisers."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    code = re.sub(r"__launch_bounds__\([^)]*\)", "", code)
    return set(re.findall(r"\b(\w+)\([^();{}]*(?:\([^();{}]*\)[^();{}]*)*\)\s*[:{]", code))


@pytest.mark.parametrize("path", CONTENTS)
def test_file_defines_its_functions(path: str) -> None:
    missing = set(CONTENTS[path].split()) - defined_functions((TREE / path).read_text())
    assert not missing


def test_table_lists_every_kernel() -> None:
    unlisted = []
    for path, names in CONTENTS.items():
        text = re.sub(r"__launch_bounds__\([^)]*\)", "", (TREE / path).read_text())
        kernels = re.findall(r"__global__\s+void\s+(\w+)\(", text)
        unlisted += [f"{path}: {kernel}" for kernel in kernels if kernel not in names.split()]
    # A kernel of ours beside those of the interface: the fallback for rows that shared memory cannot hold.
    assert unlisted == ["llmc/layernorm.cuh: residual_rows_kernel"]


def test_readme_says_what_is_ours() -> None:
    readme = (TREE / "README.md").read_text()
    assert "not a copy of karpathy/llm.c" in readme
    assert "f1e2ace" in readme


def test_references_are_plain_c() -> None:
    for path in CONTENTS:
        text = (TREE / path).read_text()
        for body in re.findall(r"^void \w+_cpu\(.*?^}", text, flags=re.S | re.M):
            assert not re.search(r"\b(auto|nullptr|template|std::|const int \w+ =.*\bauto\b|static_cast)\b|//", body), (
                path
            )


#: Headers that need no cuBLAS, and what instantiates their templates.
PLAIN_HEADERS = """
#include "llmc/gelu.cuh"
#include "llmc/layernorm.cuh"
#include "llmc/encoder.cuh"
#include "llmc/fused_classifier.cuh"
#include "llmc/adamw.cuh"
#include "llmc/global_norm.cuh"
cudaDeviceProp deviceProp;
void use(floatX* x, float* f, int* i, cudaStream_t stream) {
    fused_classifier(x, f, 1.0f, i, 1, 1, 1, 1, std::bool_constant<true>{}, stream);
    fused_classifier(x, f, 1.0f, i, 1, 1, 1, 1, std::bool_constant<false>{}, stream);
    fused_classifier_kernel5<true, true><<<1, 32>>>(x, f, x, 1.0f, i, 1, 1, 1, 1, std::bool_constant<true>{});
    adamw_update(x, f, x, f, f, 1, 1, 1, 1, 1, 0.1f, 0.9f, 0.9f, 1, 1e-8f, 0.1f, 1.0f, 1u, stream);
    init_from_master(x, f, 1, 1, 1, 1, 1u, stream);
    global_norm_squared(f, x, 1, 1, 1, get_max_num_block_sums(i, 1), true, stream);
}
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize("precision", ["FP32", "FP16", "BF16"])
def test_headers_compile(tmp_path: Path, precision: str) -> None:
    unit = tmp_path / "headers.cu"
    unit.write_text(PLAIN_HEADERS)
    compile_unit(unit, f"-DENABLE_{precision}", f"-I{TREE}")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize("precision", ["FP32", "FP16", "BF16"])
def test_headers_with_cublas_compile(tmp_path: Path, precision: str) -> None:
    unit = tmp_path / "headers.cu"
    unit.write_text('#include "llmc/attention.cuh"\ncudaDeviceProp deviceProp;\n')
    compile_unit(unit, f"-DENABLE_{precision}", f"-I{TREE}", cublas_include(tmp_path))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize("path", [path for path in CONTENTS if path.endswith(".cu")])
def test_program_compiles(path: str, tmp_path: Path) -> None:
    compile_unit(TREE / path, *cublas_options(TREE / path, tmp_path))


def cublas_options(program: Path, links: Path) -> list[str]:
    """Where the headers of cuBLAS are, for a program that includes them."""
    return [cublas_include(links)] if "#define WITH_CUBLAS" in program.read_text() else []


def cublas_include(links: Path) -> str:
    """Where the headers of cuBLAS are, linked into a folder of their own; without them the test is skipped."""
    spec = importlib.util.find_spec("nvidia")
    installed = [
        folder
        for root in (spec.submodule_search_locations or () if spec else ())
        for folder in Path(root).glob("*/include")
    ]
    toolkits = [Path(shutil.which("nvcc") or "").resolve().parents[1] / "include", Path("/usr/local/cuda/include")]
    for folder in [*toolkits, *installed]:
        if (folder / "cublas_v2.h").exists():
            # These alone: the other headers beside them may be of another version than the compiler.
            for header in folder.glob("cublas*.h"):
                (links / header.name).symlink_to(header)
            return f"-I{links}"
    pytest.skip("the headers of cuBLAS are not there")


def compile_unit(unit: Path, *options: str) -> None:
    """Compile to PTX, which reads host and device code alike and takes half the time of an object file."""
    command = ["nvcc", "-std=c++17", "-arch=sm_90", *options, "-ptx", str(unit), "-o", "/dev/null"]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    assert "warning" not in outcome.stderr
