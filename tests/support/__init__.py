"""What tests of several folders share; what one of them needs lies beside it. services/ has none.

Where to begin: a test of the store asks for a role's connection (`api`, `worker`, ... of
tests/conftest.py) and makes rows with `factories`. A test of the API or the command line takes
`running` and a client from `fixtures`; one of the worker a `bench`, or a whole process of `fleet`;
one of everything starts `stack`.

Postgres
    database    a server a run, a database a test, checked against `invariants` when it is over
    edges       whether the table of the lifecycle has a change of state
    factories   rows in any state, made as the product makes them where it can
    image_rows  images without S3: uploads, what renderings published, sets of them
    rows        what is there now, for expectations
    invariants  what is true of every database between two statements
    races       two connections that meet, and who waits for whom
    wires       a way to a server that can be cut

AWS
    emulators   processes that answer as SQS and S3 do, one of a kind for all test processes
    aws         the product's sessions on them, and servers that misbehave as none of them can
    queues      a queue that does what it is told
    cloudfront  invalidations with the limits and faults of the real one
    fixtures    an API as it is deployed, or a place for a fleet, for a folder's conftest

Processes
    api         a running API and its tenants, from an upload to what a worker makes of it
    http        what is expected of its answers
    bench       the parts of a worker around one attempt
    children    tasks for a decoding child that ends well, badly or not at all
    fleet       processes on a test's own database and queues, and what they wrote
    stack       `imagefleet up`, as anybody starts it
    wheels      an environment with nothing but what a user installs
    otlp        a collector of traces

Pictures
    images      ordinary ones, ones that carry secrets, and ones that mean harm
    heads       beginnings of images that are all pieces and no picture
    published   pictures of one colour, and what their addresses show to anybody

Judging
    eventually  the only wait
    golden      what is seen from outside, kept word for word
    journal     what a run left behind, read without the product
    checker     judges a run from that
    sources     the product's own, as trees
    skips       a plugin: no skip without its row in tests/SKIPS.md
    order       a plugin: the longest modules begin first
"""
