"""What tests of several folders share; what one of them needs lies beside it. services/ has none.

Where to begin. A test of the store asks for a role's connection (`api`, `worker`, ... of
tests/conftest.py) and makes rows with `factories`. A test of the API or the command line takes
`running` and a client from `fixtures`; one of the worker a `bench`, or a whole process of `fleet`;
one of everything starts `stack`. A folder's own fixtures are in its conftest.py.

What is real. Postgres always, with the migrations and the roles of the product. HTTP, between a
client and the API and between the product and AWS. SQS and S3 are emulators, whose differences
from AWS are told of in docs/aws-contract.md. Faked is what no emulator can be made to do when it
is wanted: a queue (`queues`), CloudFront's limits (`cloudfront`), servers that misbehave (`aws`),
wires that are cut (`wires`). Tests wait for what happens (`eventually`), and make a row old instead
of waiting until it is.

Postgres
    database    a server a test process, a database a test, checked by `invariants` when it is over
    edges       whether the table of the lifecycle has a change of state
    factories   rows in any state, made as the product makes them where it can
    image_rows  images without S3: uploads, what renderings published, sets of them
    rows        what is there now, for expectations
    invariants  what is true of every database between two statements
    races       connections that meet, and who waits for whom
    wires       a way to a server that can be cut
    poolers     PgBouncer before a test's database

AWS
    emulators   processes that answer as SQS and S3 do, one of a kind for all test processes
    aws         the product's sessions on them, and servers that misbehave as none of them can
    queues      a queue that does what it is told
    terraform   the program, on a copy of infra/aws, and what it would change
    calls       a plugin: what processes call in AWS, judged by the rights that they have
    rights      those rights: what each process may do, and whether a call is allowed
    cloudfront  invalidations with the limits and faults of the real one
    fixtures    an API as it is deployed, or a place for a fleet, for a folder's conftest

Processes
    api         a running API, every route of it, and a published image
    http        what is sent to it, and what is expected of its answers
    bench       the parts of a worker around one attempt
    children    tasks for a decoding child, which ends well, badly or not at all; who is alive
    fleet       processes on a test's own database and queues, and what they wrote
    stack       `imagefleet up`, as anybody starts it
    wheels      environments with nothing but what a user installs, or what is pinned for them
    otlp        a collector of traces
    prometheus  Prometheus, which scrapes what runs, and promtool
    packages    programs of Debian that nobody installed
    install     what docs/install.md has run, by whom
    browsers    Chromium, and what a page in it complained of and whom it asked

Pictures
    recipes     those that are shipped
    images      ordinary ones, ones that carry secrets, and ones that mean harm
    heads       beginnings of images that are all pieces and no picture
    published   pictures of one colour, and what their addresses show to anybody

Judging
    golden      what is seen from outside, kept word for word
    journal     what a run left behind, read without the product
    checker     judges a run from that
    sources     the product's own, as trees
    eventually  the only wait
    skips       a plugin: no skip without its row in tests/SKIPS.md
    order       a plugin: the longest modules begin first
"""
