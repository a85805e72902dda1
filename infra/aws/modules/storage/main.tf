resource "aws_s3_bucket" "bucket" {
  #checkov:skip=CKV_AWS_144: A copy in another region is a decision of its own, about cost and about where images may lie.
  #checkov:skip=CKV2_AWS_62: Nothing starts by an event of S3: what an upload means is a row in Postgres.
  for_each = var.buckets

  bucket        = join("-", compact([var.name_prefix, each.key, var.name_suffix]))
  force_destroy = var.force_destroy
}

resource "aws_s3_bucket_public_access_block" "bucket" {
  for_each = aws_s3_bucket.bucket

  bucket                  = each.value.id
  block_public_acls       = true
  ignore_public_acls      = true
  block_public_policy     = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "bucket" {
  for_each = aws_s3_bucket.bucket

  bucket = each.value.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "bucket" {
  for_each = aws_s3_bucket.bucket

  bucket = each.value.id

  rule {
    bucket_key_enabled = var.kms_key_arn == null ? null : true

    apply_server_side_encryption_by_default {
      sse_algorithm     = var.kms_key_arn == null ? "AES256" : "aws:kms"
      kms_master_key_id = var.kms_key_arn
    }
  }
}

resource "aws_s3_bucket_versioning" "bucket" {
  for_each = aws_s3_bucket.bucket

  bucket = each.value.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "bucket" {
  for_each = aws_s3_bucket.bucket

  bucket = each.value.id

  # An upload that breaks aborts its own; this is for one that was killed.
  rule {
    id     = "abort-multipart-uploads"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = var.abort_multipart_after_days
    }
  }

  # Sweeping deletes what is current alone: so long it can be had back.
  rule {
    id     = "forget-old-versions"
    status = "Enabled"

    filter {}

    noncurrent_version_expiration {
      noncurrent_days = var.noncurrent_days
    }

    expiration {
      expired_object_delete_marker = true
    }
  }

  depends_on = [aws_s3_bucket_versioning.bucket]
}

# Any origin: what a page may have is said by a signature, or by the edge, and images are for every page.
resource "aws_s3_bucket_cors_configuration" "bucket" {
  for_each = aws_s3_bucket.bucket

  bucket = each.value.id

  cors_rule {
    allowed_methods = var.buckets[each.key].pages_may
    allowed_origins = ["*"]
    allowed_headers = ["*"]
    expose_headers  = ["ETag"]
    max_age_seconds = 3600
  }
}

locals {
  refused_plaintext = {
    for key, bucket in aws_s3_bucket.bucket : key => {
      Sid       = "RefusePlaintext"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [bucket.arn, "${bucket.arn}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }
  }
  # It may list as well: else S3 says 403 of what is merely not there.
  read_by_the_edge = [
    for right, resource in {
      "s3:GetObject"  = "${aws_s3_bucket.bucket[var.served_bucket].arn}/*"
      "s3:ListBucket" = aws_s3_bucket.bucket[var.served_bucket].arn
      } : {
      Sid       = "EdgeReads${trimprefix(right, "s3:")}"
      Effect    = "Allow"
      Principal = { Service = "cloudfront.amazonaws.com" }
      Action    = right
      Resource  = resource
      Condition = { StringEquals = { "AWS:SourceArn" = var.distribution_arn } }
    }
  ]
}

# Every signature of ours has UNSIGNED-PAYLOAD: a statement that denies it would deny every request.
resource "aws_s3_bucket_policy" "bucket" {
  for_each = aws_s3_bucket.bucket

  bucket = each.value.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [local.refused_plaintext[each.key]],
      [for statement in local.read_by_the_edge : statement if each.key == var.served_bucket],
    )
  })

  depends_on = [aws_s3_bucket_public_access_block.bucket]
}

resource "aws_s3_bucket_logging" "bucket" {
  for_each = { for key, bucket in aws_s3_bucket.bucket : key => bucket if var.access_log_bucket != null }

  bucket        = each.value.id
  target_bucket = var.access_log_bucket
  target_prefix = "${each.value.id}/"
}
