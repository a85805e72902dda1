"""CloudFront's part on this machine: a cache before the bucket and the API. See docs/edge.md."""
