"""The live display of running experiments: quiet where nobody watches."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from metadr.progress import Watch as Tell
from metadr.progress import Work
from metadr.sequence import Progress as Standing
from metadr.sweep import Standing as SweepStanding


class Watch:
    """Shows runs in progress on a terminal: domain, step, loss terms, steps per second, time left.

    `with Watch(console) as watch: run(recipe, watch=lambda now: watch.show("naive", now))`
    """

    def __init__(self, console: Console) -> None:
        self._live = console.is_terminal
        self._bars = Progress(
            BarColumn(bar_width=12),
            TextColumn("[bold]{task.description}[/]\n{task.fields[standing]}"),  # lines that fit 80 columns
            console=console,
            transient=True,
            disable=not self._live,
        )
        self._runs: dict[str, TaskID] = {}
        self._overall: TaskID | None = None

    def __enter__(self) -> "Watch":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, title: str) -> None:
        """Announce a run before its first step, while its data are made or read."""
        self._runs[title] = self._bars.add_task(title, total=None, standing="loading")

    def work(self, title: str, now: Work) -> None:
        """Show how far the work before a run's first step is."""
        standing = f"{now.what} {now.done:,}" + (f" of {now.total:,}" if now.total else "")
        self._bars.update(self._runs[title], total=now.total or None, completed=now.done, standing=standing)

    def show(self, title: str, now: Standing) -> None:
        if not self._live:
            return
        if title not in self._runs:
            self.begin(title)
        terms = " ".join(f"{name} {value:.3f}" for name, value in now.terms.items())
        self._bars.update(
            self._runs[title],
            total=now.total,
            completed=now.taken,
            standing=f"{now.domain} ({now.stage + 1}/{now.num_stages}) step {now.step}/{now.num_steps}  "
            f"{now.steps_per_second:.1f} steps/s  {duration(now.seconds_left)} left"
            + (f"\n{terms}" if len(self._runs) == 1 else ""),
        )

    def end(self, title: str, text: str) -> None:
        """Take a run off the display and leave a line above it, or in the log where there is none."""
        if title in self._runs:
            self._bars.remove_task(self._runs.pop(title))
        self._bars.console.print(f"  {text}", soft_wrap=True)

    def overall(self, now: SweepStanding) -> None:
        if not self._live:
            return
        if self._overall is None:
            self._overall = self._bars.add_task("all runs", total=None, standing="")
        left = "" if now.seconds_left is None else f"  {duration(now.seconds_left)} left"
        self._bars.update(
            self._overall,
            total=now.done + now.running + now.left,
            completed=now.done,
            standing=f"{now.done} done, {now.running} running, {now.left} to go  "
            f"{now.steps_per_second:.1f} steps/s{left}",
        )


@contextmanager
def working(console: Console) -> Iterator[Tell]:
    """A bar for every piece of work that is told of, with the time that is left of it; quiet where nobody watches."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bars: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:

        def tell(now: Work) -> None:
            if now.what not in bars:
                bars[now.what] = progress.add_task(now.what, total=now.total or None)
            progress.update(bars[now.what], completed=now.done)

        yield tell


def duration(seconds: float) -> str:
    """1:05 for 65 seconds, 2:03:00 for more than an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
