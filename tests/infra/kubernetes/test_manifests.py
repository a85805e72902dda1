"""The manifests agree with the code they run; and where one does not, it is said which and why."""

import copy
import json
from functools import cache

import pytest

from imagefleet.jobs.model import Lane
from imagefleet.settings import Aws
from imagefleet.settings.variables import variables
from imagefleet.telemetry.health import HealthServer
from tests.infra.aws.parsed import put_out
from tests.infra.kubernetes import agreements, breaking, breaking_console, breaking_more, faults
from tests.infra.kubernetes.agreements import Check
from tests.infra.kubernetes.bounds import connections
from tests.infra.kubernetes.breaking import Change
from tests.infra.kubernetes.living import PATHS
from tests.infra.kubernetes.rendering import MANIFESTS, STEPS, Manifests, rendered
from tests.infra.kubernetes.sentences import sentences
from tests.support.wheels import NoPrograms

ALL = {
    "production": [*breaking.BROKEN, *breaking_more.BROKEN, *breaking_console.BROKEN],
    "local": [*breaking.BROKEN_LOCALLY, *breaking_more.BROKEN_LOCALLY],
    "chosen": breaking_console.BROKEN_CHOSEN,
}

pytestmark = pytest.mark.timeout(300)  # the first one fetches what renders


@cache
def _rendered(installation: str) -> Manifests:
    try:
        return rendered(installation)
    except NoPrograms as why:
        pytest.skip(str(why))


def a_copy_of(installation: str) -> Manifests:
    return copy.deepcopy(_rendered(installation))


@pytest.mark.parametrize("installation", STEPS)
def test_everything_agrees(installation: str) -> None:
    assert faults.faults_of(_rendered(installation)) == []


@pytest.mark.parametrize(
    ("installation", "check", "change", "said"),
    [(installation, *each) for installation, broken in ALL.items() for each in broken],
    ids=[each[2] for broken in ALL.values() for each in broken],
)
def test_what_does_not_agree_is_named(
    installation: str, check: Check, change: Change, said: str
) -> None:
    manifests = a_copy_of(installation)

    change(manifests)

    assert said in "\n".join(check(manifests))


def test_no_check_is_there_that_nothing_fails() -> None:
    assert {check for broken in ALL.values() for check, _, _ in broken} == set(faults.CHECKS)


def test_no_check_can_say_what_nothing_has_made_it_say() -> None:
    said: set[str] = set()
    for installation, broken in ALL.items():
        for check, change, _ in broken:
            manifests = a_copy_of(installation)
            change(manifests)
            said |= {*check(manifests)}

    unsaid = [each.pattern for each in sentences() if not any(map(each.fullmatch, said))]

    assert unsaid == []


class _NoMetrics:
    def exposition(self) -> bytes:
        return b""

    def watch_loop(self, lag: object) -> None:
        pass


@pytest.mark.parametrize("path", [*PATHS.values(), "/metrics"])
async def test_every_path_that_is_asked_is_answered(path: str) -> None:
    answer = await HealthServer(_NoMetrics(), vitals={}, readiness={}).answer(path)

    assert answer.status == 200


def test_the_whole_of_an_installation_is_there() -> None:
    kinds = {each["kind"] for each in _rendered("production").documents}

    assert kinds >= {
        *("Deployment", "Job", "Service", "Ingress", "HorizontalPodAutoscaler", "ServiceAccount"),
        *("PodDisruptionBudget", "NetworkPolicy", "ScaledObject", "TriggerAuthentication"),
        *(
            "ServiceMonitor",
            "PodMonitor",
            "PrometheusRule",
            "ExternalSecret",
            "ConfigMap",
            "Namespace",
        ),
    }
    assert "Secret" not in kinds


def test_every_lane_has_a_variable_for_its_queue() -> None:
    told = {name for variable in variables(Aws) for name in variable.names}

    assert {f"{lane.upper()}_QUEUE_URL" for lane in Lane} <= told


def test_addresses_are_all_that_terraform_puts_out() -> None:
    """For whoever copies them; what Terraform tells an API alone is in a file of its own."""
    told = {
        name: {line.partition("=")[0] for line in (MANIFESTS / name).read_text().splitlines()}
        for name in ("overlays/production/aws.env", "overlays/production/api.env")
    }
    shared, of_the_api = told.values()

    assert shared == put_out()
    assert "PUBLIC_BASE_URL" in of_the_api


def test_the_page_says_how_many_connections_all_of_production_opens() -> None:
    page = (MANIFESTS / "README.md").read_text(encoding="utf-8")

    assert f"all of production at once opens {connections(_rendered('production'))} of" in page


def test_the_job_of_the_roles_has_every_password() -> None:
    (job,) = _rendered("roles").running("cli")
    of_roles = {name for name in agreements.known_to("cli") if name.endswith("_PASSWORD")}

    assert job.container["args"] == ["migrate", "--roles"]
    assert {name.removesuffix("_FILE") for name in job.given} >= of_roles
    assert json.dumps(job.document).count("imagefleet-roles") == 1
