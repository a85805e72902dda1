"""Images: from an upload to what is shown, and from there to nothing.

uploads (the gate), images (accepted with a job, published, listed), reads (what is shown and what
it is made of), reprocessing, tombstones and emptying (a deletion), superseded and sweeping (what
may go from S3), pruning. They may use `store/jobs`. Kept here: `images.revision` is written by
PUBLISH_IMAGES alone, forwards only and never over a tombstone, and no key comes twice.
"""
