"""What every child carries, because the process that it is forked from has loaded it."""

import json
import subprocess
import sys
from typing import Final

HEAVY: Final = frozenset(
    {
        "aiobotocore",
        "asyncio",
        "asyncpg",
        "botocore",
        "http",
        "opentelemetry",
        "prometheus_client",
        "pydantic",
        "pydantic_core",
        "ssl",
        "structlog",
        "uvloop",
    }
)
LOADED: Final = """
import json, sys
import imagefleet.worker.isolation.zygote
json.dump(list(sys.modules), sys.stdout)
"""


def test_it_loads_codecs_and_nothing_that_is_heavy_or_knows_the_world() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(done.stdout))

    assert {"PIL.Image", "imagefleet.worker.isolation.child"} <= loaded
    assert HEAVY.isdisjoint(loaded)
    ours = {name.split(".")[1] for name in loaded if name.startswith("imagefleet.")}
    assert {"errors", "imaging", "jobs", "worker"} == ours
    here = {name for name in loaded if name.startswith("imagefleet.worker.")}
    assert {
        "imagefleet.worker.isolation",
        *(
            f"imagefleet.worker.isolation.{module}"
            for module in ("zygote", "child", "sandbox", "syscalls")
        ),
    } == here
