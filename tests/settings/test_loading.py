"""Reading the environment: what is accepted, what is refused, and what is never shown."""

import ast
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest
from pydantic import BaseModel, ValidationError

from imagefleet.errors import Misconfigured
from imagefleet.jobs.model import Lane
from imagefleet.jobs.policies import BreakerLimits, RetryPolicy
from imagefleet.settings import (
    Api,
    ApiSettings,
    Aws,
    Client,
    ConsoleSettings,
    Database,
    Maintenance,
    MaintenanceSettings,
    Pictures,
    Retry,
    Slice,
    Telemetry,
    Worker,
    WorkerSettings,
    load,
    masked,
    reference,
)
from imagefleet.settings.in_force import Overlay
from imagefleet.settings.variables import SLICES, variables
from tests.support.sources import parsed

ROOT: Final = Path(__file__).parents[2]

PASSWORD = "correct-horse"
DATABASE_URL = f"postgresql://imagefleet_api:{PASSWORD}@db.internal:5432/imagefleet"
DATABASE = {"DATABASE_URL": DATABASE_URL}
AWS = {
    "AWS_REGION": "eu-west-1",
    "FAST_QUEUE_URL": "https://sqs/1/fast",
    "GENERAL_QUEUE_URL": "https://sqs/1/general",
    "QUARANTINE_QUEUE_URL": "https://sqs/1/quarantine",
    "DEAD_LETTER_QUEUE_URL": "https://sqs/1/dead",
    "ORIGINALS_BUCKET": "originals",
    "OUTPUTS_BUCKET": "outputs",
}
EVERYTHING = DATABASE | AWS | {"PUBLIC_BASE_URL": "https://img.example"}


def faults(settings: type[BaseModel], environment: dict[str, str]) -> list[str]:
    with pytest.raises(Misconfigured) as refused:
        load(settings, environment)
    assert refused.value.detail is not None
    first, *lines = refused.value.detail.splitlines()
    assert first == "these settings cannot be used:"
    return [line.strip() for line in lines]


# What is accepted.


@pytest.mark.parametrize(
    "settings", [ApiSettings, WorkerSettings, MaintenanceSettings, ConsoleSettings]
)
def test_every_process_starts_from_what_must_be_set(settings: type[BaseModel]) -> None:
    assert isinstance(load(settings, EVERYTHING), settings)


def test_the_defaults_are_the_promised_ones() -> None:
    worker, retry = load(Worker, {}), load(Retry, {})

    assert (worker.fast_slots, worker.general_slots) == (16, 16)
    assert worker.shutdown_grace == timedelta(seconds=300)
    assert worker.lanes == tuple(Lane)
    assert worker.job_types == ()
    assert RetryPolicy() == retry.policy()
    assert load(Maintenance, {}).rescue_after == timedelta(seconds=30)
    assert load(Pictures, EVERYTHING).max_bytes == 50 * 1024 * 1024


def test_values_are_read_into_their_types() -> None:
    worker = load(
        Worker,
        {
            "WORKER_FAST_SLOTS": "7",
            "WORKER_LANES": "general, fast ,general",
            "WORKER_JOB_TYPES": "noop,",
            "RECEIVE_WAIT_SECONDS": "1.5",
        },
    )

    assert worker.fast_slots == 7
    assert worker.lanes == (Lane.GENERAL, Lane.FAST)
    assert worker.job_types == ("noop",)
    assert worker.receive_wait == timedelta(milliseconds=1500)


def test_retry_settings_become_a_policy() -> None:
    retry = load(
        Retry, {"BACKOFF_BASE_SECONDS": "1", "BACKOFF_CAP_SECONDS": "8", "MAX_ATTEMPTS": "3"}
    )

    policy = retry.policy()

    assert policy.delay(10, 0) == timedelta(seconds=8)
    assert policy.max_attempts == 3


def test_rescue_may_be_turned_off() -> None:
    assert load(Maintenance, {"RESCUE_AFTER": "0"}).rescue_after == timedelta(0)


