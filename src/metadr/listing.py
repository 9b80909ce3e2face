"""What there is, as tables for a terminal."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.markup import escape
from rich.table import Table as TextTable

from metadr import models, settings
from metadr.benchmarks import BENCHMARKS
from metadr.core import ORACLES, Found, Recipe, Training
from metadr.display import duration
from metadr.errors import unknown
from metadr.parts import PARTS, RECOMMENDED
from metadr.parts.recommended import CHOSEN_ON
from metadr.provenance import published_files
from metadr.recipes import TABLES, get_table
from metadr.report import Record, read_records
from metadr.report.records import numbers_of_seeds
from metadr.report.write import PICTURES
from metadr.sequence import UNTRAINED
from metadr.store import RunDirectory
from metadr.survey import Survey
from metadr.transforms import SETS, TRANSFORMS

SHOWN = 10  # files that were left out


def tables(kind: str) -> list[TextTable]:
    """The tables of one kind; 'all' leaves out the long lists."""
    if kind == "all":
        return [
            table for name in ("benchmarks", "recipes", "tables", "methods", "transforms") for table in KINDS[name]()
        ]
    if kind not in KINDS:
        raise unknown("list", kind, [*KINDS, "all"])
    return KINDS[kind]()


def transform_speeds(measured: dict[str, Any]) -> TextTable:
    """What `metadr bench transforms` measured."""
    rows = [
        (
            f"{row['height']}x{row['width']}",
            row["per"],
            f"{row['metadr_ms']:.2f}",
            f"{row['pillow_ms']:.2f}",
            f"{row['ratio']:.2f}",
            " to ".join(f"{value:.2f}" for value in row["ratio_quartiles"]),
            "yes" if row["same_pixels"] else "no",
        )
        for row in measured["rows"]
    ]
    made = "{processor}, {threads} threads, torch {torch}, Pillow {pillow}".format(**measured["environment"])
    title = f"{measured['set']}, batch of {measured['batch']}, n = {measured['n']}; {made}"
    columns = ("size", "T per", "metadr ms", "Pillow ms", "Pillow / metadr", "quartiles", "same pixels")
    return _table(title, columns, rows)


def step_speeds(measured: dict[str, Any]) -> TextTable:
    """What `metadr bench step` measured."""
    rows = [
        (
            row["method"],
            row["precision"],
            row["contender"],
            f"{row['ms']:.2f}",
            " to ".join(f"{value:.2f}" for value in row["quartiles_ms"]),
            f"{row['ratio']:.2f}",
            "" if row["memory_mib"] is None else f"{row['memory_mib']:.0f}",
            f"{row['first_seconds']:.1f}",
            f"{100 * row['share_of_limit']:.1f} %",
        )
        for row in measured["rows"]
    ]
    size = measured["size"]
    sides = size if isinstance(size, str) else f"{size}x{size}"
    title = "{model}, {sides}, batch of {batch}, n = {n} times {steps} steps".format(sides=sides, **measured)
    columns = ("method", "precision", "", "ms a step", "quartiles", "x ours", "MiB", "first s", "of the limit")
    return _table(f"{title}; {_machine(measured)}", columns, rows)


def sweep_speeds(measured: dict[str, Any]) -> TextTable:
    """What `metadr bench sweep` measured."""
    rows = [
        (
            row["sweep"],
            str(row["runs"]),
            str(row["n"]),
            f"{row['seconds']:.1f}",
            " to ".join(f"{value:.1f}" for value in row["quartiles_s"]),
            f"{row['seconds_a_run']:.2f}",
            f"{row['ms_a_step']:.2f}",
            f"{row['ratio']:.2f}",
        )
        for row in measured["rows"]
    ]
    title = "{method}, {model}, {steps} steps a run, {precision}".format(**measured)
    columns = ("sweep", "runs", "n", "seconds", "quartiles", "seconds a run", "ms a step and run", "x lanes")
    return _table(f"{title}; {_machine(measured)}", columns, rows)


def fisher_speeds(measured: dict[str, Any]) -> TextTable:
    """What `metadr bench fisher` measured."""
    rows = [
        (
            row["contender"],
            f"{row['ms']:.1f}",
            " to ".join(f"{value:.1f}" for value in row["quartiles_ms"]),
            f"{row['ms_an_image']:.3f}",
            f"{row['ratio']:.2f}",
            f"{row['off']:.1e}",
        )
        for row in measured["rows"]
    ]
    title = "the Fisher of {images} images, {model}, {size}x{size}, n = {n}".format(**measured)
    columns = ("", "ms", "quartiles", "ms an image", "x ours", "off by")
    return _table(f"{title}; {_machine(measured)}", columns, rows)


def precision_errors(measured: dict[str, Any]) -> TextTable:
    """What `metadr bench precision` measured: a row for each stop."""
    names = list(dict.fromkeys(row["precision"] for row in measured["rows"]))
    errors = {(row["step"], row["precision"]): row for row in measured["rows"]}
    rows = [
        (str(step), *(f"{100 * errors[step, name]['error']:.3g} %" for name in names))
        for step in dict.fromkeys(row["step"] for row in measured["rows"])
    ]
    title = "{method}, {model}, {benchmark}, {domain}: gradient off by, against float64, n = {n}".format(**measured)
    return _table(f"{title}; {_machine(measured)}", ("after step", *names), rows)


def _machine(measured: dict[str, Any]) -> str:
    made = measured["environment"]
    return f"{made['gpu'] or made['processor']}, torch {made['torch']}"


def files(found: Mapping[str, Found]) -> list[TextTable | str]:
    """What is known of the files of each domain: sizes, those that are broken, in no list, or not used."""
    if not found:
        return []
    rows, by_lists = [], any(each.unlisted for each in found.values())
    for name, each in found.items():
        every = sorted(
            (size for size, count in each.sizes.items() for _ in range(count)),
            key=lambda size: (math.prod(map(int, size.split("x"))), size),
        )
        shown = (every[0], every[len(every) // 2], every[-1]) if every else ("-", "-", "-")
        left_out = str(len(each.broken)), *([str(len(each.unlisted))] * by_lists), str(len(each.unused))
        rows.append((name, f"{len(every):,}", *shown, *left_out, f"{each.seconds:.1f} s"))
    counted = ("broken", *(["in no list"] * by_lists), "not used")
    columns = ("domain", "images", "smallest", "median", "largest", *counted, "decoding took")
    broken = [f"  {name}/{each}" for name, those in found.items() for each in those.broken]
    lines = [] if not broken else ["Broken:", *broken]  # left out, or too many: then nothing is run
    lines += _some("In no list, and so not used:", {name: each.unlisted for name, each in found.items()})
    unused = {name: each.unused for name, each in found.items()}
    lines += _some("Not used, being no images or outside class folders:", unused)
    return [_table("files (decoded once, kept in the cache)", columns, rows), *map(escape, lines)]


def _some(head: str, files: Mapping[str, Sequence[str]]) -> list[str]:
    """The first files of all domains together, under what they have in common."""
    lines = [f"  {name}/{each}" for name, those in files.items() for each in those]
    more = [f"  and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return [head, *lines[:SHOWN], *more] if lines else []


def survey(seen: Survey) -> list[TextTable | str]:
    """What `metadr run --dry-run` tells of images, duplicates, memory and time."""
    names = seen.benchmark.classes or tuple(map(str, range(seen.benchmark.task.num_classes)))
    rows = [
        (escape(name), *(_counts(counts[row]) for counts in seen.counts.values())) for row, name in enumerate(names)
    ]
    totals = (_counts(tuple(map(sum, zip(*counts, strict=True)))) for counts in seen.counts.values())
    shown: list[TextTable | str] = []
    if seen.counts:
        shown.append(_table("images, training + test", ("class", *seen.counts), [*rows, ("all", *totals)]))
    shown.append(f"Duplicates, pixel for pixel: {'' if seen.twins else 'none.'}".rstrip())
    for twin in seen.twins:
        example = f", such as {twin.example[0]} and {twin.example[1]}" if twin.example else ""
        shown.append(escape(f"  {twin.num_images} of {twin.here} also in {twin.there}{example}"))
    cost = seen.cost
    peak = "while training" if cost.device != "cpu" else "of this process so far"
    shown.append(f"Memory: {_size(cost.image_bytes)} of images on {cost.device}; peak {_size(cost.peak_bytes)} {peak}.")
    each = " ".join(f"{1000 * seconds:.1f}" for seconds in cost.step_seconds)
    steps = " ".join(map(str, cost.steps[:1] if len(set(cost.steps)) == 1 else cost.steps))
    shown.append(
        f"Time: about {duration(cost.seconds)} on {cost.device}, by a few steps of each domain: {steps} steps of "
        f"{each} ms, {duration(cost.end_seconds)} at the ends of domains, {duration(cost.test_seconds)} of tests."
    )
    return shown


def _counts(counts: tuple[int, ...]) -> str:
    train, test, *val = counts
    return f"{train} + {test}" + "".join(f", {held} held out" for held in val) if any(counts) else "-"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def _table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> TextTable:
    table = TextTable(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=index == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _benchmarks() -> list[TextTable]:
    rows = [(each.name, each.about, each.task.score, each.training.model) for each in BENCHMARKS.values()]
    return [_table("benchmarks", ("name", "what", "score", "model"), rows)]


def _recipes() -> list[TextTable]:
    rows = [
        (f"{name}/{protocol}", " → ".join(order))
        for name, benchmark in BENCHMARKS.items()
        for protocol, order in benchmark.protocols.items()
    ]
    return [_table("recipes (metadr run RECIPE --method METHOD)", ("name", "domains"), rows)]


def _tables() -> list[TextTable]:
    made = [get_table(name) for name in TABLES]
    rows = [
        (each.name, each.about, str(len(each.recipes)), str(sum(map(len, each.seeds_of.values()))), _kept(each.name))
        for each in made
    ]
    rows += [(name, (draw.__doc__ or "").splitlines()[0].rstrip("."), "0", "0", "") for name, draw in PICTURES.items()]
    title = "tables (metadr sweep TABLE, metadr report TABLE); published: runs in results/, n seeds of each recipe"
    return [_table(title, ("name", "what", "recipes", "runs", "published"), rows)]


def _kept(table: str) -> str:
    """What is published of a table: how many runs, and the fewest and the most seeds of a recipe."""
    counts = [n for path in published_files(f"{table}.json") for n in numbers_of_seeds(read_records(path))]
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)}))) if counts else ""
    return f"{sum(counts)}, n = {seeds}" if counts else ""


def _methods() -> list[TextTable]:
    rows = [("naive", "fine-tune on each domain in turn: the empty sum", "")]
    for name, part in PARTS.items():
        about = (part.__doc__ or "").strip().splitlines()[0]
        rows.append((name, about, ", ".join(settings.names(part))))
    seen = {"all": "all domains", "so_far": "all domains so far"}
    rows += [(name, f"train on {seen[access]}: data access, not a part", "") for name, access in ORACLES.items()]
    whole = [(name, each.method, each.about, each.settings) for name, each in RECOMMENDED.items()]
    return [
        _table("methods: any sum, such as er+meta-dr", ("part", "what", "fields"), rows),
        _table(f"recommended, with the settings on {CHOSEN_ON}", ("name", "method", "what", "settings"), whole),
    ]


def _fields() -> list[TextTable]:
    owners: list[tuple[str, type]] = [("", Recipe), ("", Training)]
    owners += [(f"{name}.", part) for name, part in PARTS.items()]
    owners += [(f"{name}.", type(each.settings)) for name, each in BENCHMARKS.items() if each.configure]
    rows = [
        (
            f"{owner}{field.name}",
            str(field.default),
            settings.describe(kind, field.name),
            field.metadata["doc"],
        )
        for owner, kind in owners
        for field in dataclasses.fields(kind)
        if "doc" in field.metadata
    ]
    return [_table("fields (metadr run --set FIELD=VALUE)", ("field", "default", "allowed", "what"), rows)]


def _transforms() -> list[TextTable]:
    operations = [
        (name, f"{each.low:g} to {each.high:g}" if each.ranged else "-", str(each.levels))
        for name, each in TRANSFORMS.items()
    ]
    sets = [
        (name, "+".join(choice.name for choice in each.choices), str(each.compositions)) for name, each in SETS.items()
    ]
    return [
        _table("transformations", ("name", "range", "levels"), operations),
        _table("transformation sets", ("name", "transformations", "composed"), sets),
    ]


def _models() -> list[TextTable]:
    rows = [(name, (build.__doc__ or "").split("\n\n")[0].rstrip(".")) for name, build in models.MODELS.items()]
    rows += [
        (name, f"a U-Net around {encoder}, by segmentation-models-pytorch")
        for name, encoder in models.encoders.NAMES.items()
    ]
    rows += [(name, "torchvision's") for name in models.libraries.torchvision_names()]
    count = len(models.libraries.timm_names())
    timm = f"any of {count:,}, by name" if count else "with 'pip install metadr[timm]'"
    return [_table("models", ("name", "what"), [*rows, ("timm/NAME", timm)])]


def begun(directory: RunDirectory) -> str:
    """Whether a run has been here before."""
    if directory.finished:
        return "This run was finished before: it is only shown."
    return "This run went on from a checkpoint." if directory.checkpoints() else ""


def before_and_after(record: Record, learnt: Mapping[str, float]) -> list[TextTable | str]:
    """What a run that started from weights made of them, on every domain it was tested on; and, of those that runs
    before it learnt, what is left since then."""
    values = {(row["after"], row["on"]): row["value"] for row in record.rows}
    rows = []
    for domain in (*record.order, *record.tested):
        before, after = values[UNTRAINED, domain], record.final(domain)
        then = [f"{learnt[domain]:.1f}" if domain in learnt else "-"] if learnt else []
        rows.append((domain, *then, f"{before:.1f}", f"{after:.1f}", f"{after - before:+.1f}"))
    columns = ("domain", *(["when learnt"] if learnt else []), "before", "after", "change")
    table = _table("from its weights", columns, rows)
    gone = [domain for domain in record.tested if domain in learnt]
    if not gone:
        return [table]
    acc = fmean(record.final(domain) for domain in (*record.order, *gone))
    kept = fmean(record.final(domain) for domain in gone)
    bwt = kept - fmean(learnt[domain] for domain in gone)
    return [table, f"With the domains before: ACC {acc:.1f}, kept {kept:.1f}, BWT {bwt:+.1f}."]


KINDS: dict[str, Callable[[], list[TextTable]]] = {
    "benchmarks": _benchmarks,
    "recipes": _recipes,
    "tables": _tables,
    "methods": _methods,
    "fields": _fields,
    "transforms": _transforms,
    "models": _models,
}
