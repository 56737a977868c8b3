"""Launchers: host functions that compute launch configurations, as Python functions that record plans."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from llmc2py.runtime.callsite import CallSite
from llmc2py.runtime.params import Param, TemplateParam, template_values


class Launcher(CallSite):
    """A launcher, called with arrays and scalars by position or name.

    Its function ``function(plan, *arguments)`` runs once per set of sizes and is given `Pointer` objects for arrays.
    Arrays that do not lie as a kernel needs them (strided, or not aligned) are copied, and copied back where they are
    written.
    """

    def __init__(
        self,
        function: Callable[..., None],
        params: Sequence[Param],
        *,
        origin: str | None = None,
        template: Sequence[TemplateParam] = (),
        given: Sequence[Any] = (),
    ) -> None:
        functools.update_wrapper(self, function)
        super().__init__(function.__name__, origin, params, template, function, given=given)
        self._signature = self.__signature__ = self._checked_signature()
        self._instances: dict[tuple[Any, ...], Launcher] = {}

    def __repr__(self) -> str:
        return f"<Launcher {self.name}{self.signature} of {self.origin}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle by the name in the module: what calls have prepared is of this process."""
        return (_instance, (self.__module__, self.name, self._given)) if self._given else self.name

    def __getitem__(self, template: Any) -> Launcher:
        """Return the launcher with template arguments: ``launcher[numpy.float32, 8]``."""
        return self.instantiate(*(template if isinstance(template, tuple) else (template,)))

    @property
    def signature(self) -> inspect.Signature:
        """The parameters of a call, with their C types."""
        return self._signature

    def instantiate(self, *template: Any) -> Launcher:
        """Return the launcher with these template arguments. Raises TypeError for ones that the template has not."""
        values = template_values(self.name, self.template, template)
        if values not in self._instances:
            self._instances[values] = Launcher(
                self.function, self.params, origin=self.origin, template=self.template, given=values
            )
        return self._instances[values]

    def _checked_signature(self) -> inspect.Signature:
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        if [p.name for p in parameters] != [p.name for p in self.params]:
            raise TypeError(
                f"{self.name}: the function takes {[p.name for p in parameters]}, "
                f"the declaration says {[p.name for p in self.params]}"
            )
        typed = [p.replace(annotation=c.ctype) for p, c in zip(parameters, self.params, strict=True)]
        return inspect.Signature(typed)


def _instance(module: str, name: str, template: Sequence[Any]) -> Launcher:
    """Return a launcher of a module with template arguments."""
    found: Launcher = getattr(importlib.import_module(module), name)
    return found.instantiate(*template)


def launcher(
    params: Sequence[Param], *, origin: str | None = None, template: Sequence[TemplateParam] = ()
) -> Callable[[Callable[..., None]], Launcher]:
    """Make a launcher of a function ``f(plan, *params)`` (decorator). Raises TypeError where the names differ."""
    return lambda function: Launcher(function, params, origin=origin, template=template)
