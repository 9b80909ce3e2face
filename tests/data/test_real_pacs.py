"""The real PACS: its official lists against the names of its images, and some of its pixels against Pillow."""

import io
import os
import shutil
import zipfile
from collections import Counter
from pathlib import Path, PurePath

import numpy as np
import pytest
from PIL import Image

from metadr.data.catalog import get_set
from metadr.data.pacs import locate, square
from metadr.data.pacs_scan import CLASSES, DOMAINS, IMAGES, LISTED, Scanned, scan

REPOSITORY = Path(__file__).parents[2]
SUFFIX = {"sketch": ".png"}

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def packed() -> Path:
    folder = Path(os.environ.get("METADR_SHARED_DATA", REPOSITORY.parent / "shared" / "data")) / "pacs"
    if not (folder / "pacs_webp.zip").exists():
        pytest.skip(f"no real data: {folder} has no pacs_webp.zip (set METADR_SHARED_DATA)")
    return folder


@pytest.fixture(scope="module")
def root(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with the real lists, and an empty file for every image: what a scan looks at."""
    made = tmp_path_factory.mktemp("real")
    with zipfile.ZipFile(packed / "pacs_webp.zip") as archive:
        for name in map(PurePath, archive.namelist()):
            path = made / "pacs" / name.with_suffix(SUFFIX.get(name.parts[0], ".jpg"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    for path in (packed / "splits").glob("*_kfold.txt"):
        shutil.copy(path, made / "pacs")
    return made


def scanned(root: Path, domain: str) -> Scanned:
    return scan(locate(root / "pacs"), domain)


@pytest.mark.parametrize("domain", DOMAINS)
def test_counts(domain: str, root: Path) -> None:
    found = scanned(root, domain)
    assert found.listed and found.counts == found.expected == LISTED[domain]
    assert tuple(Counter(item.label for item in found.whole)[label] for label in CLASSES) == IMAGES[domain]
    assert found.unused == ()
    assert found.unlisted == (("dog/pic_249.jpg",) if domain == "art_painting" else ())


def test_the_split_against_an_independent_read_of_the_lists(root: Path) -> None:
    for domain in DOMAINS:
        found = scanned(root, domain)
        for part, items in (("train", found.train), ("crossval", found.crossval), ("test", found.whole)):
            lines = (root / "pacs" / f"{domain}_{part}_kfold.txt").read_text().split()
            labels = dict(zip(lines[::2], map(int, lines[1::2]), strict=True))
            ours = {f"{domain}/{item.name}": CLASSES.index(item.label) + 1 for item in items}
            different = {name for name in labels if labels[name] != ours[name]}
            assert set(labels) == set(ours)
            assert different == (
                {"art_painting/dog/pic_225.jpg"} if (domain, part) == ("art_painting", "crossval") else set()
            )


def test_status(root: Path) -> None:
    standing = get_set("pacs").status(root)
    assert (standing.state, standing.found, standing.problems) == ("present", (8_977, 1_013), ())


def test_pixels(packed: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(packed / "pacs_webp.zip") as archive:
        for name in archive.namelist()[::1000]:
            whole = Image.open(io.BytesIO(archive.read(name))).convert("RGB")
            assert whole.size == (227, 227)
            path = tmp_path / "image.png"
            whole.save(path)
            wanted = np.asarray(whole.resize((224, 224), Image.Resampling.BILINEAR))
            made = square(path, "bilinear")
            assert np.array_equal(made.pixels, wanted) and (made.width, made.height) == (227, 227)
