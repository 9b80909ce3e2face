"""Benchmarks by name, and recipes made from names: `embedded/p1` with `ewc+dr`."""

import dataclasses
import itertools
import sys
from collections.abc import Mapping
from typing import Any

from metadr import models, settings
from metadr.benchmarks.digits import DIGITS
from metadr.benchmarks.embedded import EMBEDDED
from metadr.benchmarks.folder import FOLDER
from metadr.benchmarks.pacs import PACS
from metadr.benchmarks.streets import STREETS
from metadr.benchmarks.vkitti2 import VKITTI2, VKITTI2_RENDERED
from metadr.core import ORACLES, Access, Benchmark, Found, Part, Recipe, Training
from metadr.errors import Problems, UserError, unknown
from metadr.parts import RECOMMENDED, parse_method
from metadr.past import check_past, past_of
from metadr.policies import settled
from metadr.progress import Watch

BENCHMARKS: dict[str, Benchmark] = {
    each.name: each for each in (EMBEDDED, DIGITS, PACS, FOLDER, STREETS, VKITTI2, VKITTI2_RENDERED)
}

DEFAULT_MEMORY = 100  # "by default, M = 100", Section 5.2
MEMORY_FIELDS = ("memory_per_domain", "memory_choice")
RECIPE_FIELDS = (*MEMORY_FIELDS, "access", "order", "tested")


def register(benchmark: Benchmark) -> Benchmark:
    """Make a benchmark known by its name."""
    if benchmark.name in BENCHMARKS and BENCHMARKS[benchmark.name] is not benchmark:
        raise UserError(f"A benchmark named '{benchmark.name}' exists already. Give the new one another name.")
    BENCHMARKS[benchmark.name] = benchmark
    return benchmark


def recipe_names() -> list[str]:
    return [f"{name}/{protocol}" for name, benchmark in BENCHMARKS.items() for protocol in benchmark.protocols]


def get_benchmark(name: str) -> Benchmark:
    if name not in BENCHMARKS:
        raise unknown("benchmark", name, BENCHMARKS, hint="List all with 'metadr list benchmarks'.")
    return BENCHMARKS[name]


def benchmark_of(recipe: Recipe) -> Benchmark:
    """The benchmark of a recipe, as the recipe's settings of its data have it."""
    return _configured(get_benchmark(recipe.benchmark), dict(recipe.data))


def prepare(recipe: Recipe, watch: Watch | None = None) -> Mapping[str, Found]:
    """Decode and download what a recipe needs and was not got before, and say what was found, by domain."""
    benchmark, training = benchmark_of(recipe), training_of(recipe)
    problems, found = Problems(), dict[str, Found]()
    with problems.kept():
        models.prepare_weights(training.model, training.weights)
    with problems.kept():
        found |= benchmark.prepare(recipe.domains, watch) if benchmark.prepare else {}
    problems.tell()
    return found


def training_of(recipe: Recipe) -> Training:
    """How this recipe trains: its benchmark's defaults with its own differences."""
    differences = dict(recipe.overrides)
    for name in differences:
        if name not in settings.names(Training):
            raise unknown("field", name, settings.names(Training), within=" in Training")
    return settled(dataclasses.replace(benchmark_of(recipe).training, **differences), recipe.method)


def steps_of(recipe: Recipe) -> tuple[int, ...]:
    """Gradient steps at each domain of a recipe; where epochs count, its data say how many these are."""
    training, benchmark = training_of(recipe), benchmark_of(recipe)
    if training.epochs is None:
        return (training.steps,) * len(recipe.order)
    count = benchmark.num_train or (lambda name: benchmark.load(name).train.num_images)
    images = [min(count(name), training.limit or sys.maxsize) for name in recipe.order]
    stages, begins = range(len(images)), past_of(training) is None
    seen = {"current": images, "so_far": list(itertools.accumulate(images)), "all": [sum(images)] * len(images)}
    return tuple(training.steps_on(seen[recipe.access][stage], first=begins and stage == 0) for stage in stages)


