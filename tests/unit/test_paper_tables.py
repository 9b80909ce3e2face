"""The recipes of the paper's tables: rows and columns as the paper has them, one recipe wherever it is shared."""

import itertools
import json
from pathlib import Path

import pytest

from metadr.benchmarks import BENCHMARKS, make_recipe, training_of, with_settings
from metadr.core import Recipe
from metadr.errors import UserError
from metadr.models import FROM_A_FILE
from metadr.parts import EWC, RECOMMENDED, Configuration
from metadr.policies import settled
from metadr.recipes import OF_THE_PAPER, Table, from_weights, get_table, only, suspects
from metadr.recipes.first_read import NOT_RUN_AGAIN, NOTE, READING
from metadr.report import PAPER, Record, compare, rendered
from metadr.report.claims import Gain
from metadr.report.paper import columns_of, rows_of
from metadr.report.verdicts import FAMILIES
from metadr.store import description
from metadr.sweep import Job, jobs_of, plan_jobs, plan_known, titles_of

NOT_PRINTED = ("L2", "EWC")
PRINTED = [name for name in OF_THE_PAPER if name in PAPER]


def recipe_of(table: str, title: str, under: str = "") -> Recipe:
    (row,) = [row for row in get_table(table).rows if (row.title, row.under) == (title, under)]
    (recipe,) = row.recipes
    return recipe


def key(recipe: Recipe) -> str:
    """What the folder of a run is named by, but for data and seed."""
    return json.dumps(description(recipe), sort_keys=True)


@pytest.mark.parametrize("name", PRINTED)
def test_rows_and_columns_are_the_paper_s(name: str) -> None:
    made = compare(get_table(name), [])
    assert [row for row in made.rows if row not in NOT_PRINTED] == rows_of(name)
    assert made.columns == columns_of(name)
    assert {place: cell.paper for place, cell in made.cells.items() if place[0] not in NOT_PRINTED} == PAPER[name]
    assert all(cell.paper is None for (row, _), cell in made.cells.items() if row in NOT_PRINTED)
    assert set(made.cells) == set(itertools.product(made.rows, made.columns))


@pytest.mark.parametrize(
    ("wanted", "titles", "runs"),
    [
        ([], 12, 2 * (3 * 10 + 8 * 3) + 3),
        (["naive"], 1, 20),
        (["P1 Naive", "P2 meta-dr"], 2, 20),
        (["*Meta-DR"], 2, 26),
        (["P1 *"], 12, 3 * 10 + 9 * 3),
    ],
)
def test_some_rows_of_a_table(wanted: list[str], titles: int, runs: int) -> None:
    [table] = only([get_table("table1")], wanted)
    assert len({row.title for row in table.rows}) == titles
    assert len(jobs_of(table.seeds_of)) == runs
    assert compare(table, []).rows


def test_a_row_that_no_table_has_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"No row 'Navie' in table 'table1'\. Closest: 'Naive'\. .* \* stands for any text\."
    ):
        only([get_table("table1")], ["Naive", "Navie"])
    with pytest.raises(UserError, match=r"No row 'x' in table 'table3' and 'table4'\. Known: .*, neither, recall, "):
        only([get_table("table3"), get_table("table4")], ["x"])
    with pytest.raises(UserError, match=r"^No row 'x' in table 'suspects'\. 'metadr report TABLE' shows all"):
        only([get_table("suspects")], ["x"])  # more rows than one reads


def test_tables_without_a_wanted_row_are_left_out() -> None:
    [table] = only([get_table("table1"), get_table("table3"), get_table("table4")], ["recall"])
    assert table.name == "table3" and [row.title for row in table.rows] == ["recall"]


def test_tables_that_share_recipes_are_run_once() -> None:
    first, second = (get_table(name).seeds_of for name in ("table3", "table8"))
    shared = set(first) & set(second)
    assert shared
    jobs = jobs_of(first, second)
    assert len(jobs) == len(set(jobs)) == len(jobs_of(first)) + len(jobs_of(second)) - 3 * len(shared)
    assert [job.seed for job in jobs] == sorted(job.seed for job in jobs)


