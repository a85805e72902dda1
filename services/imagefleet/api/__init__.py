"""The HTTP interface: it records what is wanted and shows what became of it, and runs nothing.

`http` is what every request passes, `producers`, `operators` and `public` are the routes of those
who ask; `main` puts them together. A request passes, in this order: `server` (how large and how
slow a request may be), `requests` (correlation id, trace, metrics, the one log line), `auth` (who
asks), a route, `store` (the job and its ring in one transaction), and back out, where the doorbell
rings on its own time. Errors become problems in `errors`, and only there. What routes answer are
shapes, as the store returns them. Nothing here imports Pillow, and nothing waits for a job but a
client that asked to.
"""
