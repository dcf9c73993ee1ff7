"""What is happening now, on standard error: a line a stage, with a bar where the work can be counted."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from regard.errors import MissingExtraError

if TYPE_CHECKING:
    from rich.progress import TaskID


class Stages:
    """A context that shows one stage at a time, and leaves nothing behind. Silent unless on a terminal."""

    def __init__(self) -> None:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        except ImportError:
            raise MissingExtraError("`regard` prints tables with rich: `pip install regard[view]`") from None
        self.console = Console(stderr=True)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(
            *columns, console=self.console, transient=True, disable=not self.console.is_terminal
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Stages:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Leave the terminal to others."""
        self._progress.stop()

    def begin(self, description: str) -> None:
        """Take the place of the stage before."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(description, total=None)

    def advance(self, done: int, total: int) -> None:
        """So much of the present stage is done."""
        if self._task is not None:
            self._progress.update(self._task, completed=done, total=total)