def of(benchmark: str) -> list[str]:
    """The paper's tables of a benchmark."""
    return [name for name in OF_THE_PAPER if {recipe.benchmark for recipe in get_table(name).recipes} == {benchmark}]


OF_PACS = of("pacs")


@pytest.mark.parametrize("name", of("digits"))
def test_every_table_of_the_digits_says_that_syn_is_rendered_here(name: str) -> None:
    table = get_table(name)
    assert {"syn"} <= {domain for recipe in table.recipes for domain in recipe.domains}
    assert any("SYN is rendered here" in note and "not their set" in note for note in table.notes)


@pytest.mark.parametrize(
    "places",
    [
        [
            ("table1", "Naive", "P1"),
            ("table3", "neither"),
            ("table6", "beta = 0.0"),
            ("table7", "gamma = 0.0"),
            ("figure3", "Naive", "P1"),
        ],
        [
            ("table1", "Meta-DR", "P1"),
            ("table3", "recall and adapt"),
            ("table8", "alpha = 0.1"),
            ("figure3", "Meta-DR, psi3", "P1"),
        ],
        [("table3", "recall"), ("table6", "beta = 1.0")],
        [("table3", "adapt"), ("table7", "gamma = 1.0")],
        [("table1", "Naive + DR", "P1"), ("figure3", "Naive + DR, psi3", "P1")],
        [("table1", "Naive", "P2"), ("figure3", "Naive", "P2")],
        [("table1", "Naive + DR", "P2"), ("figure3", "Naive + DR, psi3", "P2")],
        [("table1", "Meta-DR", "P2"), ("figure3", "Meta-DR, psi3", "P2")],
        [("table1", "Oracle (all)", "P1"), ("table1", "Oracle (all)", "P2")],
    ],
    ids=str,
)
def test_what_tables_share_is_one_run(places: list[tuple[str, ...]]) -> None:
    recipes = [recipe_of(*place) for place in places]
    assert len(set(recipes)) == 1
    assert len({key(recipe) for recipe in recipes}) == 1


def test_nothing_else_is_shared() -> None:
    """Other rows are other experiments: as many keys as recipes, over all tables."""
    names = [*of("digits"), *OF_PACS]
    recipes = {recipe for name in names for recipe in get_table(name).recipes}
    assert len({key(recipe) for recipe in recipes}) == len(recipes)
    # 23 of table 1; 2 of the ablation; 2, 1, 1 and 2 of beta, gamma and alpha less those; figure 3's psi1 and psi2.
    counts = {name: len(get_table(name).recipes) for name in names}
    assert counts["table1"] == 23
    assert (counts["table2"], counts["table5"]) == (22, 2)
    assert len(recipes) == 23 + 2 + 2 + 1 + 1 + 2 + counts["table10"] + counts["table11"] + 8 + 22 + 2


def test_seeds() -> None:
    for row in get_table("table1").rows:
        assert row.seeds == (10 if row.title in ("Naive", "Naive + DR", "Meta-DR") else 3)
    for name in ("table3", "table4", "table6", "table7", "table8", "figure3"):
        assert {row.seeds for row in get_table(name).rows} == {3}
    assert {row.seeds for name in ("table10", "table11") for row in get_table(name).rows} == {1}
    assert {row.seeds for name in OF_PACS for row in get_table(name).rows} == {5}
    assert set(get_table("table1").with_seeds(2).seeds_of.values()) == {range(2)}
    assert get_table("table1").with_seeds(None) == get_table("table1")


def test_jobs_are_the_first_seed_of_all_then_the_second() -> None:
    one, two = recipe_of("table3", "recall"), recipe_of("table3", "adapt")
    assert jobs_of({one: range(3), two: range(1)}) == [Job(one, 0), Job(two, 0), Job(one, 1), Job(one, 2)]
    assert jobs_of({}) == []


def test_recipes_that_differ_in_words_alone_are_one_run(tmp_path: Path) -> None:
    usual, stated = (make_recipe("embedded", "naive", tiny=True, **fields) for fields in ({}, {"batch_norm": "clean"}))
    assert usual != stated
    found = plan_jobs([Job(usual, 0), Job(stated, 0), Job(stated, 1)], tmp_path)
    assert found.missing == [Job(usual, 0), Job(stated, 1)] and found.finished == []


