"""Finished runs as records: from run directories, or from a file that a report kept."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from metadr.errors import UserError
from metadr.evaluate import Summary, summarise
from metadr.parts import PARTS
from metadr.policies import policy_of
from metadr.run import scores_of
from metadr.sequence import BY_BATCH, BY_PASSES, UNTRAINED
from metadr.store import RESUMED, WEIGHTS, apart, finished_runs, whole_training

PART_ORDER = ("gem", "er", "l2", "ewc", "lwf", "average", "dr", "meta-dr")
PART_TITLES = {
    "gem": "GEM",
    "er": "ER",
    "l2": "L2",
    "ewc": "EWC",
    "lwf": "LwF",
    "average": "average",
    "dr": "DR",
    "meta-dr": "Meta-DR",
}
# Batch norm's statistics in the last test: the run's own, those of every tested batch, or by a policy of `KEPT`.
TestedBy = Literal["running", "batch", "all", "clean", "inner", "inner+clean"]
OF_MASKS = ("suite", "micro", "iou", "confusion")  # of a row beside its score; files keep those of the last test
ORACLES = {"so_far": "Oracle (cumul.)", "all": "Oracle (all)"}


class Record(NamedTuple):
    """One finished run: what it was, what it ran on, what it found."""

    identity: dict[str, Any]
    environment: dict[str, Any]
    seconds: float
    rows: list[dict[str, Any]]
    read_from: "Record | None" = None
    """The run that it is the last test of by another policy, where it is no run of its own."""

    @property
    def order(self) -> tuple[str, ...]:
        return tuple(self.identity["order"])

    @property
    def tested(self) -> tuple[str, ...]:
        """Domains that it was only tested on."""
        return tuple(self.identity.get("tested", ()))

    @property
    def seed(self) -> int:
        return int(self.identity["seed"])

    @property
    def recipe(self) -> dict[str, Any]:
        """What its seeds have in common: what a run goes on from by what that learnt, since every seed has its own."""
        recipe = {name: value for name, value in self.identity.items() if name != "seed"}
        past = self.environment.get("past")
        return {**recipe, "data": f"{apart(recipe['data'])[0]}{WEIGHTS}{past['key']}"} if past else recipe

    @property
    def past(self) -> str:
        """What it goes on from, in words; nothing where it begins anew."""
        return str(self.environment.get("past", {"words": ""})["words"])

    @property
    def scores(self) -> list[list[float]]:
        return scores_of(self.rows, self.order)

    def final(self, domain: str) -> float:
        """The score on a domain at the end of the sequence."""
        (value,) = (row["value"] for row in self.rows if (row["after"], row["on"]) == (self.order[-1], domain))
        return float(value)

    @property
    def summary(self) -> Summary:
        return summarise(self.scores)

    @property
    def last_rows(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["after"] == self.order[-1]]

    def tested_by(self, by: TestedBy) -> "Record | None":
        """The same run, its last test by other statistics of batch norm; none if it was not tested so."""
        if by == "running":
            return self
        return self._by_batch() if by == "batch" else self._by_passes(by)

    def _by_batch(self) -> "Record | None":
        if self.identity["training"].get("tested_by") == "batch":
            return self
        fixed = self.identity["training"].get("later_norm") == "fixed"  # older runs of these have a number all the same
        if fixed or not all(BY_BATCH in row for row in self.last_rows):
            return None
        return self._scored(lambda row: row[BY_BATCH])

    def _by_passes(self, policy: str) -> "Record | None":
        kinds = [PARTS.get(part["part"]) for part in self.identity["method"]]
        wanted = policy_of(policy, kinds)
        if wanted == self._policy or not any(kind is None or vars(kind).get("passes") for kind in kinds):
            return self  # or there is one pass, and so one policy
        if not all(wanted in row.get(BY_PASSES, ()) for row in self.last_rows):
            return None
        return self._scored(lambda row: row[BY_PASSES][wanted])

    def _scored(self, value: Callable[[dict[str, Any]], float]) -> "Record":
        """With other scores in the last test."""
        last = self.last_rows
        return self._replace(rows=[{**row, "value": value(row)} if row in last else row for row in self.rows])

    @property
    def _policy(self) -> str:
        return str(whole_training(self.identity)["batch_norm"])

    @property
    def of_other_policies(self) -> list["Record"]:
        """What runs by the policies whose statistics it kept would have at the end, which learn the same."""
        made = []
        for policy in self.last_rows[0].get(BY_PASSES, ()):
            if found := self._by_passes(policy):
                training = {**self.identity["training"], "batch_norm": policy}
                made.append(found._replace(identity={**self.identity, "training": training}, read_from=self))
        return made

    @property
    def title(self) -> str:
        """The method as the paper's tables write it: 'Naive + DR', 'ER + Meta-DR', 'Oracle (all)'."""
        names = sorted((part["part"] for part in self.identity["method"]), key=place)
        titles = [PART_TITLES.get(name, name) for name in names]
        if self.identity["access"] != "current":
            titles = [ORACLES[self.identity["access"]], *titles]
        elif names in ([], ["dr"]):
            titles = ["Naive", *titles]
        return " + ".join(titles)

    @property
    def made_with(self) -> str:
        """Hardware and versions, in words; where a run went on with others, these too."""
        legs = (self.environment, *self.environment.get(RESUMED, ()))
        return ", then ".join(dict.fromkeys(map(_in_words, legs)))


def _in_words(made: dict[str, Any]) -> str:
    where = made["gpu"] or f"{made['processor']} ({made['threads']} threads)"
    return f"{where}, torch {made['torch']}, metadr {made['metadr']} at {made['commit'] or 'no commit'}" + (
        " with changes" if made["dirty"] else ""
    )


