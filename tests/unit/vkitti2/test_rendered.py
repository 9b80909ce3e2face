"""Rendered scenes, never taken for the published ones nor the reverse: what is missing, stopped or joined."""

import json
import shutil
from pathlib import Path

import pytest

from metadr.data import obtain, vkitti2, vkitti2_files, vkitti2_set
from metadr.data.vkitti2 import Reading
from metadr.data.vkitti2_set import VKITTI2_RENDERED
from metadr.errors import UserError
from metadr.vkitti2_classes import CONDITIONS, FRAMES


def test_rendered_scenes_are_a_benchmark_of_their_own(root):
    rendered = root / "vkitti2-rendered"
    (root / "vkitti2").rename(rendered)
    with pytest.raises(UserError, match="which does not say what it holds"):
        vkitti2.load("vkitti2-rendered", Reading(), "scene01-fog")
    (rendered / "vkitti2.json").write_text(json.dumps({"what": "coloured rectangles"}))
    assert vkitti2.load("vkitti2-rendered", Reading(), "scene01-fog").train.num_images == 8
    with pytest.raises(UserError, match=r"does not hold Virtual KITTI 2 \(coloured rectangles\).*vkitti2-rendered"):
        vkitti2.load("vkitti2", Reading(root=str(rendered)), "scene01-fog")
    with pytest.raises(UserError, match="Run benchmark vkitti2-rendered on it"):
        obtain.bring("vkitti2", rendered)


def test_a_rendering_that_was_stopped_is_refused_until_it_is_complete(root):
    rendered = (root / "vkitti2").rename(root / "vkitti2-rendered")
    record = {"what": "rectangles", "complete": {"Scene02": ["clone"]}}
    (rendered / "vkitti2.json").write_text(json.dumps(record))
    assert vkitti2.load("vkitti2-rendered", Reading(), "scene02-clone").train.num_images == 8
    with pytest.raises(UserError, match=r"scene01-fog: its rendering in .* was stopped before its end"):
        vkitti2.load("vkitti2-rendered", Reading(), "scene01-fog")
    assert VKITTI2_RENDERED.status(root).state == "broken"
    record["complete"]["Scene01"] = ["fog"]
    (rendered / "vkitti2.json").write_text(json.dumps(record))
    assert vkitti2.load("vkitti2-rendered", Reading(), "scene01-fog").train.num_images == 8


@pytest.mark.parametrize(
    "text", ["hi", "[]", '{"complete": [1]}', '{"complete": {"Scene02": null}}', '{"frames": "6"}', '{"size": 3}']
)
def test_a_record_that_cannot_be_read_is_one_sentence_and_counts_for_nothing(text, root):
    rendered = (root / "vkitti2").rename(root / "vkitti2-rendered")
    (rendered / "vkitti2.json").write_text(text)
    sentence = rf"'{rendered}/vkitti2.json' cannot be read.*remove the folder and render it anew"
    with pytest.raises(UserError, match=sentence):
        vkitti2.load("vkitti2-rendered", Reading(), "scene02-clone")
    with pytest.raises(UserError, match=sentence):
        obtain.bring("vkitti2-rendered", rendered)
    for status in (VKITTI2_RENDERED.status(root), VKITTI2_RENDERED.verify(root).status):
        assert status.state == "broken" and len(status.problems) == 1 and "cannot be read" in status.problems[0]


def rendering(toys, folder: Path, *domains: str, **record) -> Path:
    """Rectangles with a record as `data build` writes it."""
    complete: dict[str, list[str]] = {}
    for domain in domains:
        scene, condition = vkitti2_files.DOMAINS[domain]
        complete.setdefault(scene, []).append(condition)
    told = {"what": "rectangles", "revision": 1, "seed": 0, "size": [64, 32], "frames": 6, "complete": complete}
    toys.write_streets(folder, *domains, frames=record.get("frames", 6))
    folder.mkdir(exist_ok=True)
    (folder / "vkitti2.json").write_text(json.dumps(told | record))
    return folder


def test_a_finished_rendering_that_has_lost_frames_is_refused(root, toys):
    place = rendering(toys, root / "vkitti2-rendered", "scene02-clone", "scene02-fog", "scene01-fog")
    assert VKITTI2_RENDERED.verify(root).sound
    for path in (place / "Scene02").rglob("*_0000[34].*"):
        path.unlink()
    then = "Run 'metadr data build vkitti2 --size 64x32 --frames 6 --scenes 02 --conditions clone,fog'."
    sentence = (
        f"Scene02/clone: frame 3 is missing in {place}/Scene02/clone/frames/rgb/Camera_0, of the 6 frames that "
        f"vkitti2.json tells of. {then}"
    )
    with pytest.raises(UserError) as told:
        vkitti2.load("vkitti2-rendered", Reading(cameras="0"), "scene02-clone")
    assert str(told.value) == sentence
    seen = VKITTI2_RENDERED.verify(root)
    assert not seen.sound and seen.status.problems == (f"{sentence} The same goes for scene02-fog.",)
    extra = place / "Scene01/fog/frames/rgb/Camera_0/rgb_00006.jpg"
    extra.write_bytes(b"")
    with pytest.raises(UserError, match=rf"{extra} is none of the 6 frames that vkitti2.json tells of. Move it away"):
        vkitti2.load("vkitti2-rendered", Reading(), "scene01-fog")


