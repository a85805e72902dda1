output "names" {
  description = "Names of the buckets by key."
  value       = { for key, bucket in aws_s3_bucket.bucket : key => bucket.id }
}

output "arns" {
  description = "ARNs of the buckets by key."
  value       = { for key, bucket in aws_s3_bucket.bucket : key => bucket.arn }
}

output "served_domain" {
  description = "The domain of the served bucket in its region, for the edge."
  value       = aws_s3_bucket.bucket[var.served_bucket].bucket_regional_domain_name
}
