"""What a result was made with: versions, hardware, commit."""

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import metadr

PACKAGES = ("torch", "torchvision", "triton", "numpy", "scipy", "pillow", "scikit-learn", "safetensors", "higher")


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Versions, hardware and commit, as JSON."""
    return {
        "metadr": metadr.__version__,
        **commit(),
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
        "platform": platform.platform(terse=True),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        **_gpu(torch.device(device)),
    }


def _gpu(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"gpu": None}
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    told = Path("/proc/driver/nvidia/version")
    driver = re.search(r"\d+\.[\d.]+", told.read_text()) if told.exists() else None
    libraries = {"cuda": torch.version.cuda, "cudnn": cudnn, "driver": driver and driver[0]}
    return {"gpu": torch.cuda.get_device_name(device), **libraries}


def commit() -> dict[str, Any]:
    """The commit of the checkout that this package runs from, if it does."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return {"commit": None, "dirty": None}
    return {
        "commit": _git(folder, "rev-parse", "--short=12", "HEAD"),
        "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no")),
    }


def published_files(pattern: str) -> list[Path]:
    """Files of results/ in the checkout that this package runs from, or else in the current folder."""
    for folder in (Path(__file__).resolve().parents[2] / "results", Path("results")):
        found = sorted(folder.glob(pattern))
        if found:
            return found
    return []


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
