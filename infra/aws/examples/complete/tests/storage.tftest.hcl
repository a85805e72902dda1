mock_provider "aws" {
  source = "./tests/mocks"
}

run "topology" {
  module {
    source = "../../modules/topology"
  }
}

run "buckets_are_private_versioned_encrypted_and_those_of_the_topology" {
  module {
    source = "../../modules/storage"
  }

  variables {
    name_prefix                = "fleet"
    name_suffix                = "111122223333"
    buckets                    = run.topology.buckets
    served_bucket              = run.topology.edge.served_bucket
    distribution_arn           = "arn:aws:cloudfront::111122223333:distribution/E2EXAMPLE"
    abort_multipart_after_days = run.topology.abort_multipart_after_days
  }

  assert {
    condition     = { for key, bucket in aws_s3_bucket.bucket : key => bucket.bucket } == { for key in keys(run.topology.buckets) : key => "fleet-${key}-111122223333" }
    error_message = "Every bucket of the topology is made, and no other."
  }

  assert {
    condition     = alltrue([for bucket in aws_s3_bucket.bucket : !bucket.force_destroy])
    error_message = "Images go with `terraform destroy`."
  }

  assert {
    condition = alltrue([for key in keys(run.topology.buckets) : (
      aws_s3_bucket_public_access_block.bucket[key].block_public_acls &&
      aws_s3_bucket_public_access_block.bucket[key].ignore_public_acls &&
      aws_s3_bucket_public_access_block.bucket[key].block_public_policy &&
      aws_s3_bucket_public_access_block.bucket[key].restrict_public_buckets
    )])
    error_message = "A bucket can be made public."
  }

  assert {
    condition = alltrue([for key in keys(run.topology.buckets) : (
      aws_s3_bucket_ownership_controls.bucket[key].rule[0].object_ownership == "BucketOwnerEnforced"
    )])
    error_message = "A bucket knows ACLs."
  }

  assert {
    condition = alltrue([for key in keys(run.topology.buckets) : (
      aws_s3_bucket_versioning.bucket[key].versioning_configuration[0].status == "Enabled"
    )])
    error_message = "A bucket keeps no versions."
  }

  assert {
    condition = alltrue([for key in keys(run.topology.buckets) : (
      one(one(aws_s3_bucket_server_side_encryption_configuration.bucket[key].rule).apply_server_side_encryption_by_default).sse_algorithm == "AES256"
    )])
    error_message = "A bucket is not encrypted."
  }

  assert {
    condition = alltrue([for key in keys(run.topology.buckets) : [
      for rule in aws_s3_bucket_lifecycle_configuration.bucket[key].rule : rule.abort_incomplete_multipart_upload[0].days_after_initiation
      if length(rule.abort_incomplete_multipart_upload) > 0
    ] == [run.topology.abort_multipart_after_days]])
    error_message = "What was never uploaded to its end stays."
  }

  assert {
    condition = alltrue([for key in keys(run.topology.buckets) : [
      for rule in aws_s3_bucket_lifecycle_configuration.bucket[key].rule : rule.noncurrent_version_expiration[0].noncurrent_days
      if length(rule.noncurrent_version_expiration) > 0
    ] == [30]])
    error_message = "Old versions stay for ever."
  }

  assert {
    condition = alltrue([for key, bucket in run.topology.buckets : (
      toset(one(aws_s3_bucket_cors_configuration.bucket[key].cors_rule).allowed_methods) == toset(bucket.pages_may)
    )])
    error_message = "Pages may do something else than the topology says."
  }

  assert {
    condition = alltrue([for policy in aws_s3_bucket_policy.bucket : contains([
      for statement in jsondecode(policy.policy).Statement :
      [statement.Effect, statement.Principal, statement.Action, try(statement.Condition.Bool["aws:SecureTransport"], "")]
      if can(tostring(statement.Principal))
    ], ["Deny", "*", "s3:*", "false"])])
    error_message = "A bucket takes what comes without TLS."
  }

  assert {
    condition = {
      for key, policy in aws_s3_bucket_policy.bucket :
      key => [for statement in jsondecode(policy.policy).Statement : statement.Action if statement.Effect == "Allow"]
    } == { originals = [], outputs = ["s3:GetObject", "s3:ListBucket"] }
    error_message = "Somebody is given more, or less, than the edge needs of the outputs."
  }

  assert {
    condition = alltrue(flatten([for policy in aws_s3_bucket_policy.bucket : [
      for statement in jsondecode(policy.policy).Statement :
      statement.Principal.Service == "cloudfront.amazonaws.com" &&
      statement.Condition.StringEquals["AWS:SourceArn"] == var.distribution_arn
      if statement.Effect == "Allow"
    ]]))
    error_message = "Somebody else than the one distribution may read."
  }
}

run "originals_are_never_served" {
  command = plan

  module {
    source = "../../modules/storage"
  }

  variables {
    name_prefix                = "fleet"
    buckets                    = run.topology.buckets
    served_bucket              = "originals"
    distribution_arn           = "arn:aws:cloudfront::111122223333:distribution/E2EXAMPLE"
    abort_multipart_after_days = 1
  }

  expect_failures = [var.served_bucket]
}
