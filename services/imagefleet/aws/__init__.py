"""Every AWS call of the product: SQS in `queue`, S3 in `objects`, CloudFront in `edge`.

Beside S3 are what goes there in parts (`transfers`) and what goes from there (`deletes`); one
`session` has the clients. The only importer of the AWS SDK (beside the embedded stack, which stands
in for AWS). Each call takes one path, `calls.Line.calling`: it has a deadline, somebody may watch
it, and what the SDK raises becomes one of `errors`. Expected answers are values: an object that is
there already, a message of a batch that was not taken. Nothing here decides what happens to a job.
"""
