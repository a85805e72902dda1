"""Images: from an upload to what is shown, and from there to nothing.

uploads (the gate), images (accepted with a job, published, shown), listing (and one with its past),
originals (which one, and how long), recipes (every version that was ever in force),
reprocessing (by the newest original), deleting (from the tombstone to the receipt), sweeping (what
may go from S3 because nothing speaks of it), pruning (what was superseded, told to the edge, or is
past retention). They may use `store/jobs`. Kept here: `images.revision` is written by
PUBLISH_IMAGES alone, forwards only and never over a tombstone, and no key comes twice.
"""
