"""What the tests of beginnings share: beginnings that are closed at the end. Runs of every order are in toys.py."""

from contextlib import ExitStack, closing

import pytest
import torch

from metadr.beginnings import Beginnings


@pytest.fixture
def begin():
    """Makes beginnings of some runs in a folder, and closes them at the end."""
    with ExitStack() as stack:
        yield lambda jobs, out: stack.enter_context(closing(Beginnings(jobs, out, torch.device("cpu"))))
