"""Imports point one way. Read from the source, so that imports inside functions count too."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import metadr

ROOT = Path(metadr.__file__).parent

# A module may import from its own package and from the rows above its own, never from its own row or below.
LAYERS = [
    ["errors"],
    ["settings", "files", "images", "progress", "clock", "promises", "vkitti2_classes", "cli_options"],
    ["training", "batches"],
    ["core"],
    ["policies", "transforms", "models", "synthetic", "kernels"],
    ["parts", "data", "past"],
    ["benchmarks"],
    ["engine", "recipes"],
    ["evaluate"],
    ["store", "provenance", "domains", "best_epoch"],
    ["beginnings"],
    ["sequence"],
    ["run"],
    ["api"],
    ["metadr"],  # the package itself: what `import metadr` offers
    ["rescore"],
    ["lanes", "stopping", "report", "survey"],
    ["sweep"],
    ["display", "bench", "packs", "predictions", "asked"],
    ["cost"],
    ["listing", "cli_data", "cli_report", "cli_results", "cli_study"],
    ["cli_bench", "cli_sweep"],
    ["cli"],
    ["__main__"],
]
LAYER_OF = {name: row for row, names in enumerate(LAYERS) for name in names}
UNKNOWN = len(LAYERS)  # a module without a layer: nobody may import it until it has one
# Anyone may ask the package for these: they are there before it imports anything.
FREE = {"__version__"}


def module_name(path: Path) -> str:
    """'metadr.parts.ewc' for its file; 'metadr.parts' for that of the package."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def imported(name: str, source: str) -> set[str]:
    """Every module of the package that this source imports, wherever in it the import stands."""
    found, tree = set(), ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import in line {node.lineno}"
            module = node.module or ""
            for alias in node.names:
                inside = f"{module}.{alias.name}"
                found.add(inside if inside in SOURCES else module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name != "metadr"}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "metadr":
            inside = f"metadr.{node.attr}"
            found |= {inside if inside in SOURCES else "metadr"} if node.attr not in FREE else set()
    return {module for module in found if module.split(".")[0] == "metadr"}


def top(name: str) -> str:
    """The row's name for a module: 'parts' for 'metadr.parts.ewc'."""
    return name.split(".")[1] if "." in name else name


IMPORTS = {name: imported(name, path.read_text()) for name, path in SOURCES.items()}


def test_every_module_has_one_layer():
    without = sorted({top(name) for name in SOURCES} - set(LAYER_OF))
    assert not without, "give each a row in LAYERS"
    assert len(LAYER_OF) == sum(len(row) for row in LAYERS)


def test_imports_point_one_way():
    wrong = [
        f"{name} imports {other}"
        for name, others in IMPORTS.items()
        for other in sorted(others)
        if top(other) != top(name) and LAYER_OF.get(top(other), UNKNOWN) >= LAYER_OF.get(top(name), UNKNOWN)
    ]
    assert not wrong


def test_no_modules_import_each_other_in_a_circle():
    graph = {
        name: {other for other in others if not name.startswith(f"{other}.")} - {name}
        for name, others in IMPORTS.items()
    }
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert set(order) == set(SOURCES)


def test_reader_of_imports_sees_all_kinds():
    source = (
        "import os, metadr\nimport metadr.cli\nfrom metadr import models, settings\nfrom metadr.parts.ewc import EWC\n"
        "def f():\n    from metadr.run import run\n    return metadr.__version__, metadr.store\n"
    )
    assert imported("x", source) == {
        *("metadr.cli", "metadr.models", "metadr.settings", "metadr.parts.ewc", "metadr.run", "metadr.store")
    }
    assert imported("x", "from metadr import Recipe\nimport torch\n") == {"metadr"}


OFFERED = """
import sys, metadr
assert "torch" not in sys.modules and "metadr.core" not in sys.modules
from metadr.run import advance
import metadr.run as module
assert metadr.run.__module__ == "metadr.run" and callable(metadr.run) and module is metadr.run
assert metadr.benchmarks.register and metadr.recipe("embedded", tiny=True)
assert {"recipe", "run", "Recipe", "__version__"} < set(dir(metadr))
from metadr import *
assert Recipe is metadr.Recipe and not hasattr(metadr, "nothing")
assert all(hasattr(metadr, name) for name in metadr.__all__)
"""


def test_what_the_package_offers_is_imported_when_it_is_asked_for():
    done = subprocess.run([sys.executable, "-c", OFFERED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_takes_a_second_to_import_is_not_imported_before_it_must():
    """Else every command would spend it, `metadr --help` too."""
    heavy = {"torchvision", "sklearn", "timm", "segmentation_models_pytorch", "torch._dynamo"}
    code = f"import sys, metadr.cli; print(*sorted({heavy!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
