"""Every folder here is a case: CUDA sources, and beside them what the generator must make of them.

``kernels.txt`` is what was read, ``messages.txt`` what was said, ``plan*.py`` and ``slices*.cu`` are the emitted files.
``pytest tests/golden --update-golden`` writes what is missing or differs, and fails: read the change, then run again.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from llmc2py.emit.writer import write_package
from llmc2py.ir.library import Library, Parameter, TemplateParameter
from llmc2py.pipeline import Generated, generate
from llmc2py.runtime.errors import ToolMissingError
from llmc2py.verify.compile_check import compile_check

HERE = pathlib.Path(__file__).parent
CASES = sorted(path.name for path in HERE.iterdir() if any(path.glob("*.cu")))
EXPECTED = ("kernels.txt", "messages.txt")


def source_of(case: str, folder: pathlib.Path) -> pathlib.Path:
    """Copy the inputs of a case, and nothing that is expected of it, to a folder."""
    root = folder / "source"
    for path in (HERE / case).rglob("*"):
        name = path.relative_to(HERE / case)
        if path.is_file() and not is_expected(name):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(path.read_bytes())
    return root


def is_expected(name: pathlib.PurePath) -> bool:
    is_emitted = name.name.startswith(("plan", "slices")) and name.suffix in (".py", ".cu")
    return name.as_posix() in EXPECTED or is_emitted or "__pycache__" in name.parts


def expectations(made: Generated) -> dict[str, str]:
    """Return the expected files: emitted modules under the names ``plan`` and ``slices``, and the two dumps."""
    found = {"kernels.txt": kernels_text(made.library), "messages.txt": messages_text(made)}
    for module in made.plan.modules:
        suffix = "" if module.path == "input" else f"_{module.path.replace('/', '_')}"
        found[f"plan{suffix}.py"] = made.files[f"{module.path}.py"]
        if module.kernels:
            found[f"slices{suffix}.cu"] = made.files[f"{module.path}.cu"]
    return found


# --- readable dumps


def kernels_text(library: Library) -> str:
    lines: list[str] = []
    for file in library.files:
        lines.append(f"file {file.path}")
        for kernel in file.kernels:
            lines.append(f"  kernel {kernel.name}{template_text(kernel.template)} at {kernel.span}")
            lines += [f"    {parameter_text(one)}" for one in kernel.parameters]
            lines.append(f"    precisions {', '.join(kernel.precisions)}")
            lines += [f"    if {condition}" for condition in kernel.conditions]
            lines += [f"    launch bounds {', '.join(kernel.launch_bounds)}"] if kernel.launch_bounds else []
            lines.append("    slice " + (", ".join(item_names(kernel.slice)) if kernel.slice else "none"))
        for launcher in file.launchers:
            lines.append(f"  launcher {launcher.name}{template_text(launcher.template)} at {launcher.span}")
            lines += [f"    {parameter_text(one)}" for one in launcher.parameters]
            lines.append(f"    launches {launcher.launch_sites}, returns {launcher.returns}")
        for reference in file.references:
            parameters = ", ".join(f"{ctype} {name}" for name, ctype in reference.parameters)
            lines.append(f"  reference {reference.name}({parameters}) at {reference.span}")
    return "\n".join(lines) + "\n"


def template_text(parameters: tuple[TemplateParameter, ...]) -> str:
    shown = ", ".join(f"{one.kind} {one.name}{f' = {one.default}' if one.default else ''}" for one in parameters)
    return f"<{shown}>" if parameters else ""


def parameter_text(parameter: Parameter) -> str:
    parts = [f"{parameter.type} {parameter.name}"]
    parts += [f"= {parameter.default}"] if parameter.default is not None else []
    parts += [str(parameter.intent)] if parameter.intent is not None else []
    parts += [f"align {parameter.alignment}"] if parameter.alignment else []
    parts += ["nullable"] if parameter.nullable else []
    return " ".join(parts)


def item_names(part: Any) -> list[str]:
    return ["/".join(sorted(item.defines)) or item.kind for item in part.items]


def messages_text(made: Generated) -> str:
    lines = [str(diagnostic) for diagnostic in made.diagnostics]
    lines += [f"{one.span}: not lowered: {one.launcher.name}: {one.reason}" for one in made.plan.not_lowered]
    return "".join(f"{line}\n" for line in lines)


# --- the tests


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_case(case: str, tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> None:
    made = expectations(generate(source_of(case, tmp_path)))
    present = {path.name: path for path in (HERE / case).iterdir() if is_expected(pathlib.PurePath(path.name))}
    present.pop("__pycache__", None)
    differing = [name for name, text in made.items() if name not in present or present[name].read_text() != text]
    stale = sorted(present.keys() - made.keys())
    if request.config.getoption("update_golden", default=False):
        if os.environ.get("CI", "").lower() in ("true", "1"):
            pytest.fail("--update-golden is for the person who reads the change; CI compares")
        for name in differing:
            (HERE / case / name).write_text(made[name])
        for name in stale:
            present[name].unlink()
        assert not differing, f"{case}: written {', '.join(differing)}; read the change and run again"
        assert not stale, f"{case}: removed {', '.join(stale)}"
    for name in differing:
        assert name in present, f"{case}: {name} is missing; --update-golden writes it"
        assert made[name] == present[name].read_text(), f"{case}: {name}"
    assert not stale, f"{case}: no longer made: {', '.join(stale)}"


def test_emitted_modules_import_and_slices_compile(
    case: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = generate(source_of(case, tmp_path))
    write_package(tmp_path / f"golden_{case}", made.files)
    monkeypatch.syspath_prepend(str(tmp_path))
    kernels = {kernel.name: kernel for module in made.plan.modules for kernel in module.kernels}
    faulty = {one.span.origin for one in made.library.diagnostics if "cannot be parsed" in one.message}
    faulty |= {one.span.origin for one in made.library.diagnostics if " lacks " in one.message}
    built: set[tuple[str, str]] = set()
    for row in compile_check(f"golden_{case}", ("sm_90",)):
        kernel = kernels[row.kernel.split("<")[0]]
        if row.precision in kernel.precisions and kernel.span.origin not in faulty and not row.skipped:
            assert row.ok, f"{row.kernel} {row.precision} {row.target}: {row.detail}"
            built.add((kernel.name, row.target))
    sound = {name for name, kernel in kernels.items() if kernel.span.origin not in faulty}
    assert {name for name, target in built if target == "cpu"} == sound


def test_emitted_python_is_formatted(tmp_path: pathlib.Path) -> None:
    for case in CASES:
        write_package(tmp_path / case, generate(source_of(case, tmp_path / "sources" / case)).files)
    ruff = pathlib.Path(sys.executable).with_name("ruff")
    if not ruff.is_file():
        raise ToolMissingError(f"{ruff}: install the extra `test`")
    for command in (["format", "--diff"], ["check", "--select", "F"]):
        options = ["--config", str(HERE.parent.parent / "pyproject.toml"), "--no-cache"]
        done = subprocess.run(
            [ruff, *command, *options, *CASES], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_updating_fails_once_and_is_refused_in_ci(tmp_path: pathlib.Path) -> None:
    tests = tmp_path / "golden"
    (tests / "tiny").mkdir(parents=True)
    for name in ("conftest.py", "test_golden.py"):
        (tests / name).write_bytes((HERE / name).read_bytes())
    (tests / "tiny" / "input.cu").write_text("__global__ void k(float* o) { o[0] = 1; }\n")

    def run(*options: str, ci: str = "") -> int:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "test_case", *options]
        environment = {**os.environ, "CI": ci, "PYTHONPATH": str(HERE.parent.parent)}
        return subprocess.run([*command, tests], cwd=tmp_path, env=environment, capture_output=True).returncode

    assert run() == 1
    assert not (tests / "tiny" / "kernels.txt").exists()
    assert run("--update-golden", ci="true") == 1
    assert not (tests / "tiny" / "kernels.txt").exists()
    assert run("--update-golden") == 1
    assert "kernel k at input.cu:1:1" in (tests / "tiny" / "kernels.txt").read_text()
    assert run() == 0
