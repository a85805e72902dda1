output "distribution_id" {
  description = "The distribution that maintenance invalidates."
  value       = aws_cloudfront_distribution.edge.id
}

output "distribution_arn" {
  description = "The same, for policies."
  value       = aws_cloudfront_distribution.edge.arn
}

output "domain_name" {
  description = "CloudFront's own name of it, which names of yours are an alias of."
  value       = aws_cloudfront_distribution.edge.domain_name
}

output "public_base_url" {
  description = "The host of every published address."
  value       = "https://${concat(var.domain_names, [aws_cloudfront_distribution.edge.domain_name])[0]}"
}
