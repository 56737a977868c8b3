"""Control flow of host launchers: blocks, branches, loops and switches as Python has them.

Every method stands under the C form that it lowers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmc2py.diagnostics import SourceError
from llmc2py.ir import expressions as ex
from llmc2py.ir import statements as ir
from llmc2py.ir.conditions import PRECISIONS, holds
from llmc2py.ir.library import Launcher, Scope
from llmc2py.ir.names import python_name
from llmc2py.ir.types import CType
from llmc2py.lower import control
from llmc2py.lower.environment import Environment, Variable
from llmc2py.lower.hostcalls import HostCallLowering
from llmc2py.lower.reach import called, called_in, launcher_parameters, launches
from llmc2py.lower.refusals import explained, none_of


class BlockLowering:
    """Lowers the bodies of a launcher to lines of Python; what the single statements do is a subclass's."""

    expressions: HostCallLowering

    def __init__(self, launcher: Launcher, scope: Scope, environment: Environment) -> None:
        self.launcher = launcher
        self.scope = scope
        self.environment = environment
        self.lines: list[str] = []
        self.depth = 0
        self.in_scope = False
        self.local_functions: dict[str, str] = {}
        #: Names declared under a precision condition: they are known after it, by one name in all branches.
        self.branch_names: set[str] = set()
        self._called = called(launcher) - launcher_parameters(launcher)

    # --- emitting

    def _bind(self, name: str, ctype: CType, *, is_natural: bool = False) -> str:
        """Declare a local name. One that shadows another gets a number, since Python has no block scope."""
        python = python_name(name)
        taken = {variable.name for variable in self.environment.variables.values()}
        if (self.depth or self.in_scope) and python in taken and name not in self.branch_names:
            python = next(f"{python}_{n}" for n in range(2, 100) if f"{python}_{n}" not in taken)
        if self._is_called(name):
            python = f"{python}_"
        self.environment.variables[name] = Variable(python, self.expressions.resolve(ctype), is_natural)
        return python

    def _is_called(self, name: str) -> bool:
        """Whether a local has the name of a function that is called: in Python it would hide that."""
        return name in self._called and name in self.scope.functions

    def _emit(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def _body(self, body: ir.Body) -> None:
        for statement in body:
            method: Callable[[ir.Statement], None] = getattr(self, f"_on_{type(statement).__name__.lower()}")
            method(statement)

    def _block(self, head: str, body: ir.Body) -> None:
        self._emit(head)
        before = dict(self.environment.variables)
        self.depth += 1
        count = len(self.lines)
        self._body(body)
        if len(self.lines) == count:
            self._emit("pass")
        self.depth -= 1
        self._leave(before)

    def _leave(self, before: dict[str, Variable]) -> None:
        """Forget what a block declared; what it made negative stays so."""
        inside = self.environment.variables
        self.environment.variables = {
            name: inside[name] if name in inside and inside[name].name == variable.name else variable
            for name, variable in before.items()
        }

    def _loop(self, head: ir.Body, body: ir.Body) -> None:
        """Before a loop is lowered: what it changes may be negative from the second turn on."""
        for name in control.assigned((*head, *body)):
            variable = self.environment.variables.get(name)
            if variable is not None:
                self.environment.variables[name] = replace(variable, is_natural=False)

    # --- control flow

    # { … } with declarations of its own
    def _on_block(self, statement: ir.Block) -> None:
        before = dict(self.environment.variables)
        outer, self.in_scope = self.in_scope, True
        self._body(statement.body)
        self.in_scope = outer
        self._leave(before)

    # if (c) { … } else { … }
    def _on_if(self, statement: ir.If) -> None:
        conditions, alternative = [statement.condition], statement.alternative
        self._branch("if", statement.condition, statement.consequence)
        while len(alternative) == 1 and isinstance(alternative[0], ir.If):
            conditions.append(alternative[0].condition)
            self._branch("elif", alternative[0].condition, alternative[0].consequence)
            alternative = alternative[0].alternative
        if alternative:
            self._block("else:", explained(alternative, none_of(conditions)))

    def _branch(self, keyword: str, condition: ex.Expression, body: ir.Body) -> None:
        self._block(f"{keyword} {self.expressions.text(condition)}:", explained(body, condition))

    # for (int i = a; i < b; i += c) { … }
    def _on_for(self, statement: ir.For) -> None:
        before = dict(self.environment.variables)
        self._loop((), statement.body)
        simple = self._range(statement)
        if simple is not None:
            self._block(*simple)
            self._leave(before)
            return
        outer, self.in_scope = self.in_scope, True
        self._body(statement.init)
        self.in_scope = outer
        self._loop(statement.update, statement.body)
        if any(isinstance(one, ir.Continue) for one in ir.walk(statement.body)):
            raise SourceError(statement.span, "continue in a loop that is no plain count cannot be lowered")
        condition = self.expressions.text(statement.condition) if statement.condition is not None else "True"
        self._block(f"while {condition}:", (*statement.body, *statement.update))
        self._leave(before)

    def _range(self, statement: ir.For) -> tuple[str, ir.Body] | None:
        """A loop that counts up to a bound is a ``range``, provided that its body leaves the counter alone."""
        init, condition, update = statement.init, statement.condition, statement.update
        if not (len(init) == 1 and isinstance(init[0], ir.Declare) and init[0].value is not None and len(update) == 1):
            return None
        step = update[0]
        counter = ex.Name(statement.span, init[0].name)
        if not (isinstance(condition, ex.Binary) and condition.operator == "<" and condition.left == counter):
            return None
        if not (isinstance(step, ir.Assign) and step.target == counter and step.operator == "+"):
            return None
        # C looks at the bound and the step in every turn, a range once.
        if control.assigned(statement.body) & {
            init[0].name,
            *control.names(condition.right),
            *control.names(step.value),
        }:
            return None
        start, stop = self.expressions.lower(init[0].value), self.expressions.text(condition.right)
        by = self.expressions.text(step.value)
        outer, self.in_scope = self.in_scope, True
        name = self._bind(init[0].name, init[0].type, is_natural=start.is_natural)
        self.in_scope = outer
        bounds = [start.text, stop] if start.text != "0" or by != "1" else [stop]
        return f"for {name} in range({', '.join([*bounds, *([by] if by != '1' else [])])}):", statement.body

    # while (c) { … }
    def _on_while(self, statement: ir.While) -> None:
        self._loop((), statement.body)
        self._block(f"while {self.expressions.text(statement.condition)}:", statement.body)

    # switch (n) { case 1: … break; default: exit(1); }
    def _on_switch(self, statement: ir.Switch) -> None:
        subject = self.expressions.lower(statement.subject).text
        keyword, default = "if", None
        for case in statement.cases:
            if case.is_default:
                default = case
                continue
            if not control.ends(case.body) and case is not statement.cases[-1]:
                raise SourceError(statement.span, "a case that falls through into the next one cannot be lowered")
            self._check_breaks(case)
            values = [self.expressions.text(value) for value in case.values]
            test = f"{subject} == {values[0]}" if len(values) == 1 else f"{subject} in ({', '.join(values)})"
            body = control.without_break(case.body)
            if len(body) == 1 and isinstance(body[0], ir.PrecisionBranch):
                # A case that the preprocessor takes out is none: the default is for it then.
                precision = _precision_test(body[0].condition)
                test, body = f"{test} and {precision}" if precision else test, body[0].body
            self._block(f"{keyword} {test}:", body)
            keyword = "elif"
        self._default(statement, subject, default, has_cases=keyword == "elif")

    def _default(self, statement: ir.Switch, subject: str, default: ir.Case | None, *, has_cases: bool) -> None:
        refuses = self._does_all(statement) if default is None else any(control.is_exit(one) for one in default.body)
        known = [self.expressions.text(value) for case in statement.cases for value in case.values]
        if refuses and has_cases:
            self._emit("else:")
            self.depth += 1
            name = f", {subject}={subject}" if subject.isidentifier() else ""
            self._emit(f'plan.require(False, "{subject} is one of {", ".join(known)}"{name})')
            self.depth -= 1
        elif default is not None:
            self._check_breaks(default)
            self._block("else:" if has_cases else "if True:", control.without_break(default.body))

    def _does_all(self, statement: ir.Switch) -> bool:
        """Whether all that the launcher does is in a switch: a number that has no case is a mistake then."""
        inside = {id(one) for one in ir.walk((statement,))}
        outside = [one for one in ir.walk(self.launcher.body) if id(one) not in inside]
        in_cases = all(any(self._acts(one) for one in ir.walk(case.body)) for case in statement.cases)
        return in_cases and not any(self._acts(one) for one in outside)

    def _acts(self, statement: ir.Statement) -> bool:
        """Whether a statement launches, or calls what does or what changes memory."""
        if isinstance(statement, ir.Launch):
            return True
        called = called_in(statement)
        versions = (one for name in called for one in self.scope.functions.get(name, ()))
        return any(name.startswith("cudaMem") or name in self.local_functions for name in called) or any(
            launches(one, self.scope) for one in versions
        )

    def _check_breaks(self, case: ir.Case) -> None:
        found = control.inner_break(control.without_break(case.body))
        if found is not None:
            raise SourceError(found.span, "a break in the middle of a case cannot be lowered")

    def _on_break(self, statement: ir.Break) -> None:
        self._emit("break")

    def _on_continue(self, statement: ir.Continue) -> None:
        self._emit("continue")

    # #if defined(ENABLE_BF16) … #endif
    def _on_precisionbranch(self, statement: ir.PrecisionBranch) -> None:
        chosen = [name for name in PRECISIONS if holds(statement.condition, name) is not False]
        if len(chosen) == len(PRECISIONS):
            self._body(statement.body)
        elif chosen:
            # The condition is the preprocessor's: it opens no scope.
            self.branch_names |= {one.name for one in statement.body if isinstance(one, ir.Declare)}
            before = dict(self.environment.variables)
            self._block(f"if {_precision_test(statement.condition)}:", statement.body)
            for one in statement.body:
                if isinstance(one, ir.Declare) and one.name not in before:
                    self.environment.variables[one.name] = Variable(
                        python_name(one.name), self.expressions.resolve(one.type)
                    )


def _precision_test(condition: str) -> str:
    """Return the test for a preprocessor condition, "" where it holds in every precision."""
    chosen = [name for name in PRECISIONS if holds(condition, name) is not False]
    names = ", ".join(f'"{name}"' for name in chosen)
    if len(chosen) == len(PRECISIONS):
        return ""
    return f"plan.precision == {names}" if len(chosen) == 1 else f"plan.precision in ({names})"