def test_what_cannot_be_run_here_is_not_finished(tmp_path: Path) -> None:
    usual, unknown = make_recipe("embedded", "naive", tiny=True), make_recipe("embedded", "naive", weights=FROM_A_FILE)
    with pytest.raises(UserError, match="This starts from weights in a file"):
        plan_jobs([Job(usual, 0), Job(unknown, 0)], tmp_path)
    assert plan_known([Job(usual, 0), Job(unknown, 0)], tmp_path).missing == [Job(usual, 0)]


def test_jobs_of_one_method_are_told_apart() -> None:
    for name in OF_THE_PAPER:
        jobs = jobs_of(get_table(name).seeds_of)
        assert len(set(titles_of(jobs).values())) == len(jobs)
    titles = list(titles_of(jobs_of(get_table("table6").with_seeds(1).seeds_of)).values())
    assert titles == [
        "digits naive seed 0",
        "digits meta-dr seed 0 (recall 0.1)",
        "digits meta-dr seed 0 (recall 1.0)",
    ]
    titles = list(titles_of(jobs_of(get_table("table11").seeds_of)).values())
    assert titles[0] == "digits gem seed 0 (order mnist → mnist_m → syn → svhn)"


def test_weights_of_the_terms() -> None:
    weights = {
        (name, row.title): (part.recall, part.adapt, part.inner_lr)
        for name in ("table3", "table6", "table7", "table8")
        for row in get_table(name).rows
        for part in row.recipes[0].method
    }
    assert weights == {
        ("table3", "recall"): (1.0, 0.0, 0.1),
        ("table3", "adapt"): (0.0, 1.0, 0.1),
        ("table3", "recall and adapt"): (1.0, 1.0, 0.1),
        ("table6", "beta = 0.1"): (0.1, 0.0, 0.1),
        ("table6", "beta = 1.0"): (1.0, 0.0, 0.1),
        ("table7", "gamma = 0.1"): (0.0, 0.1, 0.1),
        ("table7", "gamma = 1.0"): (0.0, 1.0, 0.1),
        ("table8", "alpha = 0.001"): (1.0, 1.0, 0.001),
        ("table8", "alpha = 0.01"): (1.0, 1.0, 0.01),
        ("table8", "alpha = 0.1"): (1.0, 1.0, 0.1),
    }


def test_from_mnist_nothing_else_is_trained_on() -> None:
    without, randomised = get_table("table4").recipes
    for recipe in (without, randomised):
        assert (recipe.order, recipe.tested) == (("mnist",), ("mnist_m", "syn", "svhn"))
        assert training_of(recipe).steps == 3000
    assert without.method == ()
    assert [(part.name, part.transforms) for part in randomised.method] == [("dr", "psi2")]


@pytest.mark.parametrize(("name", "memories"), [("table10", {200, 300, 400}), ("table11", {100})])
def test_tables_of_memories_train_by_sgd(name: str, memories: set[int]) -> None:
    recipes = get_table(name).recipes
    assert {recipe.memory_per_domain for recipe in recipes} == memories
    trainings = {training_of(recipe) for recipe in recipes}
    assert {(each.optimizer, each.lr, each.later_lr, each.momentum) for each in trainings} == {("sgd", 0.01, 0.01, 0)}
    assert {recipe.method_name for recipe in recipes} == {"gem", "dr+gem", "er", "dr+er", "er+meta-dr"}


def test_all_orders_are_run_once_by_each_method() -> None:
    for row in get_table("table11").rows:
        assert {recipe.order for recipe in row.recipes} == set(
            itertools.permutations(("mnist", "mnist_m", "syn", "svhn"))
        )
        assert len(row.recipes) == 24


# PACS.


