# The net under the product's own metrics: what CloudWatch sees where Prometheus is away. Postgres knows better than SQS, and
# each description says whom to ask.

locals {
  runbooks    = "docs/runbooks"
  dead_letter = "dead-letter"
  lanes       = { for key, name in var.queue_names : key => name if key != local.dead_letter }
  gib         = 1073741824

  database = {
    cpu = {
      metric      = "CPUUtilization"
      statistic   = "Average"
      comparison  = "GreaterThanThreshold"
      threshold   = 85
      periods     = 10
      description = "Postgres has been computing for ten minutes: which statements? Performance Insights tells."
    }
    connections = {
      metric      = "DatabaseConnections"
      statistic   = "Maximum"
      comparison  = "GreaterThanThreshold"
      threshold   = var.most_connections
      periods     = 5
      description = "Connections come near to what Postgres allows: fewer pods, smaller pools, or PgBouncer."
    }
    storage = {
      metric      = "FreeStorageSpace"
      statistic   = "Minimum"
      comparison  = "LessThanThreshold"
      threshold   = var.least_storage_gib * local.gib
      periods     = 5
      description = "Storage of Postgres ends: raise most_storage_gib, or keep finished jobs for less long (retention.jobs_days)."
    }
    transactions = {
      metric      = "MaximumUsedTransactionIDs"
      statistic   = "Maximum"
      comparison  = "GreaterThanThreshold"
      threshold   = 1000000000
      periods     = 5
      description = "Autovacuum is a thousand million transactions behind; at two thousand million Postgres takes no writes."
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "dead_letters" {
  alarm_name        = "${var.name_prefix}-dead-letters"
  alarm_description = "Jobs failed and nobody has dealt with them: `imagefleet dlq list`. Maintenance takes what is acknowledged or replayed out of the queue. ${local.runbooks}/dead-letters.md"

  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  dimensions          = { QueueName = var.queue_names[local.dead_letter] }
  statistic           = "Maximum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  period              = 60
  evaluation_periods  = 15
  datapoints_to_alarm = 15 # an acknowledged one is gone within five minutes
  treat_missing_data  = "notBreaching"

  alarm_actions = var.notify
  ok_actions    = var.notify
}

resource "aws_cloudwatch_metric_alarm" "oldest_message" {
  for_each = local.lanes

  alarm_name        = "${var.name_prefix}-oldest-message-${each.key}"
  alarm_description = "Nobody takes what was announced in the lane ${each.key}: `imagefleet queue stats`, `imagefleet workers list`. ${local.runbooks}/queues.md"

  namespace           = "AWS/SQS"
  metric_name         = "ApproximateAgeOfOldestMessage"
  dimensions          = { QueueName = each.value }
  statistic           = "Maximum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = var.oldest_message_seconds
  period              = 60
  evaluation_periods  = 5
  treat_missing_data  = "notBreaching" # a queue that rests for hours tells nothing

  alarm_actions = var.notify
  ok_actions    = var.notify
}

# CloudFront counts no invalidations; maintenance tells of each that it had to put off.
resource "aws_cloudwatch_log_metric_filter" "invalidations_deferred" {
  count = var.maintenance_log_group == null ? 0 : 1

  name           = "${var.name_prefix}-invalidations-deferred"
  log_group_name = var.maintenance_log_group
  pattern        = "{ $.event = \"invalidation.deferred\" }"

  metric_transformation {
    name          = "InvalidationsDeferred"
    namespace     = var.name_prefix
    value         = "1"
    default_value = "0"
  }
}

resource "aws_cloudwatch_metric_alarm" "invalidations_deferred" {
  count = var.maintenance_log_group == null ? 0 : 1

  alarm_name        = "${var.name_prefix}-invalidations-deferred"
  alarm_description = "CloudFront has taken no invalidations for a quarter of an hour: replaced images are shown, deleted ones are not dark. `imagefleet edge status`. ${local.runbooks}/edge.md"

  namespace           = aws_cloudwatch_log_metric_filter.invalidations_deferred[0].metric_transformation[0].namespace
  metric_name         = aws_cloudwatch_log_metric_filter.invalidations_deferred[0].metric_transformation[0].name
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  period              = 60
  evaluation_periods  = 15
  datapoints_to_alarm = 10 # it is asked again after a minute at the latest
  treat_missing_data  = "notBreaching"

  alarm_actions = var.notify
  ok_actions    = var.notify
}

resource "aws_cloudwatch_metric_alarm" "edge_errors" {
  provider = aws.us_east_1

  alarm_name        = "${var.name_prefix}-edge-errors"
  alarm_description = "More than one of a hundred answers of the edge is a 5xx: is the API away, or the bucket's policy changed? ${local.runbooks}/edge.md"

  namespace           = "AWS/CloudFront"
  metric_name         = "5xxErrorRate"
  dimensions          = { DistributionId = var.distribution_id, Region = "Global" }
  statistic           = "Average"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 1
  period              = 60
  evaluation_periods  = 5
  treat_missing_data  = "notBreaching"

  alarm_actions = var.notify_us_east_1
  ok_actions    = var.notify_us_east_1
}

resource "aws_cloudwatch_metric_alarm" "database" {
  for_each = local.database

  alarm_name        = "${var.name_prefix}-database-${each.key}"
  alarm_description = each.value.description

  namespace           = "AWS/RDS"
  metric_name         = each.value.metric
  dimensions          = { DBInstanceIdentifier = var.database_identifier }
  statistic           = each.value.statistic
  comparison_operator = each.value.comparison
  threshold           = each.value.threshold
  period              = 60
  evaluation_periods  = each.value.periods
  treat_missing_data  = "breaching" # an instance that tells nothing is not well

  alarm_actions = var.notify
  ok_actions    = var.notify
}
