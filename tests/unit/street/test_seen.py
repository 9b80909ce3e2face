"""What is seen of rendered streets: perspective as it must be, textures, light and fog of six conditions."""

import numpy as np
import pytest
from scipy import ndimage

from metadr.synthetic.street import frames, scenes, shadows
from metadr.synthetic.street.camera import BASELINE, FOCAL, HEIGHT, SIZE, pair
from metadr.synthetic.street.panels import LABELS, Builder, Panels
from metadr.synthetic.street.raster import BEHIND, Backdrop, Seen, see
from metadr.synthetic.street.road import Road, centre_line
from metadr.synthetic.street.texture import Canvas
from metadr.synthetic.street.textures import TEXTURES, texture
from metadr.synthetic.street.weather import CONDITIONS, develop
from metadr.vkitti2_classes import CLASSES, FRAMES
from metadr.vkitti2_classes import CONDITIONS as NAMES

# Geometry


EMPTY = Backdrop(np.full(1024, -1, np.float32), "Tree", (0.0, 0.0, 0.0))


def plain(curve=np.zeros_like) -> Road:
    return Road(((np.inf, "asphalt"),), (), (), (-3, 3), *centre_line(400, curve))


def board(distance: float, *, aside: float = 0.0, width: float = 2.0, height: float = 1.0) -> Panels:
    """A sign that looks at a camera `distance` metres before it, its foot at the height of the camera."""
    made = Builder()
    made.panel((aside - width / 2, HEIGHT, distance), (width, 0, 0), (0, height, 0), "TrafficSign", tint=(1, 0.1, 0.1))
    return made.done()


def look(panels: Panels, size: tuple[int, int] = SIZE, camera: int = 0) -> Seen:
    return see(pair(0, 0, 0, size)[camera], plain(), EMPTY, panels)


@pytest.mark.parametrize(
    ("size", "distance"), [(SIZE, 20.0), ((416, 128), 6.0), ((416, 128), 20.0), ((416, 128), 47.0)]
)
def test_two_cameras_see_a_known_depth_shifted_by_focal_times_baseline_over_depth(size, distance) -> None:
    first, second = (look(board(distance), size, camera) for camera in (0, 1))
    where = [np.nonzero(seen.labels[seen.surface] == LABELS["TrafficSign"]) for seen in (first, second)]
    shift = (where[0][1].mean() - where[1][1].mean()) / 2  # two samples to a pixel
    assert shift == pytest.approx(FOCAL * size[0] / SIZE[0] * BASELINE / distance, abs=0.5)
    assert np.allclose(first.near[where[0]], 1 / distance)
    focal = 2 * np.array([FOCAL * size[0] / SIZE[0], FOCAL * size[1] / SIZE[1]])
    assert np.ptp(where[0][1]) + 1 == pytest.approx(2 / distance * focal[0], abs=1)
    assert np.ptp(where[0][0]) + 1 == pytest.approx(1 / distance * focal[1], abs=1)
    assert where[0][0].max() == size[1] - 1  # its foot is as high as the camera: at the horizon


def test_the_nearer_panel_hides_the_farther_whatever_their_order() -> None:
    near, far = board(10, width=1), board(30, width=20)
    for parts in ((near, far), (far, near)):
        seen = look(Panels._make(np.concatenate(each) for each in zip(*parts, strict=True)), (416, 128))
        pixels = np.isclose(seen.near, 1 / 10).sum() / 4
        assert pixels == pytest.approx((FOCAL / 10) ** 2 * 416 / SIZE[0] * 128 / SIZE[1], rel=0.05)
        assert np.isclose(seen.near, 1 / 30).any()


def test_a_panel_is_seen_from_its_front_only() -> None:
    turned = board(10).placed(0, 20, np.pi)
    assert (look(board(10)).surface >= 10).any()
    assert not (look(turned).surface >= 10).any()


def test_a_panel_that_reaches_behind_the_camera_is_cut_and_not_lost() -> None:
    wall = Builder()
    wall.panel((3, 0, 40), (0, 0, -60), (0, 5, 0), "Building")  # to the right, seen by who looks to the right
    seen = look(wall.done(), (416, 128))
    labels = seen.labels[seen.surface]
    assert (labels[:, -1] == LABELS["Building"]).mean() > 0.8
    assert not (labels[:, :416] == LABELS["Building"]).any()
    assert np.allclose(1 / seen.near[128, -1], 3 * seen.camera.focal[0] / 416, rtol=0.01)


