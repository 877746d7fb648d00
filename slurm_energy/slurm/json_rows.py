"""Rows of a long JSON answer one by one, as they arrive: neither the text nor the rows are ever held as a whole."""

import codecs
import json
from collections.abc import Callable, Generator

_Steps = Generator[None, None, None]

_BLANK = " \t\r\n"
_BEHIND_A_VALUE = frozenset(_BLANK) | frozenset(",:]}")
_END = "the text ends too early"


class JsonRows:
    """Takes the bytes of one JSON object in pieces of any size and hands on the rows of one list in it.

    Bytes that are no UTF-8 become U+FFFD and control characters in strings are let through: Slurm prints both where a
    user has put them into a name.
    """

    def __init__(self, key: str, take: Callable[[object, str], None]) -> None:
        """Begin.

        Args:
            key: Under which the object has the list.
            take: Gets each element of it, and the text that it was read from.
        """
        self.document: object = None
        """Known after `close`: all else that the object holds, with an empty list where the rows were. An answer that
        is no object is here as it is."""
        self._key = key
        self._take = take
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._scan = json.JSONDecoder(strict=False).raw_decode
        self._text = ""
        self._at = 0
        self._begin = 0
        """Of the value that was read last."""
        self._pieces: list[str] = []
        self._waiting = 0
        """Characters in `_pieces`."""
        self._wanted = 1
        """Characters that must have come before it is worth looking again."""
        self._ended = False
        self._steps: _Steps | None = self._read()

    def feed(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            ValueError: they are no JSON.
            RecursionError: they are nested too deeply.
        """
        self._add(self._decode(data))

    def close(self) -> None:
        """Take the end.

        Raises:
            ValueError: the text was no JSON, or not all of it.
            RecursionError: it is nested too deeply.
        """
        self._ended = True
        self._add(self._decode(b"", final=True))

    def _add(self, text: str) -> None:
        self._pieces.append(text)
        self._waiting += len(text)
        if self._steps is None or not (self._ended or self._waiting >= self._wanted):
            return
        self._text = "".join((self._text[self._at :], *self._pieces))
        self._at, self._pieces, self._waiting, self._wanted = 0, [], 0, 1
        steps, self._steps = self._steps, None  # after an error nothing more is read
        try:
            next(steps)
            self._steps = steps
        except StopIteration:
            self._text = ""

    def _read(self) -> _Steps:
        if (yield from self._next()) == "{":
            self._at += 1
            self.document = yield from self._object()
        else:
            self.document = yield from self._value()
        if (yield from self._next()):
            raise ValueError(f"text goes on behind the JSON value: {self._shown()}")

    def _object(self) -> Generator[None, None, dict[str, object]]:
        """Read an object whose opening brace has been read."""
        found: dict[str, object] = {}
        if (yield from self._next()) == "}":
            self._at += 1
            return found
        while True:
            key = yield from self._value()
            if not isinstance(key, str):
                raise ValueError(f"a key must be a string: {key!r:.60}")
            yield from self._one_of(":")
            if key == self._key and (yield from self._next()) == "[":
                self._at += 1
                yield from self._rows()
                found[key] = []
            else:
                found[key] = yield from self._value()
            if (yield from self._one_of(",}")) == "}":
                return found

    def _rows(self) -> _Steps:
        """Read the list whose opening bracket has been read."""
        if (yield from self._next()) == "]":
            self._at += 1
            return
        while True:
            row = yield from self._value()
            self._take(row, self._text[self._begin : self._at])
            if (yield from self._one_of(",]")) == "]":
                return

    def _value(self) -> Generator[None, None, object]:
        """Read a value of any kind; it is whole when a mark or a blank follows: `2` could go on as `2.5e3`."""
        if not (yield from self._next()):
            raise ValueError(_END)
        while True:
            try:
                value, end = self._scan(self._text, self._at)
            except ValueError:
                if self._ended:
                    raise
            else:
                if self._text[end : end + 1] in _BEHIND_A_VALUE or self._ended:
                    self._begin, self._at = self._at, end
                    return value
            # At least as much again: a value of n characters is then looked at log n times, not n / piece times.
            self._wanted = max(1, len(self._text) - self._at)
            yield

    def _next(self) -> Generator[None, None, str]:
        """Return the next character that is no blank without taking it, `""` at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _BLANK:
                    return self._text[self._at]
                self._at += 1
            if self._ended:
                return ""
            yield

    def _one_of(self, characters: str) -> Generator[None, None, str]:
        """Take one of some characters and return it."""
        found = yield from self._next()
        if not found or found not in characters:
            raise ValueError(f"{' or '.join(characters)} is missing at {self._shown()}" if found else _END)
        self._at += 1
        return found

    def _shown(self) -> str:
        return repr(self._text[self._at : self._at + 40])