def test_pacs_trains_as_the_paper_says_and_the_readings_do() -> None:
    training = BENCHMARKS["pacs"].training
    assert (training.model, training.weights, training.scaling) == ("resnet18", "imagenet", "imagenet")
    assert (training.optimizer, training.lr, training.later_lr, training.momentum) == ("sgd", 0.01, 0.001, 0.0)
    assert (training.steps, training.batch_size) == (3000, 64)
    for recipe in {recipe for name in OF_PACS for recipe in get_table(name).recipes}:
        assert training_of(recipe) == settled(training, recipe.method)
    assert recipe_of("table2", "Naive").order == ("sketch", "cartoon", "art_painting", "photo")
    for row in get_table("table2").rows:
        assert {part.transforms for part in row.recipes[0].method if part.name in ("dr", "meta-dr")} <= {"psi4"}
        size = row.title.rpartition("M = ")[2] if "M = " in row.title else 0
        assert row.recipes[0].memory_per_domain == int(size)
    alone, randomised = (recipe_of("table5", title) for title in ("without DR", "with DR"))
    assert alone.order == randomised.order == ("sketch",)
    assert (alone.method, randomised.method[0].transforms) == ((), "psi2")


def test_the_short_study_is_table_2_with_another_network_and_says_so() -> None:
    table = get_table("pacs-resnet50")
    made = compare(table, [])
    assert [row.title for row in table.rows] == [
        "Naive",
        "Naive + DR",
        "Meta-DR",
        "ER, M = 100",
        "ER + DR, M = 100",
        "ER + Meta-DR, M = 100",
        "GEM + DR, M = 100",
        "Oracle (all)",
        "Oracle (cumul.)",
    ]
    assert made.columns == columns_of("table2")
    assert all(cell.paper == PAPER["table2"][place] for place, cell in made.cells.items())
    assert "Not the paper's setting: ResNet-50" in made.notes[0] and "600 steps of 32" in made.notes[0]
    assert "an `lr` of 0.01 on the first" in made.notes[0]
    for row in table.rows:
        short, whole = row.recipes[0], recipe_of("table2", row.title)
        assert (short.order, short.method, short.access) == (whole.order, whole.method, whole.access)
        assert short.memory_per_domain == whole.memory_per_domain
        assert dict(short.overrides) == {
            "model": "resnet50_v1",
            "weights": "file",
            "steps": 600,
            "lr": 0.01,
            "batch_size": 32,
            "precision": "tf32",
        }


def test_the_schedule_of_the_short_study_is_chosen_on_held_out_sketches() -> None:
    table = get_table("pacs-schedule")
    assert set(table.seeds_of.values()) == {range(1)} and len(table.recipes) == 9
    grid = []
    for row in table.rows:
        (recipe,), training = row.recipes, training_of(row.recipes[0])
        assert (recipe.order, recipe.tested, recipe.method) == (("sketch",), (), ())
        assert dict(recipe.data) == {"num_val": 300, "test_on": "val"}
        assert training.later_lr == 0.001
        grid.append((training.steps, training.lr))
        study = with_settings(recipe_of("pacs-resnet50", "Naive"), order=("sketch",), **dict(recipe.data))
        words = dict(each.split("=") for each in row.title.split())
        assert words == dict(row.point) and with_settings(study, **words) == recipe
    assert grid == [*itertools.product((300, 600, 1200), (0.003, 0.01, 0.03))]
    assert "that on later ones stays 0.001" in table.notes[0]
    tiny = {(each.steps, each.lr) for each in map(training_of, get_table("pacs-schedule", tiny=True).recipes)}
    assert len(tiny) == 9 and max(tiny)[0] < 5


def test_the_report_of_schedules_names_the_best_by_its_score() -> None:
    table = get_table("pacs-schedule")
    environment = {"gpu": "abacus", "torch": "2.0", "metadr": "0.1", "commit": "c0ffee", "dirty": False}
    scores = (70.0, 74.0, 60.0, 71.0, 75.5, 61.0, 72.0, 75.5)
    records = [
        Record(
            json.loads(json.dumps({**description(recipe), "data": "pixels", "seed": 0})),
            environment,
            9.0,
            [{"after": "sketch", "on": "sketch", "metric": "accuracy", "value": value, "images": 300}],
        )
        for recipe, value in zip(table.recipes, scores, strict=False)
    ]
    text = rendered(compare(table, records), "md").decode()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[0] == "| steps | lr | Sketches | mean |"
    assert lines[2:4] == ["| 600 | 0.01 | 75.5 | 75.5 |", "| 1200 | 0.01 | 75.5 | 75.5 |"]  # of equals the shorter
    assert lines[-1] == "| 1200 | 0.03 | missing | - |" and len(lines) == 2 + 9
    assert "8 of 9 configurations were tried; the best of them is `steps=600 lr=0.01`, 75.5." in text
    assert "held-out training images" in text and "those that are gone" not in text


