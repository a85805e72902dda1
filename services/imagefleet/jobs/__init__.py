"""What a job is and what may happen to it.

Pure: no clock, no I/O, nothing but the standard library and pydantic models for payloads. `model`
has the words, `kinds` the job types, `lifecycle` what an attempt comes to, `policies` and `limits`
the numbers that operators turn, `images` where objects lie, `faults` what is wrong with what was
sent, `bulk` and `replays` the jobs that come of others, `shapes` what is read from outside.
Everybody may ask these, and the promise is that the same arguments get the same answer.

A job is a row in Postgres; a message in SQS is only a doorbell that says "look at this row". The
row moves through five states (`lifecycle.TRANSITIONS` is the whole truth, and the database's
trigger, the diagram in docs/lifecycle.md and a test of every statement are compared with it):

    queued ──claim──▶ processing ──complete──▶ completed
                        │   ▲  │
          retry, release│   │  └──fail──▶ failed
                        ▼   │claim          ▲
                  failed_retryable ─────────┘

Three numbers tell apart three questions. `claim_no` rises with every claim and never resets: it is
the fence that every write of a worker names, so a worker that lost its job can only miss.
`attempts` is what the retry policy counts: charged at the claim, refunded by a release. `crashes`
counts the times a worker or a decoding child died under the job: the second one moves it to the
quarantine lane, where a worker runs nothing beside it, and where the next one may fail it as
`poison`. A worker of 0.2.0, or one that never heard the answer of another claim, may yet hold
others then: such a crash is not blamed on it, and it is run again.

An attempt ends in one of four outcomes, which are values: `Completed`, `Retry`, `Failed`,
`Released`. `lifecycle.decide` turns the outcome an attempt asks for into the one that is written,
given what the locked row says (attempts left, crashes, a cancel flag); the store then only writes
it down.
"""
