"""`imagefleet up`: the whole stack on this machine, in place of Postgres, AWS and CloudFront.

`up` is the composition, to be read first: a `machine`'s folder and ports, `postgres` (its files in
`cluster`) beside the `emulator`, both in `stack`; what `topology` describes, made by `bootstrap`;
the `edge`; the `processes` under a `supervisor`, heard by the `terminal`; the `demo`. `localstack`
prepares another emulator. Nobody imports this but the command line and tests, and the processes do
not know of it: they get environment variables, as anywhere. It may use the AWS SDK itself, for what
Terraform does elsewhere. The promise: it listens on 127.0.0.1 alone, reads nothing of the user's
own accounts, leaves no process behind, and keeps what it holds.
"""
