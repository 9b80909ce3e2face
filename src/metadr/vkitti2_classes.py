"""What Virtual KITTI 2 shows and calls things: its classes with their colours, its conditions, frames per scene."""

CLASSES: tuple[tuple[str, tuple[int, int, int]], ...] = (
    ("Terrain", (210, 0, 200)),
    ("Sky", (90, 200, 255)),
    ("Tree", (0, 199, 0)),
    ("Vegetation", (90, 240, 0)),
    ("Building", (140, 140, 140)),
    ("Road", (100, 60, 100)),
    ("GuardRail", (250, 100, 255)),
    ("TrafficSign", (255, 255, 0)),
    ("TrafficLight", (200, 200, 0)),
    ("Pole", (255, 130, 0)),
    ("Misc", (80, 80, 80)),
    ("Truck", (160, 60, 60)),
    ("Car", (255, 127, 80)),
    ("Van", (0, 139, 139)),
    ("Undefined", (0, 0, 0)),
)
"""Names and colours in the order of their ids; the last one is no class, and is ignored."""

CONDITIONS = ("clone", "fog", "overcast", "rain", "sunset", "morning")
FRAMES = {"Scene01": 447, "Scene02": 233, "Scene06": 270, "Scene18": 339, "Scene20": 837}
CAMERAS = (0, 1)
RECORD = "vkitti2.json"  # beside the scenes of a stand-in: what it says of itself
