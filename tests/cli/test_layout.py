"""A table fits its terminal, and what somebody would paste is never cut."""

import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefleet.cli import layout
from imagefleet.cli.layout import Cell
from imagefleet.cli.output import Columns, Fields, GivesWay, Part, Table, show

ID: Final = "0199a5c2-7d41-7000-8000-00000000000"
ADDRESS: Final = f"https://images.example/i/{ID}1/1.1/" + "thumb-of-it" * 8 + ".webp"
MESSAGE: Final = "Something went wrong while the picture was being made, and nobody knows what."
LETTERS: Final = [
    {"id": ID + str(number), "fault": f"{number}c" * 32, "message": MESSAGE, "host": "worker-a"}
    for number in range(3)
]
COLUMNS: Final[Columns] = {"letter": "id", "host": "host", "message": "message", "fault": "fault"}
GIVES_WAY: Final[GivesWay] = {"wraps": ("message",), "drops": ("fault", "host")}


@pytest.fixture
def seen(
    terminal: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[list[str], str]]:
    """What a terminal of so many columns shows, line by line, and what is remarked."""

    def of(columns: int, part: Part) -> tuple[list[str], str]:
        if columns:
            terminal(columns)
        show(LETTERS, lambda _: part, as_json=False)
        out, err = capsys.readouterr()
        return out.splitlines(), err

    return of


Seen = Callable[..., tuple[list[str], str]]


def test_where_there_is_no_terminal_there_is_room_for_everything(seen: Seen) -> None:
    lines, remark = seen(0, Table(LETTERS, COLUMNS, GIVES_WAY))

    assert 1 + len(LETTERS) == len(lines)
    assert all(MESSAGE in line and "worker-a" in line for line in lines[1:])
    assert "" == remark


def test_prose_folds_between_words_before_anything_is_dropped(seen: Seen) -> None:
    lines, remark = seen(150, Table(LETTERS, COLUMNS, GIVES_WAY))

    assert "" == remark
    assert len(lines) > 1 + len(LETTERS)
    assert max(map(len, lines)) <= 150
    place = lines[0].index("message"), lines[0].index("fault")
    told = " ".join(line[slice(*place)].strip() for line in lines[1:])
    assert told == " ".join([MESSAGE] * len(LETTERS))


def test_columns_are_dropped_in_their_order_and_it_is_said_which(seen: Seen) -> None:
    lines, remark = seen(100, Table(LETTERS, COLUMNS, GIVES_WAY))
    assert ["letter", "host", "message"] == lines[0].split()
    assert "imagefleet: no room for fault; --json has all\n" == remark

    lines, remark = seen(60, Table(LETTERS, COLUMNS, GIVES_WAY))
    assert ["letter", "message"] == lines[0].split()
    assert "no room for fault, host;" in remark
    assert max(map(len, lines)) <= 60


def test_a_column_of_nothing_goes_first_and_is_not_missed(seen: Seen) -> None:
    things = [{**letter, "by": None} for letter in LETTERS]
    columns: Columns = {"letter": "id", "dealt with": "by", "host": "host", "message": "message"}

    roomy, _ = seen(160, Table(things, columns, GIVES_WAY))
    lines, remark = seen(70, Table(things, columns, GIVES_WAY))

    assert ["letter", "dealt", "with", "host", "message"] == roomy[0].split()
    assert ["letter", "host", "message"] == lines[0].split()
    assert "" == remark


def test_where_what_must_stay_has_no_room_each_row_is_a_record_with_all_its_fields(
    seen: Seen,
) -> None:
    lines, remark = seen(50, Table(LETTERS, COLUMNS, GIVES_WAY))

    assert "" == remark
    assert f"letter   {ID}0" == lines[0]
    assert "host     worker-a" == lines[1]
    assert "message  Something went wrong while the picture" == lines[2]
    assert "         was being made, and nobody knows what." == lines[3]
    faults = [letter["fault"] for letter in LETTERS]
    assert faults == [lines[at + 1] for at, line in enumerate(lines) if line == "fault"]
    assert 2 == lines.count(""), "between records"


