"""The fonts that synthetic numbers are set in: a fixed list, each file known by its SHA-256, or a folder of one's own.

The files stay where their packages put them; nothing is copied. The hash of the list is part of the data's fingerprint,
because another font is another picture.
"""

import hashlib
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

import matplotlib
from PIL import ImageFont

from metadr.errors import UserError

SYSTEM_FOLDERS = (
    Path("/usr/share/fonts"),
    Path("/usr/local/share/fonts"),
    Path("~/.local/share/fonts"),
    Path("~/.fonts"),
)
SUFFIXES = (".otf", ".ttf")
VERSIONS = {
    "font-amatic-sc": "0.0.4",
    "font-caladea": "0.0.2",
    "font-fredoka-one": "0.0.4",
    "font-hanken-grotesk": "0.0.2",
    "font-intuitive": "0.0.4",
    "font-lato": "0.1.0",
    "font-manrope": "0.0.2",
    "font-source-sans-pro": "0.0.1",
    "font-source-serif-pro": "0.0.1",
}
"""The versions whose files have the hashes below. matplotlib is not here: its fonts have not changed since 3.8."""


class Family(NamedTuple):
    """A type family: its look, the PyPI package that carries it, its licence, and the SHA-256 of each file used."""

    name: str
    style: str
    package: str
    licence: str
    files: dict[str, str]


FAMILIES: tuple[Family, ...] = (
    Family(
        "DejaVu Sans",
        "sans",
        "matplotlib",
        "Bitstream Vera",
        {
            "DejaVuSans.ttf": "3fdf69cabf06049ea70a00b5919340e2ce1e6d02b0cc3c4b44fb6801bd1e0d22",
            "DejaVuSans-Bold.ttf": "b184b89e3c1075f22f6b71575b6fc20d4972b3cfd3b23322ca6fd596dcaef167",
        },
    ),
    Family(
        "DejaVu Serif",
        "slab serif",
        "matplotlib",
        "Bitstream Vera",
        {
            "DejaVuSerif.ttf": "107244956e9962b9e96faccdc551825e0ae0898ae13737133e1b921a2fd35ffa",
            "DejaVuSerif-BoldItalic.ttf": "d93efec7a9d2e826768d1a2ee95b95870e15e29599a84f3484af1de1cec2e181",
        },
    ),
    Family(
        "DejaVu Sans Mono",
        "mono",
        "matplotlib",
        "Bitstream Vera",
        {
            "DejaVuSansMono-Bold.ttf": "baada9a5172fe20886251aff0433fc38461912d5daf07287e7bee56620a8da96",
        },
    ),
    Family(
        "STIX General",
        "serif",
        "matplotlib",
        "OFL 1.1",
        {
            "STIXGeneral.ttf": "167378031e2dddc6216d67819c9260e9a06ffc4c478e4e23cb98a6fd44b183c2",
            "STIXGeneralBol.ttf": "e8533dc7083fa346bda1933d60ea4a83b67d0945bceaf1b3541f82b4a0e2c6a0",
        },
    ),
    Family(
        "Computer Modern",
        "serif, sans, typewriter",
        "matplotlib",
        "BaKoMa",
        {
            "cmb10.ttf": "074497b50c43ea57597181591f9893d38fc12a87e95104f5657fc2481f61a23a",
            "cmss10.ttf": "7df91a83d05b2e471ec638cb0b435a360a3c792b09fc42a7da67e91f2e79115a",
            "cmtt10.ttf": "6211f09ae93599991afda970c24669dad1a77e253d915624fbf212f702f071d7",
        },
    ),
    Family(
        "Amatic SC",
        "handwritten, condensed",
        "font-amatic-sc",
        "OFL 1.1",
        {
            "AmaticSC-Bold.ttf": "7a460b4bd6d8d6bfad2b5ba434204e26bcd28208835a617dbc0a99ad33db4df9",
        },
    ),
    Family(
        "Caladea",
        "serif",
        "font-caladea",
        "Apache 2.0",
        {
            "Caladea-Regular.ttf": "d2f6cad33f191e65b68bd74e6d4f7708080a41b32db635866109df3090265d91",
            "Caladea-BoldItalic.ttf": "f47a35ad6cd0efa9914d93f9d03c93e30c55da43674bccfabac73b3c0d522c01",
        },
    ),
    Family(
        "Fredoka One",
        "display, rounded",
        "font-fredoka-one",
        "OFL 1.1",
        {
            "FredokaOne-Regular.ttf": "a2fbb1416510efe20330272bc182d667efe1507db5faecde893084fb15953973",
        },
    ),
    Family(
        "Hanken Grotesk",
        "grotesque sans",
        "font-hanken-grotesk",
        "OFL 1.1",
        {
            "HankenGrotesk-Medium.otf": "42e2489d8759d07fb633acc30671030edf7fcf22baaf89291e6d3d9a8a4f94e3",
            "HankenGrotesk-BoldItalic.otf": "059210784a6b65d84c47cae437867c93af485cab7ce7af826d5759d5466f17dd",
        },
    ),
    Family(
        "Intuitive",
        "handwritten, old-style figures",
        "font-intuitive",
        "OFL 1.1",
        {
            "Intuitive.ttf": "8e179d0b80ee7e272bbc12b7f9aa11314ef660396101ba4e0096e535256232ab",
        },
    ),
    Family(
        "Lato",
        "humanist sans",
        "font-lato",
        "OFL 1.1",
        {
            "Lato-Regular.ttf": "e82542aed8293f49fc83c4aaea566b1f6b4fc7a9ab5da11e6fb9bc0973b5324b",
            "Lato-Black.ttf": "abf64cfa14645043a7c33f76435125f8b3de79c510adb938a1c16085518d4341",
            "Lato-BoldItalic.ttf": "e38611f4c0ff3251a58fe751991c39784d8f9be420b004891e0b9277228ec32f",
        },
    ),
    Family(
        "Manrope",
        "geometric sans",
        "font-manrope",
        "OFL 1.1",
        {
            "Manrope-Medium.ttf": "0b773002799663fa57a5b80c7256e9f3e9b8b62d7d55f07640db345089af9a8b",
            "Manrope-ExtraBold.ttf": "24454f098114668e002b020d640fa905d34d1f130356996fb6cb253bdd2377b4",
        },
    ),
    Family(
        "Source Sans Pro",
        "sans",
        "font-source-sans-pro",
        "OFL 1.1",
        {
            "SourceSansPro-Regular.ttf": "b77f3a700edd0fc0dec73258f882d5c3926c77f5caf6800a201d2166568d2309",
            "SourceSansPro-Black.ttf": "1e59595ebe0445db9bcea5de0d0fa2e08766809d1c97789d938b71a77ecf3cf5",
            "SourceSansPro-SemiboldIt.ttf": "e7687a5558387aa42c340012f24adc6d447f43cfaf3974e75fd91fff6451fe79",
        },
    ),
    Family(
        "Source Serif Pro",
        "transitional serif",
        "font-source-serif-pro",
        "OFL 1.1",
        {
            "SourceSerifPro-Semibold.ttf": "83cc8531f284efb749bbb54f9fb4a0e0450cba918a41df76fabb3a42f2f95899",
            "SourceSerifPro-Black.ttf": "3eb2883217d013b370c4a69e467616dcb2075f40d8d5231285e0a83817481ad9",
            "SourceSerifPro-It.ttf": "13e315bc49bd04ef89228db5fbc793e407d76f9ffadda4e5e08894fb474736eb",
        },
    ),
)


