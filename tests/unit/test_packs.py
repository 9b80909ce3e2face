"""Packs: which files are in one, that the same runs give the same bytes, and how packed runs meet those of a folder."""

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from metadr import UserError
from metadr.files import write_file
from metadr.packs import pack, unpack
from metadr.packs.content import MANIFEST, newest_moment
from metadr.report.records import Record, pack_records, read_records
from metadr.store import Checkpoint, RunDirectory, finished_runs, key_of_identity

ENVIRONMENT = {"torch": "9"}


def make_run(
    out: Path, seed: int = 0, *, stage: int = 0, step: int | None = None, score: float | None = None, **files: Any
) -> Path:
    """A run: at a step if one is given, finished if a score is. Its benchmark is one that nobody knows here."""
    identity = {"benchmark": "toy", "seed": seed}
    directory = RunDirectory.at(out / "toy" / f"naive-seed{seed}-{key_of_identity(identity)}", identity)
    with directory.claimed():
        directory.write("environment.json", ENVIRONMENT)
        if step is not None:
            rows = [{"stage": stage, "step": step, "score": score}]
            directory.save(Checkpoint({"stage": stage, "step": step, "rows": rows}, {"x": torch.full((9,), step)}))
            directory.write("rows.json", rows)
        if score is not None:
            directory.write("done.json", {"seconds": 1.5})
        for name, content in files.items():
            directory.write(f"{name}.json", content)
    return directory.path


