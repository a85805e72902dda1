"""CloudFront's part on this machine: a cache before the bucket and the API. See docs/edge.md.

`server` answers viewers, from the `cache` if it may, else from the `origins`. It is told nothing by
our processes, which speak to the CloudFront API as anywhere: what is invalidated there it finds by
itself. The promise: what CloudFront would keep, forget or refuse is kept, forgotten and refused
here, so that what works on this machine works there.
"""
