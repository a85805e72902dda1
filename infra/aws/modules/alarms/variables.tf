variable "name_prefix" {
  description = "What every name begins with."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,29}[a-z0-9]$", var.name_prefix))
    error_message = "name_prefix is 3 to 31 lower case letters, digits and hyphens, and begins with a letter."
  }
}

variable "queue_names" {
  description = "Names of the queues by key, `dead-letter` among them."
  type        = map(string)

  validation {
    condition     = contains(keys(var.queue_names), "dead-letter")
    error_message = "queue_names has to have `dead-letter`."
  }
}

variable "distribution_id" {
  description = "The distribution whose errors are watched."
  type        = string
}

variable "database_identifier" {
  description = "The instance of RDS that is watched."
  type        = string
}

variable "maintenance_log_group" {
  description = "The log group that maintenance writes into, if CloudWatch has its logs: what CloudFront refuses is told there. Null leaves that alarm out."
  type        = string
  default     = null
}

variable "notify" {
  description = "SNS topics of this region that are told when an alarm begins and when it ends."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.notify : can(regex("^arn:[a-z-]+:sns:[a-z0-9-]+:[0-9]{12}:", arn))])
    error_message = "notify is a list of ARNs of SNS topics."
  }
}

variable "notify_us_east_1" {
  description = "The same in us-east-1, where CloudFront's metrics are."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.notify_us_east_1 : can(regex("^arn:[a-z-]+:sns:us-east-1:[0-9]{12}:", arn))])
    error_message = "notify_us_east_1 is a list of ARNs of SNS topics in us-east-1."
  }
}

variable "oldest_message_seconds" {
  description = "How old the oldest message of a lane may be. Announced is only what workers have room for, so minutes mean that they do not come."
  type        = number
  default     = 900

  validation {
    condition     = var.oldest_message_seconds >= 60
    error_message = "oldest_message_seconds is at least 60."
  }
}

variable "most_connections" {
  description = "How many connections to Postgres are worth a look: some 80 % of its max_connections."
  type        = number
  default     = 400

  validation {
    condition     = var.most_connections > 0
    error_message = "most_connections is above 0."
  }
}

variable "least_storage_gib" {
  description = "How much storage Postgres has to have left."
  type        = number
  default     = 20

  validation {
    condition     = var.least_storage_gib > 0
    error_message = "least_storage_gib is above 0."
  }
}
