"""What every registered benchmark promises, and that every recipe of every table builds and runs."""

import dataclasses
import importlib.util
import itertools
import math

import pytest
import torch
from torch import Tensor

from metadr import models, settings
from metadr.benchmarks import (
    BENCHMARKS,
    RECIPE_FIELDS,
    benchmark_of,
    check_recipe,
    get_benchmark,
    make_recipe,
    recipe_names,
    register,
    training_of,
)
from metadr.core import Benchmark, Domain, Training
from metadr.errors import UserError
from metadr.parts import PARTS
from metadr.recipes import TABLES, all_recipes, get_table
from metadr.run import run
from metadr.sequence import UNTRAINED
from metadr.store import key_of

# Made by the project itself: these must load anywhere. The files of others may not be there.
RENDERED = ("embedded", "streets", "toy-shapes", "toy-masks", "vkitti2-rendered")
# Made of a folder that somebody names.
ON_FOLDERS = ("folder",)
STREETS = "vkitti2-rendered"  # made by a fixture


def loaded(benchmark: Benchmark, names: tuple[str, ...] | None = None) -> list[Domain]:
    try:
        return [benchmark.load(name) for name in names or benchmark.domains]
    except UserError as missing:
        if benchmark.name in (*RENDERED, *ON_FOLDERS):
            raise
        return pytest.skip(str(missing))


def pictures(images: Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


def check_names_are_unique_and_plain(benchmark: Benchmark):
    assert len(set(benchmark.domains)) == len(benchmark.domains)
    for name in (benchmark.name, *benchmark.domains, *(each.replace("/", "-") for each in benchmark.protocols)):
        assert name
        assert not set(name) & set("/+, ")
    assert benchmark.about
    assert [other.name for other in BENCHMARKS.values()].count(benchmark.name) == 1


def check_protocols_name_known_domains_once(benchmark: Benchmark):
    assert benchmark.protocols
    for order in benchmark.protocols.values():
        assert order
        assert len(set(order)) == len(order)
        assert set(order) <= set(benchmark.domains)


def check_domains_fit_the_task(benchmark: Benchmark):
    domains = loaded(benchmark)
    assert benchmark.fingerprint_of(benchmark.domains)
    assert [domain.name for domain in domains] == list(benchmark.domains)
    for domain in domains:
        assert benchmark.task.check(domain) is domain
        for x, y in (domain.train, domain.test):
            assert len(x) == len(y) > 0
            assert x.dtype == torch.uint8
            assert y.dtype in ((torch.int64, torch.uint8) if benchmark.task.on_masks else (torch.int64,))
            kept = y[y != benchmark.task.ignore_index] if benchmark.task.on_masks else y
            assert 0 <= int(kept.min()) <= int(kept.max()) < benchmark.task.num_classes
        if not benchmark.task.on_masks:
            assert set(domain.train.y.tolist()) == set(range(benchmark.task.num_classes))


def check_domains_have_one_size(benchmark: Benchmark):
    sizes = {tuple(domain.train.x.shape[1:]) for domain in loaded(benchmark)}
    assert len(sizes) == 1


def check_no_test_image_is_trained_on(benchmark: Benchmark):
    for domain in loaded(benchmark):
        assert not pictures(domain.train.x) & pictures(domain.test.x)


def check_domains_differ(benchmark: Benchmark):
    domains = loaded(benchmark)
    assert len({domain.fingerprint() for domain in domains}) == len(domains)
    for domain, other in itertools.combinations(domains, 2):
        assert not pictures(domain.test.x) & pictures(other.test.x)


def check_domains_are_the_same_every_time(benchmark: Benchmark):
    load = getattr(benchmark.load, "__wrapped__", benchmark.load)  # behind the cache
    (domain,) = loaded(benchmark, benchmark.domains[-1:])
    assert load(domain.name).fingerprint() == domain.fingerprint()


def check_part_defaults_fit_the_parts(benchmark: Benchmark):
    for name, fields in benchmark.part_defaults.items():
        part = PARTS[name](**fields)
        assert {field: getattr(part, field) for field in fields} == dict(fields)


def check_tiny_is_valid_and_small(benchmark: Benchmark):
    assert set(benchmark.tiny) <= set(settings.names(Training))
    tiny = dataclasses.replace(benchmark.training, **benchmark.tiny)
    assert tiny.steps <= 5
    assert tiny.batch_size <= 16
    assert tiny.limit is not None
    for training in (benchmark.training, tiny):
        models.check_model(training.model)
    if benchmark.training.model not in models.encoders.NAMES or importlib.util.find_spec("segmentation_models_pytorch"):
        assert models.build(benchmark.training.model, benchmark.task.num_classes)
    module = models.build(tiny.model, benchmark.task.num_classes, tiny.weights)
    x = loaded(benchmark, benchmark.domains[:1])[0].test.x[:2]
    logits = module.eval()(x / 255)
    size = x.shape[2:] if benchmark.task.on_masks else ()
    assert logits.shape == (2, benchmark.task.num_classes, *size)


def check_settings_make_another_benchmark_of_the_same_name(benchmark):
    if benchmark.configure is None:
        assert benchmark.settings is None
        return
    again = benchmark.configure(benchmark.settings)
    assert (again.name, again.domains, again.training) == (benchmark.name, benchmark.domains, benchmark.training)
    assert again.settings == benchmark.settings
    assert not set(settings.names(type(benchmark.settings))) & {*RECIPE_FIELDS, *settings.names(Training)}
    assert all(field.metadata["doc"] for field in dataclasses.fields(benchmark.settings))


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_") and name != "check_recipe"]
# Known exceptions are strict: once a check starts to pass, the stale entry fails the suite.
KNOWN_EXCEPTIONS: dict[tuple[str, object], str] = {}


def cases():
    for name, check in itertools.product(dict.fromkeys((*BENCHMARKS, *RENDERED)), CHECKS):
        reason = KNOWN_EXCEPTIONS.get((name, check))
        marks = pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError) if reason else ()
        yield pytest.param(name, check, marks=marks, id=f"{name}-{check.__name__.removeprefix('check_')}")


