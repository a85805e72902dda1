"""The routes of those whose images and jobs these are, and nobody else's: every one has a tenant.

`arriving` and `uploads` take originals, `images` and `rendering` are about what became of them;
`jobs` and `job_types`, `events` (a job's news) and `targets`. Below them `schemas` and `ranges` are
what is asked, `submitting` makes a submission of it, and `accepting` writes many at once.

They reach Postgres under the API's role and S3 for originals. Their promise is that what was
answered with 202 is there and is done, and that the same request gets the same answer
(`submitting`). Nothing new is taken where a pause or a quota says no, and that is asked before an
image is read. An upload is stored before its row exists, so nothing that Postgres knows of is ever
missing in S3; what was stored and never became a row is swept later.
"""
