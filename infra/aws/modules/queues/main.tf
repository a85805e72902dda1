locals {
  dead_letter = "dead-letter"
  lanes       = { for key, queue in var.queues : key => queue if key != local.dead_letter }
  queues      = merge(aws_sqs_queue.lane, { (local.dead_letter) = aws_sqs_queue.dead_letter })

  day_seconds = 86400
  # With a key of KMS its data keys are asked for once in five minutes, not for every message.
  data_key_seconds = var.kms_key_arn == null ? null : 300
}

resource "aws_sqs_queue" "dead_letter" {
  name                       = "${var.name_prefix}-${local.dead_letter}"
  visibility_timeout_seconds = var.queues[local.dead_letter].visibility_seconds
  message_retention_seconds  = var.queues[local.dead_letter].retention_days * local.day_seconds
  receive_wait_time_seconds  = var.long_poll_seconds

  sqs_managed_sse_enabled           = var.kms_key_arn == null ? true : null
  kms_master_key_id                 = var.kms_key_arn
  kms_data_key_reuse_period_seconds = local.data_key_seconds
}

resource "aws_sqs_queue" "lane" {
  for_each = local.lanes

  name                       = "${var.name_prefix}-${each.key}"
  visibility_timeout_seconds = each.value.visibility_seconds
  message_retention_seconds  = each.value.retention_days * local.day_seconds
  receive_wait_time_seconds  = var.long_poll_seconds

  sqs_managed_sse_enabled           = var.kms_key_arn == null ? true : null
  kms_master_key_id                 = var.kms_key_arn
  kms_data_key_reuse_period_seconds = local.data_key_seconds

  # The last net, for what never reaches Postgres: everything else is announced by maintenance.
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead_letter.arn
    maxReceiveCount     = each.value.max_receives
  })
}

# No other queue of the account may take these dead letters for its own.
resource "aws_sqs_queue_redrive_allow_policy" "dead_letter" {
  queue_url = aws_sqs_queue.dead_letter.id

  redrive_allow_policy = jsonencode({
    redrivePermission = "byQueue"
    sourceQueueArns   = sort([for queue in aws_sqs_queue.lane : queue.arn])
  })
}

# Whoever may do what is said by the roles. A queue only refuses what comes without TLS, from anybody.
resource "aws_sqs_queue_policy" "tls_only" {
  for_each = local.queues

  queue_url = each.value.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "RefusePlaintext"
      Effect    = "Deny"
      Principal = "*"
      Action    = "sqs:*"
      Resource  = each.value.arn
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })
}