@pytest.mark.parametrize(("name", "check"), list(cases()))
def test_benchmark(name, check, registered_toys, request):
    if name in ON_FOLDERS:
        root = str(request.getfixturevalue("own_images"))
        check(benchmark_of(make_recipe(name, root=root)))
        return
    if name == STREETS:
        request.getfixturevalue("streets")
    check(get_benchmark(name))


def test_name_can_be_taken_once(registered_toys):
    benchmark = registered_toys["classification"].benchmark
    assert register(benchmark) is benchmark
    with pytest.raises(UserError, match="A benchmark named 'toy-shapes' exists already"):
        register(dataclasses.replace(benchmark))


def test_recipe_names_cover_every_protocol(registered_toys):
    expected = [f"{name}/{protocol}" for name, each in BENCHMARKS.items() for protocol in each.protocols]
    assert recipe_names() == expected
    for name in expected:
        recipe = make_recipe(name)
        assert recipe.order == get_benchmark(recipe.benchmark).protocols[name.partition("/")[2]]
        assert make_recipe(name.partition("/")[0]).order == next(
            iter(get_benchmark(recipe.benchmark).protocols.values())
        )


# Recipes.


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("tiny", [False, True], ids=["whole", "tiny"])
def test_tables_build(table, tiny, streets):
    made = get_table(table, tiny=tiny)
    assert made.name == table
    assert made.about
    assert made.seeds >= 1
    assert made.recipes
    assert made == get_table(table, tiny=tiny)
    for recipe in made.recipes:
        assert check_recipe(recipe) is recipe
        assert training_of(recipe).steps <= (5 if tiny else math.inf)
    assert len(set(made.recipes)) == len(made.recipes)
    keys = [key_of(recipe, 0) for recipe in made.recipes if recipe.benchmark in RENDERED]  # a key needs the data
    assert len(set(keys)) == len(keys)


def test_all_recipes_are_those_of_the_tables():
    assert all_recipes() == [recipe for table in TABLES for recipe in get_table(table).recipes]
    assert len({recipe.method_name for recipe in all_recipes()}) >= 14


def distinct_tiny_recipes():
    """The first recipe of each benchmark and method, as its tiny table has it."""
    tiny = [recipe for table in TABLES for recipe in get_table(table, tiny=True).recipes]
    first = {}
    for recipe in tiny:
        first.setdefault((recipe.benchmark, recipe.method_name), recipe)
    return [pytest.param(recipe, id="-".join(key)) for key, recipe in first.items()]


@pytest.mark.parametrize("recipe", distinct_tiny_recipes())
def test_every_method_runs_in_its_tiny_form(recipe, tmp_path, toys, request):
    if recipe.benchmark == STREETS:
        request.getfixturevalue("streets")
    loaded(get_benchmark(recipe.benchmark), recipe.domains)
    result = run(recipe, seed=0, out=tmp_path, device="cpu")
    assert [(row["after"], row["on"]) for row in result.rows] == [
        (after, on) for after in (UNTRAINED, *recipe.order) for on in recipe.domains
    ]
    assert all(math.isfinite(row["value"]) and 0 <= row["value"] <= 100 for row in result.rows)
    assert all(math.isfinite(value) for value in result.summary)
    assert (result.path / "done.json").exists()
    assert run(recipe, seed=0, out=tmp_path, device="cpu").rows == result.rows


@pytest.mark.parametrize("method", ["naive", "dr+er+ewc+gem+l2+meta-dr", "oracle-all"])
def test_toys_run_like_any_benchmark(method, registered_toys, tmp_path):
    for toy in registered_toys.values():
        recipe = make_recipe(f"{toy.benchmark.name}/back", method, tiny=True)
        result = run(recipe, seed=1, out=tmp_path, device="cpu")
        assert len(result.rows) == 4 * 3
        assert all(math.isfinite(row["value"]) for row in result.rows)
        assert {row["metric"] for row in result.rows} == {toy.task.score}
        assert {row["images"] for row in result.rows} == {8}
