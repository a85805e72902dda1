"""What it costs, measured: `make bench`, and `make bench-` images, memory, console.

    rounds      sides take turns; a median and its interval
    report      the table, as Markdown, as JSON
    ground      the servers that all sides of a row stand on
    processes   the product's own, as they are deployed, with their logs in files
    load        a process that asks an API as fast as it answers
    peers       others, installed for this alone, and the programs that run there

Rows of `make bench`
    claiming    claim and settle in the database; bare_sql is the least that would do
    ladder      what each promise of those two costs
    posting     POST /v1/jobs and its batches; bare_api is the least that would do
    draining    a backlog of jobs that do nothing, over SQS
    picking_up  from a submit to its claim, while nothing else is to be done
    counting    requests to SQS, statements and round trips a job
    taking      what a picture takes, by its size
    forgetting  a month of jobs, by DELETE and by dropped partitions
    footprint   seconds to ready, memory, connections
    growing     pages that a job looks at, by the size of the table
    crowded     pages that a submit and a sample look at, by the number of open jobs
    lingering   claim and settle under a held snapshot
    uploading   memory while many large uploads come at once

Programs of their own
    images      CPU of our road from a file to variants
    attention   where pictures are cut, beside libvips
    memory      what the largest pictures take in the child that makes them
    console     how long its pages take, and what they read; filling has the fleet that they are
                asked about, pages which there are
"""
