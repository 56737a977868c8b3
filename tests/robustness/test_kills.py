"""``generate`` killed at random moments: a dozen kills of what ``benchmarks/kills.py`` does a thousand times."""

from __future__ import annotations

import pytest

from benchmarks import kills

COUNT = 12


def test_the_package_is_whole_after_each_kill_and_nothing_piles_up():
    with kills.place() as where:
        played = list(kills.play(where, COUNT, seed=1, verify_every=COUNT + 1, import_every=5))
    assert len(played) == COUNT
    assert {"writing or after"} < {what for _, what in played}


def test_the_check_fails_where_it_should():
    with kills.place() as where:
        assert where.check(imports=False) == 0
        assert where.litter() == []
        module, other = where.output / "relu.py", where.output / "relu_cu.py"
        text, older = module.read_text(), other.read_text()
        where.change(1)
        where.generate()
        assert where.check(imports=False) == 1
        newer = other.read_text()
        other.write_text(older)
        with pytest.raises(AssertionError, match=r"relu_cu\.py is of another version"):
            where.check(imports=False)
        other.write_text(newer)
        module.write_text(text[:100])
        with pytest.raises(AssertionError, match=r"relu\.py is of another version"):
            where.check(imports=False)
        module.unlink()
        with pytest.raises(AssertionError, match="not the files of the lock"):
            where.check(imports=False)
        (where.output.parent / ".generated.llmc2py-new-1").mkdir()
        assert where.litter() == [".generated.llmc2py-new-1"]