def test_level_and_format_of_logs_may_be_written_in_capitals() -> None:
    telemetry = load(Telemetry, {"LOG_LEVEL": "WARNING", "LOG_FORMAT": "Console"})

    assert (telemetry.log_level, telemetry.log_format) == ("warning", "console")


def test_an_empty_variable_counts_as_unset() -> None:
    assert load(Worker, {"WORKER_FAST_SLOTS": "", "WORKER_LANES": ""}) == load(Worker, {})


def test_the_older_name_of_the_region_is_read_when_the_first_is_not_set() -> None:
    older = {**AWS, "AWS_REGION": "", "AWS_DEFAULT_REGION": "us-east-2"}

    assert load(Aws, older).region == "us-east-2"
    assert load(Aws, {**older, "AWS_REGION": "eu-west-1"}).region == "eu-west-1"


def test_a_slash_behind_a_web_address_does_not_matter() -> None:
    api = load(Api, {"PUBLIC_BASE_URL": "https://img.example/"})

    assert api.public_base_url == "https://img.example"


def test_each_service_may_have_an_endpoint_of_its_own() -> None:
    aws = load(
        Aws,
        {
            **AWS,
            "AWS_ENDPOINT_URL": "http://emulator:4566",
            "AWS_ENDPOINT_URL_CLOUDFRONT": "http://moto:5000",
        },
    )

    assert aws.endpoint("sqs") == aws.endpoint("s3") == "http://emulator:4566"
    assert aws.endpoint("cloudfront") == "http://moto:5000"
    assert load(Aws, AWS).endpoint("s3") is None


def test_every_lane_has_its_queue() -> None:
    aws = load(Aws, AWS)

    assert [f"https://sqs/1/{lane}" for lane in Lane] == [aws.queue_url(lane) for lane in Lane]


# Where values come from.


def test_a_slice_made_in_a_test_ignores_the_testers_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_FAST_SLOTS", "77")

    assert Worker().fast_slots == 16
    assert Worker(fast_slots=4).fast_slots == 4
    assert load(Worker, {}).fast_slots == 16


def test_without_a_mapping_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_FAST_SLOTS", "77")

    assert load(Worker).fast_slots == 77


def test_the_name_of_an_attribute_is_not_a_variable() -> None:
    assert load(Worker, {"fast_slots": "9", "FAST_SLOTS": "9"}).fast_slots == 16


def test_settings_cannot_be_changed() -> None:
    settings = load(ApiSettings, EVERYTHING)

    with pytest.raises(ValidationError, match="frozen"):
        settings.retry = Retry()  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        settings.retry.max_attempts = 9  # type: ignore[misc]


def test_a_secret_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(DATABASE_URL + "\n")

    database = load(Database, {"DATABASE_URL_FILE": str(file)})

    assert database.url.get_secret_value() == DATABASE_URL


def test_a_secret_given_twice_is_refused(tmp_path: Path) -> None:
    lines = faults(Database, DATABASE | {"DATABASE_URL_FILE": str(tmp_path)})

    assert lines == ["DATABASE_URL: also given as DATABASE_URL_FILE; set one of them"]


def test_a_secrets_file_must_be_readable_text_with_something_in_it(tmp_path: Path) -> None:
    missing, empty, binary = tmp_path / "missing", tmp_path / "empty", tmp_path / "binary"
    empty.write_text("\n")
    binary.write_bytes(b"\xff\xfe")

    for path, why in [
        (missing, f"cannot read '{missing}': No such file or directory"),
        (binary, f"cannot read '{binary}': not text"),
        (empty, f"'{empty}' is empty"),
    ]:
        lines = faults(Database, {"DATABASE_URL_FILE": str(path)})

        assert [f"DATABASE_URL_FILE: {why}"] == lines


def test_any_variable_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "slots"
    file.write_text("9\n")

    assert load(Worker, {"WORKER_FAST_SLOTS_FILE": str(file)}).fast_slots == 9


# What is refused.


