variable "name_prefix" {
  description = "What every name begins with."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,29}[a-z0-9]$", var.name_prefix))
    error_message = "name_prefix is 3 to 31 lower case letters, digits and hyphens, and begins with a letter."
  }
}

variable "vpc_id" {
  description = "The VPC of the pods."
  type        = string

  validation {
    condition     = startswith(var.vpc_id, "vpc-")
    error_message = "vpc_id begins with vpc-."
  }
}

variable "subnet_ids" {
  description = "Private subnets in two availability zones or more."
  type        = list(string)

  validation {
    condition     = length(var.subnet_ids) >= 2 && alltrue([for id in var.subnet_ids : startswith(id, "subnet-")])
    error_message = "RDS wants subnets in two availability zones at least."
  }
}

variable "clients" {
  description = "Security groups of the pods or their nodes (or of PgBouncer), under any names: nobody else reaches Postgres."
  type        = map(string)

  validation {
    condition     = length(var.clients) > 0 && alltrue([for id in values(var.clients) : startswith(id, "sg-")])
    error_message = "clients is at least one security group."
  }
}

variable "postgres_version" {
  description = "Major version of Postgres; minor ones come by themselves in the maintenance window."
  type        = number
  default     = 18

  validation {
    condition     = contains([15, 16, 17, 18], var.postgres_version)
    error_message = "Postgres 15 to 18."
  }
}

variable "instance_class" {
  description = "How large the instance is (docs/capacity.md)."
  type        = string
  default     = "db.m7g.large"

  validation {
    condition     = startswith(var.instance_class, "db.")
    error_message = "instance_class begins with db."
  }
}

variable "storage_gib" {
  description = "GiB to begin with."
  type        = number
  default     = 100

  validation {
    condition     = var.storage_gib >= 20
    error_message = "gp3 begins at 20 GiB."
  }
}

variable "most_storage_gib" {
  description = "GiB up to which it grows by itself."
  type        = number
  default     = 1000

  validation {
    condition     = var.most_storage_gib >= var.storage_gib * 1.26
    error_message = "RDS wants most_storage_gib to be 26 % above storage_gib at least."
  }
}

variable "multi_az" {
  description = "Whether a second instance takes over, within a minute or two, when the first is lost."
  type        = bool
  default     = true
}

variable "backup_days" {
  description = "How many days back any moment can be restored."
  type        = number
  default     = 14

  validation {
    condition     = var.backup_days >= 7 && var.backup_days <= 35
    error_message = "backup_days is 7 to 35: without backups there is no point in time to go back to."
  }
}

variable "kms_key_arn" {
  description = "A key of yours that encrypts storage, backups and the administrator's secret; null is that of the account."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null || can(regex("^arn:[a-z-]+:kms:[a-z0-9-]+:[0-9]{12}:key/", var.kms_key_arn))
    error_message = "kms_key_arn is the ARN of a key, not of an alias."
  }
}

variable "deletion_protection" {
  description = "Whether nobody deletes it, and what is deleted all the same leaves a snapshot. Off only for what is tried out."
  type        = bool
  default     = true
}
