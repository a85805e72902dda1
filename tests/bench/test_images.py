"""The measurement itself must not rot: two pictures of it are made, and nothing is timed."""

from pathlib import Path

import pytest

from tests.bench.ground import Ground
from tests.bench.images import OURS, PILLOW, ROW, another, in_their_words, photo
from tests.bench.peers import Peers
from tests.bench.report import lines_of
from tests.bench.rounds import Asked, measure
from tests.support.database import Server
from tests.support.emulators import Emulator
from tests.support.fixtures import emulator

__all__ = ["emulator"]


@pytest.mark.timeout(120)
async def test_the_whole_product_and_bare_pillow_make_the_same_ten_files(
    postgres: Server, template: str, emulator: Emulator, tmp_path: Path
) -> None:
    ground = Ground(
        server=postgres,
        template=template,
        emulator=emulator,
        folder=tmp_path,
        peers=Peers(tmp_path),
    )

    rounds = await measure(ROW, ground, Asked(rounds=1, jobs=2, peers=False), lambda _: None)

    told = dict(note.split(": ", 1) for note in ground.notes)
    assert told[OURS] == told[PILLOW]
    assert {PILLOW} == {line.other_name for line in lines_of(ROW, rounds)}
    assert all(value > 0 for value in rounds[0].values())


def test_every_other_is_told_the_settings_of_our_encoders(tmp_path: Path) -> None:
    picture = tmp_path / "photo.jpg"
    picture.write_bytes(photo())

    asked = in_their_words(picture)

    sizes = {each["name"]: each["size"] for each in asked["sizes"]}
    assert [[1920, 1440], [1280, 960], [640, 480], [267, 200], [200, 150]] == [*sizes.values()]
    (left, top, right, bottom) = asked["sizes"][3]["window"]
    assert (200, 0, 200) == (right - left, top, bottom)
    assert ["square"] == [each["name"] for each in asked["sizes"] if each["window"]]
    assert {name: {*options} for name, options in asked["encoders"].items()} == {
        name: {"webp", "jpeg"} for name in ("bare Pillow", "pyvips", "sharp")
    }
    assert {options["webp"].get("effort", 4) for options in asked["encoders"].values()} == {4}


def test_no_two_uploads_are_the_same_file() -> None:
    content = photo()

    assert another(content) != another(content)
