"""Celery on SQS: an application with one task that does nothing but say when it ran.

Run as a program, it sends so many of them. Times are appended to a file, eight bytes each: that is
less than any result backend would cost.
"""

import json
import os
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from celery import Celery  # type: ignore[import-not-found]  # in the others' environment alone

SENDERS = 4

TOLD = json.loads(os.environ["BENCH_CELERY"])  # noqa: TID251 - the one way to tell a worker
MARKS = os.open(TOLD["marks"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

app = Celery("bench", broker=TOLD["broker"])
app.conf.update(
    task_default_queue=TOLD["queue"],
    task_ignore_result=True,
    worker_prefetch_multiplier=TOLD["prefetch"],
    broker_transport_options={
        "region": TOLD["region"],
        "predefined_queues": {
            TOLD["queue"]: {
                "url": TOLD["queue_url"],
                "access_key_id": TOLD["key_id"],
                "secret_access_key": TOLD["secret"],
            }
        },
        "polling_interval": 0,
        "wait_time_seconds": 10,
    },
)


def mark() -> None:
    """The job."""
    os.write(MARKS, struct.pack("d", time.time()))


task = app.task(name="bench.mark")(mark)


def main(jobs: int) -> None:
    """Send so many, as many at a time as do not stand in each other's way."""
    with ThreadPoolExecutor(SENDERS) as senders:
        for sent in [senders.submit(task.delay) for _ in range(jobs)]:
            sent.result()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
    print(json.dumps({"sent": True}))
