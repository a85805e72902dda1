output "urls" {
  description = "URLs by key: of the lanes, and of `dead-letter`."
  value       = { for key, queue in local.queues : key => queue.id }
}

output "names" {
  description = "Names by key, as metrics have them."
  value       = { for key, queue in local.queues : key => queue.name }
}

output "lane_arns" {
  description = "ARNs of the lanes by key."
  value       = { for key, queue in aws_sqs_queue.lane : key => queue.arn }
}

output "dead_letter_arn" {
  description = "ARN of the queue that failed jobs are announced on."
  value       = aws_sqs_queue.dead_letter.arn
}
