"""Tables of finished runs: one row per method, each cell mean ± spread over seeds."""

import csv
import io
import itertools
import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table as TextTable

from metadr.report.records import Record, place
from metadr.store import apart, whole_training

SUMMARY_COLUMNS = {"ACC": "acc", "kept": "kept", "BWT": "bwt", "FWT": "fwt", "forgetting": "forgetting"}
SHORT_COLUMNS = ("ACC", "kept", "BWT")


class Group(NamedTuple):
    """The runs of one recipe over several seeds."""

    title: str
    records: list[Record]

    @property
    def order(self) -> tuple[str, ...]:
        return self.records[0].order

    @property
    def tested(self) -> tuple[str, ...]:
        return self.records[0].tested

    def final(self, domain: str) -> list[float]:
        """The score on a domain at the end of the sequence, for each seed."""
        return [record.final(domain) for record in self.records]

    def summary(self, name: str) -> list[float]:
        return [getattr(record.summary, name) for record in self.records]


def group(records: Iterable[Record]) -> dict[str, list[Group]]:
    """Groups by sequence of domains; each group is one recipe. Groups that share a title also say how they differ."""
    by_recipe: dict[str, dict[str, Record]] = {}
    for record in sorted(records, key=lambda record: record.seed):
        runs_of = by_recipe.setdefault(json.dumps(record.recipe, sort_keys=True), {})
        runs_of.setdefault(json.dumps(record.identity, sort_keys=True), record)  # a copy is no second measurement
    sequences: dict[str, list[Group]] = {}
    for runs in (list(runs_of.values()) for runs_of in by_recipe.values()):
        sequence = f"{runs[0].identity['benchmark']}: {' → '.join(runs[0].order)}"
        sequence += f", {runs[0].past}" if runs[0].past else ""
        sequence += f", tested on {', '.join(runs[0].tested)} too" if runs[0].tested else ""
        sequences.setdefault(sequence, []).append(Group(runs[0].title, runs))
    return {sequence: sorted(_told_apart(groups), key=_rank) for sequence, groups in sorted(sequences.items())}


def cell(values: list[float], *, ddof: int = 1) -> str:
    """Mean ± standard deviation; a single run has no spread to show."""
    mean = f"{statistics.fmean(values):.1f}"
    return mean if len(values) < 2 else f"{mean} ± {spread(values, ddof=ddof):.1f}"


def spread(values: list[float], *, ddof: int) -> float:
    """The standard deviation over runs, dividing by n - ddof."""
    return statistics.stdev(values) if ddof else statistics.pstdev(values)


def markdown(groups: list[Group], *, ddof: int = 1) -> str:
    """A Markdown table: the final score on each domain, then what the sequence comes to."""
    return in_markdown(_cells(groups, tuple(SUMMARY_COLUMNS), ddof))


def in_markdown(lines: Sequence[Sequence[str]]) -> str:
    """A head and rows of cells, of which all but the first are numbers."""
    head, *body = lines
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body)) + "\n"


def text_table(title: str, groups: list[Group], *, ddof: int = 1) -> TextTable:
    """The same for a terminal, with fewer columns."""
    table = TextTable(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    head, *body = _cells(groups, SHORT_COLUMNS, ddof)
    for index, name in enumerate(head):
        # The method's name gives way: a number that is cut says nothing.
        table.add_column(name, justify="right" if index else "left", no_wrap=index > 0, overflow="fold")
    for row in body:
        table.add_row(*row)
    return table


def csv_table(records: Iterable[Record]) -> str:
    """Every score of every run, one line each."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["benchmark", "order", "method", "seed", "after", "on", "metric", "value", "images"])
    for each in itertools.chain(*group(records).values()):
        for record in each.records:
            order = ">".join(record.order) + (f" {record.past}" if record.past else "")
            run = [record.identity["benchmark"], order, each.title, record.seed]
            for row in record.rows:
                writer.writerow([*run, row["after"], row["on"], row["metric"], f"{row['value']:.4f}", row["images"]])
    return text.getvalue()


def _cells(groups: list[Group], summaries: tuple[str, ...], ddof: int) -> list[list[str]]:
    domains = (*groups[0].order, *groups[0].tested)
    head = ["method", *domains, *summaries, "n"]
    body = [
        [
            each.title,
            *(cell(each.final(name), ddof=ddof) for name in domains),
            *(_summary(each, name, ddof) for name in summaries),
            str(len(each.records)),
        ]
        for each in groups
    ]
    return [head, *body]


def _summary(each: Group, name: str, ddof: int) -> str:
    """What a sequence comes to; of one domain only the score itself is anything."""
    if len(each.order) == 1 and name != "ACC":
        return "-"
    return cell(each.summary(SUMMARY_COLUMNS[name]), ddof=ddof)


def _told_apart(groups: list[Group]) -> list[Group]:
    """Groups of one title get the settings in which they differ added to it."""
    told = []
    for each in groups:
        twins = [_flat(other.records[0].recipe) for other in groups if other.title == each.title]
        own = _flat(each.records[0].recipe)
        differing = sorted(
            name
            for name in {name for twin in twins for name in twin}
            if len({str(twin.get(name)) for twin in twins}) > 1
        )
        # The text of a whole set only where nothing shorter tells: after a change of its transformations.
        shorter = {name.rpartition("/")[0] for name in differing if name.endswith(("/transforms", "/compositions"))}
        differing = [name for name in differing if name not in {f"{part}/set" for part in shorter}]
        if "data" in differing:
            own["data"] = _own_part([str(twin["data"]) for twin in twins], str(own["data"]))
        shown = [name for name in differing if own.get(name) != ""]
        settings = ", ".join(f"{name.rpartition('/')[2]} {own.get(name)}" for name in shown)
        told.append(each._replace(title=f"{each.title} ({settings})" if settings else each.title))
    return told


def _own_part(every: Sequence[str], own: str) -> str:
    """Of the fingerprint of some data what not all have: of a domain, or how it was read."""
    common = set.intersection(*(set(each.split(", ")) for each in every))
    return ", ".join(each for each in own.split(", ") if each not in common)


def _flat(recipe: dict[str, Any]) -> dict[str, Any]:
    parts = {f"{part['part']}/{name}": value for part in recipe["method"] for name, value in part.items()}
    training = {f"training/{name}": value for name, value in whole_training(recipe).items()}
    plain = {name: value for name, value in recipe.items() if not isinstance(value, list | dict)}
    plain["data"], content = apart(recipe["data"])
    training["training/weights"] = content or training["training/weights"]
    return {**plain, **parts, **training}


def _rank(each: Group) -> tuple[bool, bool, list[tuple[int, str]], list[tuple[int, str]], str]:
    """Plain methods, then those with a memory, then oracles; each followed by itself with DR and with Meta-DR."""
    identity = each.records[0].identity
    places = sorted(place(part["part"]) for part in identity["method"])
    base = [spot for spot in places if spot[1] not in ("dr", "meta-dr")]
    looks = [spot for spot in places if spot not in base]
    return (identity["access"] != "current", identity["memory_per_domain"] > 0, base, looks, each.title)
