variable "name_prefix" {
  description = "What the names of all roles begin with; the process follows it."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,29}[a-z0-9]$", var.name_prefix))
    error_message = "name_prefix is 3 to 31 lower case letters, digits and hyphens, and begins with a letter."
  }
}

variable "queue_arns" {
  description = "The queues by lane, without the dead letters."
  type        = map(string)

  validation {
    condition     = length(var.queue_arns) > 0 && !contains(keys(var.queue_arns), "dead-letter")
    error_message = "Name the queue of each lane here, and the dead letters by dead_letter_queue_arn: other rights are given on them."
  }
}

variable "dead_letter_queue_arn" {
  description = "The dead-letter queue of all lanes."
  type        = string
}

variable "bucket_arns" {
  description = "The buckets by what they hold: originals, outputs."
  type        = map(string)

  validation {
    condition     = toset(keys(var.bucket_arns)) == toset(["originals", "outputs"])
    error_message = "Name the buckets of originals and outputs, and no others."
  }
}

variable "distribution_arn" {
  description = "The CloudFront distribution; null where there is none, and nothing is invalidated."
  type        = string
  default     = null
}

variable "kms_key_arn" {
  description = "The key that encrypts queues and buckets; null where AWS manages it."
  type        = string
  default     = null
}

variable "cluster" {
  description = <<-EOT
    The EKS cluster whose pods take these roles, by its ARN. With the ARN of its OIDC provider they
    do so by IRSA, and each service account is annotated with its role; without, by EKS Pod Identity,
    whose associations are made here.
  EOT
  type = object({
    arn               = string
    oidc_provider_arn = optional(string)
  })

  validation {
    condition     = can(regex("^arn:[a-z-]+:eks:[a-z0-9-]+:[0-9]{12}:cluster/.+$", var.cluster.arn))
    error_message = "arn is that of an EKS cluster: arn:aws:eks:REGION:ACCOUNT:cluster/NAME."
  }

  validation {
    condition = (
      var.cluster.oidc_provider_arn == null ||
      can(regex("^arn:[a-z-]+:iam::[0-9]{12}:oidc-provider/.+$", var.cluster.oidc_provider_arn))
    )
    error_message = "oidc_provider_arn is that of IAM: arn:aws:iam::ACCOUNT:oidc-provider/ISSUER."
  }
}

variable "service_accounts" {
  description = "Which service account of which namespace is whose process, where it is not the usual one."
  type        = map(object({ namespace = string, name = string }))
  default     = {}

  validation {
    condition     = alltrue([for process in keys(var.service_accounts) : contains(["api", "worker", "maintenance", "migrations", "keda"], process)])
    error_message = "Processes are api, worker, maintenance, migrations and keda."
  }
}

variable "permissions_boundary" {
  description = "The ARN of a policy that bounds all roles, where the account demands one."
  type        = string
  default     = null
}

variable "tags" {
  description = "Tags of everything that can have some."
  type        = map(string)
  default     = {}
}