def test_ground_lies_at_the_depth_of_its_row() -> None:
    seen = look(Builder().done())
    rows = np.arange(375, 750)
    depth = HEIGHT * seen.camera.focal[1] / (rows + 0.5 - 375)
    assert np.allclose(seen.near[375:], 1 / depth[:, None], rtol=1e-4)
    assert set(seen.labels[seen.surface[375:]].ravel()) == {LABELS["Road"]}
    assert set(seen.labels[seen.surface[:375]].ravel()) == {LABELS["Sky"]}


def test_places_on_a_winding_road_are_found_again() -> None:
    road = scenes.world("Scene18", 0).road
    random = np.random.default_rng(0)
    along, aside = random.uniform(20, 500, 300), random.uniform(-20, 20, 300)
    x, z, _ = np.array([road.pose(*place) for place in zip(along, aside, strict=True)], np.float32).T
    found = road.places(x, z, (along + random.uniform(-4, 4, 300)).astype(np.float32))
    assert np.abs(found[0] - along).max() < 0.3
    assert np.abs(found[1] - aside).max() < 0.3


def test_the_world_moves_past_the_camera_and_traffic_moves_in_it() -> None:
    for scene in FRAMES:
        world = scenes.world(scene, 0)
        here = [world.pose(moment)[:2] for moment in range(FRAMES[scene])]
        steps = np.hypot(*np.diff(np.array(here), axis=0).T)
        assert steps.min() > 0.1 and steps.max() < 2
        moved = {np.sign(driver.along(9) - driver.along(0)) for driver in world.drivers}
        assert moved == {-1, 1}


@pytest.mark.parametrize("scene", FRAMES)
def test_nothing_but_vehicles_stands_in_the_lanes(scene: str) -> None:
    road, standing = scenes.world(scene, 0).road, scenes.world(scene, 0).standing
    fixed = standing.only(~np.isin(standing.label, [LABELS[name] for name in ("Car", "Van", "Truck")]))
    feet = fixed.corner[fixed.corner[:, 1] < 0.2]
    guess = np.array([np.argmin((road.x - x) ** 2 + (road.z - z) ** 2) for x, _, z in feet], np.float32)
    _, aside = road.places(feet[:, 0], feet[:, 2], guess)
    middle = 2.0 if scene == "Scene20" else 0.0  # a motorway has barriers between its carriageways
    assert not ((np.abs(aside) > middle) & (aside > road.edges[0]) & (aside < road.edges[1])).any()


def test_a_crash_barrier_has_no_gaps_in_a_bend() -> None:
    """Of the road's own 4 m each, pieces on the outer side left some, and on the inner one stood over each other."""
    standing = scenes.world("Scene18", 0).standing
    rails = standing.only((standing.label == LABELS["GuardRail"]) & ~standing.turns)
    ends = (rails.corner + rails.across)[:, None] - rails.corner
    nearest = np.linalg.norm(ends, axis=2).min(axis=1)
    assert np.median(nearest) < 0.01 and (nearest < 0.02).mean() > 0.9  # a barrier has an end


# Textures


@pytest.mark.parametrize("name", ["roof", "crown0", "sedan-side", "sign1", "signal2"])
def test_a_texture_keeps_its_mean_at_every_sharpness(name: str) -> None:
    levels = texture(TEXTURES.index(name)).levels
    finest, light = levels[0][0], [0, 1, 2, 4]
    there = finest[..., 3:4]
    assert len(levels) > 3 and len(levels[0]) > 3
    assert finest.shape[2] == 5 and finest.min() >= 0 and there.max() <= 1
    mean = (finest * there).sum(axis=(0, 1))[light] / there.sum()
    for line in levels:
        for level in line:
            weight = level[..., 3:4]
            assert np.allclose((level * weight).sum(axis=(0, 1))[light] / weight.sum(), mean, atol=1e-4)
            assert np.allclose(weight.mean(), there.mean(), atol=1e-5)


@pytest.mark.parametrize("name", [name for name in TEXTURES if name.startswith(("crown", "conifer", "bush"))])
def test_what_grows_is_of_one_piece(name: str) -> None:
    """Seen from near, some of them were groups of discs with nothing between."""
    there = texture(TEXTURES.index(name)).levels[0][0][..., 3] > 0.5
    pieces, _ = ndimage.label(there)
    assert np.bincount(pieces[there]).max() > 0.995 * there.sum()
    holes = ndimage.binary_fill_holes(there) & ~there
    assert holes.sum() < 0.01 * there.sum()


def test_a_canvas_draws_where_it_is_told() -> None:
    canvas = Canvas(8, 4)
    canvas.box((0.5, 0, 1, 0.5), (255, 0, 0))
    canvas.box((0.5, 0.5, 1, 1), painted=True)
    finest = canvas.done().levels[0][0]
    assert not finest[:, :4].any()
    assert np.allclose(finest[:2, 4:], [1, 0, 0, 1, 0])
    assert np.allclose(finest[2:, 4:], [0, 0, 0, 1, 1])