def place(name: str) -> tuple[int, str]:
    """Where a part stands in a method's title."""
    return (PART_ORDER.index(name) if name in PART_ORDER else len(PART_ORDER), name)


def numbers_of_seeds(records: Iterable[Record]) -> list[int]:
    """How many seeds there are of each experiment among some runs."""
    seeds: dict[str, set[int]] = {}
    for record in records:
        seeds.setdefault(json.dumps(record.recipe, sort_keys=True), set()).add(record.seed)
    return sorted(map(len, seeds.values()))


def read_records(source: str | Path) -> list[Record]:
    """The finished runs at or below a folder, or in a file that `metadr report` wrote."""
    path = Path(source)
    records = _read_file(path) if path.is_file() else [_read_folder(folder) for folder in finished_runs(path)]
    if not records:
        raise UserError(f"No finished runs in {path}. Start some with 'metadr run' or 'metadr sweep'.")
    return records


def by_statistics(records: Iterable[Record], by: TestedBy) -> list[Record]:
    """Records as they are, or with a last test by other statistics of batch norm: those that have one."""
    return [other for each in records if (other := each.tested_by(by))]


def _read_file(path: Path) -> list[Record]:
    try:
        content = json.loads(path.read_text())
        if isinstance(content, list) and content and set(content[0]) == {"identity", "before", "rows"}:
            raise UserError(f"{path} is what 'metadr rescore' wrote, and holds no records. Give a report's .json file.")
        records = unpack_records(content) if isinstance(content, dict) else [Record(**record) for record in content]
        return [_whole(record) for record in records]
    except _UNREADABLE as error:
        raise UserError(
            f"{path} is not a file of records ({error!r}). Give a folder of runs, or a .json file that a report wrote."
        ) from None


def _read_folder(folder: Path) -> Record:
    try:
        recipe, environment, done, rows = (json.loads((folder / name).read_text()) for name in _FILES)
        return _whole(Record(recipe, environment, done["seconds"], rows))
    except _UNREADABLE as error:
        raise UserError(
            f"Run {folder} is marked as done, but cannot be read ({error!r}). Restore or remove it, and run it again."
        ) from None


def _whole(record: Record) -> Record:
    """Touch what tables are made from, so that a record that lacks some of it is refused here."""
    _ = record.title, record.seed, record.scores, record.made_with
    _ = [record.final(name) for name in (*record.order, *record.tested)]
    return record


def pack_records(records: Iterable[Record]) -> str:
    """Records as small JSON, in which a changed run is a changed line."""
    environments: list[Any] = []
    recipes: list[Any] = []
    runs = []
    for record in records:
        identity = {name: value for name, value in record.identity.items() if name != "seed"}
        domains = (*record.order, *record.tested)
        images = {row["on"]: row["images"] for row in record.rows}
        recipe = {"identity": identity, "metric": record.rows[0]["metric"], "images": [images[on] for on in domains]}
        values = {(row["after"], row["on"]): row["value"] for row in record.rows}
        batches = {row["on"]: row[BY_BATCH] for row in record.rows if BY_BATCH in row}
        passes = {row["on"]: row[BY_PASSES] for row in record.rows if BY_PASSES in row}
        policies = list(passes[domains[0]]) if passes else []
        last = {row["on"]: row for row in record.last_rows}
        of_masks = [name for name in OF_MASKS if all(name in row for row in last.values())]
        runs.append(
            {
                "recipe": _place(recipe, recipes),
                "environment": _place(record.environment, environments),
                "seed": record.seed,
                "seconds": record.seconds,
                "scores": [[values[after, on] for on in domains] for after in (UNTRAINED, *record.order)],
                **({BY_BATCH: [batches.get(on) for on in domains]} if batches else {}),
                **({BY_PASSES: {each: [passes[on][each] for on in domains] for each in policies}} if passes else {}),
                **{name: [last[on][name] for on in domains] for name in of_masks},
            }
        )
    parts = {"environments": environments, "recipes": recipes, "runs": runs}
    texts = {name: ",\n".join(json.dumps(each, sort_keys=True) for each in those) for name, those in parts.items()}
    return "{\n" + ",\n".join(f'"{name}": [\n{text}\n]' for name, text in texts.items()) + "\n}\n"


def unpack_records(content: dict[str, Any]) -> list[Record]:
    """The records that `pack_records` wrote."""
    records = []
    for run in content["runs"]:
        recipe = content["recipes"][run["recipe"]]
        identity = {**recipe["identity"], "seed": run["seed"]}
        domains = (*identity["order"], *identity.get("tested", ()))
        rows = [
            {"after": after, "on": on, "metric": recipe["metric"], "value": value, "images": images}
            for after, scores in zip((UNTRAINED, *identity["order"]), run["scores"], strict=True)
            for on, images, value in zip(domains, recipe["images"], scores, strict=True)
        ]
        for row, value in zip(rows[-len(domains) :], run.get(BY_BATCH, ()), strict=False):
            row |= {} if value is None else {BY_BATCH: value}
        for place, row in enumerate(rows[-len(domains) :] if BY_PASSES in run else ()):
            row[BY_PASSES] = {policy: values[place] for policy, values in run[BY_PASSES].items()}
        for name in OF_MASKS:
            for row, value in zip(rows[-len(domains) :], run.get(name, ()), strict=False):
                row[name] = value
        records.append(Record(identity, content["environments"][run["environment"]], run["seconds"], rows))
    return records


def _place(value: Any, known: list[Any]) -> int:
    if value not in known:
        known.append(value)
    return known.index(value)


_FILES = ("recipe.json", "environment.json", "done.json", "rows.json")
_UNREADABLE = (OSError, ValueError, TypeError, LookupError, AttributeError)
