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
    condition     = { for parameter in aws_db_parameter_group.postgres.parameter : parameter.name => parameter.value }["rds.force_ssl"] == "1"
    error_message = "Postgres takes connections without TLS."
  }

  assert {
    condition     = { for parameter in aws_db_parameter_group.postgres.parameter : parameter.name => parameter.value }["log_parameter_max_length"] == "0"
    error_message = "Values of tenants are in the log."
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