def check_recipe(recipe: Recipe) -> Recipe:
    """Refuse what can be seen to be wrong before any data is read."""
    benchmark = benchmark_of(recipe)
    for domain in recipe.domains:
        if domain not in benchmark.domains:
            raise unknown("domain", domain, benchmark.domains, within=f" in benchmark '{benchmark.name}'")
    for domain in recipe.order:
        if domain in benchmark.only_tested:
            raise UserError(
                f"Domain '{domain}' has no training images, and the order names it. Add some, or test on it alone: "
                f"--set tested={domain} and an --order without it."
            )
    training = training_of(recipe)
    models.check_model(training.model)
    models.check_weights(training.model, training.weights, benchmark.classes)
    check_past(recipe, training, benchmark.task, benchmark.classes)
    if training.tested_by == "domains" and recipe.access != "current":
        raise UserError(
            "An oracle's batch norm has seen all domains of a stage: tested_by=domains would count them again. Use "
            "tested_by=running."
        )
    if training.tested_by == "batch" and training.later_norm == "fixed":
        raise UserError(
            "With later_norm=fixed a network is trained by statistics that stay, and with tested_by=batch it would be "
            "tested by others. Use tested_by=running."
        )
    return recipe


def make_recipe(name: str, method: str = "naive", *, tiny: bool = False, **fields: Any) -> Recipe:
    """A recipe from names. Fields may belong to the recipe, to its training, to its parts or to its benchmark's data.

    `make_recipe("embedded/p1", "er+meta-dr", memory_per_domain=50, steps=200, inner_lr=0.05)`

    Args:
        name: a benchmark, or a benchmark and one of its protocols.
        method: a sum of parts, or the name of a recommended one, whose settings are then those of the recipe.
        tiny: shrink it to seconds; fields that are given still hold.
        fields: values as they are, or as text from the command line. `dr.per` means one part's field where several
            parts have it (from Python: `**{"dr.per": "image"}`), `digits.resize` that of a benchmark's data.
    """
    known_as, _, protocol = name.partition("/")
    if known_as not in BENCHMARKS:
        raise unknown("recipe", name, [*BENCHMARKS, *recipe_names()], hint="List all with 'metadr list recipes'.")
    if method in RECOMMENDED:
        chosen = RECOMMENDED[method]
        method, fields = chosen.method, {**chosen.fields_on(known_as), **fields}
    data, fields = _of_data(BENCHMARKS[known_as], fields)
    benchmark = _configured(BENCHMARKS[known_as], data)
    order = _order(benchmark, protocol)
    if benchmark.only_tested and "tested" not in fields:
        named = _value(Recipe, "order", fields.get("order", ()))
        fields["tested"] = tuple(name for name in benchmark.only_tested if name not in named)
    if "order" not in fields:  # those that are only tested on are in none
        left_out = {*benchmark.only_tested, *_value(Recipe, "tested", fields.get("tested", ()))}
        order = tuple(name for name in order if name not in left_out) or order
    access, method = _without_oracle(method)
    parts = list(parse_method(method, benchmark.part_defaults))
    memory = DEFAULT_MEMORY if any(part.uses_memory for part in parts) else 0
    made = Recipe(
        benchmark.name,
        order=order,
        method=tuple(parts),
        memory_per_domain=min(memory, 8) if tiny else memory,
        access=access,
        overrides=tuple(benchmark.tiny.items()) if tiny else (),
        data=tuple(data.items()),
    )
    return with_settings(made, **fields)


