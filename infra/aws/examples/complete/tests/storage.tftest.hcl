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
    condition = alltrue([for key in keys(run.topology.buckets) : [
      for rule in aws_s3_bucket_lifecycle_configuration.bucket[key].rule : rule.expiration[0].expired_object_delete_marker
      if length(rule.expiration) > 0
    ] == [true]])
    error_message = "A marker stays of what is gone in all its versions."
  }

  assert {
    condition = alltrue([for key in keys(run.topology.buckets) : alltrue([
      for rule in aws_s3_bucket_lifecycle_configuration.bucket[key].rule : rule.status == "Enabled"
    ])])
    error_message = "A rule of a bucket is off."
  }

  assert {
    condition = alltrue([for key, bucket in run.topology.buckets : (
      toset(one(aws_s3_bucket_cors_configuration.bucket[key].cors_rule).allowed_methods) == toset(bucket.pages_may)
    )])
    error_message = "Pages may do something else than the topology says."
  }

  assert {
    condition = alltrue([for key in keys(run.topology.buckets) : [
      for rule in aws_s3_bucket_cors_configuration.bucket[key].cors_rule : [tolist(rule.allowed_origins), tolist(rule.allowed_headers), tolist(rule.expose_headers)]
    ] == [[tolist(["*"]), tolist(["*"]), tolist(["ETag"])]]])
    error_message = "A page of some origin cannot upload, or does not see what it stored."
  }

  assert {
    condition = alltrue([for key, policy in aws_s3_bucket_policy.bucket : jsonencode([
      for statement in jsondecode(policy.policy).Statement : statement if statement.Effect == "Deny"
      ]) == jsonencode([{
        Action    = "s3:*"
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
        Effect    = "Deny"
        Principal = "*"
        Resource  = [output.arns[key], "${output.arns[key]}/*"]
        Sid       = "RefusePlaintext"
    }])])
    error_message = "A bucket, or an object in it, takes what comes without TLS."
  }

  assert {
    condition = {
      for key, policy in aws_s3_bucket_policy.bucket :
      key => [for statement in jsondecode(policy.policy).Statement : statement.Action if statement.Effect == "Allow"]
    } == { originals = [], outputs = ["s3:GetObject", "s3:ListBucket"] }
    error_message = "Somebody is given more, or less, than the edge needs of the outputs."
  }

  assert {
    condition = [
      for statement in jsondecode(aws_s3_bucket_policy.bucket["outputs"].policy).Statement : statement.Resource if statement.Effect == "Allow"
    ] == ["${output.arns["outputs"]}/*", output.arns["outputs"]]
    error_message = "The edge reads something else than the outputs."
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

run "a_key_of_ones_own_takes_the_place_of_s3_s" {
  module {
    source = "../../modules/storage"
  }

  variables {
    name_prefix                = "fleet"
    buckets                    = run.topology.buckets
    served_bucket              = run.topology.edge.served_bucket
    distribution_arn           = "arn:aws:cloudfront::111122223333:distribution/E2EXAMPLE"
    abort_multipart_after_days = 1
    kms_key_arn                = "arn:aws:kms:eu-central-1:111122223333:key/k"
    access_log_bucket          = "logs"
  }

  assert {
    condition = alltrue([for bucket in aws_s3_bucket_server_side_encryption_configuration.bucket : [
      for rule in bucket.rule : [rule.bucket_key_enabled, one(rule.apply_server_side_encryption_by_default).sse_algorithm, one(rule.apply_server_side_encryption_by_default).kms_master_key_id]
    ] == [[true, "aws:kms", var.kms_key_arn]]])
    error_message = "A bucket does not use the key, or asks for it once an object."
  }

  assert {
    condition     = { for key, logging in aws_s3_bucket_logging.bucket : key => logging.target_bucket } == { for key in keys(run.topology.buckets) : key => "logs" }
    error_message = "Who read what is written down nowhere."
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