def test_all_faults_of_all_slices_are_named_at_once() -> None:
    lines = faults(
        WorkerSettings,
        {
            **EVERYTHING,
            "DATABASE_URL": "",
            "ORIGINALS_BUCKET": "",
            "WORKER_FAST_SLOTS": "many",
            "MAX_ATTEMPTS": "0",
            "LOG_LEVEL": "loud",
        },
    )

    assert lines == [
        (
            "DATABASE_URL: not set; expected postgresql://user:password@host:port/database, "
            "or DATABASE_URL_FILE with the path of a file"
        ),
        "ORIGINALS_BUCKET: not set; expected text",
        "WORKER_FAST_SLOTS: expected a whole number, from 0 to 100; given 'many'",
        "MAX_ATTEMPTS: expected a whole number, from 1 to 100; given '0'",
        "LOG_LEVEL: expected debug, info, warning or error; given 'loud'",
    ]


@pytest.mark.parametrize("value", ["soon", "nan", "inf", "-inf", "1e300", "-1", "601", "PT5S"])
def test_a_span_is_a_number_of_seconds_in_its_range(value: str) -> None:
    lines = faults(Maintenance, {"RESCUE_AFTER": value})

    assert [f"RESCUE_AFTER: expected seconds, from 0 to 600; given '{value}'"] == lines


@pytest.mark.parametrize(
    "value",
    ["ftp://x", "img.example", "https://", "https://x/?q=1", "https://x/#a", "https://[", "/x"],
)
def test_a_web_address_is_absolute_and_has_no_query(value: str) -> None:
    (line,) = faults(Api, {"PUBLIC_BASE_URL": value})

    assert f"PUBLIC_BASE_URL: expected http://host or https://host; given '{value}'" == line


def test_trusted_proxies_are_networks() -> None:
    api = load(Api, EVERYTHING | {"TRUSTED_PROXIES": "10.0.0.0/8, 2001:db8::/32,192.0.2.7"})

    assert ["10.0.0.0/8", "2001:db8::/32", "192.0.2.7/32"] == [str(n) for n in api.trusted_proxies]
    assert () == load(Api, EVERYTHING).trusted_proxies
    (fault,) = faults(Api, EVERYTHING | {"TRUSTED_PROXIES": "10.0.0.1/8"})
    assert "TRUSTED_PROXIES" in fault


def test_origins_are_written_as_browsers_write_them() -> None:
    given = "https://app.example,http://127.0.0.1:3000"

    assert (
        tuple(given.split(","))
        == load(Api, EVERYTHING | {"CORS_ALLOWED_ORIGINS": given}).allowed_origins
    )
    assert () == load(Api, EVERYTHING).allowed_origins
    assert ("*",) == load(Api, EVERYTHING | {"CORS_ALLOWED_ORIGINS": "*"}).allowed_origins


@pytest.mark.parametrize(
    "origin",
    [
        "app.example", "https://app.example/", "https://App.example", "https://app.example/x",
        "https://*.example", "null", "ftp://app.example", "https://me@app.example", "https://",
    ],
)  # fmt: skip
def test_what_no_browser_calls_an_origin_is_none(origin: str) -> None:
    (fault,) = faults(Api, EVERYTHING | {"CORS_ALLOWED_ORIGINS": f"https://ok.example,{origin}"})

    assert fault.startswith("CORS_ALLOWED_ORIGINS: expected origins such as https://app.example")


def test_lanes_are_known_and_at_least_one() -> None:
    for value in ("slow", "fast,slow,", ","):
        (line,) = faults(Worker, {"WORKER_LANES": value})

        assert line.startswith("WORKER_LANES: expected one or more of fast, general, quarantine")


def test_the_limits_of_breakers_are_given_by_service_and_for_all_others() -> None:
    given = '{"*": {"failures": 20}, "s3": {"ratio": 0.2, "window_seconds": 10, "open_seconds": 5}}'
    worker = load(Worker, {"BREAKERS": given})
    limits = {name: Overlay().breaker(name, worker.breakers) for name in worker.breakers}

    assert {
        "*": BreakerLimits(failures=20),
        "s3": BreakerLimits(
            failures=20, ratio=0.2, window=timedelta(seconds=10), open_for=timedelta(seconds=5)
        ),
    } == limits
    assert BreakerLimits() == Overlay().breaker("*", load(Worker, {}).breakers)
    assert given == masked(load(Worker, {"BREAKERS": given}))["BREAKERS"].replace(".0", "")


