"""What is published of speed, in docs/performance.md and the README, is what was measured."""

import itertools
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_transformations_are_no_slower_than_pillow_where_they_were_measured():
    measured = json.loads((ROOT / "results" / "bench" / "transforms.json").read_text())
    assert measured["environment"]["threads"] == 2
    assert measured["set"] == "psi3"
    assert all(row["ratio"] >= 1 and row["same_pixels"] for row in measured["rows"])


BENCH = ROOT / "results" / "bench"


def steps_in_markdown(measured):
    """The rows of `metadr bench step` as docs/performance.md shows them."""
    for row in measured["rows"]:
        cells = [row["method"], row["precision"], row["contender"], f"{row['ms']:.2f}"]
        cells += [" to ".join(f"{value:.2f}" for value in row["quartiles_ms"]), f"{row['ratio']:.2f}"]
        cells += [] if row["memory_mib"] is None else [f"{row['memory_mib']:.0f}"]
        yield "| " + " | ".join([*cells, f"{row['first_seconds']:.1f}", f"{100 * row['share_of_limit']:.1f} %"]) + " |"


def errors_in_markdown(measured):
    """The rows of `metadr bench precision`, a line for each stop."""
    errors = {}
    for row in measured["rows"]:
        errors.setdefault(row["step"], []).append(f"{100 * row['error']:.3g} %")
    return ["| " + " | ".join([str(step), *cells]) + " |" for step, cells in errors.items()]


def fishers_in_markdown(measured):
    for row in measured["rows"]:
        cells = [row["contender"], f"{row['ms']:.1f}", " to ".join(f"{value:.1f}" for value in row["quartiles_ms"])]
        cells += [f"{row['ms_an_image']:.3f}", f"{row['ratio']:.2f}", f"{row['off']:.1e}"]
        yield "| " + " | ".join(cells) + " |"


def sweeps_in_markdown(measured):
    for row in measured["rows"]:
        cells = [row["sweep"], str(row["runs"]), str(row["n"]), f"{row['seconds']:.1f}"]
        cells += [" to ".join(f"{value:.1f}" for value in row["quartiles_s"]), f"{row['seconds_a_run']:.2f}"]
        yield "| " + " | ".join([*cells, f"{row['ms_a_step']:.2f}", f"{row['ratio']:.2f}"]) + " |"


IN_MARKDOWN = {
    "step": steps_in_markdown,
    "precision": errors_in_markdown,
    "fisher": fishers_in_markdown,
    "sweep": sweeps_in_markdown,
}
SHOWN = sorted(path for path in BENCH.glob("*.json") if path.stem.split("-")[0] in IN_MARKDOWN)


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: path.stem)
def test_performance_page_shows_what_was_measured(path):
    page = (ROOT / "docs" / "performance.md").read_text()
    _, marked, table = page.partition(f"<!-- {path.name} -->\n")
    assert marked
    shown = list(itertools.takewhile(lambda line: line.startswith("|"), table.splitlines()))[2:]
    measured = json.loads(path.read_text())
    assert shown == list(IN_MARKDOWN[path.stem.split("-")[0]](measured))


def test_performance_page_shows_the_scores_in_each_precision():
    page = (ROOT / "docs" / "performance.md").read_text()
    rows = [line.split(" | ours | ") for line in (ROOT / "results" / "precision.md").read_text().splitlines()]
    rows = [" | ".join(row) for row in rows if len(row) == 2]
    assert len(rows) == 3
    assert all(row in page for row in rows)


def measured_step(name, *, gpu="NVIDIA H200", size=32):
    """Milliseconds of what was measured, and the seconds of first calls, by precision and contender."""
    measured = json.loads((BENCH / f"step-{name}.json").read_text())
    assert (measured["environment"]["gpu"], measured["model"]) == (gpu, "resnet18")
    assert (measured["size"], measured["batch"]) == (size, 64)
    rows = {(row["method"], row["precision"], row["contender"]): row for row in measured["rows"]}
    return {key: row["ms"] for key, row in rows.items()}, {key: row["first_seconds"] for key, row in rows.items()}


def test_steps_are_within_their_targets_where_they_were_measured():
    ms, first = measured_step("meta-dr")
    assert ms["meta-dr", "tf32", "metadr"] <= 15
    assert ms["meta-dr", "fp32", "metadr"] <= 24
    assert ms["meta-dr", "tf32", "metadr, 16 lanes"] <= 4.5
    assert all(ms["meta-dr", each, "metadr"] < ms["meta-dr", each, "higher"] for each in ("fp32", "tf32"))
    assert max(first["meta-dr", each, "metadr"] for each in ("fp32", "tf32")) <= 2  # capture and warm-up
    ms, first = measured_step("naive")
    assert ms["naive", "tf32", "metadr"] <= 1.5
    assert ms["naive", "tf32", "metadr, 16 lanes"] <= 0.4
    assert max(first["naive", each, "metadr"] for each in ("fp32", "tf32")) <= 2


def test_the_pages_say_what_a_step_takes():
    ms, _ = measured_step("meta-dr")
    ours, lanes, eager = (
        [ms["meta-dr", precision, contender] for precision in ("tf32", "fp32")]
        for contender in ("metadr", "metadr, 16 lanes", "eager")
    )
    readme, page = (" ".join((ROOT / name).read_text().split()) for name in ("README.md", "docs/performance.md"))
    assert f"takes {ours[0]:.1f} ms in TF32, and written with plain autograd {eager[0]:.0f} ms" in readme
    assert f"takes {ours[0]:.1f} ms in TF32 and {ours[1]:.1f} ms in fp32" in page
    assert f"{lanes[0]:.1f} and {lanes[1]:.1f} ms a run among 16" in page
    assert f"plain autograd it takes {eager[0]:.0f} and {eager[1]:.0f} ms" in page


def test_what_was_measured_has_a_commit_of_its_own():
    environments = {path.stem: json.loads(path.read_text())["environment"] for path in BENCH.glob("*.json")}
    assert all(len(each["commit"]) == 12 for each in environments.values())
    assert [name for name, each in environments.items() if each["dirty"]] == []


def test_a_step_on_a_cpu_is_not_slower_than_higher_where_it_was_measured():
    ms, _ = measured_step("cpu", gpu=None)
    assert ms["meta-dr", "fp32", "metadr"] <= ms["meta-dr", "fp32", "higher"]
