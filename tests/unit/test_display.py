"""What a watcher sees of runs and sweeps on a terminal."""

import io

from rich.console import Console

from metadr.display import Watch
from metadr.sequence import Progress
from metadr.sweep import Standing


def shown(*, terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100, legacy_windows=False)
    with Watch(console) as watch:
        # Twenty epochs on the first domain and ten on the second: three quarters of it are behind.
        watch.show("naive seed 0", Progress("fog", 1, 2, 50, 100, 250, 300, {"loss": 1.0}, 12.5, 4.0))
        watch.overall(Standing(done=3, running=2, left=7, steps_per_second=321.0, seconds_left=65.0))
        watch._bars.refresh()
        told = console.file.getvalue()  # type: ignore[attr-defined]
        assert [(bar.completed, bar.total) for bar in watch._bars.tasks[:1]] == [(250, 300)] * terminal
    return str(told)


def test_a_sweep_shows_what_is_done_running_and_left_and_how_fast() -> None:
    text = shown(terminal=True)
    for words in ("3 done, 2 running, 7 to go", "321.0 steps/s", "1:05 left", "fog (2/2) step 50/100", "0:04 left"):
        assert words in text


def test_nothing_is_shown_where_nobody_watches() -> None:
    assert shown(terminal=False) == ""
