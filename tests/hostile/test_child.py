"""What decodes strangers' pictures has nothing, in the stack as it runs.

From outside there is no more to attempt than to look: nobody can have a child run code of theirs
without a fault in a decoder. What such code would meet (files, sockets, other processes, system
calls, memory, lies in its answer) is attempted from inside of real children in
tests/worker/isolation/test_sandbox.py, test_client_faults.py, test_report.py and
test_child_memory.py.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from tests.support.children import children_of
from tests.support.eventually import eventually
from tests.support.images import quadrants, saved
from tests.support.stack import Producer, Stack

UNCLAIMED = {str(number) for number in range(65_520, 65_532)}


def status_of(pid: int) -> Mapping[str, str]:
    """By field; empty when it ended meanwhile."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return {}
    return dict(line.split(":\t", 1) for line in text.splitlines())


async def test_a_picture_is_decoded_by_somebody_without_rights(
    stack: Stack, producer: Producer
) -> None:
    (worker,) = stack.pids("worker").values()
    accepted = (await producer.upload(saved(quadrants(6000, 5000), "PNG"), "image/png")).json()

    def decoder() -> Mapping[str, str] | None:
        for zygote in children_of(worker):
            for child in children_of(zygote):
                status = status_of(child)
                if status.get("Seccomp") == "2":
                    return status
        return None

    found = await eventually(decoder, within=30)

    assert found["NoNewPrivs"] == "1"
    assert {found[name] for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {"0" * 16}
    (postgres,) = stack.pids("postgres").values()
    (user,) = set(found["Uid"].split())
    if os.geteuid() == 0:
        assert user in UNCLAIMED
        assert user not in status_of(postgres)["Uid"].split()
    else:
        assert user == str(os.geteuid())
    assert (await producer.ended(accepted["jobId"]))["status"] == "completed"
