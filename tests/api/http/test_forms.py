"""The streaming multipart parser: the same file, wherever the network cuts the body."""

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefleet.api.http.forms import MOST_LINES, OneFile
from imagefleet.errors import RequestRejected

CONTENT_TYPE = "multipart/form-data; boundary=b"
FILE = bytes(range(256)) + b"\r\n--b\r-\r\n--bb\r\n--" + bytes(50)
FORM = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n'
    b"Content-Type: image/png\r\n\r\n" + FILE.replace(b"--b", b"--c") + b"\r\n--b--\r\n"
)
CUTS = st.lists(st.integers(1, len(FORM) - 1), max_size=20).map(sorted)


def fed(form: OneFile, body: bytes, cuts: list[int]) -> bytes:
    pieces = (body[start:end] for start, end in pairwise([0, *cuts, len(body)]))
    return b"".join(form.feed(piece) for piece in pieces)


@given(cuts=CUTS)
def test_a_file_is_the_same_wherever_it_is_cut(cuts: list[int]) -> None:
    form = OneFile(CONTENT_TYPE)

    file = fed(form, FORM, cuts)
    form.close()

    assert file == FILE.replace(b"--b", b"--c")
    assert form.declared == "image/png"


@pytest.mark.parametrize("behind", [b"x", b"b--\r\n", b"-x", b" \r\n"])
def test_a_file_with_its_own_boundary_in_it_is_refused(behind: bytes) -> None:
    """A parser would go on after each of them, step by step; whoever sends one sends thousands."""
    start = FORM[: FORM.index(FILE[:8])]

    with pytest.raises(RequestRejected, match="invalid_form"):
        OneFile(CONTENT_TYPE).feed(start + b"\r\n--b" + behind + FORM)


def test_the_parser_never_sees_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    form = OneFile(CONTENT_TYPE)
    seen: list[int] = []
    monkeypatch.setattr(form._parser, "write", lambda data: seen.append(len(data)))
    form.found = True

    form.feed(b"\r\n--" * 10_000)

    assert seen == []


def test_empty_lines_before_the_file_are_counted() -> None:
    with pytest.raises(RequestRejected, match="invalid_form"):
        OneFile(CONTENT_TYPE).feed(b"\n" * (MOST_LINES + 1) + FORM)


@given(end=st.integers(0, len(FORM) - 4))
def test_a_form_that_ends_early_is_broken(end: int) -> None:
    form = OneFile(CONTENT_TYPE)
    form.feed(FORM[:end])

    with pytest.raises(RequestRejected, match="invalid_form"):
        form.close()


@given(body=st.binary(max_size=300))
def test_whatever_comes_in_is_a_form_or_is_refused(body: bytes) -> None:
    with suppress(RequestRejected):
        form = OneFile(CONTENT_TYPE)
        form.feed(b"--b\r\n" + body)
        form.close()


@given(parameters=st.text(st.characters(max_codepoint=255), max_size=200))  # what headers hold
def test_whatever_the_header_says_is_a_boundary_or_is_refused(parameters: str) -> None:
    with suppress(RequestRejected):
        OneFile(f"multipart/form-data; {parameters}")
