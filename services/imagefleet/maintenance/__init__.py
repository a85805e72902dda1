"""The process that repairs and sends what nobody else does: dispatcher, rescuer and their like.

One module an agent, whose `run_once` is read first: it does one bounded piece of work and returns
what it did. `main` has the table of all of them, `duties` what each is given (a ticker, an office,
a period, a pace). They read and write Postgres through `store` alone, and speak to SQS, S3 and
CloudFront; no pixel is touched here, and no HTTP is answered but for health. Any number of these
processes may run. The promise: whatever was forgotten, refused or lost anywhere in the fleet is
found and done within a time that can be told, and doing it twice does no harm.
"""
