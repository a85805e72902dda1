"""Prometheus and promtool: those of the system, or Debian's, unpacked beside it; and one that runs.

Where there is none and none can be had, a test that asks for one is skipped, which needs its row in
tests/SKIPS.md.
"""

import json
import math
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import httpx
import pytest

from imagefleet.embedded.machine import free_port
from tests.support.eventually import eventually
from tests.support.packages import unpacked
from tests.support.wheels import ROOT

CACHE: Final = ROOT / ".bench" / "prometheus"
IN_PACKAGE: Final = Path("usr/bin")
NONE_THERE: Final = "no Prometheus is here and none could be fetched"
READY_WITHIN: Final = 30.0  # seconds
ENDS_WITHIN: Final = 20.0

Sample: TypeAlias = tuple[Mapping[str, str], float]


def program(name: str, *, fetch: bool = True) -> Path | None:
    """`prometheus` or `promtool`; None where it is not there and not to be fetched."""
    if there := shutil.which(name):
        return Path(there)
    kept = CACHE / IN_PACKAGE / name
    if kept.exists():
        return kept
    # Both are one file each, whatever else the package wants for its pages.
    return unpacked("prometheus", CACHE, IN_PACKAGE / name, needs_others=False) if fetch else None


@cache
def needed(name: str) -> Path:
    """The program, or the test is skipped."""
    found = program(name)
    if found is None:
        pytest.skip(NONE_THERE)
    return found


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running one."""

    http: httpx.AsyncClient

    async def ask(self, query: str) -> list[Sample]:
        """What an instant query finds now; NaN is no number."""
        answer = await self.http.get("/api/v1/query", params={"query": query})
        told: dict[str, Any] = answer.json()
        assert told["status"] == "success", f"{query}: {told.get('error')}"
        result = told["data"]["result"]
        if told["data"]["resultType"] == "scalar":
            result = [{"metric": {}, "value": result}]
        samples = [(each["metric"], float(each["value"][1])) for each in result]
        return [sample for sample in samples if not math.isnan(sample[1])]

    async def rules(self) -> list[dict[str, Any]]:
        """Every rule that it has loaded, with its health."""
        told = (await self.http.get("/api/v1/rules")).json()
        return [rule for group in told["data"]["groups"] for rule in group["rules"]]

    async def firing(self) -> dict[str, str]:
        """The alerts that fire now, each with its severity."""
        told = (await self.http.get("/api/v1/alerts")).json()
        return {
            alert["labels"]["alertname"]: alert["labels"]["severity"]
            for alert in told["data"]["alerts"]
            if alert["state"] == "firing"
        }


@asynccontextmanager
async def scraping(
    folder: Path,
    targets: Mapping[str, str],
    *,
    rules: Sequence[Path] = (),
    every: str = "1s",
) -> AsyncIterator[Prometheus]:
    """One that asks these addresses, by the name of the process, for as long as this lasts."""
    config = folder / "prometheus.json"  # which is YAML, too
    config.write_text(json.dumps(_configured(targets, rules, every)))
    port = free_port()
    process = _started(folder, config, port)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as http:

            async def is_ready() -> bool:
                assert process.poll() is None, (folder / "prometheus.log").read_text()
                try:
                    return (await http.get("/-/ready")).is_success
                except httpx.HTTPError:
                    return False

            await eventually(is_ready, within=READY_WITHIN)
            yield Prometheus(http)
    finally:
        process.terminate()
        process.wait(ENDS_WITHIN)


def _started(folder: Path, config: Path, port: int) -> subprocess.Popen[bytes]:
    with (folder / "prometheus.log").open("wb") as said:
        return subprocess.Popen(
            [
                str(needed("prometheus")),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'series'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )


def _configured(targets: Mapping[str, str], rules: Sequence[Path], every: str) -> dict[str, object]:
    """As infra/observability/prometheus.yaml does it, in a hurry: one job a process."""
    jobs: dict[str, list[str]] = {}
    for name, address in targets.items():
        process = name.partition("-")[0]
        jobs.setdefault(f"imagefleet-{process}", []).append(urlsplit(address).netloc)
    return {
        "global": {"scrape_interval": every, "evaluation_interval": every},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": addresses}]}
            for job, addresses in jobs.items()
        ],
    }