# Conditions


def test_every_condition_is_named_officially() -> None:
    assert set(CONDITIONS) == set(NAMES)


def test_every_class_but_undefined_occurs() -> None:
    seen = set()
    for scene, moment in (("Scene01", 100), ("Scene02", 60), ("Scene20", 120), ("Scene20", 500)):
        seen |= set(frames.render(scene, moment, 0, [], size=(416, 128)).labels.ravel().tolist())
    assert {CLASSES[label][0] for label in seen} == {name for name, _ in CLASSES[:-1]}


def greys(picture: np.ndarray) -> np.ndarray:
    return picture.astype(float).mean(axis=2)


@pytest.mark.parametrize("scene", ["Scene01", "Scene20"])
def test_fog_hides_by_distance(scene: str) -> None:
    """The contrast within a range of distances, against that of a clear day, falls with the distance."""
    world = scenes.world(scene, 0)
    camera = pair(*world.pose(100), (416, 128))[0]
    seen = see(camera, world.road, world.backdrop, world.panels(100))
    clear, fog = (frames.render(scene, 100, 0, [name], size=(416, 128)).pictures[name] for name in ("clone", "fog"))
    metres = (1 / np.maximum(seen.near, 1e-9)).reshape(128, 2, 416, 2)
    nearest, farthest = metres.min(axis=(1, 3)), metres.max(axis=(1, 3))
    ranges = [(2, 12), (12, 30), (30, 60), (60, 120), (120, BEHIND + 1)]
    masks = [(nearest >= low) & (farthest < high) for low, high in ranges]
    assert all(mask.sum() > 50 for mask in masks)
    left = [greys(fog)[mask].std() / greys(clear)[mask].std() for mask in masks]
    assert left == sorted(left, reverse=True)
    assert left[0] > 0.3 and left[-1] < 0.03


def test_fog_takes_light_as_the_exponential_of_the_distance() -> None:
    """A black board in fog shows the air alone: 1 - exp(-haze * distance) of it."""
    condition = CONDITIONS["fog"]
    levels = []
    for distance in (5.0, 10.0, 20.0, 40.0):
        black = board(distance)._replace(tint=np.zeros((1, 3), np.float32))
        seen = look(black, (416, 128))
        picture = develop(seen, condition, None, shadows.beneath(seen.camera, black), np.random.default_rng(0))
        rows, columns = np.nonzero(seen.labels[seen.surface][::2, ::2] == LABELS["TrafficSign"])
        middle = picture[round(rows.mean()), round(columns.mean())].astype(float) / 255
        levels.append(-np.log(1 - middle**2.2) / (1.35 * condition.exposure))  # as `_printed` had it
    expected = [condition.air[1] * (1 - np.exp(-condition.haze * distance)) for distance in (5, 10, 20, 40)]
    assert np.allclose([level[1] for level in levels], expected, atol=0.012)


def test_conditions_look_as_they_are_called() -> None:
    for scene in FRAMES:
        pictures = frames.render(scene, 60, 0, NAMES, size=(208, 64)).pictures
        red, _, blue = np.moveaxis(np.array([pictures[name].mean(axis=(0, 1)) for name in NAMES]), 1, 0)
        warm = dict(zip(NAMES, red / blue, strict=True))
        light = {name: greys(pictures[name]).mean() for name in NAMES}
        assert warm["sunset"] > 1.3 > warm["morning"] > warm["overcast"] > warm["rain"]
        assert light["clone"] > light["overcast"] > light["rain"]
        assert light["clone"] > light["sunset"]


def test_a_shadow_falls_away_from_the_sun() -> None:
    post = Builder()
    post.box((-0.5, 0, 11.5), (0.5, 2, 12.5), "Misc")
    camera = pair(0, 0, 0, (416, 128))[0]
    columns = {}
    for side in (-1, 1):
        sun = np.array([side, 1, 0], np.float32) / np.float32(np.sqrt(2))
        columns[side] = np.nonzero(shadows.cast(camera, post.done(), sun) > 0.5)[1]
    assert np.median(columns[-1]) > 416 > np.median(columns[1])  # the middle of 832 samples
    # As long as the post is high: from its foot at 0.5 m to 2.5 m, 12 m away.
    assert columns[-1].max() - 416 == pytest.approx(2.5 / 11.5 * camera.focal[0], abs=2)
    assert not shadows.beneath(camera, post.done()).any()  # only vehicles hide the sky
