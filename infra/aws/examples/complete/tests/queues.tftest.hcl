mock_provider "aws" {
  source = "./tests/mocks"
}

run "topology" {
  module {
    source = "../../modules/topology"
  }
}

run "queues_are_those_of_the_topology" {
  module {
    source = "../../modules/queues"
  }

  variables {
    name_prefix       = "fleet"
    queues            = run.topology.queues
    long_poll_seconds = run.topology.long_poll_seconds
  }

  assert {
    condition     = keys(output.urls) == keys(run.topology.queues)
    error_message = "Every queue of the topology is made, and no other."
  }

  assert {
    condition = alltrue([for key, queue in aws_sqs_queue.lane : (
      queue.name == "fleet-${key}" &&
      queue.visibility_timeout_seconds == run.topology.queues[key].visibility_seconds &&
      queue.message_retention_seconds == run.topology.queues[key].retention_days * 86400 &&
      queue.receive_wait_time_seconds == run.topology.long_poll_seconds
    )])
    error_message = "A lane is not as the topology describes it."
  }

  assert {
    condition = alltrue([for key, queue in aws_sqs_queue.lane : (
      jsondecode(queue.redrive_policy).maxReceiveCount == run.topology.queues[key].max_receives &&
      jsondecode(queue.redrive_policy).deadLetterTargetArn == aws_sqs_queue.dead_letter.arn
    )])
    error_message = "A lane does not move what is received too often to the dead letters."
  }

  assert {
    condition = alltrue([
      for queue in aws_sqs_queue.lane : queue.message_retention_seconds < aws_sqs_queue.dead_letter.message_retention_seconds
    ])
    error_message = "Dead letters are kept for less long than messages."
  }

  assert {
    condition = alltrue([
      for queue in concat(values(aws_sqs_queue.lane), [aws_sqs_queue.dead_letter]) : queue.sqs_managed_sse_enabled
    ])
    error_message = "A queue is not encrypted."
  }

  assert {
    condition     = keys(aws_sqs_queue_policy.tls_only) == keys(run.topology.queues)
    error_message = "A queue has no policy."
  }

  assert {
    condition = alltrue([for key, policy in aws_sqs_queue_policy.tls_only : contains([
      for statement in jsondecode(policy.policy).Statement :
      [statement.Effect, statement.Principal, statement.Action, try(statement.Condition.Bool["aws:SecureTransport"], ""), statement.Resource]
    ], ["Deny", "*", "sqs:*", "false", key == "dead-letter" ? output.dead_letter_arn : output.lane_arns[key]])])
    error_message = "A queue takes what comes without TLS."
  }

  assert {
    condition = alltrue(flatten([
      for policy in aws_sqs_queue_policy.tls_only : [for statement in jsondecode(policy.policy).Statement : statement.Effect == "Deny"]
    ]))
    error_message = "A queue's policy gives rights: roles do."
  }

  assert {
    condition = (
      jsondecode(aws_sqs_queue_redrive_allow_policy.dead_letter.redrive_allow_policy).redrivePermission == "byQueue" &&
      toset(jsondecode(aws_sqs_queue_redrive_allow_policy.dead_letter.redrive_allow_policy).sourceQueueArns) == toset(values(output.lane_arns))
    )
    error_message = "Others may use these dead letters."
  }
}

run "a_key_of_ones_own_takes_the_place_of_sqs_s" {
  module {
    source = "../../modules/queues"
  }

  variables {
    name_prefix       = "fleet"
    queues            = run.topology.queues
    long_poll_seconds = 20
    kms_key_arn       = "arn:aws:kms:eu-central-1:111122223333:key/k"
  }

  assert {
    condition = alltrue([
      for queue in concat(values(aws_sqs_queue.lane), [aws_sqs_queue.dead_letter]) : queue.kms_master_key_id == var.kms_key_arn
    ])
    error_message = "A queue does not use the key."
  }

  assert {
    condition = alltrue([
      for queue in concat(values(aws_sqs_queue.lane), [aws_sqs_queue.dead_letter]) : queue.kms_data_key_reuse_period_seconds == 300
    ])
    error_message = "Every message asks for the key."
  }
}

run "dead_letters_that_are_kept_for_less_long_than_messages_are_refused" {
  command = plan

  module {
    source = "../../modules/queues"
  }

  variables {
    name_prefix       = "fleet"
    long_poll_seconds = 20
    queues = {
      dead-letter = { visibility_seconds = 60, retention_days = 4 }
      fast        = { visibility_seconds = 150, retention_days = 4, max_receives = 25 }
    }
  }

  expect_failures = [var.queues]
}

run "a_lane_that_gives_messages_up_before_postgres_does_is_refused" {
  command = plan

  module {
    source = "../../modules/queues"
  }

  variables {
    name_prefix       = "fleet"
    long_poll_seconds = 20
    queues = {
      dead-letter = { visibility_seconds = 60, retention_days = 14 }
      fast        = { visibility_seconds = 150, retention_days = 4, max_receives = 5 }
    }
  }

  expect_failures = [var.queues]
}