# Virtual KITTI 2.

PERMUTATIONS = """02 01 06, 06 01 18, 20 01 18, 02 18 20, 06 01 02, 20 18 01, 02 06 01, 18 20 02, 20 06 01, 18 06 02,
06 20 18"""  # Appendix A, as it is printed
LOOKS = {"P1": ("clone", "fog", "overcast"), "P2": ("clone", "rain", "fog"), "P3": ("clone", "sunset", "morning")}


def test_kitti_rows_are_over_the_listed_permutations() -> None:
    scenes = [each.split() for each in PERMUTATIONS.split(",")]
    assert len(scenes) == 11
    for row in get_table("figure4").rows:
        wanted = [
            tuple(f"scene{scene}-{look}" for scene, look in zip(three, LOOKS[row.under], strict=True))
            for three in scenes
        ]
        assert [recipe.order for recipe in row.recipes] == wanted
        assert row.seeds == 1


def test_kitti_trains_as_the_paper_says() -> None:
    recipes = {recipe for name in ("figure4", "table9") for recipe in get_table(name).recipes}
    training = BENCHMARKS["vkitti2"].training
    assert all(training_of(recipe) == settled(training, recipe.method) for recipe in recipes)
    assert (training.model, training.weights, training.scaling) == ("unet_resnet34", "imagenet", "imagenet")
    assert (training.epochs, training.later_epochs, training.batch_size) == (20, 10, 8)
    assert (training.optimizer, training.lr, training.later_lr) == ("adam", 3e-4, 3e-5)
    assert (training.sampling, training.mirror, training.kept_epoch) == ("shuffled", True, "last")
    parts = {part for recipe in get_table("figure4").recipes for part in recipe.method}
    assert {part.transforms for part in parts} == {"psi4"}
    (meta,) = (part for part in parts if part.name == "meta-dr")
    assert (meta.recall, meta.adapt, meta.inner_lr) == (10.0, 10.0, 0.01)


def test_kitti_betas_and_the_naive_row_that_both_tables_share() -> None:
    rows = {row.title: row for row in get_table("table9").rows}
    (naive,) = [row for row in get_table("figure4").rows if (row.title, row.under) == ("Naive", "P3")]
    assert rows.pop("beta = 0.0").recipes == naive.recipes
    weights = {
        title: {(part.recall, part.adapt) for recipe in row.recipes for part in recipe.method}
        for title, row in rows.items()
    }
    assert weights == {f"beta = {beta}": {(beta, 0.0)} for beta in (0.001, 0.01, 0.1, 1.0, 10.0)}


@pytest.mark.parametrize(("name", "paper"), [("vkitti2-rendered", "figure4"), ("table9-rendered", "table9")])
def test_rendered_tables_stand_beside_the_paper_and_say_what_they_are(name: str, paper: str) -> None:
    table, made = get_table(name), compare(get_table(name), [])
    assert {recipe.benchmark for recipe in table.recipes} == {"vkitti2-rendered"}
    assert any("Rendered here" in note and "not its images" in note for note in table.notes)
    assert any("ResNet-50" in note for note in table.notes)
    assert any("frames of 416x128" in note for note in table.notes)
    memories = {recipe.memory_per_domain for recipe in table.recipes} - {0}
    assert [f"keeps {memory} frames" in table.notes[-1] for memory in memories] == [True] * (paper == "figure4")
    assert made.columns == columns_of(paper)
    own = {place: cell.paper for place, cell in made.cells.items() if cell.paper is not None}
    assert own == {place: cell for place, cell in PAPER[paper].items() if place[0] in made.rows}
    assert len(own) == (27 if paper == "figure4" else 9)
    in_claims = {row.title for row in get_table("figure4").rows} if paper == "figure4" else set()
    assert all(len(row.recipes) == (7 if row.title in in_claims else 5) for row in table.rows)
    networks = {
        row.title: {(training_of(recipe).model, training_of(recipe).weights) for recipe in row.recipes}
        for row in table.rows
    }
    scratch = networks.pop("Naive, ResNet-34 from scratch", {("unet_resnet34", None)})
    assert scratch == {("unet_resnet34", None)}
    assert set().union(*networks.values()) == {("unet_resnet50_v1", "file")}


