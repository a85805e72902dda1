output "queues" {
  description = "Lanes and dead letters: visibility, retention, and after how many receives SQS itself moves a message."
  value       = local.described.queues
}

output "long_poll_seconds" {
  description = "How long a receive waits that says nothing itself."
  value       = local.described.long_poll_seconds
}

output "buckets" {
  description = "Buckets, and what a page of any origin may ask of each where it has leave by a signature or by the edge."
  value       = local.described.buckets
}

output "abort_multipart_after_days" {
  description = "When an upload that was never finished is forgotten."
  value       = local.described.abort_multipart_after_days
}

output "edge" {
  description = "Which bucket the edge serves, which addresses the API answers, and what viewers are told beside that."
  value = {
    served_bucket     = local.described.edge.served_bucket
    pointers_path     = local.described.edge.pointers_path
    headers_policy_id = local.described.edge.headers_policy
  }
}
