"""What every request passes, whoever asks: the protocol, who it is, how much he may, the body.

In the order of a request: the address and its `connections`, `requests` (what is around a route,
and what it works with), `auth` with its `lookups`, `limiting`, the body in its `turns`. A refusal
becomes a problem in `errors`; `documents` are what the API says of itself to machines.

No route lives here, and no statement but those that find keys. The promise is that nobody costs the
others more than his share: connections, heads, bodies, streams and lookups have bounds, of the
process, of a tenant and of a key. Bodies are read by hand (JSON in `bodies`, images in `intake`,
out of `forms` if they come in one): the framework would read them whole before the key is known,
without a deadline and without a cap, and an upload has to go straight into S3. `openapi` describes
them in its place.
"""
