"""Nothing that a source tree says can run when its package is imported, or end up as other code in it."""

from __future__ import annotations

import ast
import itertools

import pytest

from llmc2py.pipeline import generate

SOURCE = r"""
__global__ void k(float* o, int n) { o[0] = n; }
int many(int n) { if (n > 3) { return 4; } return n; }
void run(float* o, int n) {
    assert(n > 0 && "\"\"\" {{ 7 * 7 }} {% raw %} \\ \n end\\");
    assert(n > 1 && "'); import os; ('");
    k<<<many(n), 32>>>(o, n);
}
"""
NAMES = (
    'three"""quotes', "back\\slash", "{{ 7 * 7 }}", "{% raw %}", "tick`s", "'''", 'end"', "a#b", "import os", "1",
    "class", "layers", "references", "__init__", "ünïcode", "a.b", "--", "*",
)  # fmt: skip


def strings(tree: ast.AST) -> list[str]:
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def shape(text: str) -> list[str]:
    """Return the kinds of nodes of a module: what it does, whatever its strings and names are."""
    return [type(node).__name__ for node in ast.walk(ast.parse(text))]


def test_names_of_files_stay_names(tmp_path):
    for name in NAMES:
        (tmp_path / f"{name}.cu").write_text(SOURCE)
    (tmp_path / "plain.cu").write_text(SOURCE)
    made = generate(tmp_path)
    assert made.diagnostics == ()
    modules = {module.source: made.files[f"{module.path}.py"] for module in made.plan.modules}
    assert len(modules) == len(NAMES) + 1
    wanted = shape(modules["plain.cu"])
    for source, text in modules.items():
        assert shape(text) == wanted, source
        assert f"{source}:2" in strings(ast.parse(text)), source
    for path, text in made.files.items():
        if path.endswith(".cu"):
            assert text.splitlines()[0].startswith("// Slices of ")
            assert text.splitlines()[1].startswith('#line 2 "')
            assert text.splitlines()[2].startswith("__global__")


def test_a_name_with_a_line_break_is_refused(tmp_path):
    (tmp_path / "a\nimport os.cu").write_text(SOURCE)
    (tmp_path / "plain.cu").write_text(SOURCE)
    made = generate(tmp_path)
    assert [module.source for module in made.plan.modules] == ["plain.cu"]
    assert ["control characters" in str(one) for one in made.diagnostics] == [True]


@pytest.mark.parametrize("text", ["".join(p) for p in itertools.product(['\\"', "'", "\\\\", "\\n", "{{"], repeat=2)])
def test_texts_of_asserts_stay_strings(tmp_path, text):
    (tmp_path / "k.cu").write_text(SOURCE.replace("'); import os; ('", text))
    module = ast.parse(generate(tmp_path).files["k.py"])
    function = next(node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "run")
    assert [type(node).__name__ for node in function.body] == ["Expr", "Expr", "Expr", "Expr"]


def test_keywords_and_runtime_names_can_be_names_in_the_source(tmp_path):
    names = ("lambda", "def", "None", "Kernel", "SOURCE", "launcher", "wrap", "min", "plan", "Param")
    kernels = "".join(f"__global__ void {name}(float* {name}, int in) {{ {name}[0] = in; }}\n" for name in names)
    launches = "".join(f"    {name}<<<u - v, 32>>>(o, u);\n" for name in names)
    text = f"{kernels}void go(float* o, unsigned u, unsigned v) {{\n{launches}}}\n"
    (tmp_path / "k.cu").write_text(text)
    made = generate(tmp_path)
    assert made.plan.not_lowered == ()
    namespace = {"__name__": "k", "__file__": str(tmp_path / "k.py")}
    exec(compile(made.files["k.py"], "k.py", "exec"), namespace)
    kernels_made = [value for value in namespace.values() if type(value).__name__ == "Kernel"]
    assert sorted(kernel.name for kernel in kernels_made) == sorted(names)
    assert namespace["go"].__name__ == "go"


HOSTILE = (
    r'\"\"\"\nimport os\nos.system(1)\n\"\"\"', "{{ cycler.__init__.__globals__ }}", "{% for x in 1 %}", "{# gone #}",
    r"\\", r"\x00\ud800", "# type: ignore", "'''", "%s {0} $x",
)  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_comments_strings_and_directives_stay_out_of_the_code(tmp_path, text):
    source = (
        f"// {text}\n/* {text} */\n"
        f'#define MESSAGE "{text}"\n#line 7 "{text}"\n'
        f'__global__ void k(float* o, int n) {{ const char* s = "{text}"; o[0] = n; }}  // {text}\n'
        f'void run(float* o, int n, const char* s = "{text}") {{\n'
        f'    assert(n > 0 && MESSAGE); puts("{text}"); k<<<n, 32>>>(o, n);\n}}\n'
        f"void k_cpu(float* o, int n) {{ o[0] = n; /* {text} */ }}\n"
    )
    packages = []
    for name, words in (("plain", "words"), ("hostile", text)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "k.cu").write_text(source.replace(text, words))
        packages.append(generate(tmp_path / name).files)
    plain, hostile = packages
    assert hostile.keys() == plain.keys()
    for name in hostile:
        if name.endswith(".py"):
            assert shape(hostile[name]) == shape(plain[name]), name


ODD_NAMES = ("k{{7*7}}", "k;import os", 'k"""', r"k\u0022", "k$", "k`", "ünïcode", "k\u202e", "__class__", "k\u00a0")


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_of_kernels_and_parameters_stay_names_or_cost_the_kernel(tmp_path, name):
    (tmp_path / "good.cu").write_text(SOURCE)
    (tmp_path / "k.cu").write_text(
        f"__global__ void {name}(float* o) {{ o[0] = 1; }}\n__global__ void other(float* {name}) {{ }}\n"
        f"void run_{name}(float* {name}) {{ {name}<<<1, 32>>>({name}); }}\n",
        encoding="utf-8",
    )
    made = generate(tmp_path)
    good = ast.parse(made.files["good.py"])
    assert "run" in {node.name for node in ast.walk(good) if isinstance(node, ast.FunctionDef)}
    for path, text in made.files.items():
        if path.endswith(".py"):
            imported = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import)]
            assert all(alias.name != "os" for node in imported for alias in node.names)
