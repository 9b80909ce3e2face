"""A user's mistakes: each is one sentence on stderr and exit code 2, and nothing is lost or half-written."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import metadr
from metadr import settings
from metadr.bench.transforms import bench_transforms
from metadr.core import Domain, Recipe, Split, Task
from metadr.parts import PARTS
from metadr.sweep import plan

Command = Callable[..., Any]


def assert_told(ended: Any, *words: str) -> None:
    """One line, for people, with these words; and the exit code of a mistake."""
    assert ended.code == 2, ended
    assert ended.err.startswith("Error: "), ended.err
    assert ended.err.count("\n") == 1, ended.err
    assert ended.err.rstrip().endswith("."), ended.err
    assert "Traceback" not in ended.err
    assert "\x1b" not in ended.err
    for word in words:
        assert word in ended.err


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def method(name: str, *fields: str) -> list[str]:
    return ["--method", name, *(word for field in fields for word in ("--set", field))]


UNKNOWN: dict[str, tuple[Any, ...]] = {
    "recipe": (["run", "embeded"], "No recipe 'embeded'", "Closest: 'embedded'", "metadr list recipes"),
    "protocol": (["run", "embedded/p3"], "No recipe 'embedded/p3'", "Closest: 'embedded/p"),
    "method": (["run", "embedded", *method("naiv")], "No part 'naiv'", "Closest: 'naive'", "metadr list methods"),
    "part": (["run", "embedded", *method("ewc+drr")], "No part 'drr' in method 'ewc+drr'", "Closest: 'dr'"),
    "field": (["run", "embedded", "--set", "stepz=3"], "No field 'stepz'", "Closest: 'steps'", "metadr list fields"),
    "field-of-part": (["run", "embedded", *method("dr", "meta-dr.per=image")], "No field 'meta-dr.per'", "'dr.per'"),
    "transformation": (
        ["run", "embedded", *method("dr", "transforms=brightnes+rotate")],
        "No transformation 'brightnes'",
        "Closest: 'brightness'",
        "metadr list transforms",
    ),
    "field-like-none": (
        ["sweep", "table1", "--set", "zz=3"],
        "No field 'zz'. No row has such a setting: list all with 'metadr list fields'.",
    ),
    "set": (["run", "embedded", *method("dr", "transforms=psi33")], "No transformation set 'psi33'", "Closest: 'psi3'"),
    "set-to-bench": (["bench", "transforms", "--set", "psy3"], "No transformation set 'psy3'", "Closest: 'psi3'"),
    "model": (["run", "embedded", "--set", "model=resnet19"], "No model 'resnet19'", "Closest: 'resnet18'"),
    "domain": (["run", "embedded", "--set", "order=handwriten,street"], "No domain 'handwriten'", "'handwritten'"),
    "field-of-sweep": (["sweep", "demo", "--set", "stepz=3"], "No field 'stepz'", "Closest: 'steps'"),
    "field-of-no-part": (["sweep", "demo", "--set", "er.replay_batch=3"], "No field 'er.replay_batch'"),
    "field-of-no-row": (["sweep", "demo", "--row", "naive", "--set", "dr.per=image"], "No field 'dr.per'"),
    "field-of-a-row": (["sweep", "table1", "--set", "dr.pr=image"], "No field 'dr.pr'", "Closest: 'dr.per'"),
    "rows-made-one": (["sweep", "table8", "--set", "inner_lr=0.1"], "rows of table 'table8'", "would be the same"),
    "table": (["sweep", "dmeo"], "No table 'dmeo'", "Closest: 'demo'", "metadr list tables"),
    "picture": (["sweep", "figure5"], "'figure5' shows data and needs no run", "metadr report figure5 -o figure5.png"),
    "list": (["list", "benchmrks"], "No list 'benchmrks'", "Closest: 'benchmarks'"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_name_is_told_with_the_closest_one(
    name: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, *words = UNKNOWN[name]
    assert_told(command(*arguments), *words)
    assert not files(tmp_path)


WRONG = {
    "steps=abc": ("naive", ["steps=abc"], "'steps' parameter of Training must be a whole number >= 1. Got 'abc'"),
    "steps=0": ("naive", ["steps=0"], "'steps' parameter of Training must be a whole number >= 1. Got 0"),
    "steps=1.5": ("naive", ["steps=1.5"], "'steps' parameter of Training must be a whole number >= 1. Got '1.5'"),
    "lr=-1": ("naive", ["lr=-1"], "'lr' parameter of Training must be a number > 0. Got -1.0"),
    "lr=0": ("naive", ["lr=0"], "'lr' parameter of Training must be a number > 0. Got 0.0"),
    "lr=inf": ("naive", ["lr=inf"], "'lr' parameter of Training must be a number > 0. Got inf"),
    "optimizer": ("naive", ["optimizer=adm"], "'optimizer' parameter of Training must be one of 'adam', 'sgd'"),
    "batch_norm": ("naive", ["batch_norm=outer"], "'batch_norm' parameter of Training must be"),
    "limit": ("naive", ["limit=0"], "'limit' parameter of Training must be a whole number >= 1, or none. Got 0"),
    "recall=nan": ("meta-dr", ["recall=nan"], "'recall' parameter of MetaDR must be a number >= 0. Got nan"),
    "first_order": ("meta-dr", ["first_order=maybe"], "'first_order' parameter of MetaDR must be true or false"),
    "grid": ("dr", ["transforms=rotate:1:2"], "The grid of 'rotate' must be name:low:high:levels"),
    "memory-unused": ("ewc", ["memory_per_domain=5"], "memory_per_domain is 5, but no part of method 'ewc' uses"),
    "memory-missing": ("er", ["memory_per_domain=0"], "Part 'er' needs a memory, but memory_per_domain is 0"),
    "memory<0": ("er", ["memory_per_domain=-1"], "'memory_per_domain' parameter of Recipe must be a whole number >= 0"),
    "twice": ("dr+er+dr", [], "Part 'dr' is twice in the method"),
    "empty": ("dr++er", [], "Method 'dr++er' has an empty name in its sum"),
    "order": ("naive", ["order=street,street"], "The order of domains must name each domain once"),
    "no-equals": ("naive", ["steps"], "--set takes field=value, such as inner_lr=0.05. Got 'steps'"),
    "no-field": ("naive", ["=3"], "--set takes field=value, such as inner_lr=0.05. Got '=3'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_told_with_what_is_allowed(
    name: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parts, fields, sentence = WRONG[name]
    assert_told(command("run", "embedded", *method(parts, *fields)), sentence)
    assert not files(tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "embedded", "--seed", "-1"],
        ["run", "embedded", "--checkpoint-seconds", "-1"],
        ["run"],
        ["run", "embedded", "--nonsense"],
        ["sweep", "demo", "--seeds", "0"],
        ["bench", "transforms", "--repeats", "2"],
        ["nonsense"],
    ],
    ids=" ".join,
)
def test_what_the_parser_refuses(arguments: list[str], command: Command) -> None:
    ended = command(*arguments)
    assert ended.code == 2
    assert not ended.out
    assert "Usage:" in ended.err
    assert "Traceback" not in ended.err


def test_every_bound_of_every_field_is_refused_by_name() -> None:
    """The table above tries some; here is each field that states a bound, just outside it."""
    owners: list[type] = [Recipe, metadr.Training, *PARTS.values()]
    tried = 0
    for owner in owners:
        required = {"benchmark": "toy", "order": ("a",)} if owner is Recipe else {}
        for field in dataclasses.fields(owner):
            bound = field.metadata.get("low"), field.metadata.get("above")
            if bound == (None, None):
                continue
            outside = bound[1] if bound[0] is None else bound[0] - 1
            with pytest.raises(metadr.UserError) as told:
                owner(**required, **{field.name: outside})
            allowed = settings.describe(owner, field.name)
            assert f"The '{field.name}' parameter of {owner.__name__} must be {allowed}. Got" in str(told.value)
            tried += 1
    assert tried > 10


def test_a_sweep_tells_all_its_problems_before_it_starts(make_toy: Callable[..., Any], tmp_path: Path) -> None:
    make_toy()
    good = metadr.recipe("toy")
    wrong = [
        dataclasses.replace(good, overrides=(("model", "resnet19"),)),
        dataclasses.replace(good, order=("a", "x"), method=(metadr.L2(),)),
    ]
    with pytest.raises(metadr.UserError, match="Nothing was started") as told:
        plan([good, *wrong], range(2), tmp_path)
    assert "No model 'resnet19'" in str(told.value)
    assert "l2: No domain 'x'" in str(told.value)
    assert not files(tmp_path)


def images(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


def labels(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


GOOD = Split(images(4, 3, 8, 8), labels(4))
MASKS = Split(images(4, 3, 8, 8), labels(4, 8, 8))
BAD_DATA: dict[str, tuple[Task, Domain, str]] = {
    "label-too-large": (
        Task(3),
        Domain("b", Split(GOOD.x, torch.tensor([0, 1, 2, 3])), GOOD),
        "b/train: label 3 is out of range; with 3 classes labels are 0 to 2.",
    ),
    "label-negative": (Task(3), Domain("b", GOOD, Split(GOOD.x, labels(4) - 1)), "b/test: label -1 is out of range"),
    "label-of-a-mask": (
        Task(3, "miou"),
        Domain("b", MASKS, Split(MASKS.x, MASKS.y + 7)),
        "b/test: label 7 is out of range; with 3 classes labels are 0 to 2 or 255 (ignored).",
    ),
    "grey": (Task(3), Domain("b", Split(images(4, 1, 8, 8), GOOD.y), GOOD), "b/train: images must be a uint8 tensor"),
    "one-image": (Task(3), Domain("b", Split(images(3, 8, 8), GOOD.y), GOOD), "shape (3, 8, 8)"),
    "floats": (Task(3), Domain("b", GOOD, Split(GOOD.x.float(), GOOD.y)), "b/test: images must be a uint8 tensor"),
    "labels-short": (Task(3), Domain("b", Split(GOOD.x, labels(3)), GOOD), "b/train: labels must be an int64 tensor"),
    "labels-float": (Task(3), Domain("b", Split(GOOD.x, GOOD.y.float()), GOOD), "Got torch.float32 of shape (4,)."),
    "labels-not-masks": (Task(3, "miou"), Domain("b", GOOD, GOOD), "b/train: labels must be an int64 or uint8 tensor"),
    "empty-train": (Task(3), Domain("b", Split(images(0, 3, 8, 8), labels(0)), GOOD), "b/train: no images."),
    "empty-test": (Task(3), Domain("b", GOOD, Split(images(0, 3, 8, 8), labels(0))), "b/test: no images."),
    "empty-val": (Task(3), Domain("b", GOOD, GOOD, Split(images(0, 3, 8, 8), labels(0))), "b/val: no images."),
    "two-sizes": (Task(3), Domain("b", GOOD, Split(images(4, 3, 9, 8), GOOD.y)), "train images are 3x8x8 and test"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_data_that_do_not_fit_are_refused_before_anything_is_trained(
    name: str, make_toy: Callable[..., Any], command: Command, tmp_path: Path
) -> None:
    task, bad, sentence = BAD_DATA[name]
    good = Domain("a", MASKS, MASKS) if task.on_masks else Domain("a", GOOD, GOOD)
    make_toy(task=task, domains=("a", "b"), protocols={"ab": ("a", "b")}, load=lambda name: {"a": good, "b": bad}[name])
    assert_told(command("run", "toy", "--out", tmp_path), sentence)
    assert {path.name for path in files(tmp_path)} <= {"lock", "recipe.json"}


SMALLER = Split(images(4, 3, 6, 7), labels(4))


@pytest.mark.parametrize("method", ["er", "oracle-all"])
def test_images_of_two_shapes_cannot_be_mixed(
    method: str, make_toy: Callable[..., Any], command: Command, tmp_path: Path
) -> None:
    """Where each domain is trained on alone, they may have two."""
    loaded = {"a": Domain("a", GOOD, GOOD), "b": Domain("b", SMALLER, SMALLER)}
    make_toy(domains=("a", "b"), protocols={"ab": ("a", "b")}, load=lambda name: loaded[name])
    ended = command("run", "toy", "--tiny", "--method", method, "--out", tmp_path)
    assert_told(ended, f"Method '{method}' puts images of several domains into one batch", "Got a 8x8, b 6x7. Resize")
    assert command("run", "toy", "--tiny", "--out", tmp_path).code == 0


def test_a_benchmark_that_gives_another_domain_than_was_asked_for(
    make_toy: Callable[..., Any], command: Command, tmp_path: Path
) -> None:
    make_toy(load=lambda name: Domain("x", GOOD, GOOD))
    assert_told(command("run", "toy", "--out", tmp_path), "gave domain 'x' where 'a' was asked for")


def test_a_device_that_does_not_exist(make_toy: Callable[..., Any], command: Command, tmp_path: Path) -> None:
    make_toy()
    for device in ("nonsense", "cuda:x", "meta", "mps"):
        sentence = f"No device '{device}'. Allowed: auto, cpu, cuda, cuda:0 and so on."
        assert_told(command("run", "toy", "--out", tmp_path, "--device", device), sentence)
    sentence = "Device 'cuda:64' was asked for, but this machine has"
    assert_told(command("run", "toy", "--out", tmp_path, "--device", "cuda:64"), sentence)
    assert not files(tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("arguments", [["run", "toy"], ["sweep", "demo", "--tiny"]], ids=["run", "sweep"])
def test_a_gpu_that_is_not_there(
    arguments: list[str], make_toy: Callable[..., Any], command: Command, tmp_path: Path
) -> None:
    make_toy()
    ended = command(*arguments, "--out", tmp_path, "--device", "cuda")
    assert_told(ended, "Device 'cuda' was asked for, but this machine has no usable GPU. Use --device auto.")
    assert not files(tmp_path)


@pytest.mark.parametrize("out", ["/proc/runs", "file/runs"], ids=["read-only", "below-a-file"])
def test_an_output_folder_that_cannot_be_made(
    out: str, make_toy: Callable[..., Any], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_toy()
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    assert_told(command("run", "toy", "--out", out), f"Cannot write {out}/toy/naive-seed0-", "choose another place")
    assert files(tmp_path) == [tmp_path / "file"]
    assert Path("file").read_text() == "mine"


def test_a_sweep_into_a_folder_that_cannot_be_made(command: Command) -> None:
    ended = command("sweep", "demo", "--tiny", "--out", "/proc/runs")
    assert_told(ended, "Error: Cannot write /proc/runs: ", "choose another place (--out")
    assert ended.err.count("Cannot write") == 1 and "failed" not in ended.out


@pytest.fixture
def finished(make_toy: Callable[..., Any], tmp_path: Path) -> Path:
    make_toy()
    return metadr.run(metadr.recipe("toy", tiny=True), out=tmp_path / "runs", device="cpu").path


def test_a_report_of_what_is_not_there(command: Command, tmp_path: Path) -> None:
    assert_told(command("report", tmp_path / "nowhere"), f"No folder {tmp_path / 'nowhere'}", "--out")
    assert_told(command("report", tmp_path), f"No finished runs in {tmp_path}", "metadr run")
    assert not files(tmp_path)


def test_a_report_of_runs_of_which_none_is_finished(command: Command, finished: Path, tmp_path: Path) -> None:
    (finished / "done.json").unlink()
    assert_told(command("report", tmp_path / "runs"), "No finished runs")
    assert not list(tmp_path.rglob("report*"))


@pytest.mark.parametrize("name", ["recipe.json", "environment.json", "done.json", "rows.json"])
@pytest.mark.parametrize("content", ["{", "[]", "3", None], ids=["half", "list", "number", "missing"])
def test_a_report_of_a_finished_run_with_a_broken_file(
    name: str, content: str | None, command: Command, finished: Path, tmp_path: Path
) -> None:
    if content is None:
        (finished / name).unlink()
    else:
        (finished / name).write_text(content)
    ended = command("report", tmp_path / "runs")
    missing_marks = content is None and name in ("done.json", "rows.json")
    assert_told(ended, "No finished runs" if missing_marks else f"Run {finished} is marked as done, but cannot be read")
    assert not list(tmp_path.rglob("report*"))


@pytest.mark.parametrize("content", ["{", "3", "[3]", '[{"a": 1}]', '{"a": 1}', "# a table", "[]", "\x00"])
def test_a_report_of_a_file_that_is_no_report(content: str, command: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(content)
    assert_told(command("report", path), "No finished runs in" if content == "[]" else "is not a file of records")
    assert files(tmp_path) == [path]
    assert path.read_text() == content


def test_a_report_of_what_rescore_wrote(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "rescored.json"
    path.write_text('[{"identity": {}, "before": [], "rows": []}]')
    assert_told(command("report", path), "is what 'metadr rescore' wrote, and holds no records.")


def test_a_report_of_records_that_lack_a_score(command: Command, finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    assert command("report", finished, "-o", path.with_suffix("")).code == 0
    records = json.loads(path.read_text())
    del records[0]["rows"][0]
    path.write_text(json.dumps(records))
    before = {file: file.read_bytes() for file in files(tmp_path)}
    assert_told(command("report", path), "is not a file of records")
    assert before == {file: file.read_bytes() for file in files(tmp_path)}


@pytest.mark.parametrize("out", ["/proc/mine", "/proc/deeper/mine"])
def test_a_report_that_cannot_be_written(out: str, command: Command, finished: Path) -> None:
    assert_told(command("report", finished, "-o", out), "Cannot write", out, "-o")


def test_a_report_that_cannot_be_written_keeps_the_one_before(
    command: Command, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("report", finished, "-o", tmp_path / "mine").code == 0
    before = {file: file.read_bytes() for file in files(tmp_path)}

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert_told(command("report", finished, "-o", tmp_path / "mine"), "Cannot write", "No space left on device")
    assert before == {file: file.read_bytes() for file in files(tmp_path)}


def test_pictures_that_cannot_be_shown(command: Command, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    assert_told(command("show", "psi3", tmp_path / "nowhere", "-o", sheet), "No folder")
    assert_told(command("show", "psi3", tmp_path, "-o", sheet), "No images in")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG not really")
    assert_told(command("show", "psi3", tmp_path, "-o", sheet), "Cannot read the image", "broken.png")
    assert not sheet.exists()


def test_speeds_that_cannot_be_written(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = bench_transforms(sizes=(8,), batch=2, repeats=3, set_name="invert")
    monkeypatch.setattr("metadr.bench.transforms.bench_transforms", lambda **_: measured)
    ended = command("bench", "transforms", "-o", "/proc/speeds.json")
    assert re.search("Error: Cannot write /proc/speeds.json: .*-o", ended.err)
    assert ended.code == 2
