"""`imagefleet capacity`: reckoned for any load, by any prices, and never by nonsense."""

import re
from pathlib import Path
from typing import Any, Final

import pytest

from imagefleet.cli import estimates
from imagefleet.cli.estimates import (
    BOUNDS,
    BUSY,
    DAY,
    MEASURED,
    PRUNED_FOR,
    RETENTION_DAYS,
    SHIPPED_PRICES,
    SLOTS,
    WORKER_VCPUS,
    Workload,
)
from imagefleet.cli.output import ExitCode
from imagefleet.maintenance import pruner
from imagefleet.settings.live import DECLARED, RETENTION
from imagefleet.settings.slices import Worker
from tests.cli.conftest import Cli

DOCS: Final = Path(__file__).parents[2] / "docs"
MILLION: Final = ("capacity", "--images-per-day", "1000000")


def a_load(images: float = 1_000_000, megapixels: float = 12, **other: Any) -> Workload:  # noqa: ANN401
    return Workload(
        images_a_day=images,
        megapixels=megapixels,
        **{"peak_factor": 4, "replaced": 0, "kept_days": 365, **other},
    )


async def told(cli: Cli, *options: str) -> Any:  # noqa: ANN401 - JSON
    return (await cli(*MILLION, *options, "--json")).json()


def cost_of(answer: Any, item: str) -> float:  # noqa: ANN401 - JSON
    (line,) = [line for line in answer["costs"] if line["item"] == item]
    return float(line["cost"])


async def test_workers_are_as_many_as_the_peak_keeps_busy(cli: Cli) -> None:
    worker = (await told(cli, "--replaced", "0"))["processes"][0]
    at_the_peak = 1_000_000 / DAY * 4 * MEASURED[12].worker_ms / 1000  # processors

    assert worker["peak"] * worker["vcpus"] * BUSY >= at_the_peak
    assert (worker["peak"] - 1) * worker["vcpus"] * BUSY < at_the_peak


async def test_a_small_fleet_has_one_worker_and_two_of_what_must_not_be_away(cli: Cli) -> None:
    answer = (await cli("capacity", "--images-per-day", "10", "--json")).json()

    assert {"worker": 1, "api": 2, "maintenance": 2} == {
        crew["name"]: crew["peak"] for crew in answer["processes"]
    }


@pytest.mark.parametrize("megapixels", MEASURED)
def test_a_size_that_was_measured_takes_what_was_measured(megapixels: float) -> None:
    assert a_load(megapixels=megapixels).takes == pytest.approx(MEASURED[megapixels])


def test_between_two_sizes_it_is_in_proportion_and_beyond_them_it_goes_on() -> None:
    small, large = MEASURED[12].worker_ms, MEASURED[24].worker_ms
    takes = {size: a_load(megapixels=size).takes for size in (0.1, 18, 108)}

    assert takes[18].worker_ms == pytest.approx((small + large) / 2)
    assert takes[0.1] == MEASURED[0.5]
    assert takes[108].original_kb > 1.9 * MEASURED[48].original_kb


async def test_a_day_costs_what_its_lines_do_by_the_prices_of_a_file(
    cli: Cli, tmp_path: Path
) -> None:
    shipped = SHIPPED_PRICES.read_text(encoding="utf-8")
    dearer = tmp_path / "prices.toml"
    dearer.write_text(
        shipped.replace("s3_thousand_writes = 0.005", "s3_thousand_writes = 0.05"), encoding="utf-8"
    )
    before, after = await told(cli), await told(cli, "--prices", str(dearer))

    assert cost_of(after, "S3, writes") == pytest.approx(10 * cost_of(before, "S3, writes"))
    assert after["costPerDay"] == pytest.approx(sum(line["cost"] for line in after["costs"]))
    assert after["costPerDay"] - before["costPerDay"] == pytest.approx(
        9 * cost_of(before, "S3, writes")
    )


async def test_paths_beyond_the_free_ones_are_paid(cli: Cli) -> None:
    free = await told(cli, "--replaced", "0.00003")
    paid = await told(cli, "--replaced", "0.1")

    assert cost_of(free, "CloudFront, invalidations") == 0
    assert cost_of(paid, "CloudFront, invalidations") == pytest.approx(
        (100_000 - 1000 / 30) * 0.005
    )