def test_what_a_search_has_named_keeps_its_strengths_from_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Configuration("dr+ewc", {"ewc.strength": 100.0})
    monkeypatch.setattr("metadr.benchmarks.RECOMMENDED", {**RECOMMENDED, "recommended": found})
    row = next(row for row in get_table("beyond-final-weights").rows if row.title == "Recommended")
    assert {part.name: part for part in row.recipes[0].method}["ewc"] == EWC(strength=100.0)


@pytest.mark.parametrize("name", ["table4", "table11", "calibration3n", "strengths", "syn-sensitivity"])
def test_tables_from_weights_are_the_usual_ones_but_for_what_networks_start_from(name: str) -> None:
    usual, table = get_table(name), get_table(f"{name}-weights")
    assert (table.beside, table.first_seed) == (usual.beside or name, usual.first_seed)
    for own, other in zip(table.rows, usual.rows, strict=True):
        assert own._replace(recipes=()) == other._replace(recipes=())
        for recipe, before in zip(own.recipes, other.recipes, strict=True):
            training = training_of(recipe)
            assert (training.weights, training.scaling, training.model) == (FROM_A_FILE, "imagenet", "resnet18")
            weighs = name != "strengths" and "ewc" in recipe.method_name.split("+")
            chosen = {"ewc.strength": 1.0} if weighs else {}
            assert with_settings(recipe, weights="none", scaling="unit") == with_settings(
                before, weights="none", scaling="unit", **chosen
            )
    assert [note for note in table.notes if note not in usual.notes] == [from_weights.NOTE]
    tiny = get_table(f"{name}-weights", tiny=True)
    assert (tiny.recipes, tiny.notes) == (get_table(name, tiny=True).recipes, usual.notes)  # which starts from none


@pytest.mark.parametrize("name", ["table1", "table3", "table8", "table10", "table11", "figure3", "syn-sensitivity"])
def test_meta_dr_is_as_first_read_where_it_was_not_run_again(name: str) -> None:
    def as_first_read(table: Table) -> bool:
        recipes = [recipe for recipe in table.recipes if "meta-dr" in recipe.method_name.split("+")]
        (reading,) = {(with_settings(each, **READING) == each) for each in recipes}
        assert (NOTE in table.notes) == reading
        return reading

    assert as_first_read(get_table(name))
    assert as_first_read(get_table(f"{name}-weights")) == (name in NOT_RUN_AGAIN)


def test_every_row_of_which_more_seeds_are_wanted_is_there() -> None:
    rows = [row for name in ("suspects", "suspects-p2") for row in get_table(name).rows]
    wanted = {f"{title}, {what}": seeds for (title, what), seeds in suspects.SEEDS.items()}
    assert {row.title: row.seeds for row in rows if row.seeds > 1} == wanted


def test_claims_are_put_to_meta_dr_as_first_read_where_its_tables_are() -> None:
    read: dict[str, set[str]] = {}
    for claim in FAMILIES["digits-weights"]:
        for runs in (claim.runs, *claim.over):
            for side in (runs.runs, runs.over) if isinstance(runs, Gain) else (runs,):
                if "meta-dr" in side.method.split("+"):
                    read.setdefault(dict(side.fields).get("meta-dr.per", "image"), set()).add(claim.source)
    assert read["batch"] == {"Table 10", "Table 11"}
    assert {"Table 1", "Table 3", "Table 8", "Figure 3"} <= read["image"]
