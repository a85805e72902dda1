"""imagefleet: images in over HTTP, derived images out to S3, nothing lost in between.

`jobs` says what may happen, `imaging` makes pixels, `store` and `aws` touch the world, and each
process (`api`, `worker`, `maintenance`, `console`) is a folder you read top to bottom.
"""