async def test_what_is_too_small_first_stands_first_and_grows_with_the_load(cli: Cli) -> None:
    now, tenfold = await told(cli), await told(cli, "--images-per-day", "10000000")

    hundredfold = [bound["shares"]["100"] for bound in now["bounds"]]
    assert hundredfold == sorted(hundredfold, reverse=True)
    assert hundredfold[0] > 1
    assert {bound["what"]: bound["shares"]["10"] for bound in now["bounds"]} == pytest.approx(
        {bound["what"]: bound["shares"]["1"] for bound in tenfold["bounds"]}
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--images-per-day", "0"), "--images-per-day"),
        (("--average-megapixels", "109"), "--average-megapixels"),
        (("--average-megapixels", "nan"), "average-megapixels"),
        (("--peak-factor", "0.5"), "--peak-factor"),
        (("--replaced", "2"), "--replaced"),
        (("--prices", "nowhere.toml"), "nowhere.toml cannot be read"),
    ],
)
async def test_nonsense_is_refused_by_its_name(
    cli: Cli, options: tuple[str, ...], said: str
) -> None:
    ended = await cli(*MILLION, *options)

    assert ended.code == ExitCode.USAGE
    assert said in ended.err
    assert ended.out == ""


async def test_every_fault_of_a_file_of_prices_is_told(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    shipped = SHIPPED_PRICES.read_text(encoding="utf-8")
    broken = shipped.replace("gib_hour = 0.004445", "gib_hour = -1\nbananas = 3")
    file.write_text(broken.replace('region = "us-east-1"', ""), encoding="utf-8")

    ended = await cli(*MILLION, "--prices", str(file))

    assert ended.code == ExitCode.USAGE
    for fault in ("gib_hour", "bananas", "region"):
        assert f"  {fault}: " in ended.err


def test_what_is_reckoned_with_is_what_ships() -> None:
    (least,) = [setting.low for setting in DECLARED if setting.name == RETENTION]
    connections = {crew.name: crew.connections / crew.peak for crew in a_load().crews()}

    assert Worker().render_children == WORKER_VCPUS
    assert Worker().fast_slots == Worker().general_slots == SLOTS
    assert least == RETENTION_DAYS
    assert pruner.JOBS_WITHIN / pruner.PERIOD / 2 == PRUNED_FOR
    assert connections == {"worker": 3, "api": 20, "maintenance": 11}  # as docs/postgres.md says


def table_below(heading: str) -> list[list[str]]:
    """The rows of the first table below a heading of the page."""
    chapter = (DOCS / "capacity.md").read_text(encoding="utf-8").partition(f"\n{heading}\n")[2]
    lines = re.findall(r"^\|.*\|$", chapter.partition("\n## ")[0], re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def number(told: str) -> float:
    return float(told.split(maxsplit=1)[0].replace(",", ""))


async def test_the_page_shows_what_a_million_images_need(cli: Cli) -> None:
    shown = (await cli(*MILLION)).out

    assert f"```text\n{shown}```\n" in (DOCS / "capacity.md").read_text(encoding="utf-8")


def test_the_page_tells_what_a_picture_was_measured_to_take() -> None:
    rows = {number(size): [*map(number, cells)] for size, *cells in table_below("## A picture")}

    assert {size: [*takes] for size, takes in MEASURED.items()} == rows


def test_the_page_tells_every_figure_that_is_reckoned_with_and_its_command() -> None:
    rows = table_below("## The other figures")
    reckoned = {
        name: value
        for name, value in vars(estimates).items()
        if name.isupper() and isinstance(value, int | float) and name != "DAY"
    }

    assert {name.strip("`"): number(value) for name, value, *_ in rows} == reckoned
    assert all(where for *_, where in rows)


def test_the_page_tells_every_bound_and_where_it_is_from() -> None:
    rows = table_below("## What is too small first")

    assert {bound.what: bound.most for bound in BOUNDS} == {
        what: number(most) for what, most, *_ in rows
    }
    assert all(where and helps for _, _, where, helps in rows)