def test_what_a_rendering_lacks_is_told_with_the_command_that_renders_it(root, toys, tmp_path):
    known_as = {"frames": 5, "seed": 3, "size": [104, 32]}
    conditions = [f"scene06-{condition}" for condition in CONDITIONS]
    place = rendering(toys, tmp_path / "my streets", "scene02-clone", *conditions, **known_as)
    reading = Reading(root=str(place))
    start = "'metadr data build vkitti2 --size 104x32 --frames 5 --seed 3 --scenes"
    end = f"--out '{place}''."

    def told(domain: str) -> str:
        with pytest.raises(UserError) as error:
            vkitti2.load("vkitti2-rendered", reading, domain)
        return str(error.value)

    assert (
        f"no folder Scene02/rain/frames/rgb/Camera_0 in {place}. Run {start} 02 --conditions clone,rain {end}"
        in told("scene02-rain")
    )
    assert f"Run {start} 18 --conditions fog {end}" in told("scene18-fog")
    for path in (place / "Scene06").rglob("Camera_1/*_00004.*"):
        path.unlink()
    assert f"frame 4 is missing in {place}/Scene06/fog/frames/rgb/Camera_1" in told("scene06-fog")
    record = json.loads((place / "vkitti2.json").read_text())
    (place / "vkitti2.json").write_text(json.dumps(record | {"complete": {"Scene02": ["clone"]}}))
    stopped = f"its rendering in {place} was stopped before its end. Go on with {start} 06 {end}"
    assert told("scene06-fog") == f"scene06-fog: {stopped}"
    place.rename(root / "vkitti2-rendered")
    (problem,) = VKITTI2_RENDERED.status(root).problems
    others = ", ".join(f"scene06-{condition}" for condition in CONDITIONS[1:])
    stopped = f"its rendering in {root / 'vkitti2-rendered'} was stopped before its end. Go on with {start} 06'."
    assert problem == f"scene06-clone: {stopped} The same goes for {others}."


def test_the_status_of_a_rendering_says_how_large_and_how_long_it_is(root, toys, monkeypatch):
    monkeypatch.setattr(vkitti2_set, "FRAMES", FRAMES)
    monkeypatch.setattr(vkitti2_files, "FRAMES", FRAMES)
    place = rendering(toys, root / "vkitti2-rendered", "scene02-clone")
    status = VKITTI2_RENDERED.status(root)
    assert status.origin == (
        "rendered here; not Virtual KITTI 2: 64x32, 6 frames of a scene, where that has 233 to 837."
    )
    assert status.found == (8, 2) and status.expected == (30 * 8, 30 * 2) and status.state == "partial"
    (place / "vkitti2.json").write_text('{"what": "rectangles"}')
    toys.write_streets(place, "scene01-fog", frames=4)
    status = VKITTI2_RENDERED.status(root)
    assert "Virtual KITTI 2: 4 to 6 frames of a scene" in status.origin and status.found == status.expected
    shutil.rmtree(place)
    rendering(toys, place, size=[104, 32], frames=5).joinpath("Scene02").mkdir()
    (problem,) = VKITTI2_RENDERED.status(root).problems
    assert "Run 'metadr data build vkitti2 --size 104x32 --frames 5'." in problem


def test_renderings_are_joined_only_where_they_are_of_one(root, toys, tmp_path, pixels_of):
    place = rendering(toys, root / "vkitti2-rendered", "scene02-clone", "scene01-fog")
    before = pixels_of(place)
    for record, sentence in (
        ({"size": [96, 32]}, r"size \[64, 32\], not \[96, 32\]"),
        ({"frames": 4, "seed": 3}, r"frames 6, not 4, seed 0, not 3"),
    ):
        other = rendering(toys, tmp_path / str(record), "scene02-clone", **record)
        with pytest.raises(UserError, match=rf"holds another rendering than .*: {sentence}. Nothing was changed"):
            obtain.bring("vkitti2-rendered", other)
        assert pixels_of(place) == before
    one = rendering(toys, tmp_path / "one", "scene02-clone", "scene02-rain")
    assert obtain.bring("vkitti2-rendered", one).state == "partial"
    after = pixels_of(place)
    assert {name: after[name] for name in before if name != "vkitti2.json"}.items() <= before.items()
    assert len(after) == len(before) + 4 * 6
    record = json.loads((place / "vkitti2.json").read_text())
    assert record["complete"] == {"Scene01": ["fog"], "Scene02": ["clone", "rain"]} and record["frames"] == 6
    (place / "vkitti2.json").write_text("hi")
    with pytest.raises(UserError, match=r"cannot be read.*Nothing was changed: move .* away"):
        obtain.bring("vkitti2-rendered", one)
