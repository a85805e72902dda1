"""What the CDN still shows and must not: owed, frozen into batches, sent, followed to the end.

invalidations gathers debts, freezes them into batches and takes these through CloudFront, reports
tells how it stands and what it costs. Debts are written where a pointer flips, in that transaction.
Kept here: a batch is one invalidation however often it is sent, and no job waits for any of it.
"""
