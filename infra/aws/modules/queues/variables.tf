variable "name_prefix" {
  description = "What every name begins with; the key of a queue follows it."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,29}[a-z0-9]$", var.name_prefix))
    error_message = "name_prefix is 3 to 31 lower case letters, digits and hyphens, and begins with a letter."
  }
}

variable "queues" {
  description = "Queues by key, as the topology describes them: `dead-letter`, and a lane under every other key."
  type = map(object({
    visibility_seconds = number
    retention_days     = number
    max_receives       = optional(number)
  }))

  validation {
    condition     = contains(keys(var.queues), "dead-letter") && length(var.queues) > 1
    error_message = "There has to be a queue `dead-letter`, and a lane beside it."
  }

  validation {
    # A queue of dead letters lets no more than ten others use it by name.
    condition     = length(var.queues) <= 11
    error_message = "More than ten lanes cannot share the dead letters."
  }

  validation {
    # A message that SQS moves keeps the age it had: with less time than its lane it could be gone when it arrives.
    condition = alltrue([
      for key, queue in var.queues :
      queue.retention_days < try(var.queues["dead-letter"].retention_days, 0) if key != "dead-letter"
    ])
    error_message = "Dead letters have to be kept longer than any lane keeps its messages."
  }

  validation {
    condition     = alltrue([for queue in var.queues : queue.retention_days >= 1 && queue.retention_days <= 14])
    error_message = "SQS keeps messages for 1 to 14 days."
  }

  validation {
    condition     = alltrue([for queue in var.queues : queue.visibility_seconds >= 30 && queue.visibility_seconds <= 43200])
    error_message = "Visibility is 30 to 43,200 seconds: less than a reply may take brings a message to a second worker."
  }

  validation {
    # Postgres counts attempts. Losing a claim, coming early and draining are receives too.
    condition = alltrue([
      for key, queue in var.queues :
      key == "dead-letter" ? queue.max_receives == null : try(queue.max_receives >= 20 && queue.max_receives <= 1000, false)
    ])
    error_message = "A lane has max_receives from 20 to 1,000, and dead letters have none."
  }
}

variable "long_poll_seconds" {
  description = "How long a receive waits that says nothing itself."
  type        = number

  validation {
    condition     = var.long_poll_seconds >= 1 && var.long_poll_seconds <= 20
    error_message = "SQS waits for 1 to 20 seconds; without a wait every empty look is billed."
  }
}

variable "kms_key_arn" {
  description = "A key of yours that encrypts messages; null is SQS's own, which costs nothing and needs no rights."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null || can(regex("^arn:[a-z-]+:kms:[a-z0-9-]+:[0-9]{12}:key/", var.kms_key_arn))
    error_message = "kms_key_arn is the ARN of a key, not of an alias."
  }
}
