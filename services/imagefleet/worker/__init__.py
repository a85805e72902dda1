"""A worker: hears of jobs, claims them, does their work and settles what came of it.

    main        what is opened in which order; the shift, from the registry to the drain's end
    consumer    listens to a lane: receives into free slots, claims, starts what is ours
    slots       how many at once, of a lane and of a type; a suspect alone; what was heard
    attempt     one attempt: work, settle, let go of the message
    handling    what a handler is given; handlers: what the built-in types do with it
    outcomes    what an error means for its job
    isolation   where pictures are decoded: processes that have nothing to lose
    settler     outcomes written together, until the database answers; each end told once
    messages    what SQS is told about messages: how long they stay invisible, which are over;
                what becomes of those whose job is not ours
    lease       the beat, and what it tells this worker to let go
    breakers    what the fleet is told of services that fail

Messages go one way: from the consumer by a claim to an attempt, or back; and from the attempt's
settled outcome to the slot that is free again. The lease reads what is held, stops and extends it,
and hands strays to the settler; of these only the consumer knows the lease.

A worker reads originals, writes variants and ends jobs. It touches no pixel, promises nothing
before Postgres has it, and what it settles it settles with the claim's own number.
"""
