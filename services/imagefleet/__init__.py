"""imagefleet: images in over HTTP, derived images out to S3, nothing lost in between.

`jobs` says what may happen, `imaging` makes pixels, `store` and `aws` touch the world, and each
process (`api`, `worker`, `maintenance`, `console`) is a folder you read top to bottom. All of them
have `errors`, `settings`, `telemetry` and a `runtime`; some a `doorbell`, an address that they are
`listening` on, what they tell of what they cost (`billing`), what operators turn while they run
(`live`) and what other packages bring (`extensions`). `starting` starts one. People have the `cli`
with its `client`, a `doctor`, and the `embedded` stack.
"""
