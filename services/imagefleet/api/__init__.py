"""The HTTP interface: it records what is wanted and shows what became of it, and runs nothing.

A request passes, in this order: `server` (how large and how slow a request may be), `observing`
(correlation id, trace, metrics, the one log line), `auth` (who asks), a route in `jobs`, `images`,
`uploads` or `events`, `store` (the job and its ring in one transaction), and back out, where the
doorbell rings on its own time. Errors become problems in `errors`, and only there.

An upload is stored before its row exists: `intake` streams the body to S3 with a cap and a hash,
`forms` unwraps multipart on the way. So nothing that Postgres knows of is ever missing in S3; what
was stored and never became a row is swept later.

Stable addresses (`stable`) are asked for by the world and its caches: no key, one read, a deadline.

The routes of operators are the `operator_*` modules, one a noun; they use a pool of their own,
under the operator's role, and exist only where there is one.
"""
