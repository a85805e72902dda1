output "identifier" {
  description = "Of the instance, as metrics have it."
  value       = aws_db_instance.postgres.identifier
}

output "host" {
  description = "Where Postgres is."
  value       = aws_db_instance.postgres.address
}

output "port" {
  description = "The port of Postgres."
  value       = aws_db_instance.postgres.port
}

output "administrator_secret_arn" {
  description = "The secret of Secrets Manager that `imagefleet migrate --roles` is given, and nothing else."
  value       = one(aws_db_instance.postgres.master_user_secret[*].secret_arn)
}
