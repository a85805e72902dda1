"""The example of a collector: its pipeline is whole, and where there is a collector, it runs."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from imagefleet.embedded.machine import free_port
from tests.infra.observability.asking import HERE
from tests.support.eventually import eventually
from tests.support.otlp import collecting

EXAMPLE = HERE / "collector.yaml"
COMMANDS = ("otelcol-contrib", "otelcol")
NONE_THERE = "no OpenTelemetry collector is here"
KINDS = ("receivers", "processors", "exporters")
SPAN = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": "5b8efff798038103d269b633813fc60c",
                            "spanId": "eee19b7ec3c1b174",
                            "name": "made to fail",
                            "kind": 2,
                            "startTimeUnixNano": "1544712660000000000",
                            "endTimeUnixNano": "1544712661000000000",
                            "status": {"code": 2},
                        }
                    ]
                }
            ]
        }
    ]
}


def example() -> dict[str, Any]:
    told: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    return told


def test_every_part_that_a_pipeline_names_is_there_and_none_is_idle() -> None:
    told = example()
    used = {
        kind: {part for line in told["service"]["pipelines"].values() for part in line[kind]}
        for kind in KINDS
    }

    assert used == {kind: set(told[kind]) for kind in KINDS}
    assert set(told["service"]["extensions"]) == set(told["extensions"])


def test_traces_come_in_where_processes_send_them() -> None:
    """Over HTTP alone, which is what they speak."""
    assert set(example()["receivers"]["otlp"]["protocols"]) == {"http"}


def started(command: str, config: Path, endpoint: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([command, f"--config={config}"], env={"TRACES_ENDPOINT": endpoint})


async def test_the_example_takes_traces_and_hands_them_on(tmp_path: Path) -> None:
    command = next(filter(None, map(shutil.which, COMMANDS)), None)
    if command is None:
        pytest.skip(NONE_THERE)
    told = example()
    port, health = free_port(), free_port()
    told["receivers"]["otlp"]["protocols"]["http"]["endpoint"] = f"127.0.0.1:{port}"
    told["extensions"]["health_check"]["endpoint"] = f"127.0.0.1:{health}"
    told["processors"]["tail_sampling"]["decision_wait"] = "1s"
    config = tmp_path / "collector.json"  # which is YAML, too
    config.write_text(json.dumps(told), encoding="utf-8")
    with collecting() as kept:
        process = started(command, config, kept.endpoint)
        try:
            async with httpx.AsyncClient(timeout=5) as http:

                async def taken() -> bool:
                    assert process.poll() is None
                    try:
                        answer = await http.post(f"http://127.0.0.1:{port}/v1/traces", json=SPAN)
                    except httpx.HTTPError:
                        return False
                    return answer.is_success

                await eventually(taken, within=20)
                await eventually(lambda: kept.named("made to fail"), within=20)
        finally:
            process.terminate()
            process.wait(10)
