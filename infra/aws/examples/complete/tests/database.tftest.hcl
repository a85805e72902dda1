mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name_prefix = "fleet"
  vpc_id      = "vpc-1"
  subnet_ids  = ["subnet-1", "subnet-2"]
  clients     = { nodes = "sg-1" }
}

run "postgres_is_private_encrypted_and_can_be_put_back" {
  module {
    source = "../../modules/database"
  }

  assert {
    condition = { for parameter in aws_db_parameter_group.postgres.parameter : parameter.name => parameter.value } == {
      "rds.force_ssl"                     = "1"
      "ssl_min_protocol_version"          = "TLSv1.2"
      "password_encryption"               = "scram-sha-256"
      "log_statement"                     = "ddl"
      "log_lock_waits"                    = "1"
      "log_min_duration_statement"        = "1000"
      "log_parameter_max_length"          = "0"
      "log_parameter_max_length_on_error" = "0"
    }
    error_message = "Postgres takes connections without TLS, or writes down what tenants sent."
  }

  assert {
    condition     = aws_db_instance.postgres.parameter_group_name == aws_db_parameter_group.postgres.name
    error_message = "The parameters are not used."
  }

  assert {
    condition     = !aws_db_instance.postgres.publicly_accessible && aws_db_instance.postgres.storage_encrypted
    error_message = "Postgres is public, or its storage can be read."
  }

  assert {
    condition = alltrue([
      for rule in aws_vpc_security_group_ingress_rule.postgres : rule.referenced_security_group_id == "sg-1" && rule.from_port == 5432 && rule.to_port == 5432
    ])
    error_message = "Others than the clients reach Postgres."
  }

  assert {
    condition     = aws_db_instance.postgres.backup_retention_period >= 7 && !aws_db_instance.postgres.delete_automated_backups
    error_message = "There is no point in time to go back to."
  }

  assert {
    condition     = aws_db_instance.postgres.deletion_protection && !aws_db_instance.postgres.skip_final_snapshot
    error_message = "Postgres can be deleted without a trace."
  }

  assert {
    condition     = aws_db_instance.postgres.manage_master_user_password && aws_db_instance.postgres.password == null
    error_message = "A password is in the state."
  }

  assert {
    condition     = aws_db_instance.postgres.multi_az && aws_db_instance.postgres.engine_version == "18" && aws_db_parameter_group.postgres.family == "postgres18"
    error_message = "It has no second instance, or the wrong version."
  }
}

run "nothing_but_patches_comes_by_itself_and_all_is_in_its_networks" {
  module {
    source = "../../modules/database"
  }

  assert {
    condition = (
      aws_db_instance.postgres.auto_minor_version_upgrade &&
      !aws_db_instance.postgres.allow_major_version_upgrade &&
      !aws_db_instance.postgres.apply_immediately
    )
    error_message = "Patches are missed, or a release of Postgres comes amid the day."
  }

  assert {
    condition = (
      aws_db_instance.postgres.db_subnet_group_name == aws_db_subnet_group.postgres.name &&
      toset(aws_db_subnet_group.postgres.subnet_ids) == toset(var.subnet_ids) &&
      aws_db_instance.postgres.vpc_security_group_ids == toset([aws_security_group.postgres.id])
    )
    error_message = "Postgres is somewhere else than in these subnets, or not behind its group."
  }

  assert {
    condition = (
      toset(aws_db_instance.postgres.enabled_cloudwatch_logs_exports) == toset(["postgresql", "upgrade"]) &&
      aws_db_instance.postgres.performance_insights_enabled
    )
    error_message = "Nobody sees what Postgres does."
  }
}

run "no_backups_are_refused" {
  command = plan

  module {
    source = "../../modules/database"
  }

  variables {
    backup_days = 0
  }

  expect_failures = [var.backup_days]
}

run "a_version_that_the_product_is_not_tested_on_is_refused" {
  command = plan

  module {
    source = "../../modules/database"
  }

  variables {
    postgres_version = 14
  }

  expect_failures = [var.postgres_version]
}