def contents(folder: Path) -> dict[str, bytes]:
    """All that is below a folder, but who held what."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(files)}


def members(file: Path) -> dict[str, bytes]:
    with tarfile.open(file) as archive:
        return {name: archive.extractfile(name).read() for name in archive.getnames()}  # type: ignore[union-attr]


def suffixes(names: Any) -> list[str]:
    """Names without their run and, of checkpoints, without their hash."""
    return sorted(Path(name).name.rsplit("-", 1)[0] for name in names)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """One finished run and one at step 7 of the second stage, with an older checkpoint and a failure."""
    make_run(tmp_path / "runs", 0, stage=2, step=0, score=0.5)
    make_run(tmp_path / "runs", 1, stage=1, step=6)
    make_run(tmp_path / "runs", 1, stage=1, step=7, failed={"reason": "no"})
    return tmp_path / "runs"


def test_a_pack_has_the_manifest_in_front_and_one_checkpoint_of_an_unfinished_run(runs: Path, tmp_path: Path) -> None:
    packed = pack(tmp_path / "p.tar.gz", out=runs)
    assert (packed.finished, packed.unfinished, packed.checkpoints, packed.left_out) == (1, 1, 1, 0)
    held = members(tmp_path / "p.tar.gz")
    first, *names = held
    manifest = json.loads(held[first])
    assert (first, manifest["format"], manifest["count"]) == (MANIFEST, 1, 2)
    done, going = sorted(manifest["runs"])
    assert sorted(manifest["runs"][done]) == ["done.json", "environment.json", "recipe.json", "rows.json"]
    unfinished = ["checkpoint-000002", "environment.json", "failed.json", "recipe.json", "rows.json"]
    assert suffixes(manifest["runs"][going]) == unfinished
    assert names == [f"{run}/{name}" for run in (done, going) for name in sorted(manifest["runs"][run])]
    for name in names:
        run, _, file = name.rpartition("/")
        assert manifest["runs"][run][file] == hashlib.sha256(held[name]).hexdigest()
        assert (runs / name).read_bytes() == held[name]


CHOICES: dict[str, tuple[dict[str, Any], tuple[int, int, int]]] = {
    "finished": ({"only": "finished"}, (1, 0, 0)),
    "unfinished": ({"only": "unfinished"}, (0, 1, 1)),
    "light": ({"light": True}, (1, 1, 0)),
    "checkpoints": ({"checkpoints": True}, (1, 1, 2)),
}


@pytest.mark.parametrize("name", CHOICES)
def test_what_is_packed_can_be_chosen(name: str, runs: Path, tmp_path: Path) -> None:
    chosen, expected = CHOICES[name]
    packed = pack(tmp_path / "p", out=runs, **chosen)
    assert (packed.finished, packed.unfinished, packed.checkpoints) == expected
    assert sum("checkpoint-" in member for member in members(tmp_path / "p")) == expected[2]
    done = unpack([tmp_path / "p"], out=tmp_path / "other")
    assert (done.finished, done.unfinished, len(done.new)) == (*expected[:2], sum(expected[:2]))


def test_the_same_runs_give_the_same_bytes(runs: Path, tmp_path: Path) -> None:
    pack(tmp_path / "one", out=runs)
    shutil.copytree(runs, tmp_path / "copy")
    for path in (tmp_path / "copy").rglob("*"):
        path.chmod(0o700)
        os.utime(path, (1, 1))
    pack(tmp_path / "two", out=tmp_path / "copy")
    unpack([tmp_path / "one"], out=tmp_path / "other")
    pack(tmp_path / "three", out=tmp_path / "other")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes() == (tmp_path / "three").read_bytes()


def test_a_run_or_a_benchmark_alone_goes_to_the_same_place(runs: Path, tmp_path: Path) -> None:
    (done,) = finished_runs(runs)
    for number, root in enumerate((done, done.parent, runs)):
        pack(tmp_path / "p", out=root, only="finished")
        unpack([tmp_path / "p"], out=tmp_path / str(number))
        assert finished_runs(tmp_path / str(number)) == [tmp_path / str(number) / done.relative_to(runs)]


def test_unpacking_twice_changes_nothing(runs: Path, tmp_path: Path) -> None:
    pack(tmp_path / "p", out=runs)
    first = unpack([tmp_path / "p"], out=tmp_path / "other")
    assert (len(first.new), first.kept, first.replaced, first.busy) == (2, [], [], [])
    before = contents(tmp_path / "other")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "other").rglob("*")}
    again = unpack([tmp_path / "p"], out=tmp_path / "other")
    assert (again.new, len(again.kept), again.replaced) == ([], 2, [])
    assert contents(tmp_path / "other") == before
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "other").rglob("*")} == times


# What is packed, what is there, and which of the two is there afterwards.
MEETINGS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "further": ({"stage": 1, "step": 2}, {"stage": 0, "step": 9}, "replaced"),
    "further-in-the-stage": ({"stage": 1, "step": 3}, {"stage": 1, "step": 2}, "replaced"),
    "less-far": ({"stage": 0, "step": 9}, {"stage": 1, "step": 2}, "kept"),
    "equally-far": ({"stage": 1, "step": 2}, {"stage": 1, "step": 2}, "kept"),
    "only-started": ({"stage": 0, "step": 0}, {}, "replaced"),
    "finished-packed": ({"step": 1, "score": 0.5}, {"stage": 1, "step": 2}, "replaced"),
    "finished-here": ({"stage": 1, "step": 2}, {"step": 1, "score": 0.5}, "kept"),
    "both-finished": ({"step": 1, "score": 0.5}, {"step": 1, "score": 0.5}, "kept"),
}


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("name", MEETINGS)
def test_a_packed_run_meets_one_that_is_there(name: str, checkpoints: bool, tmp_path: Path) -> None:
    packed, here, expected = MEETINGS[name]
    theirs = make_run(tmp_path / "theirs", **packed)
    for _ in range(3):  # its checkpoints have higher numbers, whichever is further along
        mine = make_run(tmp_path / "mine", **here, failed={"reason": "mine"})
    pack(tmp_path / "p", out=tmp_path / "theirs", checkpoints=checkpoints)
    before = contents(mine)
    done = unpack([tmp_path / "p"], out=tmp_path / "mine")
    assert getattr(done, expected) == [f"toy/{mine.name}"]
    if expected == "kept":
        assert contents(mine) == before
        return
    assert (mine / "rows.json").read_bytes() == (theirs / "rows.json").read_bytes()
    assert not (mine / "failed.json").exists()
    if "score" in packed and not checkpoints:
        assert contents(mine).keys() == {"recipe.json", "environment.json", "rows.json", "done.json"}
        return
    (kept,) = mine.glob("checkpoint-*")
    (sent,) = theirs.glob("checkpoint-*")
    assert kept.read_bytes() == sent.read_bytes()
    assert newest_moment(mine) == newest_moment(theirs)._replace(name=kept.name)  # type: ignore[union-attr]


def test_other_scores_of_a_finished_run_are_refused_unless_they_are_to_be_replaced(tmp_path: Path) -> None:
    theirs = make_run(tmp_path / "theirs", step=1, score=0.5)
    mine = make_run(tmp_path / "mine", step=1, score=0.25)
    make_run(tmp_path / "theirs", 1, step=1, score=0.5)
    pack(tmp_path / "p", out=tmp_path / "theirs")
    before = contents(tmp_path / "mine")
    with pytest.raises(UserError, match=f"with other scores: {mine}. Choose another --out .* --replace"):
        unpack([tmp_path / "p"], out=tmp_path / "mine")
    assert contents(tmp_path / "mine") == before
    done = unpack([tmp_path / "p"], out=tmp_path / "mine", replace=True)
    assert (done.replaced, len(done.new)) == ([f"toy/{mine.name}"], 1)
    assert (mine / "rows.json").read_bytes() == (theirs / "rows.json").read_bytes()
    assert finished_runs(tmp_path / "mine") != []


def test_a_run_that_is_going_on_is_packed_at_its_checkpoint_and_left_alone_by_an_unpack(tmp_path: Path) -> None:
    theirs, mine = make_run(tmp_path / "theirs", step=5), make_run(tmp_path / "mine", step=3)
    with RunDirectory.at(theirs, json.loads((theirs / "recipe.json").read_text())).claimed():
        assert pack(tmp_path / "p", out=tmp_path / "theirs").checkpoints == 1
    with RunDirectory.at(mine, json.loads((mine / "recipe.json").read_text())).claimed():
        before = contents(mine)
        done = unpack([tmp_path / "p"], out=tmp_path / "mine")
        assert done.busy == [f"toy/{mine.name}"]
        assert contents(mine) == before
    assert unpack([tmp_path / "p"], out=tmp_path / "mine").replaced == [f"toy/{mine.name}"]


def test_a_checkpoint_that_is_dropped_while_it_is_packed_gives_way_to_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_run(tmp_path / "runs", step=1)
    read = Path.read_bytes

    def slow(self: Path) -> bytes:
        if self.name.startswith("checkpoint-000001"):
            make_run(tmp_path / "runs", step=2)
            make_run(tmp_path / "runs", step=3)
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", slow)
    pack(tmp_path / "p", out=tmp_path / "runs")
    moment = newest_moment(path)
    assert moment is not None
    assert moment.reached == (0, 3)
    assert f"toy/{path.name}/{moment.name}" in members(tmp_path / "p")


def test_scores_that_are_ahead_of_the_checkpoint_are_not_packed(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", step=1, rows=["newer"])
    pack(tmp_path / "p", out=tmp_path / "runs")
    (rows,) = (data for name, data in members(tmp_path / "p").items() if name.endswith("rows.json"))
    assert json.loads(rows) == [{"stage": 0, "step": 1, "score": None}]


def test_what_cannot_be_read_is_left_out_and_told(runs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wrong = make_run(runs, 2, step=1, score=0.5)
    (wrong / "rows.json").write_text("[")
    renamed = make_run(runs, 3, step=1).rename(runs / "toy" / "renamed")
    foreign = make_run(runs, 4, step=1)
    (checkpoint,) = foreign.glob("checkpoint-*")
    (other,) = make_run(tmp_path / "elsewhere", 5, step=1).glob("checkpoint-*")
    checkpoint.unlink()
    shutil.copy(other, foreign)
    packed = pack(tmp_path / "p", out=runs)
    assert (packed.finished, packed.unfinished, packed.left_out) == (1, 1, 3)
    for path in (wrong, renamed, foreign):
        assert sum(message.startswith(f"{path} is left out: its ") for message in caplog.messages) == 1
    assert len(unpack([tmp_path / "p"], out=tmp_path / "other").new) == 2


def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(
    runs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (newest,) = runs.rglob("checkpoint-000002-*")
    newest.write_bytes(b"")
    assert pack(tmp_path / "p", out=runs, only="unfinished").checkpoints == 1
    assert caplog.messages == [f"{newest} is damaged (its hash differs): trying the one before it."]
    assert "checkpoint-000001" in suffixes(members(tmp_path / "p"))


def test_a_pack_of_several_files_holds_whole_runs_in_each(tmp_path: Path) -> None:
    for seed in range(9):
        make_run(tmp_path / "runs", seed, step=seed)
    limit = 9000
    packed = pack(tmp_path / "p.tar.gz", out=tmp_path / "runs", max_size=limit)
    assert [file.name for file in packed.files] == [f"p-{number + 1}.tar.gz" for number in range(len(packed.files))]
    assert 1 < len(packed.files) < 9
    assert all(file.stat().st_size <= limit for file in packed.files)
    last = unpack(packed.files[-1:], out=tmp_path / "last")
    assert 0 < last.unfinished < 9
    assert unpack(packed.files, out=tmp_path / "all").unfinished == 9
    assert contents(tmp_path / "all") == contents(tmp_path / "runs")
    assert pack(tmp_path / "q.tar.gz", out=tmp_path / "runs", max_size=1 << 20).files == [tmp_path / "q.tar.gz"]
    with pytest.raises(UserError, match=r"Run toy/naive-seed0-\w+ alone takes \d+ bytes, more than --max-size 4200"):
        pack(tmp_path / "r", out=tmp_path / "runs", max_size=4200)
    assert not (tmp_path / "r").exists()


def repacked(file: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None]) -> None:
    """The pack with another manifest or other members."""
    held = members(file)
    manifest = json.loads(held.pop(MANIFEST))
    change(manifest, held)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in {MANIFEST: json.dumps(manifest).encode(), **held}.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    write_file(file, gzip.compress(buffer.getvalue()))


def rename_run(manifest: dict[str, Any], held: dict[str, bytes], old: str, new: str) -> None:
    manifest["runs"][new] = manifest["runs"].pop(old)
    for name in [name for name in held if name.startswith(f"{old}/")]:
        held[new + name.removeprefix(old)] = held.pop(name)


def first(manifest: dict[str, Any]) -> str:
    return min(manifest["runs"])


def put(manifest: dict[str, Any], held: dict[str, bytes], file: str, data: bytes) -> None:
    run = first(manifest)
    held[f"{run}/{file}"] = data
    manifest["runs"][run][file] = hashlib.sha256(data).hexdigest()


HASH_OF_X = hashlib.sha256(b"x").hexdigest()[:16]
FORGERIES: dict[str, tuple[Callable[[dict[str, Any], dict[str, bytes]], Any], str]] = {
    "version": (
        lambda manifest, held: manifest.update(format=2),
        "is a pack of format '2'; this metadr reads format 1",
    ),
    "no-format": (lambda manifest, held: manifest.pop("format"), "its manifest is wrong"),
    "count": (lambda manifest, held: manifest.update(count=3), "counts 3 runs and lists 2"),
    "missing": (lambda manifest, held: held.pop(max(held)), "is missing"),
    "extra": (lambda manifest, held: held.update({"toy/more": b""}), "'toy/more' is not in its manifest"),
    "content": (lambda manifest, held: held.update({max(held): b"[]"}), "the hash of 'toy/naive-seed1"),
    "odd-file": (lambda manifest, held: put(manifest, held, "lock", b""), "lock is no file of a run"),
    "escape": (lambda manifest, held: held.update({"../evil": b""}), "leaves the folder"),
    "absolute": (lambda manifest, held: held.update({"/evil": b""}), "has an absolute path"),
    "hidden": (lambda manifest, held: rename_run(manifest, held, first(manifest), ".a/b"), ".a/b is no place of a run"),
    "name": (lambda manifest, held: rename_run(manifest, held, first(manifest), "toy/b"), "does not end with the key"),
    "nested": (
        lambda manifest, held: rename_run(manifest, held, first(manifest), f"{max(manifest['runs'])}/b"),
        "lies within another run",
    ),
    "scores": (lambda manifest, held: put(manifest, held, "rows.json", b"["), "is damaged"),
    "checkpoint": (
        lambda manifest, held: put(manifest, held, f"checkpoint-000009-{'0' * 16}.safetensors", b"x"),
        "its hash differs",
    ),
    "no-position": (
        lambda manifest, held: put(manifest, held, f"checkpoint-000009-{HASH_OF_X}.safetensors", b"x"),
        "does not say where it stands",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_pack_is_refused_and_nothing_is_put_in_place(name: str, runs: Path, tmp_path: Path) -> None:
    change, words = FORGERIES[name]
    pack(tmp_path / "p", out=runs)
    repacked(tmp_path / "p", change)
    with pytest.raises(UserError) as refusal:
        unpack([tmp_path / "p"], out=tmp_path / "other")
    assert words in str(refusal.value)
    assert "by hand" not in str(refusal.value)
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "evil").exists()


def test_an_archive_without_files_is_no_pack(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "empty.tar.gz", "w:gz"):
        pass
    with pytest.raises(UserError, match=r"is refused: it holds no files\. .* as 'metadr results pack' wrote it\.$"):
        unpack([tmp_path / "empty.tar.gz"], out=tmp_path / "other")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE], ids=["symbolic", "hard"])
def test_a_link_in_a_pack_is_refused(kind: bytes, runs: Path, tmp_path: Path) -> None:
    pack(tmp_path / "p", out=runs)
    header = tarfile.TarInfo("toy/link")
    header.type, header.linkname = kind, "/etc/passwd"
    data = (tmp_path / "p").read_bytes()
    (tmp_path / "p").write_bytes(gzip.compress(header.tobuf()) + data)
    with pytest.raises(UserError, match="link to '/etc/passwd'"):
        unpack([tmp_path / "p"], out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_every_changed_byte_and_every_cut_is_noticed_or_harmless(runs: Path, tmp_path: Path) -> None:
    pack(tmp_path / "p", out=runs)
    data = (tmp_path / "p").read_bytes()
    unpack([tmp_path / "p"], out=tmp_path / "whole")
    noticed, tries = 0, range(0, len(data), 29)
    damages = [data[:end] for end in tries] + [data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :] for at in tries]
    for damaged in damages:
        (tmp_path / "p").write_bytes(damaged)
        try:
            unpack([tmp_path / "p"], out=tmp_path / "other")
        except UserError:
            noticed += 1
            assert not (tmp_path / "other").exists()
        else:  # a byte of a gzip header that means nothing, or of the empty end
            assert contents(tmp_path / "other") == contents(tmp_path / "whole")
            shutil.rmtree(tmp_path / "other")
    assert noticed > 0.9 * len(damages)


def test_two_processes_do_not_unpack_into_one_folder_at_once(runs: Path, tmp_path: Path) -> None:
    pack(tmp_path / "p", out=runs)
    script = (
        "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.flock(file, fcntl.LOCK_EX); "
        "print('held', flush=True); input()"
    )
    lock = runs / ".unpacking.lock"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"Another process is unpacking into {runs}"):
            unpack([tmp_path / "p"], out=runs)
        holder.communicate("\n")
    assert len(unpack([tmp_path / "p"], out=runs).kept) == 2
    assert not lock.exists()


def a_record(seed: int = 0, score: float = 0.5, **identity: Any) -> Record:
    order = ["one", "two"]
    content = {"benchmark": "toy", "order": order, "method": [{"part": "er"}], "access": "current", "seed": seed}
    rows = [
        {"after": after, "on": on, "metric": "accuracy", "value": score, "images": 9}
        for after in ("untrained", *order)
        for on in order
    ]
    made = {"gpu": "G", "torch": "9", "metadr": "0", "commit": "c", "dirty": False}
    return Record({**content, **identity}, made, 1.5, rows)


def test_a_report_s_file_is_unpacked_as_finished_runs(tmp_path: Path) -> None:
    records = [a_record(0), a_record(1, access="all", method=[])]
    (tmp_path / "table.json").write_text(pack_records(records))
    done = unpack([tmp_path / "table.json"], out=tmp_path / "runs")
    assert (done.finished, done.unfinished, len(done.new)) == (2, 0, 2)
    folders = finished_runs(tmp_path / "runs")
    names = [
        f"er-seed0-{key_of_identity(records[0].identity)}",
        f"oracle-all-seed1-{key_of_identity(records[1].identity)}",
    ]
    assert [folder.relative_to(tmp_path / "runs").as_posix() for folder in folders] == [f"toy/{name}" for name in names]
    assert read_records(tmp_path / "runs") == records
    before = contents(tmp_path / "runs")
    assert len(unpack([tmp_path / "table.json"], out=tmp_path / "runs").kept) == 2
    assert contents(tmp_path / "runs") == before


def test_a_record_meets_its_own_run_by_the_scores_alone(tmp_path: Path) -> None:
    """A run has more in its rows than a report keeps, such as a confusion matrix, and another order of keys."""
    record = a_record()
    (tmp_path / "table.json").write_text(pack_records([record]))
    unpack([tmp_path / "table.json"], out=tmp_path / "runs")
    (folder,) = finished_runs(tmp_path / "runs")
    write_file(folder / "rows.json", json.dumps([{"matrix": [[9]], **row} for row in record.rows]).encode())
    before = contents(tmp_path / "runs")
    assert unpack([tmp_path / "table.json"], out=tmp_path / "runs", replace=True).kept
    assert contents(tmp_path / "runs") == before
    (tmp_path / "other.json").write_text(pack_records([a_record(score=0.25)]))
    with pytest.raises(UserError, match="with other scores"):
        unpack([tmp_path / "other.json"], out=tmp_path / "runs")
    assert unpack([tmp_path / "other.json"], out=tmp_path / "runs", replace=True).replaced
    assert read_records(tmp_path / "runs") == [a_record(score=0.25)]


def test_two_scores_of_one_run_in_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text(pack_records([a_record(), a_record(score=0.25)]))
    with pytest.raises(UserError, match=r"two runs of toy/er-seed0-.* Nothing was unpacked"):
        unpack([tmp_path / "table.json"], out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("text", ["{}", "[1]", '{"runs": ', '{"environments": [], "recipes": [], "runs": [{}]}'])
def test_json_that_is_no_file_of_records_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "table.json").write_text(text)
    with pytest.raises(UserError, match="not a file of records"):
        unpack([tmp_path / "table.json"], out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
