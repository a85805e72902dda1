"""What a process tells of itself: log lines, series, health and traces.

Everybody may come here, and nothing here knows a job's rules, Postgres or AWS: `logs` writes one
event a line (`plain` keeps strangers' text from terminals and labels), `metrics` and `maintenance`
have every series of every process (`series` says how they are made), `health` serves /healthz,
/readyz and /metrics, `probe` asks it from a container's health check, `tracing` follows a request
over SQS to S3. The promise: a name that is told (event, series, label, span) is written down in one
place, is bounded whatever strangers send, and has no secret in it; and who tells never fails or
waits because of whom he tells.
"""
