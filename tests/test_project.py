"""The project around the code: linters, types, layers of imports, committed output, the wheel, what documents show."""

from __future__ import annotations

import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import venv

import pytest

from llmc2py import catalog

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = pathlib.Path(sys.executable).parent
ORIGINALITY = ROOT.parent / "shared" / "originality.py"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


def run(*command: str | pathlib.Path, cwd: pathlib.Path = ROOT, **environment: str) -> str:
    """Return what a command prints; fail with it where the command fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout}"
    return done.stdout


@functools.cache
def tracked_files() -> tuple[str, ...]:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("no git checkout")
    return tuple(name for name in run("git", "ls-files").splitlines() if (ROOT / name).is_file())


# --- checks of the code


def test_ruff_finds_nothing() -> None:
    run(BIN / "ruff", "check")


def test_code_is_formatted() -> None:
    run(BIN / "ruff", "format", "--check")


def test_types_are_right() -> None:
    run(BIN / "mypy")


def test_imports_run_one_way() -> None:
    assert "0 broken" in run(BIN / "lint-imports", NO_COLOR="1")


@pytest.mark.skipif(not ORIGINALITY.is_file(), reason="originality.py is not beside this checkout")
@pytest.mark.parametrize("folder", ["vendor", "generated", "examples", "llmc2py"])
def test_nothing_is_copied_from_upstream(folder: str) -> None:
    run(sys.executable, ORIGINALITY, folder)


# --- committed output


def test_the_committed_package_is_what_generate_writes() -> None:
    run(BIN / "llmc2py", "generate", "vendor/llm.c", "--check")


def test_the_committed_example_is_what_generate_writes() -> None:
    run(BIN / "llmc2py", "generate", "examples/relu", "--check")


# --- the wheel


@pytest.fixture(scope="module")
def wheel_python(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The Python of a fresh environment that has the wheel, and what the wheel depends on from this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "dist")
    (wheel,) = (folder / "dist").glob("*.whl")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    # Lines of a .pth file are put on the path as they are: this environment's editable install stays unseen.
    here = next(entry for entry in sys.path if (pathlib.Path(entry) / "numpy").is_dir())
    (packages / "dependencies.pth").write_text(f"{here}\n")
    return python


def test_the_wheel_holds_every_file_of_the_package(wheel_python: pathlib.Path) -> None:
    (packages,) = (wheel_python.parent.parent / "lib").glob("python*/site-packages")
    tracked = [name for name in tracked_files() if name.startswith(("llmc2py/", "templates/"))]
    expected = {f"llmc2py/{name}" if name.startswith("templates/") else name for name in tracked}
    assert {"llmc2py/catalog/gelu.toml", "llmc2py/templates/module.py.j2", "llmc2py/py.typed"} <= expected
    assert "llmc2py/runtime/host/include/cuda_host.h" in expected
    assert not [name for name in sorted(expected) if not (packages / name).is_file()]


def test_the_wheel_generates_outside_the_checkout(wheel_python: pathlib.Path, tmp_path: pathlib.Path) -> None:
    where = run(wheel_python, "-c", "import llmc2py; print(llmc2py.__file__)", cwd=tmp_path)
    assert pathlib.Path(where.strip()).is_relative_to(wheel_python.parent.parent)

    source = tmp_path / "kernels"
    shutil.copytree(ROOT / "vendor" / "llm.c", source)
    run(wheel_python.parent / "llmc2py", "generate", source, "--output", tmp_path / "generated", cwd=tmp_path)
    # The checkout's own command finds nothing to change in what the wheel wrote.
    run(BIN / "llmc2py", "generate", source, "--output", tmp_path / "generated", "--check")
    assert (tmp_path / "generated" / "layers.py").is_file()


def test_the_wheel_runs_what_it_generated(wheel_python: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run(wheel_python.parent / "llmc2py", "generate", ROOT / "examples" / "relu", "--output", "own", cwd=tmp_path)
    program = (
        "import numpy, own.layers, llmc2py.runtime as r\n"
        "x = r.Tensor(numpy.array([-1, 2, 3], 'float32'))\n"
        "y = own.layers.ReLU()(x)\n"
        "y.backward(numpy.array([5, 6, 7], 'float32'))\n"
        "print(y.numpy().tolist(), x.grad.tolist())\n"
    )
    assert run(wheel_python, "-c", program, cwd=tmp_path) == "[0.0, 2.0, 3.0] [0.0, 6.0, 7.0]\n"


# --- documents


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: pathlib.Path) -> None:
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "code", document.read_text(encoding="utf-8"), flags=re.M | re.S)
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", prose)
    broken = [link for link in links if not (document.parent / link).exists()]
    assert not broken


def python_examples() -> list[object]:
    """Return the Python examples of the documents that run on NumPy arrays, one parameter each."""
    found = []
    for document in DOCUMENTS:
        blocks = re.findall(r"^```python\n(.*?)^```", document.read_text(encoding="utf-8"), re.M | re.S)
        name = document.relative_to(ROOT).as_posix()
        for number, block in enumerate(blocks, 1):
            marks = [pytest.mark.gpu] if "import cupy" in block else []
            found.append(pytest.param(block, id=f"{name}-{number}", marks=marks))
    return found


@pytest.mark.parametrize("example", python_examples())
def test_examples_of_the_documents_run(example: str, tmp_path: pathlib.Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(example, encoding="utf-8")
    run(sys.executable, "-W", "error", script, PYTHONPATH=str(ROOT))


def shown_commands() -> list[object]:
    """Return the commands of the documents' console blocks that write nothing and are quick, with what they print."""
    found = []
    for document in DOCUMENTS:
        blocks = re.findall(r"^```console\n\$ llmc2py (.*)\n((?s:.*?))^```", document.read_text(encoding="utf-8"), re.M)
        for command, output in blocks:
            if command.split()[0] in ("list", "show") or "examples/relu" in command:
                found.append(pytest.param(command, output, id=f"{document.name}: {command}"))
    return found


@pytest.mark.parametrize(("command", "output"), shown_commands())
def test_documents_show_what_commands_print(command: str, output: str) -> None:
    # What passed in an earlier run of the tests would be shown as that.
    anew = ["--again"] if command.startswith("verify") else []
    printed = run(BIN / "llmc2py", *command.split(), *anew)
    assert steady_words(printed) == steady_words(output)


def steady_words(text: str) -> list[str]:
    """Return the words of a text without what changes for no reader's sake: line numbers, sizes of errors, widths."""
    return re.sub(r":\d+|\d+\.\d+", "#", text).split()


def test_commands_of_the_documents_exist() -> None:
    known = set(re.findall(r"^  ([a-z]+) ", run(BIN / "llmc2py", "--help"), re.M))
    shown = {
        command
        for document in DOCUMENTS
        for command in re.findall(r"llmc2py (generate|list|show|verify|doctor)\b", document.read_text(encoding="utf-8"))
    }
    assert shown
    assert shown <= known


def test_every_key_of_the_catalogue_is_described() -> None:
    text = (ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8")
    missing = [key for key in sorted(catalog._KEYS) if f"`{key}`" not in text and f"`[{key}]`" not in text]
    assert not missing


def test_no_package_registry_is_named() -> None:
    hosts = re.compile(r"\bpy(pi|thonhosted)\.|\banaconda\.org")
    found = [name for name in tracked_files() if hosts.search((ROOT / name).read_text("utf-8", "replace"))]
    assert not found, "a machine has its own pip configuration"
