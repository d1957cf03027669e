"""The guards that `make mutants` takes out are there."""

from __future__ import annotations

from tests.mutants import MUTANTS, ROOT


def test_every_guard_is_where_its_mutant_takes_it_out() -> None:
    for mutant in MUTANTS:
        text = (ROOT / mutant.file).read_text("utf-8")
        assert mutant.of(text) != text
        assert (ROOT / mutant.tests.split()[0]).exists()
