"""A bar on stderr for work in steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def step_bar(characters: int) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar until the work ends; yield what takes what is being done, how much is done, and how much there is.

    Args:
        characters: Width of what is being done.
    """
    columns = (
        TextColumn(f"{{task.description:<{characters}}}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("starting", total=None)

        def tell(doing: str, done: int, of: int) -> None:
            progress.update(bar, description=doing, completed=done, total=of)

        yield tell
