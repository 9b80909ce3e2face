"""Files of weights that torchvision and timm download: where they lie, whether they are whole, what keeps one away."""

import hashlib
import re
from pathlib import Path
from urllib.parse import urlparse

import torch

from metadr.errors import UserError

OF_HUB = ("model.safetensors", "pytorch_model.bin")  # what timm looks for in a repository of the hub, in this order
# A hub that cannot be reached at all, by the names that the HTTP libraries of huggingface_hub's versions have for it.
UNREACHABLE = {"ConnectError", "ConnectTimeout", "ConnectionError", "ProxyError"}


def kept_by_torch(url: str) -> Path:
    """Where torch.hub keeps, or will keep, a file."""
    return Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(url).path).name


def kept_by_timm(name: str) -> Path | None:
    """The file of weights that timm has downloaded for a network; none if it would have to."""
    from timm.models import get_pretrained_cfg

    published = get_pretrained_cfg(name)
    if published is None or not published.hf_hub_id:
        # Some addresses come with the name of the file.
        url = "" if published is None or not published.url else published.url
        path = kept_by_torch(url if isinstance(url, str) else url[-1])
        return path if path.is_file() else None
    from huggingface_hub import try_to_load_from_cache

    repository, _, revision = published.hf_hub_id.partition("@")
    for file in OF_HUB:
        there = try_to_load_from_cache(repository, file, revision=revision or None)
        if isinstance(there, str):
            return Path(there).resolve()  # the link that leads there is made again to the same file, if that stays
    return None


def check_reached(name: str) -> None:
    """Raise at once what keeps timm from the hub, to which it would go on and on for the better part of a minute.

    A hub that is slow, or says no, is left to timm.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from timm.models import get_pretrained_cfg

    published = get_pretrained_cfg(name)
    if published is None or not published.hf_hub_id:
        return
    try:
        get_hf_file_metadata(hf_hub_url(published.hf_hub_id.partition("@")[0], OF_HUB[0]))
    except Exception as error:
        if UNREACHABLE & {kind.__name__ for kind in type(error).__mro__}:
            raise


def check_whole(path: Path, model: str) -> None:
    """Refuse a file that is not what its name says: the first digits of a SHA-256 or, in a hub's cache, all of it."""
    if not path.is_file():
        return
    named = re.search(r"-([0-9a-f]{8,})\.", path.name) or re.fullmatch(r"([0-9a-f]{64})", path.name)
    if named is None:
        return
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if not digest.startswith(named[1]):
        raise damaged(path, model)


def damaged(path: Path, model: str, error: Exception | None = None) -> UserError:
    """What an error in reading a file says, but for its advice: torch's own would be to run what the file holds."""
    refused = error.strerror if isinstance(error, OSError) else None
    what = f"cannot be read ({refused})" if refused else "is damaged"
    return UserError(
        f"{path}, the ImageNet weights of model '{model}', {what}. Remove it and run again: then it is downloaded anew."
    )
