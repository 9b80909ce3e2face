"""Domains that a run is only tested on."""

from pathlib import Path

import pytest

from metadr.benchmarks import make_recipe
from metadr.errors import UserError
from metadr.report import group, markdown, read_records
from metadr.run import run
from metadr.survey import survey

ORDER, TESTED = ("green",), ("blue", "red")


def test_other_domains_are_tested_on_and_change_nothing_else(registered_toys, tmp_path: Path) -> None:
    alone = run(make_recipe("toy-shapes", "dr", order=ORDER), out=tmp_path / "alone", device="cpu")
    result = run(make_recipe("toy-shapes", "dr", order=ORDER, tested=TESTED), out=tmp_path / "more", device="cpu")
    assert [(row["after"], row["on"]) for row in result.rows] == [
        (after, on) for after in ("untrained", "green") for on in ("green", "blue", "red")
    ]
    assert [row for row in result.rows if row["on"] == "green"] == alone.rows
    assert result.summary == alone.summary  # of what was learnt

    (record,) = read_records(tmp_path / "more")
    assert {on: record.final(on) for on in ("green", *TESTED)} == {row["on"]: row["value"] for row in result.rows[3:]}
    ((title, groups),) = group([record]).items()
    assert title == "toy-shapes: green, tested on blue, red too"
    assert markdown(groups).startswith("| method | green | blue | red | ACC |")
    assert set(record.environment["data"]) == {"green", "blue", "red"}


def test_an_oracle_does_not_see_them(registered_toys, tmp_path: Path) -> None:
    """Of one domain all data are those of that domain, whatever else is tested on."""
    rows = [
        run(make_recipe("toy-shapes", method, order=ORDER, tested=TESTED), out=tmp_path, device="cpu").rows
        for method in ("naive", "oracle-all")
    ]
    assert rows[0] == rows[1]


def test_a_dry_run_counts_them_and_trains_on_the_others(registered_toys) -> None:
    seen = survey(make_recipe("toy-shapes", order=ORDER, tested=TESTED), {}, device="cpu")
    assert list(seen.counts) == ["green", "blue", "red"]
    assert len(seen.cost.step_seconds) == 1


def test_they_are_named_on_the_command_line() -> None:
    recipe = make_recipe("digits", order="mnist", tested="mnist_m,syn")
    assert recipe.domains == ("mnist", "mnist_m", "syn")


@pytest.mark.parametrize("tested", [("mnist",), ("syn", "syn")])
def test_a_domain_is_named_once(tested: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="must be named once"):
        make_recipe("digits", order=("mnist",), tested=tested)


def test_a_domain_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match=r"No domain 'synn' in benchmark 'digits'\. Closest: 'syn'"):
        make_recipe("digits", order=("mnist",), tested=("synn",))