def with_settings(recipe: Recipe, **fields: Any) -> Recipe:
    """The recipe with other settings: its own, of its training, of its parts or of its benchmark's data.

    Values are as they are, or as text from the command line; names are those that `make_recipe` takes.
    """
    usual = get_benchmark(recipe.benchmark)
    data, fields = _of_data(usual, fields)
    data = {**dict(recipe.data), **data}
    benchmark = _configured(usual, data)
    parts, training, whole = list(recipe.method), dict(recipe.overrides), dict[str, Any]()
    for field, value in fields.items():
        owner, _, short = field.rpartition(".")
        if holders := [i for i, part in enumerate(parts) if field in _names_in(part)]:
            for i in holders:
                parts[i] = dataclasses.replace(parts[i], **{short: _value(type(parts[i]), short, value)})
        elif not owner and field in RECIPE_FIELDS:
            whole[field] = _value(Recipe, field, value)
        elif not owner and field in settings.names(Training):
            training[field] = _value(Training, field, value)
        else:
            hint = (
                f"Method '{recipe.method_name}' on '{benchmark.name}' has no such setting: list all with "
                "'metadr list fields'."
            )
            raise unknown("field", field, known_fields(recipe), hint=hint)
    values = {field: getattr(benchmark.settings, field) for field in data}
    differences = tuple((field, value) for field, value in values.items() if value != getattr(usual.settings, field))
    return check_recipe(
        dataclasses.replace(recipe, method=tuple(parts), overrides=tuple(training.items()), data=differences, **whole)
    )


def known_fields(recipe: Recipe) -> set[str]:
    """The names of all settings that a recipe has: of a memory where a part uses one."""
    own = {name for part in recipe.method for name in _names_in(part)}
    own |= set(MEMORY_FIELDS) if any(part.uses_memory for part in recipe.method) else set()
    data = data_fields(get_benchmark(recipe.benchmark))
    whole = {name for name in RECIPE_FIELDS if name not in MEMORY_FIELDS}
    return {*whole, *settings.names(Training), *data, *(f"{recipe.benchmark}.{name}" for name in data), *own}


def _names_in(part: Part) -> set[str]:
    """The settings of a part, alone and after its name."""
    return {name for own in settings.names(type(part)) for name in (own, f"{part.name}.{own}")}


def data_fields(benchmark: Benchmark) -> tuple[str, ...]:
    """The settings of a benchmark's data, by name."""
    return settings.names(type(benchmark.settings)) if benchmark.configure else ()


def _of_data(benchmark: Benchmark, fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields that belong to a benchmark's data, as values, and the rest."""
    data, rest = {}, {}
    for field, value in fields.items():
        owner, _, short = field.rpartition(".")
        if short in data_fields(benchmark) and owner in ("", benchmark.name):
            data[short] = _value(type(benchmark.settings), short, value)
        else:
            rest[field] = value
    return data, rest


def _configured(benchmark: Benchmark, data: Mapping[str, Any]) -> Benchmark:
    for name in data:
        if name not in data_fields(benchmark):
            raise unknown("field", name, data_fields(benchmark), within=f" in the data of '{benchmark.name}'")
    if benchmark.configure is None or (benchmark.domains and not data):
        return benchmark  # as it is registered; one without domains has to be told where they are
    return benchmark.configure(dataclasses.replace(benchmark.settings, **data))


def _order(benchmark: Benchmark, protocol: str) -> tuple[str, ...]:
    if protocol and protocol not in benchmark.protocols:
        known = [*BENCHMARKS, *(f"{benchmark.name}/{each}" for each in benchmark.protocols)]
        raise unknown("recipe", f"{benchmark.name}/{protocol}", known, hint="List all with 'metadr list recipes'.")
    return benchmark.protocols[protocol or next(iter(benchmark.protocols))]


def _without_oracle(method: str) -> tuple[Access, str]:
    """The data access that a method's name asks for, and the method without it."""
    names = [name.strip() for name in method.split("+")]
    oracles = [name for name in names if name in ORACLES]
    if len(oracles) > 1:
        raise UserError(f"Method '{method}' names two oracles. Choose one: {' or '.join(ORACLES)}.")
    if not oracles:
        return "current", method
    rest = [name for name in names if name not in ORACLES]
    return ORACLES[oracles[0]], "+".join(rest) if rest else "naive"


def _value(owner: type, field: str, value: Any) -> Any:
    return settings.parse(owner, field, value) if isinstance(value, str) else value