def hash_of(fonts: Iterable[tuple[str, str]]) -> str:
    """The SHA-256 of a list of (file name, SHA-256), in whatever order it comes."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(fonts))
    return hashlib.sha256(lines.encode()).hexdigest()


FONT_LIST_HASH: str = hash_of(item for family in FAMILIES for item in family.files.items())


class FontSet(NamedTuple):
    """Fonts to draw with, in the order of their names, and the hash of the list."""

    paths: tuple[Path, ...]
    hash: str


def find(families: Iterable[Family] = FAMILIES) -> FontSet:
    """Find every font of the list: in its package, in matplotlib, or in the system's font folders.

    Raises:
        UserError: If a file is missing or has another content than the list says, with the command that installs it.
    """
    families = tuple(families)
    found: dict[str, Path] = {}
    missing: dict[str, Family] = {}
    changed: list[Path] = []
    for family in families:
        for name, digest in family.files.items():
            for path in _candidates(family.package, name):
                if _sha256(path) == digest:
                    found[name] = path
                    break
                changed.append(path)
            else:
                missing[name] = family
    if missing:
        raise UserError(_missing_sentence(missing, [path for path in changed if path.name in missing]))
    items = [item for family in families for item in family.files.items()]
    return FontSet(tuple(found[name] for name in sorted(found)), hash_of(items))


def in_folder(folder: str | Path) -> FontSet:
    """Every .ttf and .otf file at or below a folder. The hash knows their names and contents, not where they lie.

    Raises:
        UserError: If there is no such folder, it holds no font, or one of them cannot draw ten different digits.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise UserError(f"No folder '{root}' to take fonts from. Give --fonts a folder of .ttf or .otf files.")
    paths = {path.relative_to(root).as_posix(): path for path in _font_files(root)}
    if not paths:
        raise UserError(f"No .ttf or .otf file in '{root}'. Give --fonts a folder that holds fonts.")
    for path in paths.values():
        _check_digits(path)
    names = sorted(paths)
    return FontSet(tuple(paths[name] for name in names), hash_of((name, _sha256(paths[name])) for name in names))


def _font_files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def _candidates(package: str, name: str) -> Iterator[Path]:
    """Where a file may lie, the likeliest place first."""
    if package == "matplotlib":
        yield from (path for path in [Path(matplotlib.get_data_path(), "fonts", "ttf", name)] if path.is_file())
    else:
        try:
            files = distribution(package).files or []
        except PackageNotFoundError:
            files = []
        for file in files:
            if file.name == name and (path := Path(str(file.locate()))).is_file():
                yield path
    for folder in SYSTEM_FOLDERS:
        yield from sorted(path for path in folder.expanduser().rglob(name) if path.is_file())


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"Cannot read the font '{path}': {error.strerror}.") from None


def _missing_sentence(missing: dict[str, Family], changed: list[Path]) -> str:
    packages = sorted({family.package for family in missing.values()})
    wanted = " ".join(f"{package}=={VERSIONS[package]}" if package in VERSIONS else package for package in packages)
    force = "--force-reinstall --no-deps " if changed or "matplotlib" in packages else ""
    other = f" ({', '.join(map(str, changed))}: not the content that is listed)" if changed else ""
    return (
        f"Missing fonts: {', '.join(sorted(missing))}{other}. Install them with 'pip install {force}{wanted}', or draw "
        "with your own by --fonts DIR."
    )


def _check_digits(path: Path) -> None:
    """A font without a digit draws the same empty box for all that it lacks."""
    try:
        font = ImageFont.truetype(str(path), 32, layout_engine=ImageFont.Layout.BASIC)
        drawn = {bytes(font.getmask(digit)) for digit in "0123456789"}
    except (OSError, ValueError) as error:
        raise UserError(f"Cannot draw with the font '{path}': {error}. Take it out of the --fonts folder.") from None
    if len(drawn) < 10:
        raise UserError(f"The font '{path}' lacks some of the digits 0 to 9. Take it out of the --fonts folder.")
