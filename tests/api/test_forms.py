"""The streaming multipart parser: the same file, wherever the network cuts the body."""

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefleet.api.forms import OneFile
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
