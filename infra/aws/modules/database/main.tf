resource "aws_db_subnet_group" "postgres" {
  name        = "${var.name_prefix}-postgres"
  description = "Where Postgres of ${var.name_prefix} is"
  subnet_ids  = var.subnet_ids
}

resource "aws_security_group" "postgres" {
  name_prefix = "${var.name_prefix}-postgres-"
  description = "Who may speak to Postgres"
  vpc_id      = var.vpc_id

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "postgres" {
  for_each = var.clients

  security_group_id            = aws_security_group.postgres.id
  description                  = "Postgres from ${each.key}"
  referenced_security_group_id = each.value
  ip_protocol                  = "tcp"
  from_port                    = 5432
  to_port                      = 5432
}

locals {
  parameters = {
    "rds.force_ssl"              = 1
    "ssl_min_protocol_version"   = "TLSv1.2"
    "password_encryption"        = "scram-sha-256"
    "log_statement"              = "ddl"
    "log_lock_waits"             = 1
    "log_min_duration_statement" = 1000
    # What a slow statement was given is a tenant's, and none of a log's business.
    "log_parameter_max_length"          = 0
    "log_parameter_max_length_on_error" = 0
  }
}

resource "aws_db_parameter_group" "postgres" {
  name_prefix = "${var.name_prefix}-postgres${var.postgres_version}-"
  description = "TLS for everybody, and logs without values"
  family      = "postgres${var.postgres_version}"

  dynamic "parameter" {
    for_each = local.parameters

    content {
      name         = parameter.key
      value        = parameter.value
      apply_method = "immediate"
    }
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_db_instance" "postgres" {
  #checkov:skip=CKV_AWS_161: Processes log in by passwords that are checked by SCRAM, each under a role of its own; tokens of IAM last for a quarter of an hour, and no pool asks for new ones.
  #checkov:skip=CKV_AWS_354: Performance Insights is encrypted with the account's key unless kms_key_arn names another.
  #checkov:skip=CKV_AWS_118: What the product says of Postgres is in its own metrics; CloudWatch's are what the alarms need.
  #checkov:skip=CKV2_AWS_69: rds.force_ssl is 1, among the parameters that are written as one map; the tests hold it.
  #checkov:skip=CKV_AWS_157: multi_az is on; off only where somebody says so.
  #checkov:skip=CKV_AWS_293: deletion_protection is on; off only where somebody says so.
  identifier     = "${var.name_prefix}-postgres"
  engine         = "postgres"
  engine_version = tostring(var.postgres_version)
  instance_class = var.instance_class
  multi_az       = var.multi_az

  allocated_storage     = var.storage_gib
  max_allocated_storage = var.most_storage_gib
  storage_type          = "gp3"
  storage_encrypted     = true
  kms_key_id            = var.kms_key_arn

  # No password is in the state: Secrets Manager makes it, and `imagefleet migrate --roles` uses it once.
  username                      = "administrator"
  manage_master_user_password   = true
  master_user_secret_kms_key_id = var.kms_key_arn

  db_subnet_group_name   = aws_db_subnet_group.postgres.name
  vpc_security_group_ids = [aws_security_group.postgres.id]
  publicly_accessible    = false
  parameter_group_name   = aws_db_parameter_group.postgres.name

  backup_retention_period   = var.backup_days
  delete_automated_backups  = false
  copy_tags_to_snapshot     = true
  deletion_protection       = var.deletion_protection
  skip_final_snapshot       = !var.deletion_protection
  final_snapshot_identifier = "${var.name_prefix}-postgres-final"

  auto_minor_version_upgrade      = true
  allow_major_version_upgrade     = false
  apply_immediately               = false
  performance_insights_enabled    = true
  performance_insights_kms_key_id = var.kms_key_arn
  enabled_cloudwatch_logs_exports = ["postgresql", "upgrade"]
}
