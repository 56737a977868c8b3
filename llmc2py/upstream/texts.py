"""What an update found and did, for people, machines and pull requests."""

from __future__ import annotations

from typing import Any

from llmc2py.drift import report
from llmc2py.upstream.proposals import Callee, Misfit
from llmc2py.upstream.updating import Update

#: How many failed checks are shown.
_MOST = 20


def to_record(update: Update) -> dict[str, Any]:
    """Return an update as plain values."""
    return report.to_record(update.changes, update.old, update.new) | {
        "source": str(update.source),
        "output": str(update.output),
        "from": update.start,
        "to": update.target,
        "written": update.written,
        "misfits": [_misfit_record(one) for one in update.misfits],
        "verified": list(update.verified),
        "checks": len(update.rows),
        "earlier": _earlier(update),
        "failed": [row.to_json() for row in update.failed],
    }


def to_text(update: Update) -> str:
    """Return the summary of an update for a terminal or a log."""
    lines = [report.to_text(update.changes, update.old, update.new), ""]
    for misfit in update.misfits:
        lines += [*_misfit_text(misfit), ""]
    lines += [f"{_failed_row(row)}" for row in update.failed[:_MOST]]
    return "\n".join([*lines, verdict(update)])


def to_markdown(update: Update) -> str:
    """Return the text of a pull request."""
    lines = [report.to_markdown(update.changes, update.old, update.new), ""]
    if update.misfits:
        lines += ["## Needs a person", ""]
    for misfit in update.misfits:
        lines += [*_misfit_markdown(misfit), ""]
    if update.failed:
        lines += ["## Failed", "", *(f"- {report.code(_failed_row(row))}" for row in update.failed[:_MOST]), ""]
    return "\n".join([*lines, f"{report.escaped(verdict(update))}"])


def verdict(update: Update) -> str:
    """Return in one sentence what was done."""
    move = f"{update.start[:12]} -> {update.target[:12]}" if update.start != update.target else update.start[:12]
    checks = f"{len(update.rows)} checks of {', '.join(update.verified)}" if update.verified else "nothing to verify"
    if update.failed:
        return f"{len(update.failed)} of {checks} FAILED: {update.source} and {update.output} are left as they were"
    if not update.written:
        return f"{update.source}: {move}; nothing was written"
    earlier = f" ({_earlier(update)} of them in earlier runs of the same code)" if _earlier(update) else ""
    passed = f"{checks} passed{earlier}" if update.verified else "not verified" if update.unverified else checks
    return f"{update.source}: {move}; {passed}; {update.output} written"


def _earlier(update: Update) -> int:
    """Return how many checks were not run now, because they had passed before."""
    return sum(row.earlier for row in update.rows)


def _misfit_record(one: Misfit) -> dict[str, Any]:
    return {
        "entry": one.entry,
        "file": one.file,
        "layer": one.layer,
        "reason": one.reason,
        "callees": [{"name": item.name, "old": item.old, "new": item.new} for item in one.callees],
        "proposed": one.proposed,
        "fits": one.fits,
    }


def _misfit_text(one: Misfit) -> list[str]:
    lines = [f"{one.file}: the catalogue entry {one.entry} no longer fits: {one.reason}"]
    lines += [line for item in one.callees for line in _callee(item)]
    lines.append(f"  {_advice(one)}")
    return lines + ([f"    {line}".rstrip() for line in one.proposed.splitlines()] if one.proposed else [])


def _callee(item: Callee) -> list[str]:
    return [f"  was {item.old or f'{item.name}: not there'}", f"  now {item.new or 'not there'}"]


def _misfit_markdown(one: Misfit) -> list[str]:
    lines = [f"### {report.escaped(one.layer)}", "", f"{report.code(one.file)}: {report.escaped(one.reason)}", ""]
    for item in one.callees:
        lines += [f"- was {report.code(item.old or 'not there')}", f"- now {report.code(item.new or 'not there')}"]
    lines += ["", _advice(one)]
    if one.proposed:
        fence = "````"
        lines += ["", f"{fence}toml", one.proposed.rstrip().replace(fence, ""), fence]
    return lines


def _advice(one: Misfit) -> str:
    if one.proposed is None:
        return f"the layer {one.layer} is left out: write the entry anew, for what it uses is gone"
    if one.fits:
        state = "it fits the source; check it, and that `llmc2py verify` passes"
    else:
        state = "it does not fit yet: fill in what is marked TODO and see to the rest"
    return f"the layer {one.layer} is left out; a proposal for the entry, to be given with --catalog ({state}):"


def _failed_row(row: Any) -> str:
    detail = f": {' '.join(row.detail.split())}" if row.detail else ""
    return f"FAILED {row.layer} {row.precision} {row.shape} {row.check}, error {row.error:.3g}{detail}"