def test_a_record_has_no_line_for_what_is_empty(seen: Seen) -> None:
    things: list[dict[str, Any]] = [{"id": ID, "by": None, "url": ADDRESS}]

    lines, _ = seen(80, Table(things, {"id": "id", "by": "by", "address": "url"}))

    assert [f"id       {ID}", "address", ADDRESS] == lines


def test_what_has_no_room_beside_its_label_is_one_line_below_it(seen: Seen) -> None:
    lines, _ = seen(40, Fields({"address": ADDRESS, "what": MESSAGE}))

    assert ["address", ADDRESS] == lines[:2]
    assert max(map(len, lines[2:])) <= 40
    assert MESSAGE == " ".join(line[9:] for line in lines[2:])


def test_a_document_without_room_has_lines_of_its_own_and_stays_one(seen: Seen) -> None:
    wide, _ = seen(300, Fields({"payload": LETTERS[0]}))
    narrow, _ = seen(110, Fields({"payload": LETTERS[0]}))
    narrower, _ = seen(80, Fields({"payload": LETTERS[0]}))

    assert 1 == len(wide)
    assert "payload  {" == narrow[0]
    assert f'           "id": "{ID}0",' == narrow[1]
    assert f'           "message": "{MESSAGE}",' in narrow
    assert ["payload", "{", f'  "id": "{ID}0",'] == narrower[:3]
    assert LETTERS[0] == json.loads("\n".join(narrower[1:]))


def test_a_sentence_folds_between_words(seen: Seen) -> None:
    lines, _ = seen(60, f"40 open jobs of the tenant are cancelled by job {ID}1")

    assert ["40 open jobs of the tenant are cancelled by job", f"{ID}1"] == lines


def test_a_strangers_endless_word_is_broken_rather_than_the_table(seen: Seen) -> None:
    things = [{"id": ID, "reference": "x" * 500}]

    columns: Columns = {"id": "id", "reference": "reference"}
    lines, _ = seen(110, Table(things, columns, {"wraps": ("reference",)}))

    assert ["id", "reference"] == lines[0].split()
    assert max(map(len, lines)) <= 110
    assert 500 == sum(line.count("x") for line in lines)


@pytest.mark.parametrize(
    ("text", "columns"), [("plain", 5), ("名前", 4), ("é", 1), ("e\u0301", 1), ("", 0)]
)
def test_what_a_text_takes_is_counted_in_columns_of_the_terminal(text: str, columns: int) -> None:
    assert columns == layout.columns_of(text)


WORDS: Final = st.text("ab 名-", max_size=90)


@given(
    rows=st.lists(st.tuples(WORDS, WORDS, WORDS), max_size=4),
    width=st.integers(8, 200),
    wraps=st.sets(st.sampled_from("ABC")),
    drops=st.permutations("ABC").flatmap(lambda names: st.integers(0, 2).map(names.__getitem__)),
)
def test_whatever_the_table_no_word_is_lost_and_no_row_is_wider_than_the_terminal(
    rows: list[tuple[str, str, str]], width: int, wraps: set[str], drops: str
) -> None:
    cells = [[Cell(" ".join(text.split())) for text in row] for row in rows]
    laid = layout.table([*"ABC"], cells, width, wraps=wraps, drops=[drops])
    lines = ["".join(text for text, _ in line).rstrip() for line in laid.lines]

    stacked = not lines or lines[0].split() != [name for name in "ABC" if name not in laid.dropped]
    if not stacked:
        assert max(map(layout.columns_of, lines)) <= width
    shown = "".join("".join(lines).split())
    for row in cells:
        for name, cell in zip("ABC", row, strict=True):
            for word in cell.text.split():
                if name not in laid.dropped:
                    assert name in wraps or word in shown
