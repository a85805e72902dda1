"""A form with one file in it, unwrapped chunk by chunk.

multipart/form-data: the name of the field does not matter, and the file's own name is not even
kept. Anything beside the file is refused: it would be ignored, and whoever sent it meant something
by it.
"""

from collections.abc import AsyncIterator
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from imagefleet.errors import RequestRejected

MOST_HEADERS: Final = 8
MOST_LINES: Final = 256  # or pieces of lines, as the network cuts them, before the file
LONGEST_HEADER: Final = 4096  # bytes; the name of the file is in there
OVERHEAD: Final = 64 * 1024  # bytes of a body beside the file

_BROKEN: Final = "The multipart form is broken, or ends too early."
_ONE_FILE: Final = "The form must hold one file and nothing else; parameters go into the query."


class OneFile:
    """The form as it comes in: feed it, take what it found."""

    def __init__(self, content_type: str) -> None:
        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if not boundary:
            raise _broken()
        self.declared: str | None = None
        self.found = False
        self._complete = False
        self._delimiter = b"\r\n--" + boundary
        self._held = b""
        self._lines_left = MOST_LINES
        self._in_header = (b"", b"")
        self._headers: dict[bytes, bytes] = {}  # of the only part there may be
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_header_field": self._name,
                    "on_header_value": self._value,
                    "on_header_end": self._header,
                    "on_headers_finished": self._open,
                },
                max_header_count=MOST_HEADERS,
                max_header_size=LONGEST_HEADER,
            )
        except FormParserError as error:
            raise _broken() from error

    def feed(self, chunk: bytes) -> bytes:
        """Go on with the body; what of it belongs to the file."""
        if self._complete:
            return b""  # an epilogue, which says nothing
        return self._of_file(chunk) if self.found else self._of_headers(chunk)

    def close(self) -> None:
        """Say that the body is over."""
        if not self._complete:
            raise _broken()

    def _of_headers(self, chunk: bytes) -> bytes:
        """Line by line, so that the parser is left exactly where the file begins."""
        at = 0
        while at < len(chunk):
            end = chunk.find(b"\n", at) + 1 or len(chunk)
            try:
                self._parser.write(chunk[at:end])
            except FormParserError as error:
                raise _broken() from error
            if self.found:
                return self._of_file(chunk[end:])
            self._lines_left -= 1
            if self._lines_left == 0:
                raise _broken()
            at = end
        return b""

    def _of_file(self, chunk: bytes) -> bytes:
        """What is the file's for certain; an end of it that may be a delimiter is held back.

        In one search: the parser takes steps in Python wherever it meets the delimiter, and whoever
        writes a file full of them would have it take thousands.
        """
        data = self._held + chunk
        at = data.find(self._delimiter)
        if at < 0:
            certain = max(0, len(data) - len(self._delimiter) - 1)
            self._held = data[certain:]
            return data[:certain]
        behind = data[at + len(self._delimiter) :][:2]
        if behind == b"\r\n":
            raise RequestRejected("invalid_form", _ONE_FILE)
        if len(behind) == 2 and behind != b"--":  # noqa: PLR2004 - the delimiter's own end
            raise _broken()  # no boundary may be anywhere in the file
        self._complete = behind == b"--"
        self._held = data[at:]
        return data[:at]

    def _name(self, data: bytes, start: int, end: int) -> None:
        name, value = self._in_header
        self._in_header = (name + data[start:end], value)

    def _value(self, data: bytes, start: int, end: int) -> None:
        name, value = self._in_header
        self._in_header = (name, value + data[start:end])

    def _header(self) -> None:
        name, value = self._in_header
        self._headers[name.lower()] = value
        self._in_header = (b"", b"")

    def _open(self) -> None:
        disposition, options = parse_options_header(self._headers.get(b"content-disposition"))
        if disposition != b"form-data" or b"name" not in options:
            raise _broken()
        if b"filename" not in options and options[b"name"] != b"file":
            raise RequestRejected("invalid_form", _ONE_FILE)
        self.declared = self._headers.get(b"content-type", b"").decode("latin-1") or None
        self.found = True


async def file_of(
    content_type: str, body: AsyncIterator[bytes]
) -> tuple[str | None, AsyncIterator[bytes]]:
    """The type that the form declares for its file, and the file."""
    form = OneFile(content_type)
    first = b""
    async for chunk in body:
        first = form.feed(chunk)
        if form.found:
            return form.declared, _rest_of(form, first, body)
    raise _broken()


async def _rest_of(form: OneFile, first: bytes, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    del first  # the rest may take long
    async for chunk in body:
        yield form.feed(chunk)
    form.close()


def _broken() -> RequestRejected:
    return RequestRejected("invalid_form", _BROKEN)