@pytest.mark.parametrize(
    "value",
    [
        "s3",
        "[]",
        '{"s3": 5}',
        '{"s3": {"failures": 0}}',
        '{"s3": {"ratio": 1.1}}',
        '{"s3": {"window_seconds": 0.5}}',
        '{"s3": {"open_seconds": "soon"}}',
        '{"s3": {"threshold": 5}}',
        '{"": {}}',
    ],
)
def test_the_limits_of_breakers_are_numbers_that_make_sense(value: str) -> None:
    (line,) = faults(Worker, {"BREAKERS": value})

    assert line.startswith('BREAKERS: expected JSON such as {"s3": {"failures": 20')


def test_a_port_is_a_port() -> None:
    for value in ("65536", "-1", "tcp://10.0.0.1:80"):
        (line,) = faults(Telemetry, {"HEALTH_LISTEN_PORT": value})

        assert (
            f"HEALTH_LISTEN_PORT: expected a port number, from 0 to 65535; given '{value}'" == line
        )


@pytest.mark.parametrize(
    ("settings", "environment", "fault"),
    [
        (
            Database,
            DATABASE | {"DATABASE_POOL_MIN": "11", "DATABASE_POOL_MAX": "10"},
            "DATABASE_POOL_MIN is larger than DATABASE_POOL_MAX",
        ),
        (
            Worker,
            {"WORKER_FAST_SLOTS": "0", "WORKER_GENERAL_SLOTS": "0"},
            "WORKER_FAST_SLOTS and WORKER_GENERAL_SLOTS are both 0: nothing could ever run",
        ),
        (
            Retry,
            {"BACKOFF_CAP_SECONDS": "29"},
            "BACKOFF_BASE_SECONDS is larger than BACKOFF_CAP_SECONDS",
        ),
    ],
)
def test_values_that_do_not_go_together_are_refused(
    settings: type[Slice], environment: dict[str, str], fault: str
) -> None:
    assert [fault] == faults(settings, environment)


# What is never shown.


@pytest.mark.parametrize("url", [f"mysql://u:{PASSWORD}@h/d", f"postgresql://u:{PASSWORD}@h", "x"])
def test_a_refused_secret_is_not_repeated(url: str) -> None:
    (line,) = faults(Database, {"DATABASE_URL": url})

    assert PASSWORD not in line
    assert line.endswith(f"given a secret of {len(url)} characters")


def test_a_refused_address_is_shown_without_its_password() -> None:
    (line,) = faults(Api, {"PUBLIC_BASE_URL": f"ftp://u:{PASSWORD}@h"})

    assert line.endswith("given 'ftp://***@h'")


def test_a_refused_value_is_shown_on_one_line_of_bearable_length() -> None:
    (line,) = faults(Worker, {"WORKER_FAST_SLOTS": "\x1b[31m\n" + "x" * 10_000})

    assert "\x1b" not in line
    assert len(line) < 250


def test_the_start_line_shows_where_but_not_the_password() -> None:
    shown = masked(load(ApiSettings, EVERYTHING))

    assert shown["DATABASE_URL"] == "postgresql://imagefleet_api:***@db.internal:5432/imagefleet"
    assert shown["OPERATOR_DATABASE_URL"] == ""
    assert shown["BACKOFF_BASE_SECONDS"] == "30"
    assert PASSWORD not in repr(shown)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql://u:{PASSWORD}@h/d?password={PASSWORD}", "postgresql://u:***@h/d"),
        (f"postgresql://h/d?user=u&password={PASSWORD}", "***"),
        (f"postgresql://u:{PASSWORD}@@h/d", "***"),
        (f"postgresql://u:{PASSWORD}/@h/d", "***"),
    ],
)
def test_an_unusual_secret_address_is_rather_hidden_than_shown(url: str, shown: str) -> None:
    assert shown == masked(load(Database, {"DATABASE_URL": url}))["DATABASE_URL"]


