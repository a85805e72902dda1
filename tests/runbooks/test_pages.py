"""The runbooks as they are written: four parts, a command that acts, nothing that there is not."""

import inspect
import re
from pathlib import Path
from typing import Any, Final

import boto3  # type: ignore[import-untyped]
import pytest
import typer

from imagefleet.cli.main import app
from imagefleet.console.app import NAVIGATION
from tests.infra.kubernetes.rendering import Manifests, rendered
from tests.infra.observability.asking import Rule, rules, told
from tests.infra.observability.asking import alerts as alerting
from tests.runbooks import aws, kubectl
from tests.runbooks.conditions import CONDITIONS, Condition
from tests.runbooks.pages import DO, PARTS, RUNBOOKS, SEE, WORKED, Page, alerts, deeper
from tests.runbooks.shell import Refused, words_of
from tests.runbooks.troubles import OF_ALERTS, OF_BLOCKS
from tests.support.wheels import NoPrograms

INDEX: Final = RUNBOOKS / "README.md"
ROW: Final = re.compile(
    r"^\| \[(\w+)\]\(alerts/(\w+)\.md\) \| (page|ticket) \| ([A-Z].*\.) \|$", re.MULTILINE
)
LINK: Final = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
INLINE: Final = re.compile(r"(?<!`)`([^`]+)`(?!`)")
BLOCKS: Final = [block for page in alerts() + deeper() for block in page.blocks]


def named(page: Page) -> str:
    return page.name


def test_every_alert_has_a_page_and_a_row_and_nothing_else_has() -> None:
    severities = {alert.name: alert.document["labels"]["severity"] for alert in alerting()}
    rows = ROW.findall(INDEX.read_text(encoding="utf-8"))

    assert [page.name for page in alerts()] == sorted(severities)
    assert [(name, name, severities[name]) for name in sorted(severities)] == [
        row[:3] for row in rows
    ]


@pytest.mark.parametrize("page", alerts(), ids=named)
def test_a_page_has_four_parts_in_order_and_one_command_that_acts(page: Page) -> None:
    said = re.findall(r"^\*\*([^*]+):\*\* ", page.text, re.MULTILINE)

    assert list(PARTS) == said
    assert page.text.startswith(f"# {page.name}\n")
    assert [SEE, DO, WORKED] == [block.part for block in page.blocks]
    assert 1 == len(page.block(DO).lines)


@pytest.mark.parametrize("page", alerts(), ids=named)
def test_a_page_names_a_page_of_the_console_that_there_is(page: Page) -> None:
    assert page.console is None or page.console in NAVIGATION


def test_every_block_has_its_trouble_and_every_trouble_its_block() -> None:
    assert set(OF_ALERTS) == {page.name for page in alerts()} == set(CONDITIONS)
    assert set(OF_BLOCKS) == {block.name for page in deeper() for block in page.blocks}


@pytest.mark.parametrize("page", alerts() + deeper(), ids=named)
def test_a_link_leads_somewhere(page: Page) -> None:
    lost = [
        f"{path}#{anchor}"
        for path, anchor in LINK.findall(page.text)
        if "://" not in path and not leads(page.path.parent / path if path else page.path, anchor)
    ]

    assert lost == []


def leads(path: Path, anchor: str) -> bool:
    if not path.exists():
        return False
    headings = (
        re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
    )
    return not anchor or anchor in {anchor_of(heading) for heading in headings}


