"""Run independent pieces of work on all of a CPU's cores, each piece on one.

Torch splits every single operation over its threads and waits for the slowest of them. For the many short operations
of a transformation that gains little on idle cores, and costs up to a hundred times as much on cores that are shared
with other work. Whole pieces, a few images through one transformation, need no waiting until the end.
"""

import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import torch


def run_all(tasks: Iterable[Callable[[], None]], *, most: int | None = None) -> None:
    """Run all tasks and return when the last has ended, on as many threads as torch is set to use, or `most`."""
    num_threads = torch.get_num_threads()
    queue = deque(tasks)
    inference = torch.is_inference_mode_enabled()
    if num_threads == 1:
        return _drain(queue, inference)
    num_workers = min(most or num_threads, num_threads, len(queue))
    running = [_pool(num_threads).submit(_drain, queue, inference) for _ in range(num_workers)]
    for worker in running:
        worker.result()
    return None


def _drain(queue: deque[Callable[[], None]], inference: bool) -> None:
    with torch.inference_mode(inference):  # The mode belongs to a thread, and tensors remember theirs.
        while True:
            try:
                task = queue.popleft()
            except IndexError:
                return
            task()


def _use_one_thread() -> None:
    torch.get_num_threads()  # The first question sets this thread up with the common number: it has to come first.
    torch.set_num_threads(1)


@functools.lru_cache(maxsize=1)
def _pool(num_threads: int) -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(num_threads, "metadr-transforms", initializer=_use_one_thread)
    started = threading.Barrier(num_threads + 1)
    for _ in range(num_threads):
        pool.submit(started.wait)
    started.wait()
    # The setting is kept per thread, but its last value is what new threads begin with: put that back.
    torch.set_num_threads(num_threads)
    return pool


# A forked process inherits the pool without its threads: let it start its own.
if hasattr(os, "register_at_fork"):  # Not on Windows, which never forks.
    os.register_at_fork(after_in_child=_pool.cache_clear)
