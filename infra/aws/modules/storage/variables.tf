variable "name_prefix" {
  description = "What every name begins with; the key of a bucket follows it."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,29}[a-z0-9]$", var.name_prefix))
    error_message = "name_prefix is 3 to 31 lower case letters, digits and hyphens, and begins with a letter."
  }
}

variable "name_suffix" {
  description = "What every name ends with, such as the account's number: names of buckets are the whole world's."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^[a-z0-9-]{0,20}$", var.name_suffix))
    error_message = "name_suffix is at most 20 lower case letters, digits and hyphens."
  }
}

variable "buckets" {
  description = "Buckets by key, as the topology describes them, and what a page of any origin may ask of each."
  type        = map(object({ pages_may = list(string) }))

  validation {
    condition     = alltrue([for key in ["originals", "outputs"] : contains(keys(var.buckets), key)])
    error_message = "There have to be the buckets `originals` and `outputs`."
  }

  validation {
    condition = alltrue(flatten([
      for bucket in var.buckets : [for method in bucket.pages_may : contains(["GET", "HEAD", "POST"], method)]
    ]))
    error_message = "Pages may GET, HEAD and POST; nothing of ours lets them do more."
  }
}

variable "served_bucket" {
  description = "Key of the one bucket that the edge reads."
  type        = string

  validation {
    condition     = var.served_bucket != "originals" && contains(keys(var.buckets), var.served_bucket)
    error_message = "served_bucket is the key of a bucket, and originals are never served."
  }
}

variable "distribution_arn" {
  description = "The one distribution that may read the served bucket."
  type        = string
}

variable "abort_multipart_after_days" {
  description = "When an upload that was never finished is forgotten."
  type        = number

  validation {
    condition     = var.abort_multipart_after_days >= 1
    error_message = "S3 counts whole days, from 1."
  }
}

variable "noncurrent_days" {
  description = "How long an object can be had back that was swept or overwritten. What DELETE asked for is gone at once, every version."
  type        = number
  default     = 30

  validation {
    condition     = var.noncurrent_days >= 1 && var.noncurrent_days <= 365
    error_message = "noncurrent_days is 1 to 365."
  }
}

variable "kms_key_arn" {
  description = "A key of yours that encrypts objects; null is S3's own. Its policy has to let the distribution decrypt."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null || can(regex("^arn:[a-z-]+:kms:[a-z0-9-]+:[0-9]{12}:key/", var.kms_key_arn))
    error_message = "kms_key_arn is the ARN of a key, not of an alias."
  }
}

variable "access_log_bucket" {
  description = "Where S3 writes who read and deleted what; null writes nothing."
  type        = string
  default     = null
}

variable "force_destroy" {
  description = "Whether `terraform destroy` takes every image with it. Only for what is tried out."
  type        = bool
  default     = false
}
