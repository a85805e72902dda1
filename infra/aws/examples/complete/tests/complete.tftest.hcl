mock_provider "aws" {
  source = "./tests/mocks"
}

mock_provider "aws" {
  alias  = "us_east_1"
  source = "./tests/mocks"
}

variables {
  region          = "eu-central-1"
  vpc_id          = "vpc-1"
  subnet_ids      = ["subnet-1", "subnet-2"]
  route_table_ids = ["rtb-1"]
  clients         = { nodes = "sg-1" }
  api_domain      = "api.example.com"
  cluster         = { arn = "arn:aws:eks:eu-central-1:111122223333:cluster/c" }
}

run "each_process_is_given_what_it_reads" {
  assert {
    condition     = keys(output.environment) == ["api", "maintenance", "worker"]
    error_message = "A process has no environment."
  }

  assert {
    condition = alltrue([for environment in output.environment : length(setsubtract([
      "AWS_REGION", "CLOUDFRONT_CACHE_TAGS", "CLOUDFRONT_DISTRIBUTION_ID", "DEAD_LETTER_QUEUE_URL", "FAST_QUEUE_URL",
      "GENERAL_QUEUE_URL", "ORIGINALS_BUCKET", "OUTPUTS_BUCKET", "QUARANTINE_QUEUE_URL",
    ], keys(environment))) == 0])
    error_message = "A variable is missing."
  }

  assert {
    condition     = output.environment.api.PUBLIC_BASE_URL == "https://d111111abcdef8.cloudfront.net"
    error_message = "The API publishes under another name than the edge has."
  }
}

run "nothing_of_value_goes_with_a_destroy" {
  assert {
    condition     = !var.destroyable
    error_message = "It is destroyable by default."
  }

  assert {
    condition     = output.environment.worker.CLOUDFRONT_DISTRIBUTION_ID == "E2EXAMPLE"
    error_message = "Processes are told of another distribution than there is."
  }
}

run "alarms_watch_dead_letters_age_the_edge_and_postgres" {
  module {
    source = "../../modules/alarms"
  }

  providers = {
    aws           = aws
    aws.us_east_1 = aws.us_east_1
  }

  variables {
    name_prefix           = "fleet"
    queue_names           = { dead-letter = "fleet-dead-letter", fast = "fleet-fast", general = "fleet-general" }
    distribution_id       = "E2EXAMPLE"
    database_identifier   = "fleet-postgres"
    maintenance_log_group = "/fleet/maintenance"
    notify                = ["arn:aws:sns:eu-central-1:111122223333:oncall"]
  }

  assert {
    condition = (
      aws_cloudwatch_metric_alarm.dead_letters.dimensions.QueueName == "fleet-dead-letter" &&
      aws_cloudwatch_metric_alarm.dead_letters.threshold == 0
    )
    error_message = "Dead letters lie there and nobody is told."
  }

  assert {
    condition     = [for alarm in aws_cloudwatch_metric_alarm.oldest_message : alarm.dimensions.QueueName] == ["fleet-fast", "fleet-general"]
    error_message = "A lane is not watched."
  }

  assert {
    condition = [
      for alarm in concat([aws_cloudwatch_metric_alarm.dead_letters, aws_cloudwatch_metric_alarm.oldest_message["fast"], aws_cloudwatch_metric_alarm.edge_errors]) :
      "${alarm.namespace} ${alarm.metric_name} ${alarm.statistic} ${alarm.comparison_operator} ${alarm.threshold} ${alarm.treat_missing_data}"
      ] == [
      "AWS/SQS ApproximateNumberOfMessagesVisible Maximum GreaterThanThreshold 0 notBreaching",
      "AWS/SQS ApproximateAgeOfOldestMessage Maximum GreaterThanThreshold ${var.oldest_message_seconds} notBreaching",
      "AWS/CloudFront 5xxErrorRate Average GreaterThanThreshold 1 notBreaching",
    ]
    error_message = "An alarm looks at something that there is not, or not at what it says."
  }

  assert {
    condition = { for key, alarm in aws_cloudwatch_metric_alarm.database : key => "${alarm.namespace} ${alarm.metric_name} ${alarm.comparison_operator} ${alarm.threshold} ${alarm.treat_missing_data}" } == {
      cpu          = "AWS/RDS CPUUtilization GreaterThanThreshold 85 breaching"
      connections  = "AWS/RDS DatabaseConnections GreaterThanThreshold ${var.most_connections} breaching"
      storage      = "AWS/RDS FreeStorageSpace LessThanThreshold ${var.least_storage_gib * 1073741824} breaching"
      transactions = "AWS/RDS MaximumUsedTransactionIDs GreaterThanThreshold 1000000000 breaching"
    }
    error_message = "An alarm of Postgres looks at something that there is not, or not at what it says."
  }

  assert {
    condition = (
      aws_cloudwatch_metric_alarm.edge_errors.dimensions == tomap({ DistributionId = "E2EXAMPLE", Region = "Global" }) &&
      aws_cloudwatch_metric_alarm.invalidations_deferred[0].metric_name == aws_cloudwatch_log_metric_filter.invalidations_deferred[0].metric_transformation[0].name &&
      aws_cloudwatch_metric_alarm.invalidations_deferred[0].namespace == aws_cloudwatch_log_metric_filter.invalidations_deferred[0].metric_transformation[0].namespace
    )
    error_message = "The edge, or what it refuses, is looked for in the wrong place."
  }

  assert {
    condition     = aws_cloudwatch_log_metric_filter.invalidations_deferred[0].pattern == "{ $.event = \"invalidation.deferred\" }"
    error_message = "What CloudFront refuses is not counted."
  }

  assert {
    condition     = [for alarm in aws_cloudwatch_metric_alarm.database : alarm.dimensions.DBInstanceIdentifier] == [for _ in range(4) : "fleet-postgres"]
    error_message = "Postgres is not watched."
  }

  assert {
    condition = alltrue([
      for alarm in concat(
        [aws_cloudwatch_metric_alarm.dead_letters],
        values(aws_cloudwatch_metric_alarm.oldest_message),
        aws_cloudwatch_metric_alarm.invalidations_deferred,
        values(aws_cloudwatch_metric_alarm.database),
      ) : alarm.alarm_actions == toset(var.notify) && alarm.ok_actions == toset(var.notify)
    ])
    error_message = "An alarm tells nobody."
  }
}
