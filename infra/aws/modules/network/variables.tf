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
  description = "Subnets in which SQS gets an address: one an availability zone that pods are in."
  type        = list(string)

  validation {
    condition     = length(var.subnet_ids) > 0 && alltrue([for id in var.subnet_ids : startswith(id, "subnet-")])
    error_message = "subnet_ids is at least one subnet."
  }
}

variable "route_table_ids" {
  description = "Route tables of the pods' subnets, which lead to S3 from then on."
  type        = list(string)

  validation {
    condition     = length(var.route_table_ids) > 0 && alltrue([for id in var.route_table_ids : startswith(id, "rtb-")])
    error_message = "route_table_ids is at least one route table."
  }
}

variable "clients" {
  description = "Security groups of the pods or their nodes, under any names: they may speak to the endpoints."
  type        = map(string)

  validation {
    condition     = length(var.clients) > 0 && alltrue([for id in values(var.clients) : startswith(id, "sg-")])
    error_message = "clients is at least one security group."
  }
}

variable "endpoints" {
  description = "Which endpoints to make; leave out what the VPC has already."
  type        = set(string)
  default     = ["sqs", "s3"]

  validation {
    condition     = length(setsubtract(var.endpoints, ["sqs", "s3"])) == 0
    error_message = "endpoints is of sqs and s3."
  }
}

variable "other_readable_arns" {
  description = "Objects of other accounts that may be read through the endpoint of S3, beside the layers of ECR: such as packages of the nodes' system."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.other_readable_arns : can(regex("^arn:[a-z-]+:s3:::[^*]+/", arn))])
    error_message = "other_readable_arns are ARNs of objects in buckets that are named."
  }
}

variable "set_account_metadata_defaults" {
  description = "Whether every instance that anybody starts in this region of the account has IMDSv2 with one hop, unless it says otherwise."
  type        = bool
  default     = false
}