def anchor_of(heading: str) -> str:
    """As GitHub makes them."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


COMMANDS: Final[Any] = typer.main.get_command(app)


@pytest.mark.parametrize("page", alerts() + deeper(), ids=named)
def test_a_verb_that_is_named_in_a_sentence_is_one_with_these_options(page: Page) -> None:
    unknown = [
        text
        for text in INLINE.findall(page.text.replace("\n", " "))
        if looks_like_a_verb(text) and not is_a_verb(text)
    ]

    assert unknown == []


def looks_like_a_verb(text: str) -> bool:
    first, *rest = text.split()
    group = COMMANDS.commands.get(first)
    return bool(rest) and (first == "imagefleet" or hasattr(group, "commands"))


def is_a_verb(text: str) -> bool:
    words = text.split()[1:] if text.startswith("imagefleet ") else text.split()
    command = COMMANDS
    while words and hasattr(command, "commands"):
        command = command.commands.get(words.pop(0))
        if command is None:
            return False
    options = {option for each in command.params for option in each.opts}
    return all(word in options for word in words if word.startswith("--"))


def test_a_verb_or_an_option_that_there_is_not_is_noticed() -> None:
    for text in ("queue unpause", "imagefleet workers kill", "`jobs fail --because`".strip("`")):
        assert looks_like_a_verb(text)
        assert not is_a_verb(text)


def recorded(rule: Rule) -> str:
    """What it asks for, with what the rules that it is made of ask for."""
    inner = [other for other in rules() if not other.is_alert and other.name in rule.query]
    return " ".join([rule.query, *(recorded(other) for other in inner if other is not rule)])


@pytest.mark.parametrize("alert", alerting(), ids=lambda alert: alert.name)
def test_an_alert_is_judged_by_the_series_that_it_asks_for(alert: Rule) -> None:
    asked = recorded(alert)
    known = set(told())
    judged = {
        word
        for function in (CONDITIONS[alert.name], *helpers_of(CONDITIONS[alert.name]))
        for word in re.findall(r'"([a-z_]+)"', inspect.getsource(function))
        if word in known
    }

    assert judged or alert.name == "ProcessDown"
    assert {name for name in judged if name not in asked} == set()


def helpers_of(condition: Condition) -> list[Condition]:
    names = condition.__code__.co_names
    found = [condition.__globals__.get(name) for name in names if name.endswith("_late")]
    return [each for each in found if inspect.isfunction(each)]


@pytest.fixture(scope="module")
def manifests() -> Manifests:
    try:
        return rendered("production")
    except NoPrograms as error:
        pytest.skip(str(error))


@pytest.mark.timeout(300)  # the first one fetches what renders
@pytest.mark.parametrize(
    "line",
    [line for block in BLOCKS for line in block.lines if line.startswith("kubectl ")],
)
def test_what_kubectl_is_asked_for_is_in_the_manifests(line: str, manifests: Manifests) -> None:
    order = kubectl.read(words_of(line)[1:])

    assert order.namespace in manifests.names("Namespace")
    if order.kind == "Pod":
        return  # of whatever name
    assert order.name in manifests.names(order.kind)
    if order.verb == "patch":
        (spec,) = order.patch.values()
        assert set(spec) <= set(manifests.named(order.kind, order.name)["spec"])
    if order.verb == "exec":
        (workload,) = (each for each in manifests.ours if each.name == order.name)
        assert order.command[-1].startswith(workload.process) or workload.process in order.command


@pytest.mark.parametrize(
    "words",
    [
        "kubectl get pods",
        "kubectl --namespace imagefleet frobnicate",
        "kubectl --namespace imagefleet delete deployment imagefleet-api",
        "kubectl --namespace imagefleet scale deployment imagefleet-api --replica 3",
        "kubectl --namespace imagefleet exec imagefleet-api -- imagefleet doctor",
        "kubectl --namespace imagefleet rollout undo",
    ],
)
def test_kubectl_refuses_what_it_does_not_know(words: str) -> None:
    with pytest.raises(Refused):
        kubectl.read(words_of(words)[1:])


@pytest.fixture
def sqs() -> Any:  # noqa: ANN401 - boto3's
    return boto3.client(
        "sqs", region_name="eu-central-1", aws_access_key_id="x", aws_secret_access_key="x"
    )


def test_what_the_aws_cli_is_asked_for_is_what_it_knows(sqs: Any) -> None:  # noqa: ANN401
    lines = [line for block in BLOCKS for line in block.lines if line.startswith("aws ")]

    assert lines
    for line in lines:
        aws.read(sqs, words_of(line)[2:])


@pytest.mark.parametrize(
    "words",
    [
        "move-messages --source-arn a",
        "start-message-move-task --from a",
        "start-message-move-task --destination-arn a",
        "start-message-move-task --source-arn a --destination-arn",
    ],
)
def test_the_aws_cli_refuses_what_it_does_not_know(words: str, sqs: Any) -> None:  # noqa: ANN401
    with pytest.raises(Refused):
        aws.read(sqs, words_of(words))