def test_a_key_is_hidden_wholly() -> None:
    client = load(Client, {"IMAGEFLEET_KEY": PASSWORD})

    assert masked(client) == {"IMAGEFLEET_URL": "http://127.0.0.1:8080", "IMAGEFLEET_KEY": "***"}


def test_a_web_address_in_the_start_line_has_no_password() -> None:
    aws = load(Aws, {**AWS, "AWS_ENDPOINT_URL": f"http://u:{PASSWORD}@emulator"})

    assert masked(aws)["AWS_ENDPOINT_URL"] == "http://***@emulator"


def test_printing_settings_does_not_print_secrets() -> None:
    assert PASSWORD not in repr(load(ApiSettings, EVERYTHING))


# The reference.


@pytest.mark.parametrize("settings", SLICES)
def test_every_variable_is_described(settings: type[Slice]) -> None:
    assert settings.__doc__
    for variable in variables(settings):
        assert variable.description.endswith("."), variable.name
        assert variable.form, variable.name
        assert variable.name.isupper()


def test_the_reference_has_a_row_for_every_variable_of_every_slice() -> None:
    text = reference()

    assert set(SLICES) == set(Slice.__subclasses__())
    for settings in SLICES:
        assert f"\n## {settings.__name__}\n" in f"\n{text}"
        for variable in variables(settings):
            assert f"| `{variable.name}`" in text


def test_a_row_says_names_form_default_and_meaning() -> None:
    text = reference()

    assert (
        "| `MAX_ATTEMPTS` | a whole number, from 1 to 100 | 5 | "
        "How often a job may run, the first time included. |"
    ) in text
    assert "| `DATABASE_URL` or `DATABASE_URL_FILE` |" in text
    assert "| `AWS_REGION` or `AWS_DEFAULT_REGION` | text | must be set |" in text
    assert "| `BACKOFF_BASE_SECONDS` | seconds, above 0 and up to 604800 | 30 |" in text


def test_the_page_of_settings_is_the_reference() -> None:
    assert reference() == (ROOT / "docs" / "settings.md").read_text(encoding="utf-8"), "make fix"


# That each of them does something.


def read_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr


def methods_of(settings: type[Slice]) -> Iterator[ast.FunctionDef]:
    """The public ones; validators read every variable and do nothing with it."""
    path = (ROOT / "services" / Path(*settings.__module__.split("."))).with_suffix(".py")
    for defined in parsed(path).body:
        if isinstance(defined, ast.ClassDef) and defined.name == settings.__name__:
            methods = (item for item in defined.body if isinstance(item, ast.FunctionDef))
            yield from (method for method in methods if not method.name.startswith("_"))


def goes_through_all(method: ast.FunctionDef) -> bool:
    loops = (node for node in ast.walk(method) if isinstance(node, ast.comprehension))
    return any(isinstance(loop.iter, ast.Name) and loop.iter.id == "self" for loop in loops)


@pytest.fixture(scope="module")
def read_outside() -> set[str]:
    """Names of the attributes that the product reads anywhere but in its settings."""
    package = ROOT / "services" / "imagefleet"
    files = (file for file in package.rglob("*.py") if package / "settings" not in file.parents)
    return {name for file in files for name in read_in(parsed(file))}


@pytest.mark.parametrize("settings", SLICES)
def test_every_variable_is_used(settings: type[Slice], read_outside: set[str]) -> None:
    """A coarse search, by name alone: it finds what nobody reads at all."""
    used = [method for method in methods_of(settings) if method.name in read_outside]
    if any(goes_through_all(method) for method in used):
        return
    read = read_outside | {name for method in used for name in read_in(method)}

    assert [v.name for v in variables(settings) if v.attribute not in read] == []


def test_no_variable_has_a_name_that_kubernetes_sets() -> None:
    services = ("API", "WORKER", "MAINTENANCE", "CONSOLE", "IMAGEFLEET", "POSTGRES", "DATABASE")
    for settings in SLICES:
        for variable in variables(settings):
            assert not variable.name.startswith(tuple(f"{name}_PORT" for name in services))
            assert not variable.name.startswith(tuple(f"{name}_SERVICE_" for name in services))
