"""Printing: JSON for programs, tables and lines for people."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from weightshift.contracts.base import clean_text

# Wide enough that no table is cut when the output goes to a file or a pipe.
_PLAIN_WIDTH = 200


class Output:
    """Prints results to standard output and errors to standard error; with `json`, only JSON."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self.console = _console(stderr=False)
        self.errors = _console(stderr=True)

    def result(self, document: object, *readable: RenderableType) -> None:
        """Print the result of a command: `document` as JSON, else the readable form."""
        if self.json:
            print(json.dumps(to_json(document)))
            return
        for part in readable:
            if isinstance(part, str):
                self.line(part)
            else:
                self.console.print(part)

    def line(self, text: str) -> None:
        """Print a line for people only."""
        if not self.json:
            self.console.print(_plain(text), soft_wrap=True)

    def warning(self, text: str) -> None:
        """Print what may go wrong later, to standard error, where it disturbs no program."""
        self.errors.print(_plain(f"warning: {text}"), soft_wrap=True)

    def error(self, error: Exception, message: str) -> None:
        """Print why a command failed."""
        if self.json:
            print(json.dumps({"error": {"type": type(error).__name__, "message": message}}))
        else:
            self.errors.print(_plain(f"error: {message}"), soft_wrap=True)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    return console


def to_json(document: object) -> Any:
    """Turn messages, and mappings and sequences of them, into plain JSON values."""
    if isinstance(document, BaseModel):
        return document.model_dump(mode="json")
    if isinstance(document, Mapping):
        return {key: to_json(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [to_json(value) for value in document]
    return document


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> RenderableType:
    """Return a table; `empty` is what to say when there is no row."""
    if not rows:
        return _plain(empty)
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in rows:
        drawn.add_row(*(_plain("-" if cell is None else str(cell)) for cell in row))
    return drawn


def _plain(text: str) -> Text:
    """Return text as it is: what others wrote is no markup of ours, and no command to a terminal."""
    return Text(clean_text(text, longest=len(text)))
