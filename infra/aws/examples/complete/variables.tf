variable "region" {
  description = "The region of queues, buckets and Postgres."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region is the name of a region, such as eu-central-1."
  }
}

variable "name_prefix" {
  description = "What every name begins with."
  type        = string
  default     = "imagefleet"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,29}[a-z0-9]$", var.name_prefix))
    error_message = "name_prefix is 3 to 31 lower case letters, digits and hyphens, and begins with a letter."
  }
}

variable "vpc_id" {
  description = "The VPC of the cluster."
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets of the cluster, in two availability zones or more."
  type        = list(string)
}

variable "route_table_ids" {
  description = "Route tables of those subnets."
  type        = list(string)
}

variable "clients" {
  description = "Security groups of the cluster's nodes, or of the pods, under any names."
  type        = map(string)
}

variable "cluster" {
  description = "The EKS cluster whose pods take the roles: by IRSA where its OIDC provider is named, else by Pod Identity."
  type = object({
    arn               = string
    oidc_provider_arn = optional(string)
  })
}

variable "endpoints" {
  description = "Which endpoints to make in the VPC: leave out what it has already."
  type        = set(string)
  default     = ["sqs", "s3"]
}

variable "api_domain" {
  description = "The host of the API, of which the edge asks stable addresses."
  type        = string
}

variable "domain_names" {
  description = "Names that images are published under; none is CloudFront's own."
  type        = list(string)
  default     = []
}

variable "certificate_arn" {
  description = "A certificate of ACM in us-east-1 for domain_names."
  type        = string
  default     = null
}

variable "kms_key_arn" {
  description = "A key of yours for queues, buckets and Postgres; null is AWS's own of each."
  type        = string
  default     = null
}

variable "postgres_version" {
  description = "Major version of Postgres."
  type        = number
  default     = 18
}

variable "instance_class" {
  description = "How large Postgres is."
  type        = string
  default     = "db.m7g.large"
}

variable "maintenance_log_group" {
  description = "The log group that maintenance writes into, if CloudWatch has its logs."
  type        = string
  default     = null
}

variable "notify" {
  description = "SNS topics of this region that alarms tell."
  type        = list(string)
  default     = []
}

variable "notify_us_east_1" {
  description = "The same in us-east-1, for the edge."
  type        = list(string)
  default     = []
}

variable "destroyable" {
  description = "Whether `terraform destroy` takes every image and every row with it. Only for what is tried out."
  type        = bool
  default     = false
}
